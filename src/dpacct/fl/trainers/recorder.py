"""Writes down what a computation does, as operations on numbered places.

Rule: a tensor is known if it was given, if it is one of the constants, or if a recorded operation
made it. What is computed from any other is refused, and so is what the host has read (a value, or a
shape that depends on values), and what draws random numbers: in a record they would stand for good.
So is an operation that is not torch's own, which could run anybody's program. Some operations are
done in another way, which gives the same bits in less time, and that way is written down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, cast
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dpacct.fl.trainers.failures import Noted
from dpacct.fl.trainers.host_reads import asks_host
from dpacct.fl.trainers.outer import outer
from dpacct.fl.trainers.pooling import pooled

_aten: Any = torch.ops.aten
_tags: Any = torch.Tag
_OWN = ("aten", "prims")
# What becomes of a tensor that was made of Python's numbers.
_MADE = (_aten.lift_fresh.default, _aten.lift_fresh_copy.default)
# Where these change no form, they give back what they were given.
_VIEWS = {
    _aten.alias.default,
    _aten.detach.default,
    _aten.expand.default,
    _aten.permute.default,
    _aten.view.default,
    _aten._unsafe_view.default,  # noqa: SLF001 - what a reshape becomes inside autograd
}

# Operations that are done in another way: of tensors' forms alone, writing to none that was there.
_INSTEAD: dict[Any, Callable[..., Any]] = {
    _aten.bmm.default: outer,
    _aten.max_pool2d_with_indices.default: pooled,
}


class Place(NamedTuple):
    """Stands for a tensor in the arguments of a `Line`."""

    number: int


class Line(NamedTuple):
    """One operation.

    Attributes:
        operation: of `torch.ops`. arguments, named: with a `Place` for each tensor.
        results: the places of what it gives back. alone: whether that is one tensor, no tuple.
        writes: whether it changes what was there before.
    """

    operation: Any
    arguments: list[Any]
    named: dict[str, Any]
    results: list[int]
    alone: bool
    writes: bool

    def uses(self) -> set[int]:
        """The places that it reads."""
        return {place for value in (self.arguments, self.named) for place in places_in(value)}


class Refused(Exception):
    """What is computed cannot be recorded."""


class Recorder(TorchDispatchMode):
    """Inside, operations are done and written down.

    Args:
        inputs: have the first places. constants: may be read beside them.
        blank: whether the inputs are nobody's, so that tensors which Python makes of numbers hold
            nobody's data: these are constants too.

    Attributes:
        lines: what was done; empty once something is refused.
        held: constants in use, by their place. count: places in use.
        refused: whether there is no record. failures: of operations.
    """

    def __init__(
        self, inputs: Sequence[Tensor], constants: Iterable[Tensor], *, blank: bool = False
    ) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.lines: list[Line] = []
        self.held: dict[int, Tensor] = {}
        self.count = 0
        self.refused = False
        self.failures = Noted()
        self._blank = blank
        self._instead = False
        # By identity and weak: what is recorded takes no more memory than what is not, and a tensor
        # that has another one's address is told from it.
        self._places: dict[int, tuple[ReferenceType[Tensor], int]] = {}
        self._constants = {id(value): value for value in constants}
        for value in inputs:
            self._new(value)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Do it, and write it down."""
        del types
        named = kwargs or {}
        instead = None if self._instead or self.refused else _INSTEAD.get(func)
        if instead is not None:
            return self._done(instead, args, named)
        with self.failures:
            result = func(*args, **named)
        if not self.refused:
            try:
                self._note(func, args, named, result)
            except Refused:
                self.refuse()
        return result

    def _done(
        self, instead: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """Do that in place of an operation, and write down what it does."""
        self._instead = True
        try:
            with self:
                return instead(*args, **named)
        finally:
            self._instead = False

    def refuse(self) -> None:
        """What is done here cannot be recorded."""
        self.refused = True
        self.lines.clear()

    def place_of(self, value: Tensor) -> int:
        """Where a tensor lies.

        Raises:
            Refused: it came from nowhere.
        """
        number = self._known(value)
        if number is None:
            if id(value) not in self._constants:
                raise Refused
            number = self._new(value)
            self.held[number] = value
        return number

    def _known(self, value: Tensor | None) -> int | None:
        found = self._places.get(id(value))
        return found[1] if found and found[0]() is value else None

    def _new(self, value: Tensor | None) -> int:
        if value is not None:
            self._places[id(value)] = ref(value), self.count
        self.count += 1
        return self.count - 1

    def _note(self, func: Any, args: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        if func.namespace not in _OWN:
            raise Refused
        draws, writes = _facts(func)
        if draws or asks_host(func, args):
            raise Refused
        if self._blank and func in _MADE and self._known(args[0]) is None:
            self.held[self._new(result)] = result
            return
        arguments: list[Any] = self._placed(args)
        options = {name: self._placed(value) for name, value in named.items()}
        alone = isinstance(result, Tensor)
        found: list[Tensor | None] = [result] if alone else _several(result)
        if alone and func in _VIEWS and _same_form(args[0], result):
            self._places[id(result)] = ref(result), arguments[0].number
            return
        # What is written to is given back as it was: the same tensor.
        known = [self._known(value) if writes else None for value in found]
        results = [
            self._new(value) if number is None else number
            for value, number in zip(found, known, strict=True)
        ]
        outside = writes and not self._instead
        self.lines.append(Line(func, arguments, options, results, alone, outside))

    def _placed(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return Place(self.place_of(value))
        if isinstance(value, tuple | list):
            return [self._placed(one) for one in cast("Sequence[Any]", value)]
        return value


def places_in(value: Any) -> Iterator[int]:
    """The places in an argument, in order."""
    if isinstance(value, Place):
        yield value.number
    elif isinstance(value, list):
        for one in cast("list[Any]", value):
            yield from places_in(one)
    elif isinstance(value, dict):
        yield from places_in(list(cast("dict[str, Any]", value).values()))


@cache
def _facts(func: Any) -> tuple[bool, bool]:
    """Whether an operation needs chance, and whether it writes to an argument."""
    return _tags.nondeterministic_seeded in func.tags, bool(func._schema.is_mutable)  # noqa: SLF001


def _several(result: Any) -> list[Tensor | None]:
    """What an operation gave back, if those are tensors.

    Raises:
        Refused: it is something else.
    """
    if not isinstance(result, tuple | list):
        raise Refused
    many = list(cast("Sequence[Any]", result))
    if not all(value is None or isinstance(value, Tensor) for value in many):
        raise Refused
    return many


def _same_form(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and one.stride() == two.stride() and one.dtype == two.dtype
