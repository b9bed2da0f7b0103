"""The way that a run was trained before it stopped, taken again where it is still to be trusted.

What was measured is not measured again: which way is faster, on a machine that may have other
things to do now. All that was compared is compared again, on made-up clients: the same updates as
one by one, nothing of who is trained beside whom, room in memory.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from dpacct.errors import Unsupported
from dpacct.fl.layout import Layout
from dpacct.fl.local.labels import Labels
from dpacct.fl.trainers.addresses import shows_addresses
from dpacct.fl.trainers.choice import Choice, Chooser
from dpacct.fl.trainers.chooser import TrainerChooser
from dpacct.fl.trainers.company import shows_company
from dpacct.fl.trainers.example_chooser import ExampleChooser
from dpacct.fl.trainers.examples import Kind, Maker
from dpacct.fl.trainers.groups import GroupTrainer
from dpacct.fl.trainers.number_widths import widths_in
from dpacct.fl.trainers.tasks import Broadcast
from dpacct.fl.trainers.way import taken
from dpacct.fl.trainers.ways import ClientWay, ExampleWay, KeptWay

# How much memory is free is never the same twice; a limit leaves that much beside it.
_SLACK = 1.25
_OTHERWISE = "vectorize or chunk_size asks for another way"
_NO_ROOM = "memory has no room for it"


def taken_again(
    kept: KeptWay,
    chooser: Chooser,
    layout: Layout,
    make: Maker,
    kind: Kind,
    labels: Labels | None,
    broadcast: Broadcast,
    cohort: int,
) -> Choice:
    """The choice of a run that goes on, as it was.

    Args:
        kept: how it was trained. chooser, layout: of the run that goes on.
        make, kind, labels, broadcast, cohort: as `TrainerChooser.choose` takes them.
    Raises:
        Unsupported: that way is not possible here, or not any more; why, in words.
    """
    way, device = kept.way, _device(broadcast)
    if kept.device != device.type:
        raise Unsupported(f"it was chosen on {kept.device}, and this is {device.type}")
    if (way.kind, way.labels) != (kind, labels):
        raise Unsupported("examples looked otherwise")
    match way, chooser:
        case ClientWay(), TrainerChooser():
            way = _of_clients(way, chooser, make, broadcast, cohort)
        case ExampleWay(), ExampleChooser():
            way = _of_examples(way, chooser, make, broadcast)
        case _:
            raise Unsupported("it is one for another kind of population")
    return taken(way, chooser, layout)


def _of_clients(
    way: ClientWay, chooser: TrainerChooser, make: Maker, broadcast: Broadcast, cohort: int
) -> ClientWay:
    """The way, with what does not show in an update as it is here."""
    together = way.clients is not None
    if chooser.vectorize not in ("auto", together) or (
        chooser.vectorize != "auto" and way.by_place
    ):
        raise Unsupported(_OTHERWISE)
    tasks = chooser.made_up(make, broadcast)
    if way.by_place and chooser.same_by_place(tasks, broadcast) is None:
        raise Unsupported("images place by place give other updates")
    if way.clients is None:
        return replace(way, chunk=chooser.chunk_alone(cohort))
    if (way.room is None) != (chooser.chunk is not None):
        raise Unsupported(_OTHERWISE)
    fitting, examples = chooser.most_examples(tasks[0], broadcast)
    lanes = widths_in(chooser.vectorized, tasks[:1], broadcast).lanes
    if way.clients not in chooser.sizes(cohort, int(_SLACK * fitting), lanes):
        raise Unsupported(_OTHERWISE if chooser.chunk else _NO_ROOM)
    if chooser.limited and way.widest * way.clients > _SLACK * examples:
        raise Unsupported(_NO_ROOM)
    complaint = shows_addresses(_device(broadcast)) or chooser.compare(tasks, broadcast)
    trainer = GroupTrainer(chooser.vectorized, way.clients, way.widest)
    complaint = complaint or shows_company(trainer, tasks, broadcast)
    if complaint:
        raise Unsupported(complaint)
    return replace(way, replays=chooser.vectorized.replays, chunk=way.clients)


def _of_examples(
    way: ExampleWay, chooser: ExampleChooser, make: Maker, broadcast: Broadcast
) -> ExampleWay:
    """As `_of_clients`."""
    if chooser.vectorize not in ("auto", way.sizes is not None):
        raise Unsupported(_OTHERWISE)
    if way.sizes is not None:
        room = int(_SLACK * chooser.chunk_of(None, make, broadcast))
        chooser.check(way.sizes, make, broadcast, room)
        chooser.settle(way.sizes, _device(broadcast))
    return replace(way, chunk=chooser.chunk_of(way.sizes, make, broadcast))


def _device(broadcast: Broadcast) -> torch.device:
    return next(iter(broadcast.anchor.values())).device
