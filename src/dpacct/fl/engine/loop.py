"""The rounds of a run with clients in this process: rehearsal, local training, release.

Rule 1: everything is tried on synthetic clients before the first charge. Rule 2: the population is
the one that was charged. `dpacct.fl.engine.rounds` has the order of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from dpacct.budget import Budget
from dpacct.fl.clients import ClientData, check_population
from dpacct.fl.engine.checkpoint import resume, save
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.rehearsal import Rehearsal
from dpacct.fl.engine.rounds import OpenRound, Rounds
from dpacct.fl.engine.states import Collected, Draw, TrainingState
from dpacct.fl.layout import set_training_mode
from dpacct.fl.privacy.account import Account
from dpacct.fl.report.reports import Report
from dpacct.fl.surroundings import arithmetic, undisturbed
from dpacct.fl.tensors import forked_generators, seed_generators
from dpacct.fl.training.choose import Choice, TrainerChooser, TrainingPlan

Made = TypeVar("Made")


class RoundLoop:
    """One run in progress.

    Attributes:
        choice: how clients are trained, once that is chosen.
        trained_before: how they were trained before the run was resumed, or on rank 0.
        budget: of a new ledger. None on another rank until rank 0 has begun.
    """

    def __init__(
        self,
        rounds: Rounds,
        chooser: TrainerChooser,
        *,
        example: ClientData | None,
    ) -> None:
        self.rounds, self.chooser = rounds, chooser
        self.choice: Choice | None = None
        self.trained_before: TrainingPlan | None = None
        self.budget: Budget | None = rounds.account.budget
        self._example = example

    @property
    def engine(self) -> Engine:
        """The parts of the run, with noise and sampling of the next round."""
        return self.rounds.engine

    @property
    def account(self) -> Account:
        """The run in its ledger."""
        return self.rounds.account

    @property
    def state(self) -> TrainingState:
        """The state after the finished rounds."""
        return self.rounds.state

    def begin(self) -> None:
        """Try all of it on synthetic clients, then register the run in the ledger with its plan."""
        self.prepare()
        self.rounds.begin()

    @undisturbed()
    def prepare(self) -> None:
        """Try everything on synthetic clients, and choose how clients are trained. Rule 1."""
        self._check_population()
        if self.choice is None and self.state.round < self.rounds.planned:
            self._rehearse()

    def _rehearse(self) -> Choice:
        engine, state = self.engine, self.state
        with forked_generators(), self._settled(0):
            rehearsal = Rehearsal(engine, self.chooser, state, self._example, self.trained_before)
            choice = rehearsal.run()
        self.choice = choice
        return choice

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint, by `dpacct.fl.engine.checkpoint`."""
        self._check_population()
        self.trained_before = resume(self.rounds, path)

    def save(self, path: Path) -> None:
        """Write a checkpoint of the last finished round."""
        save(self.rounds, path, self.trained_before if self.choice is None else self.choice.plan)

    def finish(self) -> None:
        """Finish the run in the ledger."""
        self.account.finish()

    def agree(self, make: Callable[[], Made]) -> Made:
        """Return the result of a function, which other ranks would receive."""
        return make()

    def play(self) -> Report:
        """Run one round.

        A round that does not fit, or another population or model, raises before anything is
        charged. If code of a client reached past the bound, nothing leaves.
        """
        opened = self.open()
        opened.merge(self.collect(opened.draw))
        return opened.release()

    def open(self) -> OpenRound:
        """Reserve the next round, and draw its cohort (see `Rounds.open`)."""
        self._check_population()
        return self.rounds.open()

    @undisturbed()
    def collect(self, draw: Draw) -> Collected:
        """Train the workers of a draw, or of a share of it, and sum their contributions."""
        choice = self.choice or self._rehearse()
        with forked_generators(), self._settled(draw.seed):
            return self.engine.collect(self.state, draw, choice.trainer, choice.plan.chunk)

    def _check_population(self) -> None:
        """Check that the population is the one that was planned. Rule 2."""
        check_population(self.engine.clients, self.engine.num_clients)

    @contextmanager
    def _settled(self, seed: int) -> Generator[None]:
        """Prepare model, precision and seed for training."""
        seed_generators(seed, self.engine.device)
        with arithmetic(self.engine.local.precision):
            set_training_mode(self.chooser.model)
            yield
