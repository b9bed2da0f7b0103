"""Clients and populations as the engine reads them: of clients, of single examples, or of owners.

The privacy unit is a client, or with `Examples` an example, not its owner.

Rule 1: two data sets are neighbors if they differ by one unit. With examples, an owner of ten is
protected ten times less. If people hold several examples, clients are the unit to protect.
Rule 2: an example is read by its own number, never through the examples of others.
Rule 3: with owners the unit is an owner. Of each owner at most ``records`` examples are ever drawn,
each independently and clipped by itself. The choice depends on the owner's own examples alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, overload

import torch
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.ledger import CLIENT, EXAMPLE

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


def each(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Return inputs with each of their tensors changed."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    if isinstance(inputs, dict):
        return {name: change(value) for name, value in inputs.items()}
    return tuple(map(change, inputs))


def parts_of(inputs: Inputs) -> list[tuple[str, Tensor]]:
    """Return the tensors of inputs with their names, their places in a tuple."""
    if isinstance(inputs, Tensor):
        return [("", inputs)]
    if isinstance(inputs, dict):
        return sorted(inputs.items())
    return [(str(place), value) for place, value in enumerate(inputs)]


def joined(several: Sequence[Inputs], join: Callable[[list[Tensor]], Tensor]) -> Inputs:
    """Return inputs of one form as one, by ``torch.cat`` or ``torch.stack``."""
    first: Any = several[0]
    own: Any = list(several)
    if isinstance(first, Tensor):
        return join(own)
    if isinstance(first, dict):
        names = cast("dict[str, Tensor]", first)
        return {name: join([one[name] for one in own]) for name in names}
    return tuple(join(list(values)) for values in zip(*own, strict=True))


def arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return the positional and the named arguments with which a model is called."""
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs,) if isinstance(inputs, Tensor) else inputs, {}


@dataclass(frozen=True, slots=True, eq=False)
class ClientData:
    """The examples of one client, the unit that is protected.

    A population is any ``Sequence[ClientData]``. It may be lazy: the engine calls ``len`` and
    indexes only the clients that it needs in a round, so 10^6 clients cost no memory.

    Args:
        inputs: tensor of shape [n, ...]. Or a tuple of such tensors, which are the arguments of the
            model: ``model(*inputs)``. Or a dictionary of them: ``model(**inputs)``.
        targets: tensor of shape [n, ...]. ``n`` may be 0 (such a client sends a zero update).

    Raises:
        InvalidParameter: not tensors, without values, or their first dimensions differ.
    """

    inputs: Inputs
    targets: Tensor

    def __post_init__(self) -> None:
        given: Any = self.inputs
        if isinstance(given, dict) and not all(isinstance(n, str) for n in cast("Any", given)):
            rule = "the names of several inputs are those of the model's arguments"
            raise InvalidParameter("inputs", "a name that is no text", rule)
        several = isinstance(given, dict | tuple)
        inputs: list[Any] = [v for _, v in parts_of(self.inputs)] if several else [given]
        if not inputs:
            raise InvalidParameter("inputs", "empty", "a client has at least one tensor of inputs")
        for name, value in [*(("inputs", value) for value in inputs), ("targets", self.targets)]:
            if not isinstance(value, Tensor) or value.ndim == 0:
                rule = "a client has a tensor of inputs and one of targets, examples first"
                hint = "Several tensors are a tuple or a dictionary."
                raise InvalidParameter(name, type(value).__name__, rule, hint)
            if value.is_meta and type(value) is Tensor:
                raise InvalidParameter(name, "on the meta device", "a client's tensors hold values")
        for value in inputs:
            if len(value) != len(self.targets):
                rule = f"there are as many targets as inputs ({len(value)})"
                raise InvalidParameter("targets", len(self.targets), rule)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def tensor(self) -> Tensor:
        """The inputs of a client whose model takes one tensor.

        Raises:
            InvalidParameter: there are several tensors.
        """
        if not isinstance(self.inputs, Tensor):
            rule = "this use takes clients whose inputs are one tensor"
            raise InvalidParameter("inputs", f"{len(self.inputs)} tensors", rule)
        return self.inputs

    def map(self, change: Callable[[Tensor], Tensor]) -> ClientData:
        """Return the data with each tensor changed, such as ``data.map(lambda v: v[rows])``."""
        return ClientData(each(self.inputs, change), change(self.targets))

    def batch(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        """Return inputs and targets of some rows, int64 [n] (see `Batched`)."""
        taken = self.map(lambda values: values.index_select(0, rows.to(values.device)))
        return taken.inputs, taken.targets


@dataclass(frozen=True, slots=True, eq=False)
class Canary(ClientData):
    """A client of an audit: it trains like all other clients, and sends a given update.

    Args:
        inputs, targets: as of any client.
        update: [d], in the order of the trainable parameters, masked and bounded like any other.
    """

    update: Tensor


Population = Sequence[ClientData]


class LazyClients(Sequence[ClientData]):
    """A population whose clients are made when they are asked for, and not kept."""

    @abstractmethod
    def client(self, place: int) -> ClientData:
        """Return the client at a place from 0 on."""

    @overload
    def __getitem__(self, place: int) -> ClientData: ...
    @overload
    def __getitem__(self, place: slice) -> list[ClientData]: ...
    def __getitem__(self, place: int | slice) -> ClientData | list[ClientData]:
        """Return one client, or a list of clients."""
        chosen = range(len(self))[place]
        return self.client(chosen) if isinstance(chosen, int) else [self.client(c) for c in chosen]


def checked(data: object) -> ClientData:
    """Return an element of a population, or refuse anything but a client."""
    if not isinstance(data, ClientData):
        raise InvalidParameter("clients", type(data).__name__, "a population holds ClientData")
    return data


def check_population(clients: Population, planned: int) -> None:
    """Refuse a population of another number than planned and charged, or with a client twice."""
    count = len(clients)
    if not planned:
        raise InvalidParameter("clients", count, "a population has at least one client")
    if count != planned:
        rule = f"the run was planned for {planned} clients, and sampling rates are charged for them"
        hint = "A population keeps its size. Start another run."
        raise InvalidParameter("clients", count, rule, hint)
    places: dict[int, int] = {}
    for place, data in enumerate(clients if isinstance(clients, list | tuple) else ()):
        earlier = places.setdefault(id(data), place)
        if earlier != place:
            rule = f"client {earlier} is the same object, and counting twice halves its protection"
            raise InvalidParameter("clients", f"client {place}", rule)


class Batched(Protocol):
    """Examples that are read many at a time, as `dpacct.fl.data.Examples` are."""

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def batch(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        """Return inputs and targets of some rows, int64 [n], as a `ClientData` takes them."""
        ...


class Examples(LazyClients):
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
        owners: Sequence[Hashable] | Tensor | None = None,
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

    def client(self, place: int) -> ClientData:
        """Return one example."""
        return self.batch([place])

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


class Owned(LazyClients):
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
        owners: Sequence[Hashable] | Tensor,
        *,
        records: int,
        unit: str = CLIENT,
    ) -> None:
        self.unit, self._clients = validate.line("unit", unit, "a unit of privacy"), clients
        self.records, kept = kept_records(len(clients), owners, records)
        self._kept: Sequence[int] = range(len(clients)) if kept is None else kept

    def __len__(self) -> int:
        return len(self._kept)

    def client(self, place: int) -> ClientData:
        """Return one client."""
        return self._clients[self._kept[place]]


def kept_records(
    count: int, owners: Sequence[Hashable] | Tensor | None, records: int | None
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
    names: list[Any] = list(validate.several("owners", listed, "owners"))
    if len(names) != count:
        rule = f"each of the {count} records has an owner"
        raise InvalidParameter("owners", len(names), rule)
    taken: Counter[str | int] = Counter()
    kept: list[int] = []
    owner_names = [_owner(name) for name in names]
    if len({isinstance(name, str) for name in owner_names}) > 1:
        rule = "owners are all strings, or all whole numbers"
        raise InvalidParameter("owners", names[0], rule)
    for place, name in enumerate(owner_names):
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


def _source(data: Any, targets: Tensor | None) -> Batched:
    if targets is not None:
        return ClientData(data, targets)
    tensors = getattr(data, "tensors", None)
    if isinstance(tensors, tuple):
        pair = cast("tuple[Any, ...]", tensors)
        if len(pair) != 2:
            rule = "an example is a pair of input and target"
            raise InvalidParameter("data", f"{len(pair)} tensors", rule)
        return ClientData(*pair)
    if isinstance(data, Tensor):
        raise InvalidParameter("targets", None, "inputs come with their targets")
    if callable(getattr(data, "batch", None)) and hasattr(data, "__len__"):
        return cast("Batched", data)
    rule = "examples are two tensors, a ClientData, a TensorDataset, or an object with batch(rows)"
    hint = "A data set of pairs: *next(iter(DataLoader(data, batch_size=len(data))))."
    raise InvalidParameter("data", type(data).__name__, rule, hint)
