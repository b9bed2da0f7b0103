"""The flat vector of a model's tensors, updates as such vectors, and models that cannot be trained.

`Noised` values are all that a method's ``post`` and ``server`` get, and the engine alone makes
them. So a raw update cannot reach the released model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.tensors import numbers, split

Params = dict[str, Tensor]
State = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Layout:
    """Names and shapes of the tensors of an update, in the order of its flat vector.

    Attributes:
        names: of the tensors. shapes: of the tensors.
        sizes: how many of a tensor's coordinates are in the vector (fewer under a mask).
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, params: Mapping[str, Tensor]) -> Layout:
        """Return the layout of a dictionary of tensors."""
        shapes = tuple(tensor.shape for tensor in params.values())
        return cls(tuple(params), shapes, tuple(math.prod(shape) for shape in shapes))

    @property
    def size(self) -> int:
        """Length of the flat vector, d."""
        return sum(self.sizes)

    @property
    def segments(self) -> list[tuple[int, int]]:
        """First coordinate of each tensor, and the one after its last."""
        ends = list(itertools.accumulate(self.sizes))
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def restrict(self, kept: Tensor) -> Layout:
        """Return the layout of the coordinates ``kept`` (int64 [k], ascending)."""
        ends = torch.tensor(list(itertools.accumulate(self.sizes)), device=kept.device)
        below: list[int] = numbers(torch.searchsorted(kept, ends))
        sizes = [end - start for start, end in itertools.pairwise([0, *below])]
        return Layout(self.names, self.shapes, tuple(sizes))

    def flatten(self, params: Mapping[str, Tensor]) -> Tensor:
        """Return one vector [d] of tensors, or [c, d] of tensors with a leading dimension c."""
        tensors = [params[name] for name in self.names]
        extra = tensors[0].ndim - len(self.shapes[0])
        return torch.cat([tensor.reshape(*tensor.shape[:extra], -1) for tensor in tensors], dim=-1)

    def unflatten(self, vector: Tensor) -> Params:
        """Return views of a vector [d] in the shapes of the tensors, the inverse of `flatten`."""
        parts = split(vector, list(self.sizes))
        lead = vector.shape[:-1]
        return {
            name: part.reshape(lead + shape)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }


def type_of_updates(params: Mapping[str, Tensor]) -> torch.dtype:
    """Return the type of a vector that holds all of them without rounding, as `Layout.flatten`.

    All rows of updates have this type: the training of one example must not decide how others are
    rounded.
    """
    return reduce(torch.promote_types, (value.dtype for value in params.values()))


def copies(tensors: Mapping[str, Tensor]) -> Params:
    """Return the same values in storage of their own."""
    return {name: value.detach().clone() for name, value in tensors.items()}


def trainable(model: nn.Module) -> Params:
    """Return the tensors that require a gradient, or refuse a model that cannot be trained here.

    Batch norm and its like keep means of raw data that no noise would cover. In eval mode with
    frozen parameters such a norm is a fixed affine map, and is allowed.
    """
    for name, module in modules_of(model):
        if keeps_statistics(module) and not is_frozen(module):
            raise Unsupported(
                f"{name or 'the model'} ({type(module).__name__}) keeps running statistics of the "
                "clients' data, which are neither bounded nor noised. Use group or layer norm, or "
                "freeze this norm before the run: norm.eval().requires_grad_(False)"
            )
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if not is_lazy(value) and value.is_inference():
            raise Unsupported(f"{name} was made inside torch.inference_mode. Make it outside")
    params: Params = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not params:
        raise Unsupported("the model has no parameter that requires a gradient")
    for name, value in params.items():
        if is_lazy(value):
            raise Unsupported(f"parameter {name} has no shape yet. Call the model once before")
        if value.dtype not in (torch.float32, torch.float64):
            raise Unsupported(
                f"parameter {name} is {value.dtype}. Norms and sums need float32 or float64 "
                "parameters. For faster local steps use SGD(precision='bfloat16')"
            )
        if not bool(torch.isfinite(value).all()):
            raise InvalidParameter("model", name, "every parameter is finite at the start")
    return params


def keeps_statistics(module: nn.Module) -> bool:
    """Return whether a layer has running statistics, as batch norm has by default."""
    return isinstance(getattr(module, "running_mean", None), Tensor)


def is_frozen(module: nn.Module) -> bool:
    """Return whether a layer is in eval mode and none of its parameters is trained."""
    return not module.training and not any(value.requires_grad for value in module.parameters())


def set_training_mode(model: nn.Module) -> None:
    """Put a model in training mode, except for its frozen norms.

    `trainable` has admitted running statistics in frozen norms alone. In training mode such a norm
    would normalize by the batch and write the means of raw data to its buffers.
    """
    model.train()
    for _, module in modules_of(model):
        if keeps_statistics(module):
            module.eval()


@contextmanager
def forgetting(model: nn.Module) -> Generator[None]:
    """Give each module back its attributes at the end, such as a hidden state that it keeps.

    The next client would compute with what the last one has left. Tensors are not copied.
    """
    before = [(vars(module), dict(vars(module))) for _, module in modules_of(model)]
    try:
        yield
    finally:
        for now, own in before:
            now.clear()
            now.update(own)


def modules_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules of a model, itself included, by name."""
    return list(cast("Any", model).named_modules())


def check_tensors(params: Mapping[str, Tensor] | Tensor, layout: Layout, what: str) -> None:
    """Refuse a dictionary of tensors that is no update of this layout."""
    if isinstance(params, Tensor):
        rule = f"it is tensors by name: {', '.join(layout.names)}"
        raise InvalidParameter(what, f"a tensor {tuple(params.shape)}", rule)
    if tuple(params) != layout.names:
        rule = f"its tensors are {', '.join(layout.names)}, in this order"
        raise InvalidParameter(what, ", ".join(params), rule)
    for (name, value), shape in zip(params.items(), layout.shapes, strict=True):
        if not value.is_floating_point():
            raise Unsupported(
                f"{what}: {name} is {value.dtype}. Only floating-point tensors can be bounded and "
                "noised. Leave counters out of the update"
            )
        if value.shape != shape:
            raise InvalidParameter(what, tuple(value.shape), f"{name} has shape {tuple(shape)}")


@dataclass(frozen=True, slots=True, eq=False)
class Noised:
    """The released aggregate of one round. Public: computing with it costs nothing more.

    Attributes:
        vector: noisy sum of the updates / planned cohort size, shape [d], in the dtype of the
            parameters. Coordinates outside the round's mask are zero.
        layout: of the vector.
        std: standard deviation of the noise on each kept coordinate of ``vector`` as it was
            released (`map` does not change it).
        kept: the mask's coordinates, int64 [k], or None for all.
        round: 1, 2, ...
        lr: local learning rate of the round.
        steps: local steps where they are the same for all clients by the plan, else None.
        server_lr: of the run.
        cohort_size: planned number of clients in the round (Poisson: q N), the denominator.
        sampling_rate: planned share of the clients, in (0, 1].
    """

    vector: Tensor
    layout: Layout
    std: float
    kept: Tensor | None
    round: int
    lr: float
    steps: int | None
    server_lr: float
    cohort_size: float
    sampling_rate: float

    @property
    def tensors(self) -> Params:
        """Return the vector in the shapes of the model's tensors (views)."""
        return self.layout.unflatten(self.vector)

    def map(self, change: Callable[[Tensor], Tensor]) -> Noised:
        """Return the aggregate with its whole vector changed, [d] -> [d].

        Raises:
            InvalidParameter: the result has another shape.
        """
        vector = change(self.vector)
        if vector.shape != self.vector.shape:
            rule = f"post-processing keeps the shape {tuple(self.vector.shape)}"
            raise InvalidParameter("post", tuple(vector.shape), rule)
        return replace(self, vector=vector)

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Noised:
        """Return the aggregate with each tensor changed, given and returned in its own shape."""
        parts = {name: change(tensor) for name, tensor in self.tensors.items()}
        return self.map(lambda _: self.layout.flatten(parts))


def scatter(values: Tensor, kept: Tensor | None, size: int) -> Tensor:
    """Return [..., size] with ``values`` [..., k] at the coordinates ``kept``, zero elsewhere."""
    if kept is None:
        return values
    return values.new_zeros(*values.shape[:-1], size).index_copy_(-1, kept, values)
