"""A choice of trainer in words that another process can follow, to train bit by bit alike."""

from __future__ import annotations

from dataclasses import dataclass

from dpacct.errors import Unsupported
from dpacct.fl.layout import Layout
from dpacct.fl.local.labels import Labels
from dpacct.fl.trainers.addresses import shows_addresses
from dpacct.fl.trainers.choice import Choice, Chooser
from dpacct.fl.trainers.chooser import TrainerChooser
from dpacct.fl.trainers.example_chooser import ExampleChooser
from dpacct.fl.trainers.examples import Kind
from dpacct.fl.trainers.groups import GroupTrainer
from dpacct.fl.trainers.lot_trainer import LotTrainer
from dpacct.fl.trainers.sizes import Sizes
from dpacct.fl.trainers.tolerant import TolerantTrainer


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


def way_of(choice: Choice) -> Way:
    """The way that was chosen."""
    trainer, chunk, reason = choice.trainer, choice.chunk, choice.reason
    kind, labels = trainer.kind, trainer.labels
    if isinstance(trainer, LotTrainer):
        sizes = None if trainer.together is None else trainer.together.sizes
        return ExampleWay(sizes, kind, labels, chunk, reason)
    group = trainer.together
    clients, widest = (None, float("inf")) if group is None else (group.clients, group.widest)
    replays = group is not None and group.trainer.replays
    by_place = trainer.alone.by_place
    return ClientWay(clients, widest, replays, by_place, kind, labels, trainer.room, chunk, reason)


def taken(way: Way, chooser: Chooser, layout: Layout) -> Choice:
    """The same way with the model of this process.

    Raises:
        Unsupported: it is a way to train another kind of population, or many at once where this
            process cannot.
    """
    crowd = way.sizes if isinstance(way, ExampleWay) else way.clients
    complaint = shows_addresses(next(chooser.model.parameters()).device)
    if crowd is not None and complaint:
        raise Unsupported(complaint)
    trainer: TolerantTrainer | LotTrainer
    match way, chooser:
        case ExampleWay(sizes=sizes), ExampleChooser():
            many = None if sizes is None else chooser.trainer_of(sizes)
            trainer = LotTrainer(layout, chooser.alone, many, way.kind, way.labels)
        case ClientWay(clients=count), TrainerChooser():
            chooser.alone.by_place = way.by_place
            group = None
            if count is not None:
                chooser.vectorized.replays = way.replays
                group = GroupTrainer(chooser.vectorized, count, way.widest)
            kind, labels = way.kind, way.labels
            trainer = TolerantTrainer(layout, chooser.alone, group, kind, labels, way.room)
        case _:
            raise Unsupported("one rank trains clients, and another one examples")
    return Choice(trainer, way.chunk, way.reason)
