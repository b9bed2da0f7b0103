"""Entries: a chain of texts, and the content of each kind of entry.

Rule 1: an entry is text: one JSON object, keys sorted, no spaces, ASCII, no NaN.
Rule 2: its hash covers that text and the hash of the entry before.
Rule 3: entries are numbered 1, 2, 3, ... The number orders them, never the clock.
Rule 4: an entry of a kind has exactly the keys of that kind, and each value has its type.
Rule 5: all entries are parsed here and in `state`, so that a damaged or forged entry is rejected in
one line. Callers add its number and the file.

Texts (names, unit, reasons, details, software) stay as they were given and are not checked.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import cached_property
from typing import Any

from dpacct.budget import Budget
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.record.events import (
    Release,
    in_adjacency,
    round_from_json,
    schedule_from_json,
    schedule_in_adjacency,
)
from dpacct.ledger.record.fields import items, members, real, refuse, typed, whole
from dpacct.ledger.record.parts import Partitions, read_partitions
from dpacct.ledger.record.plans import PAIRS, TIGHT, Plan
from dpacct.renyi.odometer import Mixture
from dpacct.rounds import Adjacency
from dpacct.rounds import Release as ScheduleItem
from dpacct.validate import MAX_ORDER, MAX_ROUNDS, NOISE_MULTIPLIER_RANGE

GENESIS = bytes(32)
# `odometer.design_mixture` chooses no order nearer to 1.
_LEAST_ORDER = 1 + 1e-6
_LEAST_WEIGHT = 1e-9
_MOST_ORDERS = 1000
_KEYS = ("number", "kind", "run", "time", "data", "state")
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


# The chain


@dataclass(frozen=True)
class Entry:
    """One line of the ledger.

    Attributes:
        number: its place, from 1.
        kind: one of the kinds below.
        run: the run it belongs to, 0 for none.
        text: the hashed text.
        hash: SHA-256 of the previous hash and the text, 32 bytes.
    """

    number: int
    kind: str
    run: int
    text: str
    hash: bytes

    @cached_property
    def content(self) -> dict[str, Any]:
        """The parsed text, which is in its one form (Rule 1)."""
        try:
            parsed = json.loads(self.text)
            same = canonical(parsed) == self.text
        except (ValueError, RecursionError):
            same, parsed = False, None
        if not same:
            raise LedgerError("it is no JSON that a ledger writes")
        found = members("it", parsed, _KEYS)
        number, run = found["number"], found["run"]
        # 5.0 and true would be equal to the numbers 5 and 1.
        numbered = type(number) is type(run) is int
        if not numbered or (number, found["kind"], run) != (self.number, self.kind, self.run):
            raise LedgerError("it contradicts its own index")
        return found


def canonical(content: dict[str, Any]) -> str:
    """Return the one text of a JSON object (Rule 1)."""
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

    Two files are the same ledger if they have the same first entry. A ledger has lost nothing up to
    a position if its entry of that number has that hash, which covers all entries before it.
    `dataclasses.asdict` gives it as JSON.

    Attributes:
        identity: of the ledger, the hash of its first entry, in hex.
        entry: the number of its latest entry.
        head: the hash of that entry, in hex.
        committed: the number of released rounds of all runs.

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


# The content of each kind


@dataclass(frozen=True, slots=True)
class Opening:
    """Kind ``ledger``, the first entry: the budget, and the orders of the adaptive bound."""

    budget: Budget
    mixture: Mixture
    unit: str
    software: str
    partitions: Partitions = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True, slots=True)
class Start:
    """Kind ``run``: a run is registered, with its plan if it has one.

    A run with ``over_budget`` ran elsewhere, and is recorded even if it does not fit. ``project``
    is the group that it belongs to, and ``part`` the part of the data that it uses, or empty.
    """

    name: str
    plan: Plan | None
    private: bool
    details: dict[str, Any]
    over_budget: bool = False
    project: str = ""
    part: str = ""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Kind ``reserve``: a round is charged.

    Attributes:
        charged: the charged round.
        noise_multiplier: of the round, if it has several releases.
        releases: all its releases, or empty if its sum is the only release.
        slot: its number in the plan of its run, from 0, or None outside the plan.
        left: whether its run left the plan with it.
    """

    charged: ScheduleItem
    noise_multiplier: float | None
    releases: tuple[Release, ...]
    slot: int | None
    left: bool


@dataclass(frozen=True, slots=True)
class Settle:
    """Kinds ``commit`` and ``abandon``: the reservation ``round`` was released, or given back."""

    round: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Kind ``row``: a run of correlated noise takes its next row of noise, which costs nothing.

    All rows were charged together. The entry keeps a row from being released twice.
    """

    row: int


@dataclass(frozen=True, slots=True)
class Plain:
    """Kinds ``resume``, ``finish``, and ``relabel``: all rounds are charged as zero-out."""


Said = Opening | Start | Reserve | Settle | Row | Plain


def read(entry: Entry) -> Said:
    """Return the content of an entry."""
    data, found = entry.content["data"], Plain()
    match entry.kind:
        case "ledger":
            found = _opening(data)
        case "run":
            found = _start(data)
        case "reserve":
            found = _reserve(data)
        case "commit":
            data = members("data", data, ("round",), ("details",))
            typed("details", data.get("details", {}), dict)
            found = Settle(whole("round", data["round"], 1))
        case "abandon":
            data = members("data", data, ("round", "reason"))
            found = Settle(whole("round", data["round"], 1), typed("reason", data["reason"], str))
        case "row":
            found = Row(whole("row", members("data", data, ("row",))["row"], 1, MAX_ROUNDS))
        case "relabel":
            adjacency = members("data", data, ("adjacency",))["adjacency"]
            if adjacency != str(Adjacency.ZERO_OUT):
                refuse("adjacency", adjacency, "the adjacency that rounds are relabelled to")
        case "resume" | "finish":
            members("data", data, ())
        case _:
            refuse("kind", entry.kind, "a kind of entry that is known")
    return found


def read_opening(entry: Entry) -> Opening:
    """Return the content of the first entry."""
    said = read(entry)
    if not isinstance(said, Opening):
        raise LedgerError("a ledger begins with its budget")
    return said


def read_time(entry: Entry) -> str:
    """Return the clock's time of an entry, in the one form that entries have."""
    time = typed("time", entry.content["time"], str)
    try:
        form = datetime.fromisoformat(time).astimezone(UTC).isoformat(timespec="microseconds")
    except (ValueError, OverflowError):
        form = None
    if form != time:
        refuse("time", time, "a date and time in UTC")
    return time


def as_zero_out(said: Said) -> Said:
    """Return the content of an entry of version 0.2 with its rounds relabelled zero-out."""
    match said:
        case Reserve():
            return replace(said, charged=in_adjacency(said.charged, Adjacency.ZERO_OUT))
        case Start(plan=Plan(schedule, accountant)):
            schedule = schedule_in_adjacency(schedule, Adjacency.ZERO_OUT)
            return replace(said, plan=Plan(schedule, accountant))
        case _:
            return said


def _opening(value: Any) -> Opening:
    needed = ("budget", "orders", "weights", "unit", "software")
    data = members("data", value, needed, ("promised_delta", "partitions"))
    budget = members("budget", data["budget"], ("epsilon", "delta"))
    listed = items("orders", data["orders"])
    orders = tuple(real("orders", order, _LEAST_ORDER, MAX_ORDER) for order in listed)
    listed = items("weights", data["weights"])
    weights = tuple(real("weights", weight, _LEAST_WEIGHT, 1.0) for weight in listed)
    if not 1 <= len(orders) == len(weights) <= _MOST_ORDERS:
        raise LedgerError(f"it has {len(orders)} orders, and {len(weights)} weights of them")
    # A larger sum of weights would let more be spent than the bound covers.
    if sum(map(Fraction, weights)) > 1:
        raise LedgerError("its weights add up to more than 1")
    try:
        found = Budget(budget["epsilon"], budget["delta"])
    except InvalidParameter as error:
        raise LedgerError(f"its budget cannot be read: {error}") from None
    unit, software = (typed(name, data[name], str) for name in ("unit", "software"))
    promised = real("promised_delta", data.get("promised_delta", 0.0), 0.0, found.delta)
    partitions = read_partitions(data.get("partitions", {}))
    return Opening(found, Mixture(orders, weights, promised), unit, software, partitions)


def _start(value: Any) -> Start:
    needed = ("name", "plan", "private", "details")
    data = members("data", value, needed, ("over_budget", "accountant", "project", "part"))
    schedule = None if data["plan"] is None else schedule_from_json(data["plan"])
    if schedule is not None and not schedule.rounds:
        raise LedgerError("its plan has no rounds")
    accountant = data.get("accountant", PAIRS)
    if accountant not in (PAIRS, TIGHT):
        refuse("accountant", accountant, "an accountant of plans")
    return Start(
        typed("name", data["name"], str),
        None if schedule is None else Plan(schedule, typed("accountant", accountant, str)),
        typed("private", data["private"], bool),
        typed("details", data["details"], dict),
        typed("over_budget", data.get("over_budget", False), bool),
        typed("project", data.get("project", ""), str),
        typed("part", data.get("part", ""), str),
    )


def _reserve(value: Any) -> Reserve:
    needed = ("charged", "slot", "left")
    data = members("data", value, needed, ("noise_multiplier", "releases", "details"))
    typed("details", data.get("details", {}), dict)
    if ("releases" in data) != ("noise_multiplier" in data):
        raise LedgerError("it has releases without the noise of the round, or that without them")
    slot, noise = data["slot"], data.get("noise_multiplier")
    releases = tuple(map(_release, items("releases", data.get("releases", []))))
    return Reserve(
        round_from_json(data["charged"]),
        real("noise_multiplier", noise, *NOISE_MULTIPLIER_RANGE) if releases else None,
        releases,
        None if slot is None else whole("slot", slot, 0, MAX_ROUNDS - 1),
        typed("left", data["left"], bool),
    )


def _release(value: Any) -> Release:
    part = members("a release", value, ("name", "noise_multiplier", "sensitivity"))
    try:
        return Release(**part)
    except InvalidParameter as error:
        raise LedgerError(f"a release cannot be read: {error}") from None
