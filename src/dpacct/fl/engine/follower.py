"""A rank that trains for rank 0: what `Leader` is there, this is on all others.

Rule 1: it has no ledger, draws nothing, and adds no noise. Rule 2: it trains what rank 0 trains: a
rank of another setting or version is refused before the first charge. Rule 3: it tries its model on
made-up clients itself, as rank 0 does. Rule 4: its model has the released parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeVar

import torch

from dpacct.budget import Budget
from dpacct.errors import BudgetExceeded, InvalidParameter, Unsupported
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.loop import RoundLoop
from dpacct.fl.engine.ranks import (
    Agreed,
    Begin,
    Done,
    Failed,
    Offer,
    Ranks,
    Start,
    Stop,
    Work,
    moved,
    words_of,
)
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.privacy.account import Account
from dpacct.fl.report.reports import Report
from dpacct.fl.settings import LocalSettings
from dpacct.fl.training.choose import Choice

Made = TypeVar("Made")


def follower_settings(settings: LocalSettings) -> LocalSettings:
    """Those of a rank that hears from rank 0 what noise there is; its own is never drawn."""
    noise = 1.0 if settings.schedule is None else None
    return replace(
        settings, ledger=None, checkpoint=None, budget=None, delta=None, noise_multiplier=noise
    )


class Follower:
    """One rank of a run, other than rank 0.

    Attributes:
        budget: that of rank 0, None until it has begun.
    """

    def __init__(self, loop: RoundLoop, ranks: Ranks) -> None:
        self._loop, self._ranks = loop, ranks
        self.budget: Budget | None = None

    @property
    def engine(self) -> Engine:
        """The fixed parts of the run; its noise is known once it has begun."""
        return self._loop.engine

    @property
    def state(self) -> TrainingState:
        """Where it stands, without the memories of clients."""
        return self._loop.state

    @property
    def choice(self) -> Choice | None:
        """How clients are trained."""
        return self._loop.choice

    @property
    def account(self) -> Account:
        """Rank 0 has it.

        Raises:
            Unsupported: always.
        """
        raise Unsupported(f"rank {self._ranks.rank} keeps no ledger: rank 0 knows what is spent")

    def begin(self, name: str, rounds: int, limit: Budget | None) -> int:
        """Hear what is about to run, and try it; see `RoundLoop.begin`.

        Raises:
            InvalidParameter: rank 0 has another setting.
            Unsupported: it has stopped, or its way to train is none here.
            Anything that `dpacct.fl.engine.rehearsal.Rehearsal` raises.
        """
        del name, limit
        loop, ranks = self._loop, self._ranks
        message = ranks.hear()
        if not isinstance(message, Begin):
            _end(message)
        with self._tried():
            loop.rounds.plan = message.plan
            loop.rounds.engine = replace(loop.engine, plan=message.plan.at(0))
            ours = Begin.of(loop.rounds)
            if ours != message:
                rule = f"rank 0 trains {message.setting} with {message.versions}"
                raise InvalidParameter("distributed", f"{ours.setting}, {ours.versions}", rule)
            loop.prepare(rounds)
        offer = ranks.hear()
        if not isinstance(offer, Offer):
            _end(offer)
        with self._tried():
            if offer.training is not None:
                loop.follow(offer.training)
        start = ranks.hear()
        if not isinstance(start, Start):
            _end(start)
        self._take(start.state)
        self.budget = start.budget
        return start.rounds

    @contextmanager
    def _tried(self) -> Generator[None]:
        """Rank 0 hears whether what is done inside fails."""
        tried: Failed | None = Failed("")
        try:
            yield
            tried = None
        finally:
            self._ranks.collect(tried and Failed(words_of(sys.exception())))

    def play(self) -> Report:
        """Train this rank's share of a round.

        Returns:
            What rank 0 reports; its epsilon is known there.
        Raises:
            BudgetExceeded: no round fits any more. Unsupported: rank 0, or another rank, stopped.
        """
        loop, ranks = self._loop, self._ranks
        work = ranks.hear()
        if not isinstance(work, Work):
            _end(work)
        loop.rounds.engine = replace(loop.engine, plan=work.plan)
        loop.state.client_states = ranks.hand_out(None) if work.memories else {}
        part = None
        try:
            share = work.draw.share(ranks.rank, ranks.size)
            part = moved(loop.collect(share), torch.device("cpu"))
        finally:
            ranks.collect(part or Failed(words_of(sys.exception())))
        done = ranks.hear()
        if not isinstance(done, Done):
            _end(done)
        self._take(done.state)
        return done.report

    def agree(self, make: Callable[[], Made]) -> Made:
        """What rank 0 has made.

        Raises:
            Unsupported: it has stopped.
        """
        del make
        message = self._ranks.hear()
        if not isinstance(message, Agreed):
            _end(message)
        return message.made

    @contextmanager
    def to_the_end(self) -> Generator[None]:
        """However this rank ends inside, rank 0 hears of it."""
        try:
            yield
        finally:
            self._ranks.leave()

    def save(self, path: Path) -> None:
        """Rank 0 does."""

    def resume(self, path: Path, *, calibrated: bool) -> str | None:
        """Rank 0 does, and says where the run stands."""

    def finish(self) -> None:
        """Rank 0 does."""

    def _take(self, state: TrainingState) -> None:
        loop = self._loop
        loop.rounds.state = moved(state, loop.engine.device)
        loop.rounds.write_model()


def _end(message: object) -> NoReturn:
    """Rank 0 plays no more rounds."""
    stop = message if isinstance(message, Stop) else Stop(f"it said {message!r} out of turn")
    if stop.budget:
        raise BudgetExceeded(stop.reason)
    raise Unsupported(f"rank 0 has stopped: {stop.reason or 'it plays no more rounds'}")
