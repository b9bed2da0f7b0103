"""The trainer of a real round: no client's data can stop it, or change another one's update.

Rule 1: how a client is trained is decided by its own data and by what is public. Rule 2: where a
group fails it is split until it is clear whose data it was. The others lose nothing: side by side
an update is the same whoever else is there (`dpacct.fl.trainers.groups`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpacct.fl.clients import ClientData
from dpacct.fl.layout import Layout, State
from dpacct.fl.local.labels import Labels
from dpacct.fl.trainers.examples import Kind
from dpacct.fl.trainers.failures import Trial
from dpacct.fl.trainers.groups import GroupTrainer
from dpacct.fl.trainers.sequential import SequentialTrainer
from dpacct.fl.trainers.tasks import Broadcast, Task
from dpacct.fl.uploads import listed


@dataclass(frozen=True, slots=True, eq=False)
class TolerantTrainer:
    """Clients side by side as far as they fit, all others one after the other.

    Attributes:
        layout: of the update.
        alone: trains one client after the other.
        together: trains side by side, None for nobody.
        kind: of the examples of those side by side.
        labels: what targets may be, None for anything.
        room: bytes that the data of one client side by side may take, None for any number.
    """

    layout: Layout
    alone: SequentialTrainer
    together: GroupTrainer | None
    kind: Kind
    labels: Labels | None
    room: int | None

    def admit(self, data: ClientData) -> bool:
        """See `Trainer`."""
        fitting = self.labels is None or self.labels.check(data.targets)
        if self.together is None or not fitting or Kind.of(data) != self.kind:
            return False
        return self.room is None or data.inputs.nbytes + data.targets.nbytes <= self.room

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """See `Trainer`; a client that fails has a row of NaN."""
        start = self.layout.flatten(broadcast.anchor)
        rows = start.new_full((len(tasks), self.layout.size), torch.nan)
        beside: list[int] = []
        others: list[int] = []
        for place, task in enumerate(tasks):
            if not task.failed:
                (others if self.together is None or task.alone else beside).append(place)
        self._side_by_side(tasks, beside, broadcast, rows)
        self._one_by_one(tasks, others, broadcast, rows)
        return rows

    def remember(
        self, tasks: Sequence[Task], rows: Tensor, broadcast: Broadcast
    ) -> list[State] | None:
        """See `Trainer`; a client that fails keeps its memory as it is."""
        if tasks[0].state is None:
            return None
        trainer = self.together or self.alone
        with Trial():
            return trainer.remember(tasks, rows, broadcast)
        states: list[State] = []
        for task, row in zip(tasks, rows, strict=True):
            states.append(task.state or {})
            with Trial():
                states[-1:] = trainer.remember([task], row.unsqueeze(0), broadcast) or []
        return states

    def _side_by_side(
        self, tasks: Sequence[Task], places: list[int], broadcast: Broadcast, rows: Tensor
    ) -> None:
        """Fill in the rows of some clients, except of those that fail."""
        if self.together is None or not places:
            return
        with Trial() as trial:
            found = self.together.train([tasks[place] for place in places], broadcast)
            rows[listed(places, rows.device)] = found
        if trial.error is not None and len(places) > 1:
            half = len(places) // 2
            self._side_by_side(tasks, places[:half], broadcast, rows)
            self._side_by_side(tasks, places[half:], broadcast, rows)

    def _one_by_one(
        self, tasks: Sequence[Task], places: list[int], broadcast: Broadcast, rows: Tensor
    ) -> None:
        """Fill in the rows of some clients, except of those that fail."""
        if not places:
            return
        isolation = self.alone.isolate(broadcast)
        start = self.layout.flatten(broadcast.anchor)
        for place in places:
            row = self.alone.attempt(tasks[place], start, isolation)
            if row is not None:
                rows[place] = row
