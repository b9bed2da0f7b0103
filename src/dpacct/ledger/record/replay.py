"""Replay: the totals behind each entry, computed again from all entries before it.

Rule 1: a number is recomputed from the entries alone, by the functions that wrote it (`state`), and
compared exactly, with two exceptions. A cost may differ by rounding (`COST_TOLERANCE`). The delta
that is set aside for plans may differ by the accuracy of the accountants (`PLAN_TOLERANCE`).
Rule 2: the totals behind an entry have its digest. An entry of version 0.3 holds its totals. They
may be too low there, since that version could charge a run to a part of the data that it does not
use. Its runs are right then, and are counted whole here and from the entry ``recount`` on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from operator import gt, le
from typing import Any

from dpacct.budget import Budget
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.record import entries as chain
from dpacct.ledger.record import events, plans
from dpacct.ledger.record import state as rules
from dpacct.ledger.record.entries import Entry, Finish, Kind, Opening, Reserve, Said, Start
from dpacct.ledger.record.parts import PartTotals, check_part
from dpacct.ledger.record.plans import PlanRoom
from dpacct.ledger.record.state import Charge, LedgerState, RunState, States
from dpacct.renyi.odometer import Totals, subtract
from dpacct.rounds import Release

COST_TOLERANCE = 1e-9
PLAN_TOLERANCE = 1e-6


class Replay:
    """The totals of all runs while the entries are taken one by one.

    Attributes:
        number, hash: of the latest entry, or 0 and zeros before the first.
        ledger: the totals of all runs behind it.
        runs: those of each run, with the number of its latest entry, as of that entry.
        starts: the registration of each run.
        low_from: the entry since which the stored totals are below these (Rule 2).
        remarks: on totals that were too low, and are right again.
    """

    def __init__(self, opening: Opening) -> None:
        self.mixture, self.budget = opening.mixture, opening.budget
        self.number, self.hash = 0, chain.GENESIS
        self.ledger = rules.empty_ledger(opening)
        self.runs: dict[int, tuple[int, LedgerState, RunState]] = {}
        self.starts: dict[int, Start] = {}
        self.low_from = 0
        self.remarks = list[str]()
        self._kinds: dict[int, Kind] = {}
        # Returns the kind of round of an entry that was taken before the replay began here.
        self._earlier: Callable[[int], Kind] | None = None
        # Whether the entries are still those of version 0.3.
        self._old = False
        # The totals by which rounds were admitted: those of the latest entry.
        self._stored = self.ledger
        # What settles each round that is not settled, with its run and its charge.
        self._open: dict[int, tuple[int, Charge]] = {}
        # Whether rounds were charged outside plans since the budget was checked, or by this entry.
        self._unchecked = self._adds = False
        # The runs of the initial plans for which delta is divided.
        self._divided = set[int]()
        self._partitions = opening.partitions
        self._parts = PartTotals((), self.mixture.zero())

    def take(self, entry: Entry) -> Said:
        """Apply the next entry, and return its content.

        Raises:
            LedgerError: the entry does not follow from those before.
        """
        if entry.number != self.number + 1:
            raise LedgerError(f"it is missing, and the next is entry {entry.number}")
        if chain.link(self.hash, entry) != entry.hash:
            raise LedgerError("its hash is not that of its text")
        with chain.reading():
            said = self._apply(entry)
        self.number, self.hash = entry.number, entry.hash
        return said

    def kind(self, number: int) -> Kind:
        """Return the kind of round that an earlier entry describes."""
        if number not in self._kinds:
            if self._earlier is None:
                raise LedgerError("it charges a round that no entry before describes")
            self._kinds[number] = self._earlier(number)
        return self._kinds[number]

    def _apply(self, entry: Entry) -> Said:
        said, goes_on = chain.read(entry), entry.kind == "recount"
        if (entry.number == 1) is not isinstance(said, Opening):
            raise LedgerError("a ledger begins with its budget, and only once")
        of_none = entry.run and isinstance(said, Kind)
        if of_none or (entry.kind in ("commit", "abandon")) is (entry.closes is None):
            raise LedgerError("it contradicts its own index")
        if entry.number > 1 and (entry.old is not self._old) is not (goes_on and self._old):
            raise LedgerError("its form is that of another version")
        self._old = entry.old
        stored = rules.read_state(entry.text) if entry.old else None
        if stored is not None:
            said = self._told(entry, said, stored)
        if isinstance(said, Kind):
            self._check_kind(said)
            self._kinds[entry.number] = said
            return said
        expected = self._next(entry, said)
        # A later release of room must not hide that there was too much.
        after = (stored or expected)[0]
        if self._unchecked and any(map(gt, self._stored.charged, after.charged)):
            self.check_budget()
        self._unchecked, self._adds = self._unchecked or self._adds, False
        self._keep(entry, expected, stored)
        return said

    def _keep(self, entry: Entry, expected: States, stored: States | None) -> None:
        """Compare the totals behind an entry with what it says of them, and keep them."""
        latest = entry.number - self.runs[entry.run][0] if entry.run in self.runs else entry.number
        ledger, run = expected
        ledger = ledger._replace(latest=ledger.latest + (latest if entry.run else 0))
        if stored is None and chain.digest_of(rules.state_text(ledger, run)) != entry.digest:
            raise LedgerError("its totals do not follow from the entries before")
        same = stored is None or rules.as_of_0_3(ledger, run) == stored
        if stored is not None and not same:
            self._check_low(rules.as_of_0_3(ledger, run), stored)
            self.low_from = self.low_from or entry.number
        elif self.low_from:
            span = f"from entry {self.low_from} to entry {entry.number}"
            self.remarks.append(f"the totals were too low {span}: more than fits may have run")
            # More was admitted than there was room for.
            self.low_from, self._unchecked = 0, False
        self.ledger, self._stored = ledger, stored[0] if stored else ledger
        if run is not None:
            self.runs[entry.run] = entry.number, ledger, run

    # Entries of version 0.3

    def _told(self, entry: Entry, said: Said, stored: States) -> Said:
        """Return the content of an entry with what is known from the totals behind it alone."""
        (found, own), ledger = stored, self.ledger
        room = PlanRoom(True, found.delta, found.plan_delta, found.promised_delta)  # noqa: FBT003 - it fitted
        run = self.runs[entry.run][2] if entry.run in self.runs else None
        match said:
            case Opening():
                self.ledger = ledger._replace(adjacency=found.adjacency)
            case Start(plan=plan) if plan is not None:
                room = None if ledger.started else room
                return replace(said, cost=subtract(found.held, ledger.held), room=room)
            case Finish() if run is not None and run.initial and not ledger.started:
                return Finish(room)
            case Reserve() if run is not None and own is not None:
                kind = chain.kind_of(entry)
                kind = kind._replace(cost=self.mixture.cost(kind.charged))
                self._check_kind(kind)
                self._kinds[entry.number] = kind
                if entry.data["left"] != (said.slot is None and run.on_plan):
                    raise LedgerError("it does not say rightly whether its run left the plan")
                freed = () if said.slot is None else subtract(ledger.held, found.held)
                cost = subtract(own.spent, run.spent)
                return replace(said, cost=cost, freed=freed)
            case _ if entry.kind == "row" and run and entry.data["row"] != run.row + 1:
                raise LedgerError("rows of correlated noise are taken once, in their order")
            case _:
                pass
        return said

    def _check_low(self, ours: States, theirs: States) -> None:
        """Check that stored totals are at most too low, in a ledger of version 0.3 with parts."""
        (ledger, run), (stored, same) = ours, theirs
        low = ledger._replace(spent=stored.spent) == stored and run == same
        low &= all(map(le, stored.spent, ledger.spent))
        if not (low and self._partitions and not self.mixture.adds_up):
            raise LedgerError("its totals do not follow from the entries before")

    # The effect of each kind of entry, by the rules of `state`

    def _next(self, entry: Entry, said: Said) -> States:
        ledger, run = self.ledger, self.runs.get(entry.run)
        if isinstance(said, Start):
            return self._start(ledger, entry.run, said)
        if isinstance(said, Opening) or entry.kind == "recount":
            states = ((n, rules.state_text(own, state)) for n, (_, own, state) in self.runs.items())
            digests = {str(run): chain.digest_of(text) for run, text in states}
            if entry.run or (entry.number > 1 and entry.data["runs"] != digests):
                raise LedgerError("its totals of runs do not follow from the entries before")
            return ledger, None
        if run is None:
            raise LedgerError(f"there is no run {entry.run}")
        if entry.closes is not None:
            return self._settle(ledger, run[2], entry)
        if run[2].finished:
            raise LedgerError("its run was finished before")
        return self._open_run(ledger, run[2], entry, said)

    def _open_run(self, ledger: LedgerState, run: RunState, entry: Entry, said: Said) -> States:
        if isinstance(said, Reserve):
            return self._reserve(ledger, run, entry, said)
        if isinstance(said, Finish):
            initial = run.initial and not ledger.started
            if initial:
                self._divided.remove(entry.run)
            self._room(said.room if initial else None, said.room)
            return rules.finished(ledger, run, said.room)
        return ledger, run._replace(row=run.row + (entry.kind == "row"))

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
        if self._unchecked:
            self._unchecked = False
            most, state = self.budget.epsilon * (1 + COST_TOLERANCE), self._stored
            mixture = rules.in_force(self.mixture, state)
            asked = mixture, state, state.charged, self._initial
            if rules.admission_epsilon(*asked, most) > most:
                raise LedgerError("the rounds charged before it exceed the budget")

    def _start(self, ledger: LedgerState, run: int, said: Start) -> States:
        if run != ledger.runs + 1:
            raise LedgerError("runs are numbered 1, 2, 3, ...")
        self.starts[run] = said
        if said.over_budget:
            # Until here there was room for everything.
            self.check_budget()
        plan, schedule, shared = said.plan, said.schedule, None
        if said.part:
            if plan is not None:
                raise LedgerError("it uses a part with a plan")
            adjacency = str(schedule.adjacency) if schedule else ledger.adjacency
            check_part(said.part, self._partitions, adjacency)
        if schedule is not None:
            cost = plans.schedule_cost(self.mixture, schedule)
            initial = plan is not None and not ledger.started
            self._check_found(self.mixture.within_plans(cost) if initial else cost, said.cost)
            self._check_adjacency(ledger, schedule.phases[0].round)
            self._adds = not initial and not said.over_budget
            if initial:
                self._divided.add(run)
            self._room(said.room if initial else None, said.room)
        if said.rounds is not None:
            shared = self._parts.charge(said.part, said.cost)
        return rules.started_run(ledger, said, shared)

    def _initial(self) -> list[plans.Plan]:
        """Return the initial plans for which delta is divided."""
        return [plan for run in sorted(self._divided) if (plan := self.starts[run].plan)]

    def _room(self, asked: PlanRoom | None, said: PlanRoom | None) -> None:
        """Check a division of delta: that it sets enough aside for the initial plans."""
        if asked is None and said is None:
            return
        enough = fits = False
        if asked is not None:
            delta = self.budget.delta
            budget = Budget(self.budget.epsilon * (1 + PLAN_TOLERANCE), delta)
            room = plans.plan_room(self.mixture, budget, self._initial())
            enough = asked.plan_delta >= room.plan_delta * (1 - PLAN_TOLERANCE)
            enough &= asked.promised_delta == room.promised_delta
            fits = room.fits and asked.delta == plans.left_of(delta, asked.plan_delta)
        if not (enough and fits):
            raise LedgerError("its plans do not fit into the budget as it says")

    def _check_kind(self, kind: Kind) -> None:
        self._check_found(self.mixture.cost(kind.charged), kind.cost)
        if kind.noise_multiplier is not None:
            least = min(events.charged_noise(kind.releases), kind.noise_multiplier)
            if not least * (1 - COST_TOLERANCE) <= events.noise_of(kind.charged) <= least:
                raise LedgerError("its charge is not the cost of all its releases together")

    def _reserve(self, ledger: LedgerState, run: RunState, entry: Entry, said: Reserve) -> States:
        kind, start = self.kind(said.kind), self.starts[entry.run]
        slot = said.slot
        plan, round_, count = start.plan, kind.charged, said.count
        if run.private and kind.is_bare:
            raise LedgerError("a run that is private releases a sum without noise")
        if slot is None and count > 1:
            raise LedgerError("it charges several rounds outside a plan")
        charge = rules.as_said(self.mixture, run, kind, said, slot)
        if slot is None:
            self._adds = not start.over_budget
            self._check_found(kind.cost, charge.cost)
        else:
            planned = plan.round_at(slot) if plan and run.on_plan and slot >= run.cursor else None
            covered = planned is not None and (planned == round_ or events.covers(planned, round_))
            if plan is None or not covered:
                raise LedgerError("no round of the plan covers it")
            if plan.alike(slot) < count or (count > 1 and slot > run.cursor):
                raise LedgerError("no rounds of the plan cover all of them")
            charge = charge._replace(as_planned=planned == round_)
            if said.cost or said.freed or not charge.as_planned or charge.skipped:
                truth = rules.charge_of(self.mixture, plan, run, kind, said.kind, slot, count)
                self._check_found(truth.cost, charge.cost)
                inside = all(0 <= a <= b for a, b in zip(charge.freed, run.held, strict=True))
                if not (inside and self._are_same(charge.freed, truth.freed)):
                    raise LedgerError("it frees another amount than was held for it")
        adjacency = self._check_adjacency(ledger, round_)
        if start.part:
            check_part(start.part, self._partitions, adjacency)
        # With a part, the total of all runs grows by less than the cost. All of the data is a part
        # by itself, of which the total grows by the cost.
        parts = self._partitions
        shared = self._parts.charge(start.part, charge.cost) if parts else charge.cost
        for index in range(count):
            settled = rules.settled_by(entry.number, index)
            self._open[settled] = entry.run, charge.one(index)
        return rules.reserved(ledger, run, charge, adjacency, entry.number, shared)

    def _settle(self, ledger: LedgerState, run: RunState, entry: Entry) -> States:
        owner, charge = self._open.pop(entry.closes or 0, (0, Charge(())))
        start = self.starts[entry.run]
        if owner != entry.run:
            raise LedgerError("it settles a round that is not open")
        if entry.kind == "abandon":
            if start.part:
                raise LedgerError("no round of a part is ever abandoned")
            return rules.abandoned(ledger, run, charge, old=entry.old)
        ordered = start.plan is not None and start.plan.keeps_order
        if ordered and charge.slot is not None and charge.slot < run.through:
            raise LedgerError("it releases a round of a plan after a later one of it")
        return rules.committed(ledger, run, charge, self.kind)

    def _check_found(self, cost: Totals, found: Totals) -> None:
        """Check that a stored cost is the computed one."""
        if any(a < b and not _is_near(a, b) for a, b in zip(found, cost, strict=True)):
            raise LedgerError("it charges less than its rounds cost")
        if not self._are_same(found, cost):
            raise LedgerError("it charges more than its rounds cost: not what it says was done")

    def _are_same(self, found: Totals, cost: Totals) -> bool:
        """Return whether totals are equal but for rounding of all that is not exact."""
        # Largest losses and the number of rounds without one are exact.
        exact = found[-4:] == cost[-4:] or not self.mixture.adds_up
        return exact and all(map(_is_near, found, cost))

    def _check_adjacency(self, ledger: LedgerState, round_: Release) -> str:
        try:
            same = events.in_adjacency(round_, ledger.adjacency) == round_
        except InvalidParameter:
            same = False
        if not same:
            raise LedgerError("its adjacency is another than that of the ledger")
        return str(round_.adjacency)

    # A replay that goes on later

    def kept(self) -> str:
        """Return all of it as text. `resumed` goes on from there."""
        texts = ((n, last, rules.state_text(own, run)) for n, (last, own, run) in self.runs.items())
        runs = {number: [last, text] for number, last, text in texts}
        open_ = {closes: [run, charge] for closes, (run, charge) in self._open.items()}
        ledger = rules.state_text(self.ledger, None)
        content = {"ledger": ledger, "runs": runs, "open": open_, "divided": sorted(self._divided)}
        return chain.canonical(content | {"unchecked": self._unchecked})

    @classmethod
    def resumed(
        cls, opening: Opening, number: int, hash_: bytes, text: str,
        starts: Callable[[int], Start], kinds: Callable[[int], Kind],
    ) -> Replay:  # fmt: skip
        """Return the replay behind an entry, from what was `kept` then."""
        replay, content = cls(opening), json.loads(text)
        replay.number, replay.hash, replay._earlier = number, hash_, kinds
        replay.ledger = replay._stored = rules.read_state(content["ledger"])[0]
        for run, (latest, state) in content["runs"].items():
            ledger, own = rules.read_state(state)
            replay.runs[int(run)] = latest, ledger, _there(own)
            replay.starts[int(run)] = starts(int(run))
        for closes, (run, (cost, slot, freed, *rest)) in content["open"].items():
            replay._open[int(closes)] = run, Charge(tuple(cost), slot, tuple(freed), *rest)
        replay._divided, replay._unchecked = set(content["divided"]), content["unchecked"]
        spent = ((replay.starts[n].part, state.spent) for n, (_, _, state) in replay.runs.items())
        replay._parts = PartTotals(spent, replay.mixture.zero())
        return replay


def _there(value: Any) -> Any:
    if value is None:
        raise LedgerError("it has no totals of a run")
    return value


def _is_near(found: int, cost: int) -> bool:
    """Return whether both are equal but for rounding: `COST_TOLERANCE`, and one unit."""
    return abs(found - cost) <= cost // int(1 / COST_TOLERANCE) + 2
