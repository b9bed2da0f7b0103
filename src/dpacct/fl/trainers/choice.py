"""What a run has decided about its training, and what decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import nn

from dpacct.fl.local.labels import Labels
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.trainers.examples import Kind, Maker
from dpacct.fl.trainers.lot_trainer import LotTrainer
from dpacct.fl.trainers.sequential import SequentialTrainer
from dpacct.fl.trainers.tasks import Broadcast, Trainer
from dpacct.fl.trainers.tolerant import TolerantTrainer


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The trainer, how many clients it gets at a time, and why, in words.

    Attributes:
        note: what else is worth one about this choice, empty for nothing.
    """

    trainer: TolerantTrainer | LotTrainer
    chunk: int
    reason: str
    note: str = ""

    @property
    def words(self) -> str:
        """How clients are trained, and why."""
        lying = self.trainer.together is None and self.trainer.alone.by_place
        way = f"{self.reason}; images place by place" if lying else self.reason
        return f"{way}; {self.note}" if self.note else way


class Chooser(Protocol):
    """Picks how a run trains; its attributes are those of `TrainerChooser`."""

    @property
    def model(self) -> nn.Module:
        """The copy that is trained."""
        ...

    @property
    def loss(self) -> LocalLoss:
        """With that copy."""
        ...

    @property
    def alone(self) -> SequentialTrainer:
        """Trains one after the other."""
        ...

    @property
    def vectorized(self) -> Trainer:
        """Trains many at once."""
        ...

    def choose(
        self, make: Maker, kind: Kind, labels: Labels | None, broadcast: Broadcast, cohort: int
    ) -> Choice:
        """Decide; see `TrainerChooser.choose`."""
        ...
