"""What tests of ledgers do again and again."""

from __future__ import annotations

import os
from pathlib import Path

from dpacct import Budget, Ledger, Poisson, Round
from dpacct.ledger import Run

BUDGET = Budget(8, 1e-5)
ROUND = Round(1.3, Poisson(0.1))
# Room for many rounds that cost next to nothing.
WIDE, SMALL = Budget(50, 1e-5), Round(30.0, Poisson(0.01))
# Random places are few every day and many where tests are thorough.
MANY = 1 if os.environ.get("DPACCT_TESTS", "quick") == "quick" else 4


def play(run: Run, round_: Round, rounds: int) -> None:
    """Release so many rounds of a run."""
    for _ in range(rounds):
        run.reserve(round_).commit()


def spend(path: Path, rounds: int) -> None:
    """Release so many small rounds of the first run of a file."""
    with Ledger.open(path, WIDE) as ledger:
        play(ledger.resume_run(1) if ledger.runs else ledger.start_run("x"), SMALL, rounds)


def committed(path: Path) -> int:
    """The number of released rounds of a sound file."""
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.verify().sound
        return sum(run.committed for run in ledger.runs)


def beside(path: Path, ending: str = ".witness") -> Path:
    return path.with_name(f"{path.name}{ending}")
