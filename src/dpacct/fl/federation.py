"""`Federation`: a client-level private training run, from the plan to the trained model."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, cast

import torch
from torch import nn

from dpacct.budget import Budget, Spent
from dpacct.errors import BudgetExceeded
from dpacct.fl.clients import Population
from dpacct.fl.engine.loop import RoundLoop
from dpacct.fl.engine.ranks import Ranks, follower_settings, loop_of
from dpacct.fl.engine.setup import Asked, choose_chooser, has_memories, prepare
from dpacct.fl.local.losses import LossFunction
from dpacct.fl.privacy.bounds import Bound
from dpacct.fl.report.reports import Report
from dpacct.fl.settings import (
    LocalSettings,
    check_loss,
    check_sequence,
    checkpoint_file,
    place,
    with_keywords_of,
)
from dpacct.rounds import Schedule

P = ParamSpec("P")


def _takes(
    kind: Callable[P, LocalSettings],
) -> Callable[
    [Callable[[Federation, nn.Module, LossFunction, Population, LocalSettings], None]],
    Callable[Concatenate[Federation, nn.Module, LossFunction, Population, P], None],
]:
    """Spread the settings that an ``__init__`` takes into its keywords."""
    return lambda init: with_keywords_of(cast("Any", kind), init)


class Federation:
    """Trains a model on clients' data: iterate over it, or call `run`.

    Every round is reserved in the ledger before its cohort is drawn, and committed before its noisy
    sum reaches the model.

    Args:
        model: changed in place, and moved to ``device``. Its parameters that require a gradient
            are trained; float32 or float64; batch norm only if frozen (eval mode, no gradients).
        loss: (outputs, targets) -> mean loss over the examples of the batch.
        clients: the population; any sequence of `ClientData`, which may be lazy, or `Examples`.
        Others, as keywords: see `dpacct.fl.settings.Settings` and `LocalSettings`.

    Attributes:
        model: with the latest parameters. noise_multiplier: of the next round.
        rounds: planned; fewer than asked for where the budget allows no more. round: those done.
        not_private_because: why epsilon is infinite, None where it is not.
        stopped_because: why the run ended early, None where it did not.
        resumed_with: what is worth a note about the checkpoint it goes on from, else None.
        training_path: how clients are trained, and why. player: has engine, state and ledger.

    Raises:
        InvalidParameter, Unsupported: a setting that makes no sense, or is not private.
        BudgetExceeded: (when the first round starts) the plan does not fit into the ledger.
        AuditFailed: (likewise) the preflight found something.
    """

    noise_multiplier: float
    stopped_because: str | None
    resumed_with: str | None

    @_takes(LocalSettings)
    def __init__(
        self, model: nn.Module, loss: LossFunction, clients: Population, settings: LocalSettings
    ) -> None:
        check_loss(loss)
        check_sequence(clients)
        self._checkpoint = settings.checkpoint_path
        self.model = place(model, settings.device)
        ranks = Ranks() if settings.distributed else None
        follows = ranks is not None and ranks.rank > 0
        settings = follower_settings(settings) if follows else settings
        self._run = run = prepare(settings, self.model, clients)
        engine, self.rounds = run.rounds.engine, run.planned
        self.noise_multiplier = math.nan if follows else engine.plan.noise_multiplier
        self.not_private_because = run.rounds.not_private_because
        self._checkpoint_every = settings.checkpoint_every
        method, layout, local = engine.method, engine.layout, engine.local
        asked = Asked(settings.vectorize, settings.chunk_size, settings.memory_limit)
        chooser = choose_chooser(clients, model, loss, method, layout, local, asked)
        self.player: RoundLoop = loop_of(
            ranks, run.rounds, chooser, preflight=settings.preflight, example=settings.example
        )
        self._callbacks = () if follows else tuple(settings.callbacks)
        self.stopped_because, self.resumed_with = None, None
        self._close = weakref.finalize(self, run.rounds.account.close)

    @property
    def device(self) -> torch.device:
        """Where training runs."""
        return next(self.model.parameters()).device

    @property
    def round(self) -> int:
        """Rounds done."""
        return self.player.state.round

    @property
    def training_path(self) -> str:
        """How clients are trained, and why; empty before the first round."""
        choice = self.player.choice
        return "" if choice is None else choice.words

    @property
    def has_private_checkpoint(self) -> bool:
        """Whether checkpoints hold clients' memories, which are private data.

        Such a file is readable by its owner alone; guard it like the data.
        """
        return has_memories(self.player.engine.method, self.player.state.params)

    @property
    def budget(self) -> Budget | None:
        """Of a new ledger; on ranks above 0 that of rank 0, None until the first round."""
        return self.player.budget

    @property
    def bound(self) -> Bound:
        """Of the next round."""
        return self.player.state.bound

    @property
    def schedule(self) -> Schedule:
        """The rounds that are played, with their noise and sampling."""
        return self._run.rounds.plan.schedule

    @property
    def ledger_path(self) -> Path | None:
        """The ledger's file; None for a passing one."""
        return self.player.account.path

    @property
    def epsilon(self) -> Spent:
        """Achieved and proven epsilon of what was released, also when the run is closed.

        Infinite where it is not private.
        """
        return self.player.account.epsilon()

    @property
    def planned_epsilon(self) -> Spent:
        """What the whole plan costs where cohorts and noise are secret."""
        return self._run.planned_epsilon(self.rounds, self.player.account)

    def run(self) -> Report | None:
        """Train all rounds that are left, and return the last report (None if none was left)."""
        last = None
        for report in self:
            last = report
        return last

    def __iter__(self) -> Iterator[Report]:
        """Train, one report a round; ends with the plan, or where the budget allows no more."""
        with self.player.to_the_end():
            yield from self._play()

    def _play(self) -> Iterator[Report]:
        player = self.player
        self.rounds = player.begin(self._run.name, self.rounds, self._run.limit)
        self.noise_multiplier = player.engine.plan.noise_multiplier
        for callback in self._callbacks:
            callback.start(self)
        try:
            while self.round < self.rounds:
                try:
                    report = player.play()
                except BudgetExceeded as refusal:
                    self.stopped_because = str(refusal)
                    break
                if self._checkpoint and self.round % self._checkpoint_every == 0:
                    self.save()
                self.noise_multiplier = player.engine.plan.noise_multiplier
                for callback in self._callbacks:
                    callback.report(self, report)
                yield report
            if self._checkpoint and self.round % self._checkpoint_every:
                self.save()
            if self.round >= self.rounds:
                player.finish()
        finally:
            for callback in self._callbacks:
                callback.finish(self)

    def save(self, path: str | Path | None = None) -> Path:
        """Write a checkpoint of the last finished round, atomically.

        Args:
            path: default the run's own.
        Raises:
            InvalidParameter: there is no path. OSError: it cannot be written.
        """
        target = self._target(path)
        self.player.save(target)
        return target

    def resume(self, path: str | Path | None = None) -> Self:
        """Go on from a checkpoint, written by a run of the same settings.

        Rounds that the ledger holds beyond the checkpoint stay spent. A private run draws fresh
        cohorts and noise; a seeded one goes on as if it had never stopped.

        Raises:
            InvalidParameter: the checkpoint is missing, damaged, of another setting, or of a run
                whose ledger was not kept.
            LedgerError: the ledger is not that of the checkpoint, or has lost rounds.
        """
        player = self.player
        self.resumed_with = player.resume(self._target(path), calibrated=self._run.calibrated)
        self.noise_multiplier = player.engine.plan.noise_multiplier
        return self

    def close(self) -> None:
        """Close the ledger, if it was opened here."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def _target(self, path: str | Path | None) -> Path:
        return checkpoint_file(path, self._checkpoint)
