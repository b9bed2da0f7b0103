"""What a group computes, recorded once and replayed: the same kernels without the program around.

`torch.func` calls the model for every group anew, and looks up for each operation how it is done
for many examples. Neither depends on the examples: inside vmap, a model that asks for a value
fails. So the operations are recorded as a list, and from then on called one after the other.

Rule 1: a replay gives the bits that `torch.func` gives, so nobody can tell when it began; what
keeps examples apart is vmap's choice of operations. Rule 2: a recording holds for one model, as
`dpacct.fl.guards.watch` noted it, one rate, one mode of torch and one kind of arguments; with
anything else it is forgotten. Rule 3: what is recorded sees zeros in place of examples. Rule 4:
what cannot be a list of operations is not recorded: random numbers, results whose shape depends on
values, a parameter that Python reads (two replays with other parameters would show that one).
"""

from __future__ import annotations

import operator
import pickle
import random
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from dpacct.fl.layout import Params
from dpacct.fl.tensors import forked_generators
from dpacct.fl.trainers.failures import Trial

# Parameters, inputs, targets and seeds of a group, to what is computed for each example.
Compute = Callable[[Params, Tensor, Tensor, Tensor], Params]

# A recording takes about as long as so many groups of a small network save.
_WORTH = 16
# Below so many channels, images lie no better with these last.
_CHANNELS = 8
# By how much parameters are changed when a recording is compared.
_OTHER = 0.75
_torch: Any = torch
_pooling: Any = _torch.ops.aten.max_pool2d_with_indices.default
_UNFIT = {
    _torch.Tag.data_dependent_output,
    _torch.Tag.dynamic_output_shape,
    _torch.Tag.nondeterministic_seeded,
}


class Recorder:
    """Computes groups, and records what it computes often."""

    def __init__(self) -> None:
        self._basis: tuple[object, ...] = ()
        self._seen = 0
        self._replay: Compute | None = None

    @property
    def replays(self) -> bool:
        """Whether the last group was, or the next one like it will be, a replay."""
        return self._replay is not None

    def compute(
        self,
        compute: Compute,
        basis: tuple[object, ...],
        anchor: Params,
        inputs: Tensor,
        targets: Tensor,
        seeds: Tensor,
    ) -> Params:
        """``compute(anchor, inputs, targets, seeds)``, bit by bit.

        Args:
            compute: of one group, by `torch.func`.
            basis: all that it depends on beside its arguments, as values that are equal as long as
                that stays as it is.
            anchor, inputs, targets, seeds: its arguments.
        """
        tensors = (inputs, targets, seeds, *anchor.values())
        kinds = [(value.dtype, value.device, value.shape, value.stride()) for value in tensors]
        basis = (*basis, *_autocast(inputs.device), *anchor, *kinds)
        if basis != self._basis:
            # Rule 2.
            self._basis, self._seen, self._replay = basis, 0, None
        self._seen += 1
        if self._seen == _WORTH:
            self._replay = recorded(compute, anchor, inputs, targets, seeds)
        chosen = self._replay or compute
        return chosen(anchor, inputs, targets, seeds)


def recorded(
    compute: Compute, anchor: Params, inputs: Tensor, targets: Tensor, seeds: Tensor
) -> Compute | None:
    """A function that does what ``compute`` does on such arguments; None where that is not sure.

    Args:
        compute: of one group. anchor: its parameters, which are only read.
        inputs, targets, seeds: of a group, of which nothing but the kind is looked at.
    """
    # Rule 3.
    blank = [torch.zeros_like(value) for value in (inputs, targets, seeds)]
    proxies: Any = import_module("torch.fx.experimental.proxy_tensor")
    with Trial(), _undisturbed(), torch.no_grad():
        before = _generators()
        module: Any = proxies.make_fx(compute)(anchor, *blank)
        # Rule 4.
        if _generators() == before and all(map(_fits, module.graph.nodes)):
            _rewrite(module)
            replay = _replay_of(module)
            others = {name: _OTHER * value for name, value in anchor.items()}
            if all(_same(compute, replay, params, blank) for params in (others, anchor)):
                return replay
    return None


def pooled(values: Tensor, *options: Any, **named: Any) -> tuple[Tensor, Tensor]:
    """As ``aten::max_pool2d_with_indices`` to the last bit, on a CPU in a fraction of the time.

    With channels last, the greatest of many channels are found at once.

    Args:
        values: [n, channels, height, width]. options, named: as they are passed on.
    """
    plain = values.is_contiguous() and values.device.type == "cpu" and values.ndim == 4
    if plain and values.shape[1] >= _CHANNELS:
        values = values.contiguous(memory_format=torch.channels_last)
        found, places = _pooling(values, *options, **named)
        return found.contiguous(), places.contiguous()
    return _pooling(values, *options, **named)


def _replay_of(module: Any) -> Compute:
    forward: Compute = module.forward

    def replay(anchor: Params, inputs: Tensor, targets: Tensor, seeds: Tensor) -> Params:
        with torch.no_grad():
            return forward(anchor, inputs, targets, seeds)

    return replay


def _fits(node: Any) -> bool:
    """Whether a node is an argument, a constant or an operation of which values decide nothing."""
    if node.op != "call_function" or node.target is operator.getitem:
        return node.op != "call_module"
    tags: Any = getattr(node.target, "tags", None)
    return isinstance(node.target, _torch._ops.OpOverload) and not _UNFIT.intersection(tags)  # noqa: SLF001 - what a recording consists of


def _rewrite(module: Any) -> None:
    for node in module.graph.nodes:
        if node.target is _pooling:
            node.target = pooled
    module.recompile()


def _same(compute: Compute, replay: Compute, anchor: Params, data: list[Tensor]) -> bool:
    """Whether both give the same bits, where numbers are."""
    expected = compute(anchor, data[0], data[1], data[2])
    found = replay(anchor, data[0], data[1], data[2])
    return list(found) == list(expected) and all(
        _equal(found[name], value) for name, value in expected.items()
    )


def _equal(one: Tensor, two: Tensor) -> bool:
    same = (one == two) | (one.isnan() & two.isnan())
    return one.dtype == two.dtype and one.shape == two.shape and bool(same.all())


def _autocast(device: torch.device) -> Iterator[object]:
    kind = device.type
    yield _torch.is_autocast_enabled(kind)
    yield _torch.get_autocast_dtype(kind)


@contextmanager
def _undisturbed() -> Generator[None]:
    """Inside, warnings are not shown again, and nobody's random numbers move on."""
    with forked_generators(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _generators() -> bytes:
    """Where the global generators are."""
    old: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the global one
    return pickle.dumps((random.getstate(), old)) + cast(
        "bytes", _torch.get_rng_state().numpy().tobytes()
    )
