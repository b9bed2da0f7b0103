"""A step that is repeated on tensors of one form: recorded the first time, then played again.

The same kernels run on the same operands in the same order, so that the bits are those of the step
itself; what is saved is all that surrounds them: the model's Python, `torch.func`, autograd.

Rule 1: a record is a function of the tensors that it is given and of constants that were there
before; `dpacct.fl.trainers.recorder` refuses anything else, and then nothing is played. Rule 2: a
record lasts for one group in one round; the first step is always the model's own, so that what its
Python does is still seen. Rule 3: no client's data decide whether records are played:
`dpacct.fl.trainers.agreement` compares their bits with those of the steps on made-up clients.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from dpacct.fl.trainers.interpreter import Play, Written, interpreted
from dpacct.fl.trainers.past_dispatcher import PastDispatcher
from dpacct.fl.trainers.recorder import Line, Place, Recorder, Refused, places_in

Compute = Callable[..., Sequence[Tensor]]
_uncast = cast("Any", torch)._C._DisableAutocast  # noqa: SLF001 - of every device, and cheap


class _Call(NamedTuple):
    """A line as it is played.

    Attributes:
        operation: of the line.
        arguments, named: where no tensor lies within them, as they are.
        direct: arguments that are tensors, and their places. nested: those that hold some.
        named_too: whether ``named`` hold some.
        result: its place; -1 where there are several. results: their places.
        gone: places that nobody needs behind it.
    """

    operation: Any
    arguments: list[Any]
    named: dict[str, Any]
    direct: list[tuple[int, int]]
    nested: list[int]
    named_too: bool
    result: int
    results: list[int]
    gone: list[int]


class Record:
    """What a computation did.

    Args:
        recorder: that saw it. inputs: that it was given. outputs: their places.

    Attributes:
        writes: whether it writes to tensors instead of making others.
        operations: how many there are.
        interpreted: whether the interpreter plays them.
    """

    def __init__(self, recorder: Recorder, inputs: Sequence[Tensor], outputs: list[int]) -> None:
        self._form = form(inputs)
        self._outputs = outputs
        self._held = [value.detach() for value in recorder.held.values()]
        self._given = [*range(len(inputs)), *recorder.held]
        self._count = recorder.count
        self._lines = _needed(recorder.lines, outputs)
        self.writes = any(line.writes for line in self._lines)
        kept = {*outputs, *recorder.held}
        self._calls = [
            _call(line, gone)
            for line, gone in zip(self._lines, _last_uses(self._lines, kept), strict=True)
        ]
        self.operations = len(self._calls)
        self.interpreted = False
        self._play: Play = self._one_by_one

    def interpret(self, inputs: Sequence[Tensor]) -> None:
        """Have it played by the interpreter, if that can be: what is played many times.

        Args:
            inputs: of its form; their values are not looked at.
        """
        written = Written(self._given, self._lines, self._outputs)
        with _uncast():
            found = interpreted(written, self._one_by_one, [*inputs, *self._held])
        self.interpreted = found is not None
        self._play = found or self._one_by_one

    def fits(self, inputs: Sequence[Tensor]) -> bool:
        """Whether these tensors have the form of those that it was recorded with."""
        return form(inputs) == self._form

    def play(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The same with other tensors, which have to fit.

        Gradients are on or off as they were, since kernels are chosen by that; none is asked for.
        """
        # What was cast was written down.
        with _uncast():
            return self._play([*(value.detach() for value in inputs), *self._held])

    def _one_by_one(self, given: Sequence[Tensor]) -> list[Tensor]:
        """The operations, called from here."""
        held: list[Tensor | None] = [None] * self._count
        for number, value in zip(self._given, given, strict=True):
            held[number] = value
        for call in self._calls:
            operation, template, named, direct, nested, named_too, place, places, gone = call
            arguments = template.copy()
            for position, number in direct:
                arguments[position] = held[number]
            for position in nested:
                arguments[position] = _filled(template[position], held)
            options = _filled(named, held) if named_too else named
            result = operation(*arguments, **options)
            if place >= 0:
                held[place] = result
            else:
                for number, value in zip(places, result, strict=True):
                    held[number] = value
            for number in gone:
                held[number] = None
        return [cast("Tensor", held[number]) for number in self._outputs]


class Repeated:
    """A function of tensors that is called many times.

    Args:
        compute: of tensors.
        constants: tensors that it may read beside them; they stay where they are.
        replays: whether calls behind the first one may be played from a record.
    """

    def __init__(
        self,
        compute: Compute,
        constants: Sequence[Tensor],
        replays: bool,  # noqa: FBT001 - built in one place
    ) -> None:
        self._compute = compute
        self._constants = constants
        self._replays = replays
        self._record: Record | None = None

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """What it computes of the inputs."""
        if not self._replays:
            return self._compute(*inputs)
        if self._record is None:
            outputs, self._record = recorded(self._compute, inputs, self._constants)
            self._replays = self._record is not None
            return outputs
        if not self._record.fits(inputs):
            return self._compute(*inputs)
        return self._record.play(inputs)


def recorded(
    compute: Compute,
    inputs: Sequence[Tensor],
    constants: Sequence[Tensor],
    *,
    blank: bool = False,
) -> tuple[Sequence[Tensor], Record | None]:
    """What a function computes, and a record of it; None where it cannot be played.

    Args:
        compute: of tensors. inputs: these. constants, blank: see `Recorder`.

    Raises:
        What an operation raised, also where the function goes on without it: side by side an
        operation is that of all clients, and one's failure would decide how others are trained.
    """
    recorder = Recorder(inputs, constants, blank=blank)
    drawn = _drawn()
    with recorder, PastDispatcher(recorder.refuse):
        outputs = compute(*inputs)
    recorder.failures.tell()
    if recorder.refused or _drawn() != drawn:
        return outputs, None
    try:
        places = [recorder.place_of(value) for value in outputs]
    except Refused:
        return outputs, None
    return outputs, Record(recorder, inputs, places)


def _drawn() -> tuple[object, ...]:
    """Where the generators stand from which a model may draw on the host."""
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the global one
    inner = state["state"]
    words: Any = torch.get_rng_state()
    numbers = inner["pos"], inner["key"].tobytes(), state["has_gauss"]
    return random.getstate(), *numbers, words.numpy().tobytes()


def _needed(lines: Sequence[Line], outputs: Sequence[int]) -> list[Line]:
    """Those whose results, or whose writing, somebody may look at."""
    wanted, kept = set(outputs), list[Line]()
    for line in reversed(lines):
        if line.writes or not wanted.isdisjoint(line.results):
            kept.append(line)
            wanted |= line.uses()
    return kept[::-1]


def _last_uses(lines: Sequence[Line], kept: set[int]) -> list[list[int]]:
    """For each line the places that nobody needs behind it, other than those that are kept."""
    seen, found = set(kept), list[list[int]]()
    for line in reversed(lines):
        last = {*line.results, *line.uses()} - seen
        seen |= last
        found.append(sorted(last))
    return found[::-1]


def _call(line: Line, gone: list[int]) -> _Call:
    arguments = line.arguments
    direct = [(n, value.number) for n, value in enumerate(arguments) if isinstance(value, Place)]
    lists = [n for n, value in enumerate(arguments) if isinstance(value, list) and _has(value)]
    place = line.results[0] if line.alone else -1
    named, results = line.named, line.results
    return _Call(line.operation, arguments, named, direct, lists, _has(named), place, results, gone)


def _has(value: Any) -> bool:
    return next(places_in(value), None) is not None


def _filled(template: Any, held: Sequence[Tensor | None]) -> Any:
    """An argument with its tensors."""
    if isinstance(template, Place):
        return held[template.number]
    if isinstance(template, list):
        return [_filled(one, held) for one in cast("list[Any]", template)]
    if isinstance(template, dict):
        named = cast("dict[str, Any]", template)
        return {name: _filled(one, held) for name, one in named.items()}
    return template


def form(tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    """All but the values of tensors, as far as a record depends on it."""
    return [(value.shape, value.stride(), value.dtype, value.device) for value in tensors]
