"""Entries: a chain of texts, what each kind of entry says, and the totals behind it.

Rule 1: an entry is text: one JSON object, keys sorted, no spaces, ASCII, no NaN.
Rule 2: its hash covers that text and the hash of the entry before.
Rule 3: entries are numbered 1, 2, 3, ...; the number orders them, never the clock.
Rule 4: an entry of a kind has the keys of that kind and no others; each value has its type.
Rule 5: whatever is read of a ledger is read here, so that a damaged or forged entry is refused in
one line. Callers add its number, and the file.

Texts (names, unit, reasons, details, software) are as they were given; nothing checks them.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from fractions import Fraction
from functools import cached_property
from operator import le
from typing import Any, NamedTuple, cast

from dpacct.budget import Budget
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.record.events import round_from_json, schedule_from_json
from dpacct.ledger.record.fields import (
    flag,
    items,
    members,
    numbers,
    parse,
    real,
    refuse,
    whole,
    words,
)
from dpacct.renyi.odometer import Mixture, Totals, add
from dpacct.rounds import Adjacency, Round, Schedule
from dpacct.validate import MAX_ORDER, MAX_ROUNDS, NOISE_MULTIPLIER_RANGE

GENESIS = bytes(32)
# The accountants that a plan may be charged by; see `record.plans`.
PAIRS, TIGHT = "pairs", "tight"
# `odometer.design_mixture` chooses no order nearer to 1.
_LEAST_ORDER = 1 + 1e-6
_LEAST_WEIGHT = 1e-9
_MOST_ORDERS = 1000
_SENSITIVITY = (5e-324, sys.float_info.max)
# Far above `odometer.UNBOUNDED` times any number of rounds.
_MAX_TOTAL = 1 << 512
_KEYS = ("number", "kind", "run", "time", "data", "state")
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


# The chain


@dataclass(frozen=True)
class Entry:
    """One line of the ledger.

    Attributes:
        number: its place, from 1.
        kind: ``ledger``, ``run``, ``resume``, ``reserve``, ``commit``, ``abandon``, ``finish`` or
            ``relabel``.
        run: the run it belongs to, 0 for none.
        text: the entry as it is hashed.
        hash: SHA-256 of the previous hash and the text, 32 bytes.
    """

    number: int
    kind: str
    run: int
    text: str
    hash: bytes

    @cached_property
    def content(self) -> dict[str, Any]:
        """The parsed text."""
        found = members("it", parse(self.text), _KEYS)
        number, run = found["number"], found["run"]
        # 5.0 and true would be equal to numbers that they are not.
        numbered = type(number) is type(run) is int
        if not numbered or (number, found["kind"], run) != (self.number, self.kind, self.run):
            raise LedgerError("it contradicts its own index")
        return found


def canonical(content: dict[str, Any]) -> str:
    """Return the one text that stands for a JSON object (Rule 1)."""
    return _ENCODER.encode(content)


def link(previous: bytes, text: str) -> bytes:
    """Return the hash of an entry (Rule 2)."""
    return hashlib.sha256(previous + text.encode("ascii", "backslashreplace")).digest()


def new_entry(
    previous: Entry | None, kind: str, run: int, data: dict[str, Any], state: dict[str, Any]
) -> Entry:
    """Return the entry that follows ``previous``, written now."""
    number = 1 if previous is None else previous.number + 1
    time = datetime.now(UTC).isoformat(timespec="microseconds")
    text = canonical(dict(zip(_KEYS, (number, kind, run, time, data, state), strict=True)))
    return Entry(number, kind, run, text, link(previous.hash if previous else GENESIS, text))


@dataclass(frozen=True, slots=True)
class Position:
    """A place in one ledger, as a checkpoint or a witness keeps it.

    A ledger is the one that is meant if its first entry is, and has lost nothing up to a position
    if its entry of that number has that hash: the hash covers all entries before it.
    `dataclasses.asdict` gives it as JSON.

    Attributes:
        identity: of the ledger, the hash of its first entry, in hex.
        entry: the number of its latest entry.
        head: the hash of that entry, in hex.
        committed: how many rounds of all runs had been released.

    Raises:
        InvalidParameter: a hash is not one, or a number is out of range.
    """

    identity: str
    entry: int
    head: str
    committed: int

    def __post_init__(self) -> None:
        for name in ("identity", "head"):
            value = getattr(self, name)
            if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{64}", value):
                raise InvalidParameter(name, value, "a hash has 64 hexadecimal digits")
        for name, least in (("entry", 1), ("committed", 0)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value < 2**63:
                raise InvalidParameter(name, value, f"a count of {least} or more")


# What entries say


@dataclass(frozen=True, slots=True)
class Opening:
    """Kind ``ledger``, the first entry: what may be spent, and how rounds are added up."""

    budget: Budget
    mixture: Mixture
    unit: str
    software: str


@dataclass(frozen=True, slots=True)
class Start:
    """Kind ``run``: a run is registered.

    Attributes:
        name, plan, private, details: as they were given.
        over_budget: its rounds ran elsewhere, and are recorded whether there is room or not.
        accountant: that its plan may be charged by.
    """

    name: str
    plan: Schedule | None
    private: bool
    details: dict[str, Any]
    over_budget: bool = False
    accountant: str = PAIRS


class Part(NamedTuple):
    """One of several releases of a round."""

    name: str
    noise_multiplier: float
    sensitivity: float | None


@dataclass(frozen=True, slots=True)
class Reserve:
    """Kind ``reserve``: a round is charged.

    Attributes:
        charged: the round that is charged.
        noise_multiplier: of the round, where it has several releases.
        releases: everything that it releases; empty if that is its sum alone.
        slot: the number in its run's plan, from 0; None outside the plan.
        left: whether its run left the plan with it.
        details: as they were given.
    """

    charged: Round
    noise_multiplier: float | None
    releases: tuple[Part, ...]
    slot: int | None
    left: bool
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settle:
    """Kinds ``commit`` and ``abandon``: a reserved round was released, or given back.

    Attributes:
        round: the number of its reservation.
        reason: why it was given back; empty where it was released.
        details: as they were given.
    """

    round: int
    reason: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Relabel:
    """Kind ``relabel``: all rounds, before and after, are charged under another adjacency."""

    adjacency: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """Kinds ``resume`` and ``finish``."""


Said = Opening | Start | Reserve | Settle | Relabel | Nothing


def read(entry: Entry) -> Said:
    """Return what an entry says."""
    reader = _READERS.get(entry.kind)
    if reader is None:
        return refuse("kind", entry.kind, "a kind of entry that is known")
    return reader(entry.content["data"])


def read_opening(entry: Entry) -> Opening:
    """Return what the first entry says."""
    said = read(entry)
    if not isinstance(said, Opening):
        raise LedgerError("a ledger begins with its budget")
    return said


def read_time(entry: Entry) -> str:
    """Return when an entry was written, as the clock said, in the one form that entries have."""
    time = words("time", entry.content["time"])
    try:
        same = datetime.fromisoformat(time).isoformat(timespec="microseconds") == time
    except ValueError:
        same = False
    if not (same and time.endswith("+00:00")):
        refuse("time", time, "a date and time in UTC")
    return time


def _opening(value: Any) -> Opening:
    data = members("data", value, ("budget", "orders", "weights", "unit", "software"))
    budget = members("budget", data["budget"], ("epsilon", "delta"))
    orders = numbers("orders", data["orders"], _LEAST_ORDER, MAX_ORDER)
    weights = numbers("weights", data["weights"], _LEAST_WEIGHT, 1.0)
    if not 1 <= len(orders) == len(weights) <= _MOST_ORDERS:
        raise LedgerError(f"it has {len(orders)} orders, and {len(weights)} weights of them")
    # Weights that add up to more would let more be spent than the bound covers.
    if sum(map(Fraction, weights)) > 1:
        raise LedgerError("its weights add up to more than 1")
    try:
        found = Budget(budget["epsilon"], budget["delta"])
    except InvalidParameter as error:
        raise LedgerError(f"its budget cannot be read: {error}") from None
    unit, software = words("unit", data["unit"]), words("software", data["software"])
    return Opening(found, Mixture(orders, weights), unit, software)


def _start(value: Any) -> Start:
    needed = ("name", "plan", "private", "details")
    data = members("data", value, needed, ("over_budget", "accountant"))
    plan = None if data["plan"] is None else schedule_from_json(data["plan"])
    if plan is not None and not plan.rounds:
        raise LedgerError("its plan has no rounds")
    accountant = data.get("accountant", PAIRS)
    if accountant not in (PAIRS, TIGHT):
        refuse("accountant", accountant, "an accountant of plans")
    return Start(
        words("name", data["name"]),
        plan,
        flag("private", data["private"]),
        _details(data),
        flag("over_budget", data.get("over_budget", False)),
        words("accountant", accountant),
    )


def _reserve(value: Any) -> Reserve:
    needed = ("charged", "slot", "left")
    data = members("data", value, needed, ("noise_multiplier", "releases", "details"))
    if ("releases" in data) != ("noise_multiplier" in data):
        raise LedgerError("it has releases without the noise of the round, or that without them")
    slot, noise = data["slot"], data.get("noise_multiplier")
    releases = tuple(map(_part, items("releases", data.get("releases", []))))
    return Reserve(
        round_from_json(data["charged"]),
        real("noise_multiplier", noise, *NOISE_MULTIPLIER_RANGE) if releases else None,
        releases,
        None if slot is None else whole("slot", slot, 0, MAX_ROUNDS - 1),
        flag("left", data["left"]),
        _details(data),
    )


def _part(value: Any) -> Part:
    part = members("a release", value, ("name", "noise_multiplier", "sensitivity"))
    sensitivity = part["sensitivity"]
    return Part(
        words("name", part["name"]),
        real("noise_multiplier", part["noise_multiplier"], *NOISE_MULTIPLIER_RANGE),
        None if sensitivity is None else real("sensitivity", sensitivity, *_SENSITIVITY),
    )


def _details(data: dict[str, Any]) -> dict[str, Any]:
    found = data.get("details", {})
    if type(found) is not dict:
        refuse("details", found, "an object")
    return cast("dict[str, Any]", found)


def _commit(value: Any) -> Settle:
    data = members("data", value, ("round",), ("details",))
    return Settle(whole("round", data["round"], 1), "", _details(data))


def _abandon(value: Any) -> Settle:
    data = members("data", value, ("round", "reason"))
    return Settle(whole("round", data["round"], 1), words("reason", data["reason"]), {})


def _relabel(value: Any) -> Relabel:
    found = words("adjacency", members("data", value, ("adjacency",))["adjacency"])
    if found != Adjacency.ZERO_OUT:
        refuse("adjacency", found, "the adjacency that rounds are relabelled to")
    return Relabel(found)


def _nothing(value: Any) -> Nothing:
    members("data", value, ())
    return Nothing()


_READERS: dict[str, Callable[[Any], Said]] = {
    "ledger": _opening,
    "run": _start,
    "reserve": _reserve,
    "commit": _commit,
    "abandon": _abandon,
    "relabel": _relabel,
    "resume": _nothing,
    "finish": _nothing,
}


# The totals behind an entry; which they have to be is for `record.state` to say


@dataclass(frozen=True, slots=True)
class LedgerState:
    """Totals of all runs.

    Attributes:
        spent: Renyi totals of every round that was reserved and not abandoned, in units of 2^-64.
        held: those of planned rounds still to come.
        runs: how many were started.
        rounds: how many are charged.
        exposed: how many of them belong to runs that are not private.
        started: whether a round was ever reserved.
        loose: whether a round ran outside the plans that were registered before the first round.
        delta: the delta of the adaptive bound: what the initial plans leave of the budget's.
        plan_delta: what is set aside for the initial plans.
        adjacency: of all rounds; empty until the first one, or the first plan.
    """

    spent: Totals
    held: Totals
    runs: int
    rounds: int
    exposed: int
    started: bool
    loose: bool
    delta: float
    plan_delta: float
    adjacency: str

    @property
    def charged(self) -> Totals:
        """Spent and held."""
        return add(self.spent, self.held)


@dataclass(frozen=True, slots=True)
class RunState:
    """Totals of one run.

    Attributes:
        spent, held: as for the ledger.
        rounds: how many are charged.
        committed: how many of them were released.
        cursor: how many slots of its plan are used.
        private: its noise comes from a secret source.
        planned: it has a plan.
        initial: the plan was registered before the ledger's first round.
        left: it ran a round outside its plan.
        finished: it takes no more rounds.
    """

    spent: Totals
    held: Totals
    rounds: int
    committed: int
    cursor: int
    private: bool
    planned: bool
    initial: bool
    left: bool
    finished: bool

    @property
    def on_plan(self) -> bool:
        """True for a run that has a plan and kept to it."""
        return self.planned and not self.left

    def within(self, ledger: LedgerState) -> bool:
        """Return whether its totals are at most those of all runs."""
        return (
            self.rounds <= ledger.rounds
            and all(map(le, self.spent, ledger.spent))
            and all(map(le, self.held, ledger.held))
        )


_LEDGER = tuple(field.name for field in fields(LedgerState))
_RUN = tuple(field.name for field in fields(RunState))


def state_to_json(ledger: LedgerState, run: RunState | None) -> dict[str, Any]:
    """Return the totals as they stand in an entry."""
    return {
        "ledger": {name: getattr(ledger, name) for name in _LEDGER},
        "run": None if run is None else {name: getattr(run, name) for name in _RUN},
    }


def read_state(entry: Entry, orders: int) -> tuple[LedgerState, RunState | None]:
    """Return the totals behind an entry of a ledger that has so many orders."""
    state = members("state", entry.content["state"], ("ledger", "run"))
    part = members("state.ledger", state["ledger"], _LEDGER)
    adjacency = words("state.ledger.adjacency", part["adjacency"])
    if adjacency not in ("", *Adjacency):
        refuse("state.ledger.adjacency", adjacency, "an adjacency")
    rounds = whole("state.ledger.rounds", part["rounds"])
    ledger = LedgerState(
        spent=_totals("state.ledger.spent", part["spent"], orders),
        held=_totals("state.ledger.held", part["held"], orders),
        runs=whole("state.ledger.runs", part["runs"]),
        rounds=rounds,
        exposed=whole("state.ledger.exposed", part["exposed"], 0, rounds),
        started=flag("state.ledger.started", part["started"]),
        loose=flag("state.ledger.loose", part["loose"]),
        delta=real("state.ledger.delta", part["delta"], 0.0, 1.0),
        plan_delta=real("state.ledger.plan_delta", part["plan_delta"], 0.0, 1.0),
        adjacency=adjacency,
    )
    if entry.kind in ("ledger", "relabel"):
        if state["run"] is not None:
            refuse("state.run", state["run"], "null")
        return ledger, None
    part = members("state.run", state["run"], _RUN)
    rounds = whole("state.run.rounds", part["rounds"])
    run = RunState(
        spent=_totals("state.run.spent", part["spent"], orders),
        held=_totals("state.run.held", part["held"], orders),
        rounds=rounds,
        committed=whole("state.run.committed", part["committed"], 0, rounds),
        cursor=whole("state.run.cursor", part["cursor"], 0, MAX_ROUNDS),
        **{name: flag(f"state.run.{name}", part[name]) for name in _RUN[5:]},
    )
    if not run.within(ledger):
        raise LedgerError("its run has more than all runs together")
    return ledger, run


def _totals(name: str, value: Any, orders: int) -> Totals:
    found = items(name, value)
    if len(found) != orders:
        raise LedgerError(f"{name} has {len(found)} numbers, and there are {orders} orders")
    return tuple(whole(name, number, 0, _MAX_TOTAL) for number in found)
