"""From a choice of trainer to its words, and back in another process, to train bit by bit alike."""

from __future__ import annotations

from dpacct.errors import Unsupported
from dpacct.fl.layout import Layout
from dpacct.fl.trainers.addresses import shows_addresses
from dpacct.fl.trainers.choice import Choice, Chooser
from dpacct.fl.trainers.chooser import TrainerChooser
from dpacct.fl.trainers.example_chooser import ExampleChooser
from dpacct.fl.trainers.groups import GroupTrainer
from dpacct.fl.trainers.lot_trainer import LotTrainer
from dpacct.fl.trainers.tolerant import TolerantTrainer
from dpacct.fl.trainers.ways import ClientWay, ExampleWay, Way


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
