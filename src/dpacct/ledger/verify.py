"""Verification of a ledger: the chain, each round's cost and every total, from all entries.

Rule 1: a number is recomputed from the entries alone, by the functions that wrote it (`state`), and
compared exactly, with two exceptions. A cost may differ by rounding (`COST_TOLERANCE`). The delta
that is set aside for plans may differ by the accuracy of the accountants (`PLAN_TOLERANCE`).
Rule 2: every number that is shown or used is checked. The other facts are listed as unverified.
Rule 3: a person who can write to the file can drop its newest entries, or write another file. Only
a head hash that was kept elsewhere shows that, or the witness as far back as it goes. A missing
witness is a remark.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import gt, le

from dpacct.budget import Budget
from dpacct.display import line
from dpacct.errors import DpacctError, InvalidParameter, LedgerError
from dpacct.ledger.disk.rows import StoredEntries
from dpacct.ledger.disk.store import Store
from dpacct.ledger.disk.witness import Witness
from dpacct.ledger.readings import Snapshot
from dpacct.ledger.record import entries as chain
from dpacct.ledger.record import events, plans
from dpacct.ledger.record import state as rules
from dpacct.ledger.record.entries import Entry, Opening, Reserve, Row, Said, Settle, Start
from dpacct.ledger.record.parts import PartTotals, check_part
from dpacct.ledger.record.state import Charge, LedgerState, RunState, States
from dpacct.renyi.odometer import Totals, subtract
from dpacct.rounds import Release

COST_TOLERANCE = 1e-9
PLAN_TOLERANCE = 1e-6
MAX_PROBLEMS = 20
# Only the author of an entry can know these facts.
UNVERIFIED = (
    "the budget, the orders and their weights, and the unit of the first entry",
    "names, details, reasons and sensitivities, as they were typed in",
    "times and versions, as the clocks and programs said",
    "that noise was secret in runs declared so, and nothing was drawn in abandoned rounds",
    "that a promise made elsewhere is true, and each client belongs to one part of a partition",
    "that no client remembers whether it took part, where a plan is charged by tight",
)


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification.

    Attributes:
        entries: the number of entries.
        rounds: the number of charged rounds.
        head: hash of the latest entry, in hex.
        head_found: whether the given hash is in the chain, or None if none was given.
        problems: the errors, one sentence each, or none if the ledger is sound.
        remarks: odd but harmless facts.
        unverified: facts that no reading of the entries can check.
    """

    entries: int
    rounds: int
    head: str
    head_found: bool | None
    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    unverified: tuple[str, ...] = UNVERIFIED

    @property
    def sound(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems


def verify(now: Snapshot, store: Store, head: str | None = None) -> Verification:
    """Check a whole ledger.

    Args:
        now: as of the entry up to which it is checked.
        store: of the file, for its witness.
        head: a head hash in hex that was kept elsewhere. It has to be in the chain.
    Returns:
        The problems. Damage is reported, not raised. Takes about 0.3 ms per round.
    Raises:
        InvalidParameter: the head is not a text.
    """
    if head is not None and not isinstance(head, str):
        raise InvalidParameter("head", head, "a head is a hash in hex, as Ledger.head gives it")
    problems, remarks = now.read(StoredEntries.problems), list[str]()
    replay, latest, count, clock = Replay(now.known.opening), chain.GENESIS, 0, ""
    wanted, found = "" if head is None else head.strip().lower(), False
    place = 1
    try:
        for entry, closes in now.entries():
            place = count + 1
            if entry.number != place:
                raise LedgerError(f"it is missing, and the next is entry {entry.number}")
            if chain.link(latest, entry.text) != entry.hash:
                raise LedgerError("its hash is not that of its text")
            with chain.reading():
                replay.step(entry, closes)
            time = str(entry.content["time"])
            if time < clock:
                remarks.append(f"entry {entry.number}: the clock went backwards. Order is kept")
            clock, latest, count = time, entry.hash, entry.number
            found = found or entry.hash.hex() == wanted
        replay.end()
    except DpacctError as error:
        problems.append(f"entry {place}: {' '.join(str(error).split())}")
    remarks = replay.remarks + remarks
    if any(start.over_budget for start in replay.starts.values()):
        remarks.insert(0, "rounds that had run elsewhere were recorded beyond the budget")
    try:
        remarks += _unseen_losses(store.witness())
    except LedgerError as error:
        problems.append(str(error))
    if head is not None and not found:
        shown = line(head, 80)
        problems.append(f"the head {shown} is not in the chain: entries are missing, or changed")
    return Verification(
        entries=count,
        rounds=0 if replay.ledger is None else replay.ledger.rounds,
        head=latest.hex(),
        head_found=None if head is None else found,
        problems=tuple(problems[:MAX_PROBLEMS]),
        remarks=tuple(remarks[:MAX_PROBLEMS]),
    )


def _unseen_losses(witness: Witness | None) -> list[str]:
    """Return a remark if entries could be missing without a trace."""
    if witness is None:
        return ["the file has no witness: entries dropped from its end leave no trace"]
    if witness.since > 1:
        return [f"its witness was made at entry {witness.since}: earlier losses leave no trace"]
    return []


class Replay:
    """The state of all runs while the entries are read one by one.

    Attributes:
        ledger: the totals of all runs behind the latest entry, or None before the first.
        starts: the registration of each run.
        low_from: the entry since which the stored totals are below these (`Snapshot.check_runs`).
        remarks: on totals that were too low, and are right again.
    """

    def __init__(self, opening: Opening) -> None:
        self.mixture, self.budget = opening.mixture, opening.budget
        self.ledger: LedgerState | None = None
        self.starts: dict[int, Start] = {}
        self.low_from = 0
        self.remarks = list[str]()
        # The totals by which rounds were admitted: those of the latest entry.
        self._stored: LedgerState | None = None
        self._runs: dict[int, RunState] = {}
        # Of each run: the latest slot of its plan that was released, and its latest row of noise.
        self._released: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        # Reservations that are not settled, with their run.
        self._open: dict[int, tuple[int, Charge]] = {}
        # Whether rounds were charged since the budget was checked.
        self._unchecked = False
        # The runs of the initial plans for which delta is divided.
        self._divided = set[int]()
        self._partitions = opening.partitions
        self._parts = PartTotals((), self.mixture.zero())

    def step(self, entry: Entry, closes: object) -> None:
        """Apply one entry. Its index and its totals have to follow from it."""
        said, found = chain.read(entry), rules.read_state(entry)
        settles = said.round if isinstance(said, Settle) else None
        if repr(closes) != repr(settles):
            raise LedgerError("it contradicts its own index")
        if self.ledger is not None:
            expected = self._next(self.ledger, entry, said, found)
        elif isinstance(said, Opening) and not entry.run:
            empty = rules.empty_ledger(self.mixture, self.budget.delta, found[0].adjacency)
            expected = empty, None
        else:
            raise LedgerError("a ledger begins with its budget")
        (self.ledger, state), (self._stored, _) = expected, found
        if expected != found:
            self._check_low(expected, found)
            self.low_from = self.low_from or entry.number
        elif self.low_from:
            span = f"from entry {self.low_from} to entry {entry.number}"
            self.remarks.append(f"the totals were too low {span}: more than fits may have run")
            # More was admitted than there was room for.
            self.low_from, self._unchecked = 0, False
        if state is not None:
            self._runs[entry.run] = state

    def _check_low(self, ours: States, theirs: States) -> None:
        """Check that stored totals are at most too low, in a ledger of version 0.3 with parts."""
        (ledger, run), (stored, same) = ours, theirs
        low = replace(ledger, spent=stored.spent) == stored and run == same
        low &= all(map(le, stored.spent, ledger.spent))
        if not (low and self._partitions and not self.mixture.adds_up):
            raise LedgerError("its totals do not follow from the entries before")

    def _next(self, ledger: LedgerState, entry: Entry, said: Said, found: States) -> States:
        """Return the totals behind an entry by the rules of `state`."""
        # A later release of room must not hide that there was too much.
        if self._stored and any(map(gt, self._stored.charged, found[0].charged)):
            self.check_budget()
        if isinstance(said, Opening):
            raise LedgerError("a ledger begins only once")
        if entry.kind == "recount":
            if entry.run or not self.low_from:
                raise LedgerError("there is nothing to count again")
            return ledger, None
        if isinstance(said, Start):
            return self._start(ledger, entry.run, said, found[0])
        return self._of_run(ledger, entry, said, found)

    def _of_run(self, ledger: LedgerState, entry: Entry, said: Said, found: States) -> States:
        run = self._runs.get(entry.run)
        if run is None:
            raise LedgerError(f"there is no run {entry.run}")
        if isinstance(said, Settle):
            return self._settle(ledger, run, entry, said)
        if run.finished:
            raise LedgerError("its run was finished before")
        if isinstance(said, Reserve):
            return self._reserve(ledger, run, entry, said, found)
        if isinstance(said, Row):
            if said.row != self._rows.get(entry.run, 0) + 1:
                raise LedgerError("rows of correlated noise are taken once, in their order")
            self._rows[entry.run] = said.row
        if entry.kind != "finish":
            return ledger, run
        if not run.initial or ledger.started:
            return rules.finished(ledger, run, ledger)
        self._divided.remove(entry.run)
        return rules.finished(ledger, run, self._room(found[0]))

    def end(self) -> None:
        """Check the budget, and that the totals behind the latest entry are not too low."""
        self.check_budget()
        if self.low_from:
            raise LedgerError(
                f"the totals are too low since entry {self.low_from}. Opening the ledger for "
                "writing counts its runs again"
            )

    def check_budget(self) -> None:
        """Check Rule 5 of `state` as of now."""
        state = self._stored
        if state is not None and self._unchecked:
            self._unchecked = False
            most = self.budget.epsilon * (1 + COST_TOLERANCE)
            mixture = rules.in_force(self.mixture, state)
            asked = mixture, state, state.charged, self._initial
            if rules.admission_epsilon(*asked, most) > most:
                raise LedgerError("the rounds charged before it exceed the budget")

    def _start(self, ledger: LedgerState, run: int, said: Start, found: LedgerState) -> States:
        if run != ledger.runs + 1:
            raise LedgerError("runs are numbered 1, 2, 3, ...")
        self.starts[run] = said
        if said.over_budget:
            # Until here there was room for everything.
            self.check_budget()
        plan, adjacency, held, room = said.plan, ledger.adjacency, None, ledger
        if said.part:
            if plan is not None:
                raise LedgerError("it uses a part with a plan")
            check_part(said.part, self._partitions, adjacency)
        if plan is not None:
            cost = plans.schedule_cost(self.mixture, plan.schedule)
            cost = cost if ledger.started else self.mixture.within_plans(cost)
            adjacency = _same_adjacency(ledger, plan.schedule.phases[0].round)
            held = self._as_found(cost, subtract(found.held, ledger.held))
            self._unchecked |= ledger.started
            if not ledger.started:
                self._divided.add(run)
                room = self._room(found)
        return rules.started_run(ledger, held, adjacency, room, private=said.private)

    def _initial(self) -> list[plans.Plan]:
        """Return the initial plans for which delta is divided."""
        return [plan for run in sorted(self._divided) if (plan := self.starts[run].plan)]

    def _room(self, found: LedgerState) -> LedgerState:
        """Return the stored division of delta, if it sets enough aside for the initial plans."""
        delta = self.budget.delta
        budget = Budget(self.budget.epsilon * (1 + PLAN_TOLERANCE), delta)
        room = plans.plan_room(self.mixture, budget, self._initial())
        enough = found.plan_delta >= room.plan_delta * (1 - PLAN_TOLERANCE)
        enough &= found.promised_delta == room.promised_delta
        if not (room.fits and enough and found.delta == plans.left_of(delta, found.plan_delta)):
            raise LedgerError("its plans do not fit into the budget as it says")
        return found

    def _reserve(
        self, ledger: LedgerState, run: RunState, entry: Entry, said: Reserve, states: States
    ) -> States:
        found, own = states[0], states[1] or run
        if said.noise_multiplier is not None:
            least = min(events.charged_noise(said.releases), said.noise_multiplier)
            if not least * (1 - COST_TOLERANCE) <= events.noise_of(said.charged) <= least:
                raise LedgerError("its charge is not the cost of all its releases together")
            if run.private and not all(part.noise_multiplier for part in said.releases):
                raise LedgerError("a run that is private releases a sum without noise")
        if said.left != (said.slot is None and run.on_plan):
            raise LedgerError("it does not say rightly whether its run left the plan")
        adjacency, start = _same_adjacency(ledger, said.charged), self.starts[entry.run]
        plan, part = start.plan, start.part
        if said.slot is None:
            self._unchecked |= not start.over_budget
        else:
            planned = plan.round_at(said.slot) if plan and run.on_plan else None
            in_order = said.slot >= run.cursor
            if planned is None or not in_order or not events.covers(planned, said.charged):
                raise LedgerError("no round of the plan covers it")
        charge = rules.charge_of(self.mixture, plan, run, said.charged, said.slot)
        if part:
            check_part(part, self._partitions, adjacency)
        # The stored cost is that of its run: with a part, the total of all runs grows by less. All
        # of the data is a part by itself, of which the total grows by the cost.
        cost = self._as_found(charge.cost, subtract(own.spent, run.spent))
        charge = charge._replace(cost=cost, shared=self._parts.charge(part, cost))
        if said.slot is not None:
            freed = subtract(ledger.held, found.held)
            inside = all(0 <= part <= held for part, held in zip(freed, run.held, strict=True))
            if not (inside and self._are_same(freed, charge.freed)):
                raise LedgerError("it frees another amount than was held for it")
            charge = charge._replace(freed=freed)
        self._open[entry.number] = entry.run, charge
        return rules.reserved(ledger, run, charge, adjacency)

    def _settle(self, ledger: LedgerState, run: RunState, entry: Entry, said: Settle) -> States:
        owner, charge = self._open.pop(said.round, (0, Charge(())))
        start = self.starts[entry.run]
        if owner != entry.run:
            raise LedgerError("it settles a round that is not open")
        if entry.kind == "abandon":
            if start.part:
                raise LedgerError("no round of a part is ever abandoned")
            return rules.abandoned(ledger, run, charge)
        if start.plan and charge.slot is not None and start.plan.keeps_order:
            if charge.slot < self._released.get(entry.run, 0):
                raise LedgerError("it releases a round of a plan after a later one of it")
            self._released[entry.run] = charge.slot
        return rules.committed(ledger, run)

    def _as_found(self, cost: Totals, found: Totals) -> Totals:
        """Return a stored cost, if it is the computed one."""
        if any(a < b and not _is_near(a, b) for a, b in zip(found, cost, strict=True)):
            raise LedgerError("it charges less than its rounds cost")
        if not self._are_same(found, cost):
            raise LedgerError("it charges more than its rounds cost: not what it says was done")
        return found

    def _are_same(self, found: Totals, cost: Totals) -> bool:
        """Return whether totals are equal but for rounding of all that is not exact."""
        # Largest losses and the number of rounds without one are exact.
        exact = found[-4:] == cost[-4:] or not self.mixture.adds_up
        return exact and all(map(_is_near, found, cost))


def _same_adjacency(ledger: LedgerState, round_: Release) -> str:
    try:
        same = events.in_adjacency(round_, ledger.adjacency) == round_
    except InvalidParameter:
        same = False
    if not same:
        raise LedgerError("its adjacency is another than that of the ledger")
    return str(round_.adjacency)


def _is_near(found: int, cost: int) -> bool:
    """Return whether both are equal but for rounding: `COST_TOLERANCE`, and one unit."""
    return abs(found - cost) <= cost // int(1 / COST_TOLERANCE) + 2
