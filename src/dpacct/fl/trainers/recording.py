"""What a group computes, recorded once and replayed: the same kernels without the program around.

`torch.func` calls the model for every group anew, and looks up for each operation how it is done
for many examples. Neither depends on the examples: inside vmap, a model that asks for a value
fails. So the operations are recorded as a list, and from then on called one after the other.

Rule 1: a replay gives the bits that `torch.func` gives, so nobody can tell when it began; what
keeps examples apart is vmap's choice of operations. Rule 2: a recording holds for one model, as
`dpacct.fl.guards.watch` noted it, one rate, one mode of torch and one kind of arguments; with
anything else it is forgotten. Rule 3: what is recorded sees zeros in place of examples, and torch
as a run has it: some operations choose a kernel by whether gradients are on. Rule 4: a recording
consists of torch's own operations, none of which writes to what it is given: a replay calls no code
of the model, and leaves nothing behind. Rule 5: what cannot be a list of operations is not
recorded: random numbers, results whose shape depends on values, a parameter or an example that
Python reads (a comparison with other parameters, and made-up examples, shows those).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functionalize

from dpacct.fl.layout import Params
from dpacct.fl.tensors import forked_generators, same_numbers
from dpacct.fl.trainers.at_once import at_once
from dpacct.fl.trainers.failures import Trial
from dpacct.fl.trainers.interpreter import counted
from dpacct.fl.trainers.replay import Record, form
from dpacct.fl.trainers.replay import recorded as recorded_of


class Group(NamedTuple):
    """What a group is computed from: parameters, inputs, targets, a seed for each example."""

    anchor: Params
    inputs: Tensor
    targets: Tensor
    seeds: Tensor

    @property
    def kind(self) -> tuple[object, ...]:
        """All but the values and the number of examples, and how torch would compute with them."""
        device = self.inputs.device.type
        auto = _torch.is_autocast_enabled(device), _torch.get_autocast_dtype(device)
        examples = [(value.shape[1:], value.dtype, value.device) for value in self[1:]]
        return (*auto, *_surroundings(), *self.anchor, *form(list(self.anchor.values())), *examples)

    def blank(self, size: int) -> Group:
        """A group of that size, with zeros in place of examples."""
        zeros = [value.new_zeros(size, *value.shape[1:]) for value in self[1:]]
        return self._replace(inputs=zeros[0], targets=zeros[1], seeds=zeros[2])

    @property
    def tensors(self) -> list[Tensor]:
        """All of them, in a fixed order."""
        return [*self.anchor.values(), *self[1:]]


# Parameters, inputs, targets and seeds, to what is computed for each example.
Compute = Callable[[Params, Tensor, Tensor, Tensor], Params]

# Groups of a small network that save what a recording takes, about: measured, 10 to 15.
_WORTH = 12
# Seconds of processor time from which on threads that have groups of their own are quicker. From
# Python they wait for each other between operations, and so it is that of one in the mean.
_LONG, _LONG_OPERATION = 2e-3, 16e-6
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


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Computes groups of one size by a record.

    Attributes:
        record: of one group. names: of what it computes.
        long: whether it is worth a thread of its own.
    """

    record: Record
    names: list[str]
    long: bool = False

    def __call__(self, anchor: Params, inputs: Tensor, targets: Tensor, seeds: Tensor) -> Params:
        """See `Compute`."""
        found = self.record.play([*anchor.values(), inputs, targets, seeds])
        return dict(zip(self.names, found, strict=True))


@dataclass(slots=True, eq=False)
class RecordedGroups:
    """Computes groups, and records what it computes often.

    Attributes:
        basis: of the last group that was computed. seen: how many there were like it.
        recordings: by the size of such groups, None where there is none. No more than sizes are
            asked for; what one holds beside its operations are constants of the model.
    """

    basis: tuple[object, ...] = ()
    seen: int = 0
    recordings: dict[int, Replay | None] = field(default_factory=dict[int, "Replay | None"])

    @property
    def records(self) -> bool:
        """Whether there is a recording."""
        return any(self.recordings.values())

    def replay(self, basis: tuple[object, ...], groups: Sequence[Group]) -> list[Params] | None:
        """As `compute` of each, at once, by recordings; None where one has none.

        Args:
            basis: see `compute`. groups: they differ in their examples alone.
        """
        kept = [self.recordings.get(len(group.seeds)) for group in groups]
        if not all(kept) or (*basis, *groups[0].kind) != self.basis:
            return None
        return at_once(
            [partial(one, *group) for one, group in zip(kept, groups, strict=True) if one]
        )

    def long(self, size: int) -> bool:
        """Whether groups of this size are worth a thread each, as far as is known."""
        kept = self.recordings.get(size)
        return kept is None or kept.long

    def compute(
        self,
        compute: Compute,
        basis: tuple[object, ...],
        group: Group,
        constants: Sequence[Tensor],
        sizes: Sequence[int],
    ) -> Params:
        """``compute`` of a group, which is recorded if there were many like it.

        Args:
            compute: by `torch.func`. group: its arguments.
            basis: all that it depends on beside them, as values that are equal as long as that
                stays as it is. constants: tensors among that.
            sizes: of the groups that are to be replayed in place of this one.
        """
        basis = (*basis, *group.kind)
        if basis != self.basis:
            # Rule 2.
            self.basis, self.seen, self.recordings = basis, 0, {}
        self.seen += 1
        if self.seen >= _WORTH:
            for size in {*sizes} - {*self.recordings}:
                self.recordings[size] = recorded(compute, group.blank(size), constants)
        return compute(*group)


def recorded(compute: Compute, group: Group, constants: Sequence[Tensor] = ()) -> Replay | None:
    """A function that does what ``compute`` does on such groups; None where that is not sure.

    Args:
        compute: of one group. group: like any other; its parameters are read, of its examples
            nothing but their kind.
        constants: tensors that it may read beside them; they stay where they are.
    """
    # Rule 3.
    blank = group.blank(len(group.seeds))
    names = list(group.anchor)
    found: list[str] = []

    def computed(*tensors: Tensor) -> list[Tensor]:
        results = compute(dict(zip(names, tensors, strict=False)), *tensors[len(names) :])
        found[:] = results
        return list(results.values())

    with Trial(), _undisturbed():
        # Where nothing is written to, and where values cannot be read past torch.
        pure: Any = functionalize(computed, remove="mutations")
        _, record = recorded_of(pure, blank.tensors, constants, blank=True)
        # Rules 4 and 5.
        if record is not None and not record.writes:
            record.interpret(blank.tensors)
            replay = Replay(record, list(found))
            if all(_same(compute, replay, one) for one in (_made_up(blank), blank)):
                return replace(replay, long=_seconds(replay, blank) > _worth_a_thread(record))
    return None


def _made_up(group: Group) -> Group:
    """Other parameters, and in place of examples numbers that follow no data."""
    others = {name: _OTHER * value for name, value in group.anchor.items()}
    return Group(others, *map(counted, group[1:]))


def _surroundings() -> tuple[object, ...]:
    """What stands between any model and torch's operations: modes, hooks of all layers, functions.

    None of it belongs to a model, and all of it can be exchanged in the middle of a run.
    """
    core: Any = _torch._C  # noqa: SLF001 - nobody else counts the modes
    modes = core._len_torch_function_stack(), core._len_torch_dispatch_stack()  # noqa: SLF001
    rooms: list[Any] = [_torch, _torch.nn.functional, Tensor, _torch.nn.Module]
    holders: list[Any] = [getattr(_layers, name) for name in _HOOKS]
    holders += [vars(room) for room in rooms]
    return (*modes, torch.is_grad_enabled(), *(list(held.values()) for held in holders))


def _same(compute: Compute, replay: Compute, group: Group) -> bool:
    """Whether both give the same bits."""
    expected, found = compute(*group), replay(*group)
    return list(found) == list(expected) and all(
        same_numbers(found[name], value) for name, value in expected.items()
    )


def _worth_a_thread(record: Record) -> float:
    """Seconds that one play takes at least, where it is."""
    return _LONG if record.interpreted else _LONG_OPERATION * record.operations


def _seconds(replay: Replay, group: Group) -> float:
    """Of this thread's processor time, whoever else computes on the machine."""
    started = time.thread_time()
    replay(*group)
    return time.thread_time() - started


@contextmanager
def _undisturbed() -> Generator[None]:
    """Inside, warnings are not shown again, and nobody's random numbers move on."""
    with forked_generators(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
