"""Who plays the rounds of a `Federation`: one process, or rank 0 with the others behind it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from dpacct.budget import Budget
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.follower import Follower
from dpacct.fl.engine.leader import Leader
from dpacct.fl.engine.loop import RoundLoop
from dpacct.fl.engine.ranks import Ranks
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.privacy.account import Account
from dpacct.fl.report.reports import Report
from dpacct.fl.training.choose import Choice

Made = TypeVar("Made")


class Player(Protocol):
    """One run in progress, as `RoundLoop` has it."""

    @property
    def engine(self) -> Engine:
        """The fixed parts of the run."""
        ...

    @property
    def state(self) -> TrainingState:
        """Where it stands."""
        ...

    @property
    def choice(self) -> Choice | None:
        """How clients are trained, once that is chosen."""
        ...

    @property
    def account(self) -> Account:
        """Its ledger."""
        ...

    @property
    def budget(self) -> Budget | None:
        """Of a new ledger; None where rank 0 has not said it yet."""
        ...

    def begin(self, name: str, rounds: int, limit: Budget | None) -> int:
        """Try the run, and register it; the rounds that there will be."""
        ...

    def play(self) -> Report:
        """One round."""
        ...

    def to_the_end(self) -> AbstractContextManager[None]:
        """Around `begin` and all rounds."""
        ...

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        ...

    def resume(self, path: Path, *, calibrated: bool) -> str | None:
        """Go on from a checkpoint; what is worth a note."""
        ...

    def finish(self) -> None:
        """The plan is at its end."""
        ...

    def agree(self, make: Callable[[], Made]) -> Made:
        """What rank 0 makes, on all ranks; before the run begins, or behind its end."""
        ...


def led(loop: RoundLoop, ranks: Ranks) -> Player:
    """The player of one of several processes."""
    return Leader(loop, ranks) if ranks.rank == 0 else Follower(loop, ranks)
