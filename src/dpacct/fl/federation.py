"""`Federation`: a client-level private training run, from the plan to the trained model."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, Self

import torch
from torch import nn

from dpacct import validate
from dpacct.budget import Budget, Spent
from dpacct.errors import BudgetExceeded, InvalidParameter
from dpacct.fl.clients import ClientData, Population
from dpacct.fl.engine.checks import refuse_weights
from dpacct.fl.engine.follower import follower_settings
from dpacct.fl.engine.loop import RoundLoop
from dpacct.fl.engine.player import Player, led
from dpacct.fl.engine.populations import Asked, choose_chooser
from dpacct.fl.engine.ranks import Ranks
from dpacct.fl.engine.setup import Settings, place, prepare
from dpacct.fl.local.losses import LossFunction
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.protocol import Method
from dpacct.fl.methods.server_optimizers import ServerOptimizer
from dpacct.fl.privacy.bounds import Bound
from dpacct.fl.privacy.noise import Noise
from dpacct.fl.report.callbacks import Callback
from dpacct.fl.report.reports import Report
from dpacct.ledger import Ledger
from dpacct.rounds import Adjacency, Sampling


class Federation:
    """Trains a model on clients' data: iterate over it, or call `run`.

    Every round is reserved in the ledger before its cohort is drawn, and committed before its noisy
    sum reaches the model.

    Args:
        model: changed in place, and moved to ``device``. Its parameters that require a gradient
            are trained; float32 or float64; batch norm only if frozen (eval mode, no gradients).
        loss: (outputs, targets) -> mean loss over the examples of the batch.
        clients: the population; any sequence of `ClientData`, which may be lazy, or `Examples`.
        method: what runs on clients and server; default DP-FedAvg.
        clip_norm: norm bound C of a client's whole update; short for ``bound=Clip(C)``.
        bound: another bound.
        sampling, adjacency: default ``Poisson(0.1)``, and the sampling's own.
        budget: the target; calibrates the noise where none is given, else limits the run.
        noise_multiplier: std of the noise on the sum / C, instead of a calibration.
        delta: at which epsilon is reported, where there is no budget. A ledger that is there has
            one, which is the default and the only one allowed; else the default is 1e-5.
        rounds: planned number of rounds.
        local: default ``SGD()``; for `Examples` the gradient. server_lr: factor on the noisy mean.
        server: what becomes of the server's step, `Momentum` or `Adam`; None leaves it as it is.
        noise: where the noise comes from; default `GaussianNoise`, added by a trusted server.
            ``secure_noise`` is short for ``noise=SecureGaussianNoise()``.
        ledger: an open `Ledger`, or the path of one. None: beside the checkpoint if there is one
            (``.ledger`` appended), else in a passing file. Everything is charged in any case.
        name: of the run in the ledger. accountant: that calibrates (`checks.plan_accountant`).
        vectorize: train clients side by side: "auto" measures, True, False.
        chunk_size: clients in memory at a time (side by side a multiple of 32); default as many as
            fit ``memory_limit`` bytes (1 GiB, or 40 % of what is free on a GPU).
        device: default that of the model. callbacks: see `Callback`.
        seed: makes cohorts and noise repeatable, and the run **not private**: its epsilon is
            infinite. For tests and for comparing methods on public data.
        checkpoint: file to write every ``checkpoint_every`` rounds and at the end.
        weights, denominator: "equal" and "planned"; anything else is refused, and says why.
        preflight: check on made-up clients, before anything is charged, that bound, training, noise
            and denominator of this very run are what is charged for (`dpacct.fl.engine.preflight`).
        example: a made-up client to try all settings on; by default random (`engine.rehearsal`).
        distributed: this process is one of ``torch.distributed``, and so are all others with the
            same arguments; rank 0 alone uses ledger, budget, checkpoint and callbacks.

    Attributes:
        model: with the latest parameters. noise_multiplier: calibrated or given.
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

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        clients: Population,
        *,
        rounds: int,
        method: Method | None = None,
        clip_norm: float | None = None,
        bound: Bound | None = None,
        sampling: Sampling | None = None,
        adjacency: Adjacency | str | None = None,
        budget: Budget | None = None,
        noise_multiplier: float | None = None,
        delta: float | None = None,
        local: SGD | None = None,
        server_lr: float = 1.0,
        server: ServerOptimizer | None = None,
        noise: Noise | None = None,
        secure_noise: bool = False,
        ledger: Ledger | str | Path | None = None,
        name: str | None = None,
        accountant: str = "tight",
        vectorize: bool | Literal["auto"] = "auto",
        chunk_size: int | None = None,
        memory_limit: int | None = None,
        device: torch.device | str | None = None,
        seed: int | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 1,
        weights: str = "equal",
        denominator: str = "planned",
        preflight: bool = True,
        example: ClientData | None = None,
        distributed: bool = False,
    ) -> None:
        refuse_weights(weights, denominator)
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self.model = place(model, device)
        ranks = Ranks() if distributed else None
        follows = ranks is not None and ranks.rank > 0
        settings = Settings(
            rounds=rounds,
            method=method,
            clip_norm=clip_norm,
            bound=bound,
            sampling=sampling,
            adjacency=adjacency,
            budget=budget,
            noise_multiplier=noise_multiplier,
            delta=delta,
            local=local,
            server_lr=server_lr,
            server=server,
            noise=noise,
            secure_noise=secure_noise,
            ledger=ledger,
            name=name,
            accountant=accountant,
            seed=seed,
            checkpoint=self._checkpoint,
        )
        settings = follower_settings(settings) if follows else settings
        self._run = run = prepare(settings, self.model, clients)
        engine, self.rounds = run.rounds.engine, run.planned
        self.noise_multiplier = math.nan if follows else engine.plan.noise_multiplier
        self.not_private_because = run.rounds.not_private_because
        every = validate.count("checkpoint_every", checkpoint_every, "rounds between checkpoints")
        self._checkpoint_every = every
        method, layout, local = engine.method, engine.layout, engine.local
        asked = Asked(vectorize, chunk_size, memory_limit)
        chooser = choose_chooser(clients, model, loss, method, layout, local, asked)
        loop = RoundLoop(run.rounds, chooser, preflight and not follows, example)
        self.player: Player = loop if ranks is None else led(loop, ranks)
        self._callbacks = () if follows else tuple(callbacks)
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
    def budget(self) -> Budget | None:
        """Of a new ledger; on ranks above 0 that of rank 0, None until the first round."""
        return self.player.budget

    @property
    def bound(self) -> Bound:
        """Of the next round."""
        return self.player.state.bound

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
        target = self._checkpoint if path is None else Path(path)
        if target is None:
            raise InvalidParameter("path", None, "the run has no checkpoint file of its own")
        return target
