"""A choice of trainer in words that another process can follow, to train bit by bit alike."""

from __future__ import annotations

from dataclasses import dataclass

from dpacct.fl.layout import Layout
from dpacct.fl.local.labels import Labels
from dpacct.fl.trainers.chooser import Choice, TrainerChooser
from dpacct.fl.trainers.examples import Kind
from dpacct.fl.trainers.groups import GroupTrainer
from dpacct.fl.trainers.tolerant import TolerantTrainer


@dataclass(frozen=True, slots=True)
class Way:
    """What decides how a client is trained, beside model, method and data.

    Attributes:
        clients, widest: of the groups side by side, see `GroupTrainer`; None for one by one.
        kind, labels, room: see `TolerantTrainer`. chunk, reason: see `Choice`.
    """

    clients: int | None
    widest: float
    kind: Kind
    labels: Labels | None
    room: int | None
    chunk: int
    reason: str

    @classmethod
    def of(cls, choice: Choice) -> Way:
        """The way that was chosen."""
        trainer = choice.trainer
        group = trainer.together
        return cls(
            None if group is None else group.clients,
            float("inf") if group is None else group.widest,
            trainer.kind,
            trainer.labels,
            trainer.room,
            choice.chunk,
            choice.reason,
        )

    def taken(self, chooser: TrainerChooser, layout: Layout) -> Choice:
        """The same way with the model of this process."""
        group = None
        if self.clients is not None:
            group = GroupTrainer(chooser.vectorized, self.clients, self.widest)
        trainer = TolerantTrainer(layout, chooser.alone, group, self.kind, self.labels, self.room)
        return Choice(trainer, self.chunk, self.reason)
