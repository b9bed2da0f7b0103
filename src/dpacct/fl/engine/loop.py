"""Plays the rounds of a run: ledger, engine and model in the order that keeps every promise.

Rule 1: all of it was tried on made-up clients before the first charge. Rule 2: a round is reserved
before anything is drawn. Rule 3: cohorts come from secret randomness. Rule 4: population, model,
bound and noise are those that were charged for. Rule 5: committed before anything is released.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpacct.budget import Budget
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData, check_population
from dpacct.fl.engine.checkpoint import read_checkpoint, write_checkpoint
from dpacct.fl.engine.diagnosis import diagnose
from dpacct.fl.engine.engine import Collected, Engine, TrainingState
from dpacct.fl.engine.precision import reduced_precision
from dpacct.fl.engine.preflight import preflight
from dpacct.fl.engine.rehearsal import Rehearsal
from dpacct.fl.engine.snapshots import Expected, noise_of, pack, saved_in, unpack
from dpacct.fl.guards.seals import Seal
from dpacct.fl.layout import copies
from dpacct.fl.privacy.account import Account
from dpacct.fl.privacy.bounds import check_limits
from dpacct.fl.privacy.noise import drawn_std
from dpacct.fl.privacy.randomness import draw_cohort, torch_seed
from dpacct.fl.report.reports import Report, Timing
from dpacct.fl.tensors import forked_generators, seed_generators
from dpacct.fl.trainers.choice import Choice, Chooser
from dpacct.ledger import Event


class RoundLoop:
    """One run in progress.

    Args:
        engine: its fixed parts. chooser: of the way to train. account: its ledger.
        state: where it stands. model: receives each round's parameters.
        preflight: whether the run is audited before it begins.
        example: a made-up client, see `dpacct.fl.engine.rehearsal`.
    """

    def __init__(
        self,
        engine: Engine,
        chooser: Chooser,
        account: Account,
        state: TrainingState,
        model: nn.Module,
        preflight: bool,  # noqa: FBT001 - built in one place
        example: ClientData | None,
    ) -> None:
        self.engine: Engine = engine
        self.account = account
        self.state = state
        self.choice: Choice | None = None
        self._first_bound = state.bound
        self._chooser = chooser
        self._model = model
        self._preflight = preflight
        self._example = example

    def begin(self, name: str, rounds: int, limit: Budget | None) -> int:
        """Try all of it on made-up clients, then register the run in the ledger with its plan.

        Args:
            name: of the run. rounds: planned. limit: the budget that noise was given beside.
        Returns:
            The rounds that the budget has room for, at most those planned.
        Raises:
            BudgetExceeded: not one fits, or not the plan.
            Anything that `dpacct.fl.engine.rehearsal.Rehearsal` raises.
        """
        self._check_population()
        if self.choice is None and self.state.round < rounds:  # Rule 1.
            self.choice = self._rehearse()
        if self.account.begun or self.state.round >= rounds:
            return rounds
        event = self.event()
        rounds = self.account.affordable(event, rounds, limit)
        self.account.start(name, event, rounds, {"setting": self.setting()})
        return rounds

    def _rehearse(self) -> Choice:
        """Try everything on made-up clients, choose how clients are trained, and audit the run.

        Raises:
            AuditFailed: `preflight` found something. Anything that the rehearsal raises.
        """
        engine, state = self.engine, self.state
        with forked_generators(), self._settled(0):
            rehearsal = Rehearsal(engine, self._chooser, state, self._example)
            choice = rehearsal.run()
            if self._preflight:
                strict = choice.trainer.together or choice.trainer.alone
                preflight(engine, [strict], state, rehearsal.make).require()
        return choice

    def _check_population(self) -> None:
        check_population(self.engine.clients, self.engine.num_clients)

    def _check_model(self) -> None:
        """Refuse a model that cannot take up the next release."""
        own = dict(self._model.named_parameters())
        for name, value in self.state.params.items():
            if name not in own or own[name].shape != value.shape:
                rule = f"its parameter {name} of shape {tuple(value.shape)} is trained"
                found = "another shape" if name in own else f"without {name}"
                raise InvalidParameter("model", found, rule)

    def setting(self) -> str:
        """What must not change when a run goes on, in words."""
        engine = self.engine
        plan = repr(engine.plan).removeprefix("Noise")  # its name in checkpoints so far
        return (
            f"{engine.method!r}, {engine.local!r}, {plan}, {type(engine.noise).__name__}, "
            f"{engine.num_clients} clients, {engine.layout.size} parameters, "
            f"server_lr={engine.server_lr!r}"
            + ("" if engine.server is None else f", server={engine.server!r}")
        )

    def save(self, path: Path) -> None:
        """Write a checkpoint of the last finished round."""
        randomness = self.engine.source.save()
        content = pack(self.state, self.setting(), self.account.saved(), randomness)
        write_checkpoint(path, content)

    def resume(self, path: Path, *, calibrated: bool) -> str | None:
        """Go on from a checkpoint.

        Args:
            path: of the file.
            calibrated: the noise was found for a budget, and the checkpoint's is taken if another
                version found it in other last digits.
        Returns:
            What is worth a note, or None.
        Raises:
            InvalidParameter: missing, damaged, or of another setting.
            LedgerError: the ledger is not that of the checkpoint, or has lost rounds.
        """
        self._check_population()
        content = read_checkpoint(path, torch.device("cpu"))
        holder = f"the checkpoint {path}"
        saved = saved_in(content, str(path))
        if saved is not None:
            self.account.find(saved, holder)
        if calibrated:
            self._take_noise(noise_of(content))
        engine = self.engine
        setting = self.setting()
        found = unpack(
            content,
            Expected(
                str(path),
                setting,
                engine.layout,
                self._first_bound,
                engine.device,
                engine.num_clients,
                engine.method.init_client(copies(self.state.params)),
            ),
        )
        engine.source.restore(found.randomness)
        note = None
        if saved is not None:
            note = self.account.resume(self.event(), saved, setting, holder)
        self.state = found.state
        self.write_model()
        return note

    def _take_noise(self, noise_multiplier: float | None) -> None:
        """Another noise that differs from that of the plan by less than a calibration promises."""
        plan = self.engine.plan
        own = plan.noise_multiplier
        if noise_multiplier is None or not math.isclose(noise_multiplier, own, rel_tol=1e-5):
            return
        self.engine = replace(self.engine, plan=replace(plan, noise_multiplier=noise_multiplier))

    def event(self) -> Event:
        """The next round as it will be charged, read from the objects that run."""
        engine, bound = self.engine, self.state.bound
        details: dict[str, Any] = {
            "round": self.state.round + 1,
            "method": engine.method.name or type(engine.method).__name__,
            "bound": type(bound).__name__,
            "clip_norm": bound.clip_norm,
            "cohort_size": engine.plan.cohort_size,
        }
        return engine.plan.event(bound, engine.noise, details)

    def play(self, rounds: int, reason: str | None) -> Report:
        """One round.

        Args:
            rounds: planned, for the report. reason: why the run is not private, or None.
        Raises:
            BudgetExceeded: it does not fit; nothing was drawn.
            InvalidParameter: the population or the model has changed; nothing is charged.
            Unsupported: something reached past the bound, or the bound changed; nothing leaves.
        """
        began = time.perf_counter()
        engine, state = self.engine, self.state
        # Rule 4.
        self._check_population()
        self._check_model()
        # Rule 2.
        event = self.event()
        ticket = self.account.reserve(event)
        charging = time.perf_counter() - began
        # From here on randomness is drawn: the round stays spent, whatever happens.
        ticket.draw()
        cohort = draw_cohort(engine.plan.sampling, engine.num_clients, engine.source)  # Rule 3.
        arrived = engine.noise.arrivals(cohort, engine.source)
        found = self._collect(arrived)
        resumed = time.perf_counter()
        kept = found.kept
        layout = engine.layout if kept is None else engine.layout.restrict(kept)
        # Rule 4.
        check_limits(state.bound, layout)
        if self.event() != event:
            raise Unsupported("the bound or the noise changed while clients trained: no release")
        release = engine.release(state, found)
        std = drawn_std(engine.noise, engine.plan.update_std(state.bound), found.arrived)
        if release is not None:
            # Rule 5.
            ticket.commit()
            for client, memory in found.memories.items():
                state.client_states[client] = {n: v.detach().cpu() for n, v in memory.items()}
            self.state = engine.apply(state, release)
            self.write_model()
        else:
            # Nothing is released; the round was charged all the same.
            self.state.round += 1
        limits = list(state.bound.limits(layout))
        diagnostics = diagnose(found, state.bound, std or 0.0, limits)
        spent = self.account.spent_so_far()
        now = time.perf_counter()
        privacy = charging + found.privacy_seconds + now - resumed
        return Report(
            round=self.state.round,
            rounds=rounds,
            spent=spent,
            not_private_because=reason,
            noise_multiplier=event.charged.noise_multiplier,
            noise_std=std or 0.0,
            clip_norm=state.bound.clip_norm,
            released=release is not None,
            unit=self.account.unit,
            adjacency=str(engine.plan.adjacency),
            diagnostics=diagnostics,
            timing=Timing(found.local_seconds, privacy, now - began),
        )

    def write_model(self) -> None:
        """Copy the released parameters into the model."""
        own = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, value in self.state.params.items():
                own[name].copy_(value)

    def _collect(self, cohort: list[int]) -> Collected:
        engine = self.engine
        choice = self.choice or self._rehearse()
        with forked_generators(), self._settled(torch_seed(engine.source)):
            return engine.collect(self.state, cohort, choice.trainer, choice.chunk)

    @contextmanager
    def _settled(self, seed: int) -> Generator[None]:
        """Inside, clients may train: in training mode, in the precision and the seed of a round.

        Raises:
            Unsupported: something inside wrote to the user's model, which is as it was again.
        """
        model = self._model
        released = Seal(dict(model.named_parameters()) | dict(model.named_buffers()))
        seed_generators(seed, self.engine.device)
        try:
            with reduced_precision(self.engine.local.precision):
                self._chooser.model.train()
                yield
        finally:
            name = released.broken()
            if name is not None:
                released.restore()
        if name is not None:
            raise Unsupported(
                f"the model's {name} was written to while clients trained, by the method or the "
                "loss; it would be released past the bound"
            )
