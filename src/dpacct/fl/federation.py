"""`Federation`: a client-level private training run, from the plan to the trained model.

Rule 1: everything is tried on synthetic clients before the first charge. Rule 2: the population is
the one that was charged. `dpacct.fl.engine.rounds` has the order of a round,
`dpacct.fl.engine.ranks` that of several processes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch
from torch import nn

from dpacct.errors import BudgetExceeded, InvalidParameter
from dpacct.fl.clients import Population, check_population
from dpacct.fl.engine.ranks import Ranks, follower_settings, moved, moved_value
from dpacct.fl.engine.rehearsal import Rehearsal
from dpacct.fl.engine.rounds import OpenRound, no_ledger
from dpacct.fl.engine.run import PrivateRun
from dpacct.fl.engine.setup import choose_chooser, prepare
from dpacct.fl.engine.states import HOST, Collected, Draw, TrainingState
from dpacct.fl.layout import set_training_mode
from dpacct.fl.local.losses import LossFunction, check_loss
from dpacct.fl.report import RoundReport
from dpacct.fl.settings import LocalSettings, check_sequence, place, with_keywords_of
from dpacct.fl.tensors import arithmetic, forked_generators, seed_generators, undisturbed
from dpacct.fl.training.choose import Choice

P = ParamSpec("P")
Made = TypeVar("Made")


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
        self._ranks = Ranks() if settings.distributed else None
        self.follows = self._ranks is not None and self._ranks.rank > 0
        own = follower_settings(settings) if self.follows else settings
        super().__init__(model, prepare(own, model, clients), settings)
        self.budget = None if self.follows else self.budget
        self._chooser = choose_chooser(self.engine, model, loss, own)
        self._example, self._callbacks = own.example, own.callbacks
        self.choice: Choice | None = None

    @property
    def device(self) -> torch.device:
        """The device on which training runs."""
        return next(self.model.parameters()).device

    @property
    def training_path(self) -> str:
        """The way in which clients are trained, with its reason. Empty before the first round."""
        return "" if self.choice is None else self.choice.plan.reason

    def agree(self, make: Callable[[], Made]) -> Made:
        """Return the result of a function, of several processes that of rank 0 on all ranks."""
        if self._ranks is None:
            return make()
        return self._ranks.share(None if self.follows else make())

    def begin(self) -> None:
        """Try all of it on synthetic clients, then register the run in the ledger with its plan."""

        def tried() -> Any:
            self.prepare()
            return self.plan, self.training

        def begun() -> Any:
            self.register()
            return None if self._ranks is None else (self.rounds, self._public_state(), self.budget)

        plan, training = self.agree(tried)
        if self.follows:
            self.plan, self.training = plan, training
            self.engine = replace(self.engine, plan=plan.at(0))
            self.prepare()
        if self._ranks is not None:
            self._ranks.check_alike(self)
        registered = self.agree(begun)
        if self.follows:
            self.rounds, state, self.budget = registered
            self._take(state)

    @undisturbed()
    def prepare(self) -> None:
        """Try everything on synthetic clients, and choose how clients are trained. Rule 1."""
        self._check_population()
        if self.choice is None and self.round < self.rounds:
            self._rehearse()

    def _rehearse(self) -> Choice:
        with forked_generators(), self._settled(0):
            parts = self.engine, self._chooser, self.state, self._example, self.training
            choice = Rehearsal(*parts).run()
        self.choice, self.training = choice, choice.plan
        return choice

    def play(self) -> RoundReport:
        """Run one round, each rank with its share of the cohort, and return rank 0's report.

        A round that does not fit, or another population or model, raises before anything is
        charged. If code of a client reached past the bound, nothing leaves.
        """
        ranks = self._ranks
        if ranks is None:
            opened = self.open()
            opened.merge(self.collect(opened.draw))
            return opened.release()
        if self.follows:
            message = ranks.share()
            if isinstance(message, str):
                raise BudgetExceeded(message)
            draw, plan, self.state.client_states = message
            self.engine = replace(self.engine, plan=plan)
            ranks.gather(moved(self.collect(draw.share(ranks.rank, ranks.size)), HOST))
            report, state = ranks.share()
            self._take(state)
            return report
        try:
            opened = self.open()
        except BudgetExceeded as refusal:
            ranks.share(str(refusal))
            raise
        known = self.state.client_states
        memories = {c: moved_value(known[c], HOST) for c in opened.draw.workers if c in known}
        ranks.share((opened.draw, self.engine.plan, memories))
        for part in ranks.gather(moved(self.collect(opened.draw.share(0, ranks.size)), HOST)):
            opened.merge(moved(part, self.engine.device))
        report = opened.release()
        ranks.share((replace(report, spent=no_ledger), self._public_state()))
        return report

    def open(self) -> OpenRound:
        """Reserve the next round, and draw its cohort (see `Rounds.open`)."""
        self._check_population()
        return super().open()

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
            set_training_mode(self._chooser.model)
            yield

    def _public_state(self) -> TrainingState:
        """Return the state without the clients' memories, which stay on rank 0."""
        return moved(replace(self.state, client_states={}), HOST)

    def _take(self, state: TrainingState) -> None:
        self.state = moved(state, self.engine.device)
        self.write_model()

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
        begun = self.follows or self.account.begun
        self.begin()
        ahead = self.state.noise is not None or self.engine.allocator is not None
        ahead |= self._account.ahead > 1
        if self._checkpoint and ahead and not begun:
            # More than a round is charged with the first one. A crash in it loses that one alone.
            self.save()
        for callback in self._callbacks:
            callback.start(self)
        try:
            for report in self._each(self.play):
                self._save_if_due()
                for callback in self._callbacks:
                    callback.report(self, report)
                yield report
        finally:
            for callback in self._callbacks:
                callback.finish(self)
