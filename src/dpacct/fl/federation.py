"""`Federation`: a client-level private training run, from the plan to the trained model."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import torch
from torch import nn

from dpacct.budget import Budget, Spent
from dpacct.display import html_table, up
from dpacct.errors import BudgetExceeded, InvalidParameter, Unsupported
from dpacct.fl.clients import Population
from dpacct.fl.engine.checkpoint import resume, save
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.loop import LocalRounds, Made, RankedRounds, Ranks, follower_settings
from dpacct.fl.engine.rounds import Rounds
from dpacct.fl.engine.setup import choose_chooser, has_memories, prepare
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.local.losses import LossFunction, check_loss
from dpacct.fl.methods.server_optimizers import ServerState
from dpacct.fl.privacy.account import Account
from dpacct.fl.privacy.bounds import Bound
from dpacct.fl.privacy.randomness import SEEDED
from dpacct.fl.report.reports import RoundReport
from dpacct.fl.settings import (
    LocalSettings,
    Settings,
    check_sequence,
    checkpoint_file,
    place,
    with_keywords_of,
)
from dpacct.fl.training.choose import Choice
from dpacct.ledger import Address, exposure
from dpacct.rounds import Schedule

P = ParamSpec("P")
Played = TypeVar("Played")


class PrivateRun:
    """The common part of a `Federation` and a `Server`.

    Attributes:
        model: with the latest parameters.
        stopped_because: why the run ended early, None if it did not.
    """

    def __init__(self, model: nn.Module, rounds: Rounds, settings: Settings) -> None:
        self.model = model
        self.stopped_because: str | None = None
        self._rounds = rounds
        self._checkpoint = settings.checkpoint_path
        self._checkpoint_every = settings.checkpoint_every
        self._close = weakref.finalize(self, rounds.account.close)

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        kind, schedule = type(self).__name__, self.schedule
        why = self.not_private_because
        plan = f"noise multiplier {up(self.noise_multiplier, 7)}, {schedule.adjacency}"
        rows = [(kind, f"{self.round} of {self.rounds} rounds", plan)]
        if why is None:
            planned = self.planned_epsilon
            rows.append(("epsilon", up(planned.upper), f"planned, at delta {planned.delta:g}"))
        rows.append(("not private" if why else "stopped", why or self.stopped_because or "no", ""))
        return html_table(rows)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {self.round} of {self.rounds} rounds>"

    @property
    def engine(self) -> Engine:
        """The parts of the run, with noise and sampling of the next round."""
        return self._rounds.engine

    @property
    def state(self) -> TrainingState:
        """The state after the finished rounds."""
        return self._rounds.state

    @property
    def account(self) -> Account:
        """The run in its ledger. A rank other than 0 has none."""
        if self._rounds.follows:
            raise Unsupported("this rank keeps no ledger: rank 0 has the spent budget")
        return self._rounds.account

    @property
    def round(self) -> int:
        """The number of finished rounds."""
        return self._rounds.state.round

    @property
    def rounds(self) -> int:
        """The number of planned rounds, fewer than asked for if the budget allows no more."""
        return self._rounds.planned

    @property
    def schedule(self) -> Schedule:
        """The planned rounds, with their noise and sampling. Correlated noise is one release."""
        plan = self._rounds.plan
        correlation, noise = plan.noise.correlation, plan.noise.noise_multiplier
        if correlation is None:
            return plan.schedule
        return 1 * correlation.release(noise, plan.noise.adjacency)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the next round, calibrated or given."""
        return self._rounds.engine.plan.noise_multiplier

    @property
    def bound(self) -> Bound:
        """The bound of the next round."""
        return self._rounds.state.bound

    @property
    def budget(self) -> Budget | None:
        """The budget of a new ledger. None on another rank until rank 0 has begun."""
        return self._rounds.budget

    @property
    def not_private_because(self) -> str | None:
        """Why epsilon is infinite, None if it is not."""
        return self._rounds.not_private_because

    @property
    def ledger_path(self) -> Path | Address | None:
        """The ledger's file or address, or None for a temporary one."""
        return self.account.path

    @property
    def epsilon(self) -> Spent:
        """Achieved and proven epsilon of the released rounds, also when the run is closed.

        Infinite if the run is not private.
        """
        return self.account.epsilon()

    @property
    def planned_epsilon(self) -> Spent:
        """Epsilon of the whole plan if cohorts and noise are secret.

        Infinite if the method is not private, whatever the noise.
        """
        _ = self.account
        planned = self._rounds.planned_epsilon()
        if not self.noise_multiplier and exposure(self.schedule) > planned.delta:
            return Spent(math.inf, math.inf, planned.delta)
        return planned if self.not_private_because in (None, SEEDED) else planned.without_privacy

    @property
    def has_private_checkpoint(self) -> bool:
        """True if checkpoints hold clients' memories, correlated noise or an allocation.

        Such a file is readable by its owner alone. Guard it like the data.
        """
        secrets = self.state.noise, self.engine.allocator
        return has_memories(self.engine.method) or any(secret is not None for secret in secrets)

    def averaged(self) -> nn.Module:
        """Return a copy of the model with the average of the released parameters.

        `dpacct.fl.models.save_parameters` writes it. Before the first release it is the model.

        Raises:
            InvalidParameter: the run has no ``average``.
        """
        average, model = self.engine.average, copy.deepcopy(self.model)
        if average is None:
            rule = "a run averages its released parameters if it is asked to"
            raise InvalidParameter("average", None, rule, "Give average=fl.Average(decay=0.9).")
        state = ServerState.of(self.state.server_state).average
        with torch.no_grad():
            for name, value in average.value(state).items():
                model.get_parameter(name).copy_(value)
        return model

    def save(self, path: str | Path | None = None) -> Path:
        """Write a checkpoint of the last finished round, atomically.

        Args:
            path: default the run's own.
        Raises:
            InvalidParameter: there is no path. OSError: it cannot be written.
        """
        target = checkpoint_file(path, self._checkpoint)
        if not self._rounds.follows:
            save(self._rounds, target)
        return target

    def resume(self, path: str | Path | None = None) -> Self:
        """Go on from a checkpoint, written by a run of the same settings.

        Rounds that the ledger holds beyond the checkpoint stay spent. A private run draws fresh
        cohorts and noise. A seeded one goes on as if it had never stopped. Correlated noise goes
        on with the first row that no round has taken.

        Raises:
            InvalidParameter: the checkpoint is missing, damaged or of another setting, or the
                ledger of its run was not kept.
            LedgerError: the ledger is not that of the checkpoint, or has lost rounds.
        """
        target = checkpoint_file(path, self._checkpoint)
        if not self._rounds.follows:
            # Rank 0 sends the state when the run begins.
            resume(self._rounds, target)
        return self

    def close(self) -> None:
        """Close the ledger, if it was opened here."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def _each(self, play: Callable[[], Played]) -> Iterator[Played]:
        """Yield what ``play`` returns for each round that is left, or until the budget is spent."""
        while self.round < self.rounds:
            try:
                played = play()
            except BudgetExceeded as refusal:
                self.stopped_because = str(refusal)
                break
            yield played
        self._save_if_due(at_the_end=True)
        if self.round >= self.rounds and not self._rounds.follows:
            self._rounds.account.finish()

    def _save_if_due(self, *, at_the_end: bool = False) -> None:
        due = self.round % self._checkpoint_every == 0
        if self._checkpoint and due is not at_the_end:
            self.save()


def _takes(
    kind: Callable[P, LocalSettings],
) -> Callable[
    [Callable[[Federation, nn.Module, LossFunction, Population, LocalSettings], None]],
    Callable[Concatenate[Federation, nn.Module, LossFunction, Population, P], None],
]:
    """Spread the settings that an ``__init__`` takes into its keywords."""
    return lambda init: with_keywords_of(cast("Any", kind), init)


class Federation(PrivateRun):
    """Trains a model on clients' data: iterate over it, or call `run`.

    Every round is reserved in the ledger before its cohort is drawn, and committed before its noisy
    sum reaches the model.

    Args:
        model: changed in place, and moved to ``device``. Its parameters that require a gradient
            are trained. They are float32 or float64. Batch norm is rejected.
        loss: (outputs, targets) -> mean loss over the examples of the batch.
        clients: the population: a sequence of `ClientData`, which may be lazy, or `Examples`.
        Others, as keywords: see `dpacct.fl.settings.Settings` and `LocalSettings`.

    Attributes: see `PrivateRun`.

    Raises:
        InvalidParameter, Unsupported: a setting that makes no sense, or is not private.
        BudgetExceeded: (when the first round starts) the plan does not fit into the ledger.
        AuditFailed: (likewise) the bound does not bound.
    """

    @_takes(LocalSettings)
    def __init__(
        self, model: nn.Module, loss: LossFunction, clients: Population, settings: LocalSettings
    ) -> None:
        check_loss(loss)
        check_sequence(clients)
        model = place(model, settings.device)
        self._rounds: LocalRounds
        if settings.distributed:
            ranks = Ranks()
            own = settings if ranks.first else follower_settings(settings)
            rounds = prepare(own, model, clients, RankedRounds)
            rounds.ranks = ranks
            if rounds.follows:
                rounds.budget = None
        else:
            rounds = prepare(settings, model, clients, LocalRounds)
        super().__init__(model, rounds, settings)
        rounds.chooser = choose_chooser(rounds.engine, model, loss, settings)
        rounds.example = settings.example
        self._callbacks = () if rounds.follows else tuple(settings.callbacks)

    @property
    def device(self) -> torch.device:
        """The device on which training runs."""
        return next(self.model.parameters()).device

    @property
    def choice(self) -> Choice | None:
        """The trainer of the clients, once that is chosen."""
        return self._rounds.choice

    @property
    def training_path(self) -> str:
        """The way in which clients are trained, with its reason. Empty before the first round."""
        return "" if self.choice is None else self.choice.plan.reason

    def agree(self, make: Callable[[], Made]) -> Made:
        """Return the result of a function, of several processes that of rank 0 on all ranks."""
        return self._rounds.agree(make)

    def run(self) -> RoundReport:
        """Train all remaining rounds, and return the last report.

        Raises:
            InvalidParameter: all planned rounds have run.
            BudgetExceeded: the budget allows no further round.
        """
        last = None
        for report in self:
            last = report
        if last is not None:
            return last
        if self.stopped_because:
            raise BudgetExceeded(self.stopped_because)
        rule = "all of them have run, and no round is left"
        hint = "To train on, make a run with more rounds; its epsilon adds up with this one."
        raise InvalidParameter("rounds", self.rounds, rule, hint)

    def __iter__(self) -> Iterator[RoundReport]:
        """Train, one report a round, until the plan ends or the budget allows no more."""
        rounds = self._rounds
        begun = rounds.account.begun
        rounds.begin()
        ahead = self.state.noise is not None or self.engine.allocator is not None
        if self._checkpoint and ahead and not begun:
            # More than a round is charged with the first one. A crash in it loses that one alone.
            self.save()
        for callback in self._callbacks:
            callback.start(self)
        try:
            for report in self._each(rounds.play):
                self._save_if_due()
                for callback in self._callbacks:
                    callback.report(self, report)
                yield report
        finally:
            for callback in self._callbacks:
                callback.finish(self)
