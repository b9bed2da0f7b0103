"""The ledger's side of a run: opening it, going on with it, and where a missing one is kept."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from dpacct.accountant import epsilon
from dpacct.budget import Budget, Interval
from dpacct.errors import BudgetExceeded, InvalidParameter
from dpacct.ledger import Event, Ledger, Run, Ticket
from dpacct.rounds import Schedule


class Account:
    """A run of a ledger. Every round goes through `reserve`; nothing is charged elsewhere.

    Args:
        ledger: an open ledger, the path of one, or None for one that lives as long as this object.
        budget: of a new ledger.
        private: whether noise and cohorts are secret.
    """

    def __init__(
        self, ledger: Ledger | str | Path | None, budget: Budget, *, private: bool
    ) -> None:
        self._given = ledger
        self._budget = budget
        self._private = private
        self._folder: str | None = None
        self._ledger: Ledger | None = None
        self._run: Run | None = None

    @property
    def path(self) -> Path | None:
        """Of the ledger, None where it is a passing one."""
        if self._given is None:
            return None
        return Path(self._given.path if isinstance(self._given, Ledger) else self._given)

    @property
    def run_id(self) -> int | None:
        """Of the ledger's run; None before it is started."""
        return None if self._run is None else self._run.id

    @property
    def rounds(self) -> int:
        """How many rounds of the run are charged."""
        return 0 if self._run is None else self._run.rounds

    @property
    def delta(self) -> float:
        """The delta at which epsilon is read."""
        return (self._budget if self._ledger is None else self._ledger.budget).delta

    def epsilon(self) -> Interval:
        """Epsilon of what the run has released; infinite where it is not private."""
        if self._run is None:
            return Interval(0.0, 0.0)
        return self._run.epsilon()

    def spent_so_far(self) -> Callable[[], Interval]:
        """A function that gives `epsilon` as of now, whenever it is called; computed once."""
        run = self._run
        if run is None or not (run.on_plan and run.private):
            now = self.epsilon()
            return lambda: now
        charged, released = run.rounds, run.committed
        plan, delta = run.plan or Schedule(), self.delta

        @cache
        def read() -> Interval:
            if self._run is run and (run.rounds, run.committed) == (charged, released):
                return run.epsilon()
            # More has run since. The rounds of a plan made here are equal.
            [round_] = plan.distinct()
            upper = epsilon(charged * round_, delta=delta, accountant="tight").upper
            lower = 0.0
            if released:
                lower = epsilon(released * round_, delta=delta, accountant="tight").lower
            return Interval.bracket(lower, upper)

        return read

    def affordable(self, event: Event, rounds: int, budget: Budget | None) -> int:
        """How many of the planned rounds fit into the budget; all of them where there is none."""
        if budget is None:
            return rounds
        return min(rounds, self._open(event).remaining_as_plan(event))

    def start(self, name: str, event: Event, rounds: int, details: dict[str, Any]) -> None:
        """Register the run with its plan.

        Raises:
            BudgetExceeded: the plan does not fit.
        """
        ledger = self._open(event)
        if rounds < 1:
            raise BudgetExceeded(
                f"not one round of noise multiplier {event.charged.noise_multiplier:.6g} fits into "
                f"what is left of the budget ({ledger.budget})"
            )
        plan: Schedule = rounds * event.charged
        self._run = ledger.start_run(name, plan=plan, private=self._private, details=details)

    def resume(self, event: Event, run_id: int) -> None:
        """Go on with a run that a checkpoint names.

        Raises:
            LedgerError: the ledger has no such run, or it is finished.
            InvalidParameter: it is a run of another kind.
        """
        run = self._open(event).resume_run(run_id)
        if run.private is not self._private:
            rule = f"run {run_id} of the ledger was started with private={run.private}"
            raise InvalidParameter("seed", "given" if run.private else None, rule)
        self._run = run

    def reserve(self, event: Event) -> Ticket:
        """Charge a round.

        Raises:
            BudgetExceeded: the plan is used up, or the round does not fit.
        """
        run = self._run
        if run is None:
            raise BudgetExceeded("no run of the ledger was started")
        if run.plan is not None and run.on_plan and run.rounds >= run.plan.rounds:
            raise BudgetExceeded(
                f"all {run.plan.rounds} rounds of the plan are charged, those that a crash "
                "lost among them"
            )
        return run.reserve(event)

    def finish(self) -> None:
        """The run takes no more rounds."""
        if self._run is not None and not self._run.finished:
            self._run.finish()

    def close(self) -> None:
        """Close a ledger that was opened here; a passing one is deleted."""
        if self._ledger is not None and not isinstance(self._given, Ledger):
            self._ledger.close()
            self._ledger = None
            self._run = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _open(self, event: Event) -> Ledger:
        if self._ledger is not None:
            return self._ledger
        given = self._given
        if isinstance(given, Ledger):
            self._ledger = given
            return given
        if given is None:
            self._folder = tempfile.mkdtemp(prefix="dpacct-")
            given = Path(self._folder) / "passing.ledger"
        exists = Path(given).exists()
        self._ledger = Ledger.open(
            given,
            None if exists else self._budget,
            adjacency=event.charged.adjacency,
            typical=event.charged,
            passing=self._folder is not None,
        )
        return self._ledger
