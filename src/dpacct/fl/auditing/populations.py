"""Populations with canaries behind all others: clients, and single examples.

Canaries train on what the first of the others has, and send what was decided beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from torch import Tensor

from dpacct.errors import InvalidParameter
from dpacct.fl.auditing.canaries import Canaries
from dpacct.fl.clients import Canary, ClientData, Population, checked
from dpacct.fl.examples import Examples
from dpacct.fl.tensors import integers


def with_canaries(clients: Population, canaries: Canaries, *, silent: bool) -> Population:
    """A population, and canaries behind it.

    Args:
        clients: who else is there; the first lends canaries its data to train on.
        silent: the others train, and send nothing. Privacy is promised against somebody who knows
            what they send; so may the audit.
    Raises:
        InvalidParameter: nobody is there, or it is no population.
    """
    if not (hasattr(clients, "__len__") and hasattr(clients, "__getitem__")):
        rule = "a sequence of clients, each with its data"
        raise InvalidParameter("clients", type(clients).__name__, rule)
    if not len(clients):
        raise InvalidParameter("clients", 0, "a canary borrows the data of a client")
    if isinstance(clients, Examples):
        return CanaryExamples(clients, canaries, silent=silent)
    return CanaryClients(clients, canaries, silent=silent)


class CanaryClients(Sequence[ClientData]):
    """Clients; see `with_canaries`."""

    def __init__(self, clients: Population, canaries: Canaries, *, silent: bool) -> None:
        self._clients, self._canaries, self._silent = clients, canaries, silent
        self._lent = checked(clients[0])

    def __len__(self) -> int:
        return len(self._clients) + len(self._canaries)

    @overload
    def __getitem__(self, index: int) -> ClientData: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ClientData]: ...
    def __getitem__(self, index: int | slice) -> ClientData | Sequence[ClientData]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        if place < len(self._clients):
            data = self._clients[place]
            if not self._silent:
                return data
            return Canary(data.inputs, data.targets, self._canaries.nothing())
        update = self._canaries.sent(place - len(self._clients))
        return Canary(self._lent.inputs, self._lent.targets, update)


class CanaryExamples(Examples):
    """Examples; see `with_canaries`."""

    def __init__(self, examples: Examples, canaries: Canaries, *, silent: bool) -> None:
        super().__init__(_Lent(examples, len(canaries)), unit=examples.unit)
        self._others, self._canaries, self._silent = len(examples), canaries, silent

    def planted(self, row: int) -> Tensor | None:
        """See `Examples`."""
        if row >= self._others:
            return self._canaries.sent(row - self._others)
        return self._canaries.nothing() if self._silent else None


class _Lent:
    """Examples, and the first of them as often again as there are canaries."""

    def __init__(self, examples: Examples, canaries: int) -> None:
        self._examples, self._canaries = examples, canaries

    def __len__(self) -> int:
        return len(self._examples) + self._canaries

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        others = len(self._examples)
        data = self._examples.batch([row if row < others else 0 for row in integers(rows)])
        return data.inputs, data.targets
