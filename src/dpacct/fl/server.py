"""`Server`: the server's side of a run whose clients train elsewhere.

`Federation` with the clients left out: the same engine, ledger, checkpoints and reports. Whoever
carries messages drives it round by round: reserved and drawn, filled, released.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, Self, cast

from torch import nn

from dpacct import validate
from dpacct.budget import Spent
from dpacct.errors import BudgetExceeded, Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.engine.checkpoint import resume, save
from dpacct.fl.engine.engine import Engine, reproduces
from dpacct.fl.engine.open_round import OpenRound
from dpacct.fl.engine.rehearsal import check_kind
from dpacct.fl.engine.rehearsal import preflight as audit_before
from dpacct.fl.engine.rounds import Rounds
from dpacct.fl.engine.setup import check_shares, elsewhere, prepare, rehearsed
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.privacy.account import Account
from dpacct.fl.privacy.bounds import Bound
from dpacct.fl.privacy.noise import NoiseShares
from dpacct.fl.privacy.randomness import Seeded
from dpacct.fl.settings import Settings, checkpoint_file, place, with_keywords_of


class Elsewhere(Sequence[ClientData]):
    """A population that trains elsewhere: it has a size, and no data to look at."""

    def __init__(self, num_clients: int) -> None:
        self._count = validate.count("num_clients", num_clients, "the population")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: object) -> NoReturn:
        raise Unsupported(f"client {index} trains elsewhere; the server has none of its data")


P = ParamSpec("P")


def _takes(
    kind: Callable[P, Settings],
) -> Callable[
    [Callable[[Server, nn.Module, int, Settings], None]],
    Callable[Concatenate[Server, nn.Module, int, P], None],
]:
    """Spread the settings that an ``__init__`` takes into its keywords."""
    return lambda init: with_keywords_of(cast("Any", kind), init)


class Server:
    """The server's side of a private training run.

    Iterate over it: each `OpenRound` is reserved in the ledger, with its cohort drawn. Send out
    ``opened.broadcast``, `OpenRound.add` what comes back, and `OpenRound.release`: the noise is
    added once, the ledger commits, the model moves, memories are kept. Who does not answer
    contributes zero. A round that is left without a release stays spent.

    That only members of the cohort are added, each once, is checked here. That a client's data
    show in its own answer alone, that nobody waits longer or shorter for an answer because of
    another one's, and that cohorts stay secret, is up to whoever carries the messages.

    Args:
        model: changed in place, and moved to ``device``; see `Federation`.
        num_clients: the population, from which cohorts are drawn whoever is reachable.
        public_size: as for `Federation`; without it ``num_clients`` is public.
        noise: as for `Federation`. With `NoiseShares` clients add the noise, and the sum comes
            from behind masks: `dpacct.fl.flower`, or `OpenRound.commit` and `OpenRound.add_sum`.
        Others, as keywords: see `dpacct.fl.settings.Settings`.

    Attributes:
        Those of `Federation`.

    Raises:
        InvalidParameter, Unsupported: a setting that makes no sense, or is not private.
        BudgetExceeded: (when the first round is opened) the plan does not fit into the ledger.
        AuditFailed: (likewise) bound, noise, denominator or charge are not what they say.
    """

    @_takes(Settings)
    def __init__(self, model: nn.Module, num_clients: int, settings: Settings) -> None:
        if isinstance(settings.noise, NoiseShares):
            settings = replace(settings, noise=elsewhere(settings.noise))
        self._checkpoint, self._checkpoint_every = (
            settings.checkpoint_path,
            settings.checkpoint_every,
        )
        self._preflight = settings.preflight
        self.model = place(model, settings.device)
        self._prepared = run = prepare(settings, self.model, Elsewhere(num_clients))
        if reproduces(run.rounds.engine.method):
            raise Unsupported(
                f"{run.name} with paper_mode does what a paper prints with raw updates in one place"
            )
        check_shares(run.rounds.engine, run.rounds.state)
        self._rounds: Rounds = run.rounds
        self.rounds, self.budget = run.planned, run.budget
        self.noise_multiplier = run.rounds.engine.plan.noise_multiplier
        self.not_private_because = run.rounds.not_private_because
        self.stopped_because: str | None = None
        self.resumed_with: str | None = None
        self._looks: list[Callable[[], None]] = []
        self._close = weakref.finalize(self, run.rounds.account.close)

    @property
    def round(self) -> int:
        """Rounds done."""
        return self._rounds.state.round

    @property
    def engine(self) -> Engine:
        """The parts of the run that stay the same from round to round."""
        return self._rounds.engine

    @property
    def state(self) -> TrainingState:
        """Where the run stands."""
        return self._rounds.state

    @property
    def account(self) -> Account:
        """What it is charged to."""
        return self._rounds.account

    @property
    def bound(self) -> Bound:
        """Of the next round."""
        return self._rounds.state.bound

    @property
    def setting(self) -> str:
        """What clients, checkpoints and the ledger's run must agree on, in words."""
        return self._rounds.setting()

    @property
    def ledger_path(self) -> Path | None:
        """The ledger's file; None for a passing one."""
        return self._rounds.account.path

    @property
    def epsilon(self) -> Spent:
        """Achieved and proven epsilon of what was released; infinite where it is not private."""
        return self._rounds.account.epsilon()

    @property
    def planned_epsilon(self) -> Spent:
        """What the whole plan costs where cohorts and noise are secret."""
        return self._prepared.planned_epsilon(self.rounds, self._rounds.account)

    def begin(self) -> int:
        """Audit the run, and register it in the ledger; iterating does it, too.

        Returns:
            The rounds that there are, in all.
        Raises:
            BudgetExceeded, AuditFailed: see the class.
        """
        rounds = self._rounds
        if not rounds.planned and rounds.state.round < self.rounds:
            self._rehearse()
        begun = rounds.account.begun
        self.rounds = rounds.begin(self._prepared.name, self.rounds, self._prepared.limit)
        if self._checkpoint and not begun:
            # A process that dies in its first round leaves a run that can be taken over.
            self.save()
        return self.rounds

    def __iter__(self) -> Iterator[OpenRound]:
        """Open the rounds that are left; ends with the plan, or where the budget has no more."""
        self.begin()
        while self.round < self.rounds:
            try:
                opened = self._rounds.open()
            except BudgetExceeded as refusal:
                self.stopped_because = str(refusal)
                break
            try:
                yield opened
            finally:
                for look in self._looks:
                    look()
            if self._checkpoint and opened.settled and self.round % self._checkpoint_every == 0:
                self.save()
        if self._checkpoint and self.round % self._checkpoint_every:
            self.save()
        if self.round >= self.rounds:
            self._rounds.account.finish()

    def on_settled(self, look: Callable[[], None]) -> None:
        """Have a function called behind each round, and where the rounds are left."""
        self._looks.append(look)

    def save(self, path: str | Path | None = None) -> Path:
        """Write a checkpoint of the last finished round, atomically; see `Federation.save`."""
        target = self._target(path)
        save(self._rounds, target)
        return target

    def resume(self, path: str | Path | None = None) -> Self:
        """Go on from a checkpoint, in the ledger that it knows; see `Federation.resume`.

        The round that was open when the process ended is opened anew, in the place that the ledger
        has for it: nothing of it was released, so that it counts once.
        """
        found, _ = resume(self._rounds, self._target(path), calibrated=self._prepared.calibrated)
        self._rounds.take_over()
        self.resumed_with = found
        self.noise_multiplier = self._rounds.engine.plan.noise_multiplier
        return self

    def close(self) -> None:
        """Close the ledger, if it was opened here."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def _rehearse(self) -> None:
        """Play a round of zeros before anything is charged."""
        engine, state = rehearsed(self._rounds.engine), self._rounds.state
        engine = replace(engine, source=Seeded(0))
        if self._preflight:
            audit_before(engine, state).require()
        found = engine.open(state)
        found.arrived = math.ceil(engine.plan.cohort_size)
        release = engine.release(state, found)
        if release is not None:
            check_kind(engine.apply(state, release), state)

    def _target(self, path: str | Path | None) -> Path:
        return checkpoint_file(path, self._checkpoint)
