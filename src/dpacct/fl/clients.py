"""A client and a population, as the engine reads them: examples, as two tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dpacct.errors import InvalidParameter


@dataclass(frozen=True, slots=True, eq=False)
class ClientData:
    """The examples of one client, the unit that is protected.

    A population is any ``Sequence[ClientData]``. It may be lazy: the engine calls ``len`` and
    indexes only the clients that it needs in a round, so 10^6 clients cost no memory.

    Args:
        inputs: tensor of shape [n, ...].
        targets: tensor of shape [n, ...]. ``n`` may be 0 (such a client sends a zero update).

    Raises:
        InvalidParameter: not tensors, without values, or their first dimensions differ.
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        for name in ("inputs", "targets"):
            value = getattr(self, name)
            if not isinstance(value, Tensor) or value.ndim == 0:
                rule = "a client has a tensor of inputs and one of targets, examples first"
                raise InvalidParameter(name, type(value).__name__, rule)
            if value.is_meta and type(value) is Tensor:
                raise InvalidParameter(name, "on the meta device", "a client's tensors hold values")
        if len(self.inputs) != len(self.targets):
            rule = f"there are as many targets as inputs ({len(self.inputs)})"
            raise InvalidParameter("targets", len(self.targets), rule)

    def __len__(self) -> int:
        return len(self.inputs)


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
