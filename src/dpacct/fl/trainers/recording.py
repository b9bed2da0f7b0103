"""What a group computes, recorded once and replayed: the same kernels without the program around.

`torch.func` calls the model for every group anew, and looks up for each operation how it is done
for many examples. Neither depends on the examples: inside vmap, a model that asks for a value
fails. So the operations are recorded as a list, and from then on called one after the other.

Rule 1: a replay gives the bits that `torch.func` gives, so nobody can tell when it began; what
keeps examples apart is vmap's choice of operations. Rule 2: a recording holds for one model, as
`dpacct.fl.guards.watch` noted it, one rate, one mode of torch and one kind of arguments; with
anything else it is forgotten. Rule 3: what is recorded sees made-up numbers in place of examples,
and torch as a run has it: some operations choose a kernel by whether gradients are on. Rule 4:
a recording consists of torch's own operations, none of which writes to what it is given: a replay
calls no code of the model, and leaves nothing behind. Rule 5: what cannot be a list of operations
is not recorded: random numbers, results whose shape depends on values, a parameter that Python
reads (a comparison with other parameters shows that one).
"""

from __future__ import annotations

import operator
import pickle
import random
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.func import functionalize

from dpacct.fl.clients import ClientData
from dpacct.fl.layout import Params
from dpacct.fl.tensors import forked_generators
from dpacct.fl.trainers.failures import Trial


class Group(NamedTuple):
    """What a group is computed from: parameters, inputs, targets, a seed for each example."""

    anchor: Params
    inputs: Tensor
    targets: Tensor
    seeds: Tensor

    @classmethod
    def of(cls, anchor: Params, data: ClientData, seeds: Tensor) -> Group:
        """Of examples."""
        return cls(anchor, data.inputs, data.targets, seeds)

    @property
    def kind(self) -> tuple[object, ...]:
        """All but the values, and how torch would compute with them."""
        tensors = (*self[1:], *self.anchor.values())
        kinds = [(value.dtype, value.device, value.shape, value.stride()) for value in tensors]
        device = self.inputs.device.type
        auto = _torch.is_autocast_enabled(device), _torch.get_autocast_dtype(device)
        return (*auto, *_surroundings(), *self.anchor, *kinds)


# Parameters, inputs, targets and seeds, to what is computed for each example.
Compute = Callable[[Params, Tensor, Tensor, Tensor], Params]

# Groups of a small network that save what a recording takes, about.
_WORTH = 16
# Below so many channels, images lie no better with these last.
_CHANNELS = 8
# By how much parameters are changed when a recording is compared.
_OTHER = 0.75
_torch: Any = torch
_layers: Any = import_module("torch.nn.modules.module")
_HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)
_pooling: Any = _torch.ops.aten.max_pool2d_with_indices.default
_UNFIT = {
    _torch.Tag.data_dependent_output,
    _torch.Tag.dynamic_output_shape,
    _torch.Tag.nondeterministic_seeded,
}


@dataclass(slots=True, eq=False)
class Recorder:
    """Computes groups, and records what it computes often.

    Attributes:
        basis: of the last group that was computed. seen: how many there were like it.
        recording: of such groups, None where there is none.
    """

    basis: tuple[object, ...] = ()
    seen: int = 0
    recording: Compute | None = None

    @property
    def records(self) -> bool:
        """Whether there is a recording."""
        return self.recording is not None

    def replay(self, basis: tuple[object, ...], group: Group) -> Params | None:
        """As `compute`, by the recording; None where there is none for such a group."""
        if self.recording is None or (*basis, *group.kind) != self.basis:
            return None
        return self.recording(*group)

    def compute(self, compute: Compute, basis: tuple[object, ...], group: Group) -> Params:
        """``compute`` of a group, which is recorded if there were many like it.

        Args:
            compute: by `torch.func`. group: its arguments.
            basis: all that it depends on beside them, as values that are equal as long as that
                stays as it is.
        """
        basis = (*basis, *group.kind)
        if basis != self.basis:
            # Rule 2.
            self.basis, self.seen, self.recording = basis, 0, None
        self.seen += 1
        if self.seen == _WORTH:
            self.recording = recorded(compute, group)
        return compute(*group)


def recorded(compute: Compute, group: Group) -> Compute | None:
    """A function that does what ``compute`` does on such groups; None where that is not sure.

    Args:
        compute: of one group. group: like any other; its parameters are read, of its examples
            nothing but their kind.
    """
    # Rule 3.
    blank = group._replace(
        inputs=_made_up(group.inputs),
        targets=_made_up(group.targets),
        seeds=torch.arange(len(group.seeds), device=group.seeds.device),
    )
    proxies: Any = import_module("torch.fx.experimental.proxy_tensor")
    with Trial(), _undisturbed():
        before = _generators()
        pure = functionalize(compute, remove="mutations")
        module: Any = proxies.make_fx(pure)(*blank)
        # Rules 4 and 5.
        if _generators() == before and all(map(_fits, module.graph.nodes)):
            _pool_quickly(module)
            replay = _replay_of(module)
            others = {name: _OTHER * value for name, value in blank.anchor.items()}
            if all(_same(compute, replay, one) for one in (blank._replace(anchor=others), blank)):
                return replay
    return None


def pooled(values: Tensor, *options: Any, **named: Any) -> tuple[Tensor, Tensor]:
    """As ``aten::max_pool2d_with_indices`` to the last bit, on a CPU in a fraction of the time.

    With channels last, the greatest of many channels are found at once.

    Args:
        values: [n, channels, height, width]. options, named: as they are passed on.
    """
    plain = values.is_contiguous() and values.device.type == "cpu" and values.ndim == 4
    if not plain or values.shape[1] < _CHANNELS:
        return _pooling(values, *options, **named)
    values = values.contiguous(memory_format=torch.channels_last)
    found, places = _pooling(values, *options, **named)
    return found.contiguous(), places.contiguous()


def _replay_of(module: Any) -> Compute:
    forward: Compute = module.forward

    def replay(anchor: Params, inputs: Tensor, targets: Tensor, seeds: Tensor) -> Params:
        return forward(anchor, inputs, targets, seeds)

    return replay


def _made_up(values: Tensor) -> Tensor:
    """Numbers in [-1, 1], the same for all data sets; zeros where whole numbers are asked for.

    Zeros would hide what is multiplied with them.
    """
    if not values.is_floating_point():
        return torch.zeros_like(values)
    places = torch.arange(1, values.numel() + 1, dtype=torch.float64, device=values.device)
    return torch.empty_like(values).copy_(places.square().sin().view(values.shape))


def _surroundings() -> tuple[object, ...]:
    """What stands between any model and torch's operations: modes, hooks of all layers, functions.

    None of it belongs to a model, and all of it can be exchanged in the middle of a run.
    """
    core: Any = _torch._C  # noqa: SLF001 - nobody else counts the modes
    modes = core._len_torch_function_stack(), core._len_torch_dispatch_stack()  # noqa: SLF001
    rooms: list[Any] = [_torch, _torch.nn.functional, Tensor, _torch.nn.Module]
    holders: list[Any] = [getattr(_layers, name) for name in _HOOKS]
    holders += [vars(room) for room in rooms]
    return (*modes, *(list(held.values()) for held in holders))


def _fits(node: Any) -> bool:
    """Whether a node is an argument, a constant, or an operation that rules 4 and 5 allow."""
    if node.op != "call_function" or node.target is operator.getitem:
        return node.op != "call_module"
    operation: Any = node.target
    if getattr(operation, "namespace", None) not in ("aten", "prims"):
        return False
    return not _UNFIT.intersection(operation.tags) and not operation._schema.is_mutable  # noqa: SLF001 - what it says of itself


def _pool_quickly(module: Any) -> None:
    for node in module.graph.nodes:
        if node.target is _pooling:
            node.target = pooled
    module.recompile()


def _same(compute: Compute, replay: Compute, group: Group) -> bool:
    """Whether both give the same bits, where numbers are."""
    expected, found = compute(*group), replay(*group)
    return list(found) == list(expected) and all(
        _equal(found[name], value) for name, value in expected.items()
    )


def _equal(one: Tensor, two: Tensor) -> bool:
    same = (one == two) | (one.isnan() & two.isnan())
    return one.dtype == two.dtype and one.shape == two.shape and bool(same.all())


@contextmanager
def _undisturbed() -> Generator[None]:
    """Inside, warnings are not shown again, and nobody's random numbers move on."""
    with forked_generators(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _generators() -> bytes:
    """Where the global generators are."""
    old: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the global one
    words = cast("bytes", _torch.get_rng_state().numpy().tobytes())
    return pickle.dumps((random.getstate(), old)) + words
