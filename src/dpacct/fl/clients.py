"""A client and a population, as the engine reads them: inputs and targets of examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from dpacct.errors import InvalidParameter

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
        inputs: list[Any] = [given]
        if isinstance(given, dict | tuple):
            own = cast("dict[str, Any] | tuple[Any, ...]", given)
            inputs = list(own.values()) if isinstance(own, dict) else list(own)
            if isinstance(own, dict) and not all(isinstance(name, str) for name in own):
                rule = "the names of several inputs are those of the model's arguments"
                raise InvalidParameter("inputs", "a name that is no text", rule)
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


@dataclass(frozen=True, slots=True, eq=False)
class Canary(ClientData):
    """A client of an audit: it trains like all other clients, and sends a given update.

    Args:
        inputs, targets: as of any client.
        update: [d], in the order of the trainable parameters, masked and bounded like any other.
    """

    update: Tensor


Population = Sequence[ClientData]


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
