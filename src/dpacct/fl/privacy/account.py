"""The charge of a run: from the objects that run to ledger events.

No user types a multiplier or a rate into a ledger.

Rule 1: the round's noise multiplier is read from the bound and the standard deviation of the noise.
It is rounded down, so the charge assumes at most the noise that is drawn.
Rule 2: a run has one delta, that of its ledger. Another delta is rejected before any charge.
Rule 3: a closed account returns its last reading and takes no more rounds.
Rule 4: a run is resumed only in the ledger of its checkpoint (or a longer record of it). The run
there has the checkpoint's number and setting, and at least its rounds.
Rule 5: `tight` may use the fixed-size game only if a client's contribution is a function of the
releases. A client with a memory is charged by fixed pairs
(`dpacct.fl.engine.setup.plan_accountant`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpacct.accountant import find_accountant
from dpacct.budget import Budget, Interval, Spent
from dpacct.errors import BudgetExceeded, InvalidParameter, LedgerError
from dpacct.fl.privacy.allocation import Allocation
from dpacct.fl.privacy.bounds import INDICATOR_NORM, AdaptiveClip, Bound
from dpacct.fl.privacy.correlated import Correlation
from dpacct.fl.privacy.noise import STD_MARGIN, Noise
from dpacct.fl.privacy.sums import MAX_CONTRIBUTIONS
from dpacct.fl.public import PublicSize
from dpacct.ledger import (
    CLIENT,
    PAIRS,
    TIGHT,
    Address,
    Event,
    Ledger,
    NoisySum,
    Plan,
    Position,
    Run,
    RunState,
    Terms,
    Ticket,
    achieved_epsilon,
    as_place,
    epsilon_so_far,
    is_there,
    noise_of,
)
from dpacct.numerics.search import largest_count
from dpacct.rounds import AccountantName, Adjacency, Phase, Release, Round, Sampling, Schedule
from dpacct.validate import LEAST_NOISE


@dataclass(frozen=True, slots=True)
class RoundNoise:
    """The noise of one round, and its charge.

    Attributes:
        sampling, adjacency: of the round.
        noise_multiplier: z asked for. The charge is never for more. 0: no noise.
        public: the public number of clients, from which the planned cohort size is made.
        correlation: of the noise with that of other rounds, or None for independent noise. Then
            ``sampling`` is that of the charge, and the correlation has the cohorts.
    """

    sampling: Sampling | Allocation
    adjacency: Adjacency
    noise_multiplier: float
    public: PublicSize
    correlation: Correlation | None = None

    def __post_init__(self) -> None:
        if self.contributions > MAX_CONTRIBUTIONS:
            rule = (
                f"a round has room for at most {MAX_CONTRIBUTIONS} contributions: beyond, no sum "
                "in double precision would be exact enough for its sensitivity to be proven"
            )
            raise InvalidParameter("num_clients", self.contributions, rule)

    @property
    def cohort_size(self) -> float:
        """Return the planned cohort size, by which the sum is divided."""
        if self.correlation is not None:
            return self.correlation.cohort_size
        return self.public.expected_cohort(self.sampling)

    @property
    def cohort_share(self) -> float:
        """Return the planned cohort size over the public number of clients."""
        if self.correlation is not None:
            return self.correlation.cohort_size / self.correlation.num_clients
        return self.sampling.sampling_rate

    @property
    def contributions(self) -> int:
        """Return the most contributions that a sum has room for."""
        return self.public.capacity(self.sampling)

    def update_std(self, bound: Bound) -> float:
        """Return the standard deviation of the noise on each coordinate of the sum of updates."""
        multiplier = self.noise_multiplier
        if isinstance(bound, AdaptiveClip):
            multiplier = bound.update_multiplier(multiplier, self.cohort_size)
        return multiplier * bound.sensitivity(Adjacency.ADD_REMOVE) * (1 + STD_MARGIN)

    def indicator_std(self, bound: Bound) -> float | None:
        """Return the standard deviation of the noise on the sum of the indicators, if any."""
        if not isinstance(bound, AdaptiveClip):
            return None
        if not self.noise_multiplier:
            return 0.0
        return bound.indicator_std(self.cohort_size) * (1 + STD_MARGIN)

    def event(self, bound: Bound, noise: Noise, details: dict[str, Any]) -> Event:
        """Return the round as the ledger charges it, derived from bound and noise. Rule 1.

        Correlated noise: one of the `Correlation.releases` that are charged for all rounds.
        """
        unit = self._norm_charged(bound)
        std = self.update_std(bound)
        update = std / unit * (1 - STD_MARGIN / 2)
        charged = min(update, self.noise_multiplier)
        releases = (NoisySum("update", charged, unit),)
        indicator = self.indicator_std(bound)
        if indicator is not None:
            own = indicator / INDICATOR_NORM * (1 - STD_MARGIN / 2)
            count = NoisySum("indicator", own, INDICATOR_NORM)
            releases = (NoisySum("update", update, unit), count)
        record = {"noise": noise.name, "noise_std": std} | details
        level = charged
        if self.correlation is not None:
            charged = self.correlation.charged(charged)
            releases = (NoisySum("update", charged, unit),)
            record |= {"noise_multiplier": level} | self.correlation.details()
        event = Event(self._charge_of(max(charged, LEAST_NOISE)), releases, details=record)
        if self.correlation is None:
            level = noise_of(event.charged)
        # The ledger charges all releases together.
        if level < self.noise_multiplier * (1 - 1e-9):
            rule = (
                f"with it one contribution may have norm {unit:g}, more than the "
                f"{bound.sensitivity(Adjacency.ADD_REMOVE):g} that the noise was chosen for"
            )
            raise InvalidParameter("bound", type(bound).__name__, rule)
        return event

    def _charge_of(self, noise_multiplier: float) -> Release:
        """Return a round, or the whole epoch that it belongs to."""
        if isinstance(self.sampling, Allocation):
            return self.sampling.epoch(noise_multiplier, self.adjacency)
        return Round(noise_multiplier, self.sampling, self.adjacency)

    def charged_for(self, event: Event, bound: Bound) -> bool:
        """Return whether a bound has the sensitivity and the noise of an event of this plan."""
        recorded = event.releases[0].sensitivity, event.details["noise_std"]
        return recorded == (self._norm_charged(bound), self.update_std(bound))

    def _norm_charged(self, bound: Bound) -> float:
        """Return the norm of one contribution that the charge assumes.

        The accountant takes z as noise / this norm, and doubles the shift itself under
        replace-one. A bound that moves the sum further is charged for it.
        """
        moved = bound.sensitivity(self.adjacency)
        if self.adjacency is Adjacency.REPLACE_ONE:
            moved /= 2
        return max(moved, bound.sensitivity(Adjacency.ADD_REMOVE))


@dataclass(frozen=True, slots=True)
class Saved:
    """The place of a run in its ledger when a checkpoint was written, and its counts of rounds."""

    run: int
    charged: int
    committed: int
    position: Position


def check_run(ledger: Ledger, saved: Saved, setting: str, holder: str) -> Run:
    """Return the run of the checkpoint ``holder``, or reject a ledger without all of it. Rule 4."""
    runs = ledger.runs
    if not 0 < saved.run <= len(runs):
        raise LedgerError(
            f"{ledger.path}: {holder} belongs to run {saved.run}, and there is no run "
            f"{saved.run} (runs are 1 to {len(runs)}). It belongs to another ledger, or to a "
            "newer copy."
        )
    run = runs[saved.run - 1]
    if run.details.get("setting") != setting:
        raise LedgerError(
            f"{ledger.path}: run {run.id} ({run.name!r}) has another setting than {holder}, "
            "which belongs to another ledger."
        )
    if run.committed < saved.committed or run.rounds < saved.charged:
        raise LedgerError(
            f"{ledger.path}: run {run.id} has {run.committed} released rounds, and {holder} "
            f"knows {saved.committed}. The ledger is an older copy, or another one. Use that "
            "of the run."
        )
    return run


class RowTicket:
    """Row ``row`` of correlated noise or a step of an epoch, which the ledger gives out once.

    The charge was made for several rows together.
    """

    def __init__(self, run: Run, row: int, epoch: OpenEpoch | None = None) -> None:
        self._run, self.row, self._epoch = run, row, epoch

    def commit(self) -> None:
        """Allow the release.

        Raises:
            LedgerError: a later row was taken, so that its round may have been released before.
        """
        if self._run.latest_row != self.row + 1:
            raise LedgerError(
                f"{self._run.ledger_path}: another process goes on with run {self._run.id}. "
                "Nothing of this round may be released."
            )
        if self._epoch is not None:
            self._epoch.commit()


class OpenEpoch:
    """A charged epoch, and how many of its steps were released."""

    def __init__(self, ticket: Ticket, steps: int, released: int = 0) -> None:
        self._ticket, self._steps, self._released = ticket, steps, released

    def commit(self) -> None:
        """Count a step, and commit the epoch with its last one."""
        self._released += 1
        if self._released == self._steps:
            self._ticket.commit()


class Account:
    """A run of a ledger. Every round is charged by `reserve` and nowhere else.

    Args:
        ledger: an open ledger, the path of one, or None for a temporary ledger.
        budget: of a new ledger. Its delta is the run's.
        private: whether noise and cohorts are secret.
        accountant: that calibrated the plan (see `dpacct.fl.engine.setup.plan_accountant`).
        ahead: how many equal rounds one entry reserves.
        unit: the privacy unit. An existing ledger may use another word for a client.

    Attributes:
        begun: whether the ledger has a run of this account.
        goes_on: of a resumed run, its next row of correlated noise, from 1, and the time of the
            latest entry that its ledger had. A row is used twice if that entry is older than the
            latest round that ran: ledger and checkpoint were both put back.
        accountant, ahead, budget, unit: as above.
    """

    def __init__(
        self,
        ledger: Ledger | Address | str | Path | None,
        budget: Budget,
        *,
        private: bool,
        accountant: AccountantName = PAIRS,
        unit: str = CLIENT,
        ahead: int = 1,
    ) -> None:
        self.unit, self.ahead = unit, ahead
        self.budget = budget
        # Only `tight` proves a game. Every other calibration is charged by pairs.
        self.accountant: AccountantName = TIGHT if accountant == TIGHT else PAIRS
        self.begun = False
        self.goes_on: tuple[int, str] | None = None
        self._given = ledger
        self._private = private
        self._folder: TemporaryDirectory[str] | None = None
        self._ledger: Ledger | None = None
        self._run: Run | None = None
        self._ticket: Ticket | None = None
        self._epoch: OpenEpoch | None = None
        self._last: Saved | None = None
        self._last_spent: Callable[[], Spent] | None = None
        self._closed = False

    @property
    def path(self) -> Path | Address | None:
        """Return the file of the ledger, None for a temporary one."""
        if self._given is None:
            return None
        return self._given.path if isinstance(self._given, Ledger) else as_place(self._given)

    @property
    def delta(self) -> float:
        """Return the delta at which epsilon is read."""
        return self.budget.delta

    @property
    def position(self) -> int:
        """Return the number of used rounds of the plan: released, or lost in a crash."""
        run = self._run
        return 0 if run is None else self._totals(run).cursor - run.reserved_ahead

    def saved(self) -> Saved | None:
        """Return the run's place in its ledger, or None before it is started."""
        if self._run is None or self._ledger is None:
            return self._last
        run = self._run
        charged = run.rounds - run.reserved_ahead
        return Saved(run.id, charged, run.committed, self._ledger.position)

    def epsilon(self) -> Spent:
        """Return the epsilon of the run's releases, or infinite if it is not private."""
        run = self._run
        if run is not None:
            return self.spent_so_far()() if run.reserved_ahead and run.private else run.epsilon()
        if self._last_spent is not None:
            return self._last_spent()
        if self._closed and self.begun:
            raise LedgerError("the ledger was closed before the run. Open it to see its budget")
        return Spent(0.0, 0.0, self.delta)

    def spent_so_far(self) -> Callable[[], Spent]:
        """Return a function that computes `epsilon` as of the latest round when it is called.

        Rounds that are reserved ahead and not taken have released nothing, and do not count here.
        """
        run = self._run
        state = None if run is None else self._totals(run)
        if run is None or state is None or not (state.on_plan and run.private):
            now = self.epsilon()
            return lambda: now
        plan, committed = run.plan or Schedule(), state.committed
        # Places of the plan, since one may be lost without a round: the next may cost more.
        rounds = state.cursor - run.reserved_ahead

        @cache
        def spent() -> Spent:
            charged = Plan(plan, self.accountant)
            used = charged.first(rounds)
            upper = epsilon_so_far(charged, used, self.delta) if rounds else 0.0
            # The lower end leaves out as many rounds of each kind as a crash may have lost.
            lost = rounds - committed
            certain = Schedule(
                Phase(kind, count - lost) for kind, count in used.distinct().items() if count > lost
            )
            whole = certain == plan
            lower = achieved_epsilon(certain, self.delta, whole=whole) if certain.rounds else 0.0
            return Spent.at(self.delta, Interval.bracket(lower, upper))

        return spent

    def affordable(self, event: Event, rounds: int, budget: Budget | None) -> int:
        """Return how many planned rounds fit into the ledger and the run's own budget, if any."""
        if budget is None:
            return rounds
        ledger = self._open(event)
        room = ledger.remaining_as_plan(event, self.accountant, rounds)
        if room < 1 or ledger.budget.epsilon <= budget.epsilon:
            return room
        round_, by = event.charged, find_accountant(self.accountant)
        return largest_count(
            lambda n: by.upper_epsilon(n * round_, self.delta) <= budget.epsilon, 0, room
        )

    def start(self, name: str, event: Event, plan: Schedule, details: dict[str, Any]) -> None:
        """Register the run with its first round, and all rounds as they will be charged."""
        ledger = self._open(event)
        if not plan.rounds:
            raise BudgetExceeded(
                f"not one round of noise multiplier {noise_of(event.charged):.6g} fits into "
                f"the rest of the budget ({ledger.budget})"
            )
        try:
            self._run = ledger.start_run(
                name, plan=plan, private=self._private, details=details,
                accountant=self.accountant, ahead=self.ahead,
            )  # fmt: skip
        except BudgetExceeded:
            if not event.is_bare:
                raise
            raise BudgetExceeded(
                f"a run without noise exceeds any budget, and {ledger.path} has one "
                f"({ledger.budget}). Give such a run a ledger of its own."
            ) from None
        self.begun = True

    def find(self, saved: Saved, holder: str) -> None:
        """Open the ledger of the checkpoint ``holder``, and write nothing to it yet."""
        if self._ledger is None and self._given is None:
            rule = "its rounds were charged to a ledger that was not kept, and their cost "
            rule += "together with further rounds is unknown"
            hint = "Start another run, with a ledger. `dpacct ledger charge` adds rounds to it."
            raise InvalidParameter("checkpoint", holder, rule, hint)
        given = self._given
        if self._ledger is None and not (isinstance(given, Ledger) or is_there(given or "")):
            raise LedgerError(f"{self.path}: there is no such ledger, and {holder} belongs to one.")
        self._open(None).require(saved.position, holder)

    def resume(self, event: Event, saved: Saved, setting: str, holder: str) -> None:
        """Continue the run of a checkpoint with its next round, in the ledger of `find`. Rule 4."""
        ledger = self._open(event)
        run = check_run(ledger, saved, setting, holder)
        if run.private is not self._private:
            rule = f"run {run.id} of the ledger was started with private={run.private}"
            raise InvalidParameter("seed", "given" if run.private else None, rule)
        if self._run is not None:
            self._run.give_back()
        self.goes_on = run.latest_row + 1, ledger.last_written
        self._run, self._ticket = ledger.resume_run(run.id, ahead=self.ahead), None
        self.begun = True

    def reserve(self, event: Event) -> Ticket:
        """Charge a round."""
        run = self._started_run()
        self._ticket = None  # A round that fails from here on may be on disk all the same.
        self._ticket = charge(run, event)
        return self._ticket

    def take_row(self, event: Event, releases: int, rows: int) -> RowTicket:
        """Charge a run of correlated noise, unless that is done, and take its next row of noise.

        ``event`` is one of the equal ``releases`` that are charged for all ``rows`` together.
        """
        run = self._started_run(rows)
        while run.rounds < releases:
            ticket = charge(run, event)
            ticket.draw()
            ticket.commit()
        return RowTicket(run, run.take_row() - 1)

    def take_step(self, event: Event, steps: int, rows: int, released: int) -> RowTicket:
        """Take the next of ``rows`` rounds of a run. ``event`` charges an epoch of ``steps``.

        An epoch is charged before its first round. It is committed with its last round, if all of
        them were released. So the achieved epsilon counts whole epochs only.
        """
        run = self._started_run(rows)
        row = run.latest_row
        epoch, step = divmod(row, steps)
        if run.rounds <= epoch:
            # As in `reserve`: a charge that fails may be on disk, and `unsettled` finds it then.
            self._epoch = None
            ticket = charge(run, event)
            ticket.draw()
            self._epoch = OpenEpoch(ticket, steps)
        elif self._epoch is None and released == row:
            ticket = run.unsettled()
            self._epoch = None if ticket is None else OpenEpoch(ticket, steps, step)
        return RowTicket(run, run.take_row() - 1, self._epoch)

    def finish(self) -> None:
        """End the run: it takes no more rounds."""
        if self._run is not None and not self._run.finished:
            self._ticket = None  # Its totals have the rounds ahead, which are given back here.
            self._run.finish()

    def close(self) -> None:
        """Close a ledger that was opened here, and delete a temporary one."""
        if self._closed:
            return
        self._closed = True
        self._ticket = None
        # The caller may have closed a ledger of its own.
        with suppress(LedgerError):
            if self._run is not None:
                self._run.give_back()
                self._last = self.saved()
                self._last_spent = self.spent_so_far()
        if self._ledger is not None and not isinstance(self._given, Ledger):
            self._ledger.close()
        self._ledger = self._run = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _totals(self, run: Run) -> RunState:
        """Return the totals after the latest committed round of this account, or as of now."""
        return (self._ticket and self._ticket.totals) or run.totals()

    def _started_run(self, rows: int | None = None) -> Run:
        """Return the run in the ledger, with one of its ``rows`` left if it has such."""
        self._check_open()
        if self._run is None:
            raise BudgetExceeded("no run of the ledger was started")
        if rows is not None and self._run.latest_row >= rows:
            raise BudgetExceeded(
                f"all {rows} rounds of the plan are used, including those that a crash lost"
            )
        return self._run

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerError("the run is closed. Another run may go on from its checkpoint")

    def _open(self, event: Event | None) -> Ledger:
        """Return the ledger. Without an event, from which a new one is made, it must exist."""
        self._check_open()
        if self._ledger is not None:
            return self._ledger
        given, adjacency = self._given, None if event is None else event.charged.adjacency
        if isinstance(given, Ledger):
            ledger = given
        else:
            if given is None:
                self._folder = TemporaryDirectory(prefix="dpacct-", ignore_cleanup_errors=True)
                given = Path(self._folder.name) / "passing.ledger"
            exists = is_there(given)
            ledger = Ledger.open(
                given,
                None if event is None or exists else self.budget,
                # An existing ledger has its own adjacency, which `Terms.check` compares.
                adjacency=None if exists else adjacency,
                unit=self.unit,
                typical=None if event is None else event.charged,
                passing=self._folder is not None,
            )
        try:
            # The ledger may have been made since the run was set up.
            Terms.of(ledger).check(self.delta, adjacency, self.unit)
        except InvalidParameter:
            if ledger is not self._given:
                ledger.close()
            raise
        self._ledger = ledger
        return ledger


def charge(run: Run, event: Event) -> Ticket:
    """Charge a round of a run, or reject one after the last of its plan."""
    plan = run.plan

    def goes_on(state: RunState) -> None:
        if plan is not None and state.on_plan and state.cursor >= plan.rounds:
            lost = ", those that a crash lost among them" if state.committed < state.rounds else ""
            raise BudgetExceeded(f"all {plan.rounds} rounds of the plan are charged{lost}")

    return run.reserve(event, asks=goes_on)
