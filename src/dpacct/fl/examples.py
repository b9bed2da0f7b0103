"""Single examples as the population: the privacy unit is an example, not its owner.

Rule 1: two data sets are neighbors if they differ by one example. An owner of ten examples is
protected ten times less. If people hold several examples, clients are the unit to protect.
Rule 2: an example is read by its own number, never through the examples of others.
Rule 3: with owners the unit is an owner. Of each owner at most ``records`` examples are ever drawn,
each independently and clipped by itself. The choice depends on the owner's own examples alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Protocol, cast, overload

import torch
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.clients import ClientData, Inputs
from dpacct.ledger.terms import CLIENT, EXAMPLE


class Batched(Protocol):
    """Examples that are read many at a time, as `dpacct.fl.data.Examples` are."""

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def batch(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        """Return inputs and targets of some rows, int64 [n], as a `ClientData` takes them."""
        ...


class Examples(Sequence[ClientData]):
    """A population of examples, for a model that is trained in one place (DP-SGD).

    ``Federation(model, loss, fl.Examples(data), ...)`` then samples examples, bounds the gradient
    of each example, and charges a ledger with the unit "example".

    Args:
        data: inputs as of a `ClientData` (then ``targets`` are given), a `ClientData`, a
            `torch.utils.data.TensorDataset` of two tensors, or an object with ``len`` and
            ``batch(rows)`` like `Batched`. One batch of all rows makes tensors of any data set:
            ``*next(iter(DataLoader(data, batch_size=len(data))))``.
        targets: [n, ...] if ``data`` are the inputs.
        unit: the unit in words: "example" (or "patient" if each row is one), and "client" with
            owners.
        owners: of each example, any names or numbers. The unit is then an owner.
        records: the most examples of one owner that take part: its first ones. Needed with owners.

    Attributes:
        records: as above, 1 without owners. plants: whether `planted` may return an update.

    Raises:
        InvalidParameter: no examples, another kind of data, or owners of other examples.
    """

    plants = False

    def __init__(
        self,
        data: Any,
        targets: Tensor | None = None,
        *,
        unit: str | None = None,
        owners: Iterable[Hashable] | Tensor | None = None,
        records: int | None = None,
    ) -> None:
        word = unit or (EXAMPLE if owners is None else CLIENT)
        self.unit = validate.line("unit", word, "a unit of privacy")
        self._source = _source(data, targets)
        if not len(self._source):
            raise InvalidParameter("data", 0, "there is at least one example")
        self.records, kept = kept_records(len(self._source), owners, records)
        self._kept = None if kept is None else torch.tensor(kept, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self._source) if self._kept is None else len(self._kept)

    @overload
    def __getitem__(self, place: int) -> ClientData: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[ClientData]: ...
    def __getitem__(self, place: int | slice) -> ClientData | Sequence[ClientData]:
        """Return one example, or a list of single examples."""
        if isinstance(place, slice):
            return [self[row] for row in range(*place.indices(len(self)))]
        row = place + len(self) if place < 0 else place
        if not 0 <= row < len(self):
            raise IndexError(place)
        return self.batch([row])

    def batch(self, rows: Sequence[int]) -> ClientData:
        """Return some examples together, in the order of ``rows``."""
        chosen = torch.tensor(rows, dtype=torch.int64)
        return ClientData(*self._source.batch(chosen if self._kept is None else self._kept[chosen]))

    def planted(self, row: int) -> Tensor | None:
        """Return the update [d] of an audit's canary, or None for all other examples.

        It takes the place of the trained update, and is masked and bounded like any other.
        """
        del row
        return None


class Owned(Sequence[ClientData]):
    """A population in which a user has several clients, such as devices.

    The unit is a user. Each client is drawn independently and its update clipped by itself.

    Args:
        clients: the population, which may be lazy.
        owners: of each client, any names or numbers.
        records: the most clients of one user that take part: its first ones.
        unit: the user in words.
    Raises:
        InvalidParameter: owners of another number of clients, or a value out of range.
    """

    def __init__(
        self,
        clients: Sequence[ClientData],
        owners: Iterable[Hashable] | Tensor,
        *,
        records: int,
        unit: str = CLIENT,
    ) -> None:
        self.unit, self._clients = validate.line("unit", unit, "a unit of privacy"), clients
        self.records, kept = kept_records(len(clients), owners, records)
        self._kept: Sequence[int] = range(len(clients)) if kept is None else kept

    def __len__(self) -> int:
        return len(self._kept)

    @overload
    def __getitem__(self, place: int) -> ClientData: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[ClientData]: ...
    def __getitem__(self, place: int | slice) -> ClientData | Sequence[ClientData]:
        """Return one client, or a list of clients."""
        if isinstance(place, slice):
            return [self._clients[at] for at in self._kept[place]]
        return self._clients[self._kept[place]]


def kept_records(
    count: int, owners: Iterable[Hashable] | Tensor | None, records: int | None
) -> tuple[int, list[int] | None]:
    """Return the most records of an owner, and which of ``count`` records take part. Rule 3.

    None for all of them.
    """
    if owners is None:
        if records is not None:
            rule = "records are those of one owner, and there are no owners"
            raise InvalidParameter("records", records, rule, "Give owners=, one for each example.")
        return 1, None
    if records is None:
        rule = "an owner has at most a stated number of examples, by which the run is charged"
        raise InvalidParameter("records", None, rule, "Give records=, for example records=4.")
    most = validate.count("records", records, "the most records of an owner")
    listed: Any = cast("Any", owners).tolist() if isinstance(owners, Tensor) else owners
    names: list[Any] = list(listed)
    if len(names) != count:
        rule = f"each of the {count} records has an owner"
        raise InvalidParameter("owners", len(names), rule)
    taken: Counter[str | int] = Counter()
    kept: list[int] = []
    found = [_owner(name) for name in names]
    if len({isinstance(name, str) for name in found}) > 1:
        rule = "owners are all strings, or all whole numbers"
        raise InvalidParameter("owners", names[0], rule)
    for place, name in enumerate(found):
        taken[name] += 1
        if taken[name] <= most:
            kept.append(place)
    return most, kept


def _owner(given: Any) -> str | int:
    """Return the name of an owner. Names are compared, so only strings and whole numbers serve.

    An object or NaN need not be equal to itself, and each would be an owner of its own.
    """
    name = given.item() if hasattr(given, "item") and getattr(given, "ndim", 1) == 0 else given
    if isinstance(name, float) and name.is_integer():
        name = int(name)
    if not isinstance(name, str | int):
        rule = "an owner is a string or a whole number, and none is missing"
        raise InvalidParameter("owners", given, rule)
    return name


class _Tensors:
    """Inputs and targets in memory."""

    def __init__(self, data: ClientData) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        taken = self._data.map(lambda values: values.index_select(0, rows.to(values.device)))
        return taken.inputs, taken.targets


def _source(data: Any, targets: Tensor | None) -> Batched:
    if targets is not None:
        return _Tensors(ClientData(data, targets))
    if isinstance(data, ClientData):
        return _Tensors(data)
    tensors = getattr(data, "tensors", None)
    if isinstance(tensors, tuple):
        pair = cast("tuple[Any, ...]", tensors)
        if len(pair) != 2:
            rule = "an example is a pair of input and target"
            raise InvalidParameter("data", f"{len(pair)} tensors", rule)
        return _Tensors(ClientData(*pair))
    if isinstance(data, Tensor):
        raise InvalidParameter("targets", None, "inputs come with their targets")
    if callable(getattr(data, "batch", None)) and hasattr(data, "__len__"):
        return cast("Batched", data)
    rule = "examples are two tensors, a ClientData, a TensorDataset, or an object with batch(rows)"
    hint = "A data set of pairs: *next(iter(DataLoader(data, batch_size=len(data))))."
    raise InvalidParameter("data", type(data).__name__, rule, hint)
