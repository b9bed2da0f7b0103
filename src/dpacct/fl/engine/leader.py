"""Rank 0 of a run on several processes: `RoundLoop` with clients that other ranks train, too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from dpacct.budget import Budget, Spent
from dpacct.errors import BudgetExceeded, Unsupported
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.loop import RoundLoop
from dpacct.fl.engine.memories import fetched
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
from dpacct.fl.training.choose import Choice

Made = TypeVar("Made")


class Leader:
    """Rank 0 of a run; `dpacct.fl.engine.ranks` has the rules."""

    def __init__(self, loop: RoundLoop, ranks: Ranks) -> None:
        self._loop, self._ranks = loop, ranks

    @property
    def engine(self) -> Engine:
        """The fixed parts of the run."""
        return self._loop.engine

    @property
    def state(self) -> TrainingState:
        """Where it stands."""
        return self._loop.state

    @property
    def choice(self) -> Choice | None:
        """How clients are trained."""
        return self._loop.choice

    @property
    def account(self) -> Account:
        """Its ledger."""
        return self._loop.account

    @property
    def budget(self) -> Budget:
        """Of a new ledger."""
        return self._loop.budget

    def begin(self, name: str, rounds: int, limit: Budget | None) -> int:
        """Have every rank try the run, then register it; see `RoundLoop.begin`.

        Raises:
            Unsupported: a rank has another setting, or cannot train; nothing is charged.
        """
        loop, ranks = self._loop, self._ranks
        ranks.tell(Begin.of(loop.rounds))
        tried: Failed | None = Failed("")
        try:
            loop.prepare(rounds)
            tried = None
        finally:
            ranks.collect(tried and Failed(words_of(sys.exception())))
        ranks.tell(Offer(None if loop.choice is None else loop.choice.plan))
        ranks.collect(None)
        planned = loop.rounds.begin(name, rounds, limit)
        ranks.tell(Start(planned, _public(loop.state), loop.budget))
        return planned

    def play(self) -> Report:
        """One round, each rank with its share of the cohort; see `RoundLoop.play`.

        Raises:
            Unsupported: a rank has failed; nothing leaves.
        """
        loop, ranks = self._loop, self._ranks
        try:
            opened = loop.open()
        except BudgetExceeded as refusal:
            ranks.tell(Stop(str(refusal), budget=True))
            raise
        known = loop.state.client_states
        ranks.tell(Work(opened.draw, bool(known), loop.engine.plan))
        shares = [opened.draw.share(rank, ranks.size) for rank in range(ranks.size)]
        if known:
            own_parts = [{c: known[c] for c in s.workers if c in known} for s in shares]
            ranks.hand_out(list(map(fetched, own_parts)))
        own = None
        try:
            own = loop.collect(shares[0])
        finally:
            parts = ranks.collect(own or Failed(words_of(sys.exception())))
        for part in parts:
            opened.merge(moved(part, loop.engine.device))
        report = opened.release()
        ranks.tell(Done(replace(report, spent=spent_elsewhere), _public(loop.state)))
        return report

    def agree(self, make: Callable[[], Made]) -> Made:
        """Make something, and tell all ranks.

        Raises:
            What making it raises; the others hear that rank 0 has stopped.
        """
        made: Agreed | None = None
        try:
            found = make()
            made = Agreed(found)
            return found
        finally:
            self._ranks.tell(made or Stop(words_of(sys.exception())))

    def to_the_end(self) -> AbstractContextManager[None]:
        """However the run ends here inside, it ends on all ranks."""
        return self._ranks.to_the_end()

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        self._loop.save(path)

    def resume(self, path: Path, *, calibrated: bool) -> str | None:
        """Go on from a checkpoint; the others hear where the run stands when it begins."""
        return self._loop.resume(path, calibrated=calibrated)

    def finish(self) -> None:
        """The plan is at its end."""
        self._loop.finish()


def spent_elsewhere() -> Spent:
    """What a report says of epsilon on a rank that keeps no ledger.

    Raises:
        Unsupported: always.
    """
    raise Unsupported("this rank keeps no ledger: rank 0 knows what is spent")


def _public(state: TrainingState) -> TrainingState:
    """What every rank may know: all but the memories of clients."""
    return replace(state, client_states={})
