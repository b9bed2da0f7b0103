"""A choice of trainer in words, without any model: what another process, or a file, can hold.

All of it is public: it follows from what was asked for, from what examples look like, and from
made-up clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpacct.fl.local.labels import Labels
from dpacct.fl.trainers.examples import Kind
from dpacct.fl.trainers.sizes import Sizes


@dataclass(frozen=True, slots=True)
class ClientWay:
    """How clients are trained, as far as model, method and data do not say it.

    Attributes:
        clients, widest: of the groups side by side, see `GroupTrainer`; None for one by one.
        replays: see `VectorizedTrainer`. by_place: see `SequentialTrainer`.
        kind, labels, room: see `TolerantTrainer`. chunk, reason: see `Choice`.
    """

    clients: int | None
    widest: float
    replays: bool
    by_place: bool
    kind: Kind
    labels: Labels | None
    room: int | None
    chunk: int
    reason: str


@dataclass(frozen=True, slots=True)
class ExampleWay:
    """How examples are trained.

    Attributes:
        sizes: of a group, see `ExampleTrainer`; None for one by one.
        kind, labels: see `LotTrainer`. chunk, reason: see `Choice`.
    """

    sizes: Sizes | None
    kind: Kind
    labels: Labels | None
    chunk: int
    reason: str


Way = ClientWay | ExampleWay


def trains_alike(one: Way, other: Way) -> bool:
    """Whether clients, or examples, are trained in the same groups, and by the same steps."""
    known = replace(other, kind=one.kind, labels=one.labels, chunk=one.chunk, reason=one.reason)
    return known == one


@dataclass(frozen=True, slots=True)
class KeptWay:
    """A way, and the type of the device on which it was chosen."""

    way: Way
    device: str
