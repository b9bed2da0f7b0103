"""Two programs at work on one data set share one budget, whichever of them is quicker.

python examples/shared_ledger.py shared.ledger

Each program is a process with a run of its own; the ledger never lets both have the room for one
round. The one that is refused stops, and what is left of the budget is known to both.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from dpacct import Budget, BudgetExceeded, Ledger, Poisson, Round

BUDGET = Budget(2.0, 1e-6)
ROUND = Round(2.0, Poisson(0.05))
MOST = 200


def work(path: Path, name: str) -> None:
    """Run rounds until the budget, which the other program spends too, admits no further one."""
    with Ledger.open(path) as ledger:
        run = ledger.start_run(name)
        for _ in range(MOST):
            try:
                ticket = run.reserve(ROUND)
            except BudgetExceeded:
                break
            ticket.draw()
            # Here the cohort is drawn, trained and added up, and noise is added to the sum.
            ticket.commit()
            # And here, after the commit, the noisy sum may leave.
        run.finish()
        print(f"{name}: {run.committed} rounds")


def main() -> None:
    """Make the ledger, start both programs, and look at what they spent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--work", metavar="NAME")
    asked = parser.parse_args()
    if asked.work:
        work(asked.ledger, asked.work)
        return
    if asked.ledger.exists():
        sys.exit(f"{asked.ledger} exists; its data have a budget already")
    Ledger.open(asked.ledger, BUDGET).close()
    words = [sys.executable, __file__, str(asked.ledger), "--work"]
    programs = [subprocess.Popen([*words, name]) for name in ("first program", "second program")]
    failed = [program.wait() for program in programs]
    with Ledger.open(asked.ledger) as ledger:
        spent = ledger.epsilon()
        print(f"together: {ledger.rounds} rounds, epsilon {spent.upper:.4f} of {BUDGET.epsilon:g}")
        print(f"one more such round: {'fits' if ledger.remaining(ROUND) else 'does not fit'}")
    sys.exit(max(failed))


if __name__ == "__main__":
    main()
