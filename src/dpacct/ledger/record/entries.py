"""Entries: a chain of texts, and the content of each kind of entry.

Rule 1: an entry is text: one JSON object, keys sorted, no spaces, ASCII, no NaN.
Rule 2: its hash covers that text, its number, run and kind, what it settles, and the hash before.
Rule 3: entries are numbered 1, 2, 3, ... The number orders them, never the clock.
Rule 4: an entry that cannot be read is rejected in one line. Callers add its number and the file.
Rule 5: an entry says what happened, not what it adds up to. It holds the digest of the totals
behind it (`state`), which are stored once for each run.
Rule 6: entries of version 0.3 hold the totals themselves. A file of that version goes on in the
present form, behind an entry ``recount``, which has the digests of the totals of its runs.

Texts (names, unit, reasons, details, software) stay as they were given and are not checked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

from dpacct import validate
from dpacct.budget import Budget
from dpacct.display import line
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.items import read_alone, release_entry
from dpacct.ledger.record.events import NoisySum, schedule_from_json, schedule_to_json
from dpacct.ledger.record.parts import Partitions, checked_partitions
from dpacct.ledger.record.plans import PAIRS, Plan, PlanRoom
from dpacct.renyi.odometer import Mixture, Totals
from dpacct.rounds import Release, Schedule

T = TypeVar("T")
GENESIS = bytes(32)
# A reservation of several rounds: what settles the one with number j has j times this more in
# ``closes`` than the number of the reservation.
NEXT_OF_SEVERAL = 1 << 40
MOST_AHEAD = 1024  # rounds of one reservation
# How the text of version 0.3 begins, and none of the present form.
_OLD = '{"data":'
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


# The chain


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    number: int  # its place, from 1
    kind: str  # one of the kinds below
    run: int  # the run it belongs to, 0 for none
    closes: int | None  # the reservation that it settles
    text: str  # the hashed text
    hash: bytes  # SHA-256 of the previous hash and all of the above, 32 bytes

    @cached_property
    def old(self) -> bool:
        """True for an entry of version 0.3."""
        return self.text.startswith(_OLD)

    @cached_property
    def content(self) -> dict[str, Any]:
        """The parsed text."""
        with reading():
            found = json.loads(self.text)
            if self.old:
                said = [
                    *(found[key] for key in ("number", "kind", "run")),
                    found["data"].get("round"),
                ]
                settles = self.closes if self.kind in ("commit", "abandon") else said[3]
                if repr(said) != repr([self.number, self.kind, self.run, settles]):
                    raise LedgerError("it contradicts its own index")
            typed(str if self.old else int, found["time" if self.old else "t"])
        return found

    @property
    def data(self) -> dict[str, Any]:
        """What happened."""
        return self.content["data"] if self.old else self.content

    @property
    def digest(self) -> str | None:
        """Of the totals behind it, if it changes any."""
        return self.content.get("d")

    @property
    def clock(self) -> int | str:
        """When it was written. Those of one form can be compared."""
        return self.content["time" if self.old else "t"]

    @property
    def time(self) -> str:
        """When it was written, as ISO 8601 in UTC."""
        with reading():
            if self.old:
                return str(self.content["time"])
            # A clock may be anywhere, and the number in a foreign file as well.
            seconds, milli = divmod(int(self.content["t"]), 1000)
            when = datetime.fromtimestamp(seconds, UTC).replace(microsecond=1000 * milli)
        return when.isoformat(timespec="milliseconds")


_UNREADABLE = (
    ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError,
)  # fmt: skip


class reading:  # noqa: N801 - a context manager, quicker than one by contextlib
    """Turn the errors of an entry that no ledger wrote into a `LedgerError` of one line."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        """Raise the error."""
        if isinstance(error, _UNREADABLE):
            why = f"{type(error).__name__}: {error}"
            raise LedgerError(f"it cannot be read: {line(why).removesuffix('.')}") from None


def typed(kind: type[T], value: Any) -> T:
    """Return a value of a foreign text, which has just that type, or raise a TypeError."""
    if type(value) is not kind:
        raise TypeError(f"{line(repr(value), 40)} is no {kind.__name__}")
    return value


def whole(values: Iterable[Any]) -> tuple[int, ...]:
    """Return whole numbers of at least 0 of a foreign text, or raise an error."""
    found = tuple([typed(int, value) for value in values])
    if found and min(found) < 0:
        raise ValueError(f"{min(found)} is below 0")
    return found


def canonical(content: dict[str, Any]) -> str:
    """Return the one text of a JSON object (Rule 1)."""
    return _ENCODER.encode(content)


def digest_of(totals: str) -> str:
    """Return 128 bits of SHA-256 of the text of totals, as 22 characters (Rule 5)."""
    return base64.b64encode(hashlib.sha256(totals.encode()).digest()[:16]).decode()[:22]


def link(previous: bytes, entry: Entry) -> bytes:
    """Return the hash that an entry must have behind a previous one (Rule 2)."""
    text = entry.text
    if not entry.old:
        closes = "" if entry.closes is None else entry.closes
        text = f"{entry.number},{entry.run},{entry.kind},{closes}\n{text}"
    return hashlib.sha256(previous + text.encode("ascii", "backslashreplace")).digest()


def new_entry(
    previous: Entry | None, kind: str, run: int, data: dict[str, Any], totals: str | None,
    closes: int | None = None,
) -> Entry:  # fmt: skip
    """Return the entry that follows ``previous``, written now. ``totals``: the text behind it."""
    number = 1 if previous is None else previous.number + 1
    content = data | {"t": time.time_ns() // 10**6}
    content |= {} if totals is None else {"d": digest_of(totals)}
    entry = Entry(number, kind, run, closes, canonical(content), b"")
    hash_ = link(previous.hash if previous else GENESIS, entry)
    return Entry(number, kind, run, closes, entry.text, hash_)


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a ledger, which a checkpoint or a witness stores.

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
    adjacency: str = ""  # of all rounds, if it was given


@dataclass(frozen=True, slots=True)
class Start:
    """Kinds ``run``, and ``charge``: a run is registered, with its plan if it has one.

    A charge is a run that is finished: all its releases were charged at once. A run with
    ``over_budget`` ran elsewhere, and is recorded even if it does not fit. ``project`` is the group
    that it belongs to, and ``part`` the part of the data that it uses, or empty.
    """

    name: str
    plan: Plan | None
    private: bool
    details: dict[str, Any]
    over_budget: bool = False
    project: str = ""
    part: str = ""
    rounds: Schedule | None = None  # of a charge, its releases
    cost: Totals = ()  # the Renyi total of the plan or of the charge
    room: PlanRoom | None = None  # the new division of delta, if the plan changes it

    @property
    def schedule(self) -> Schedule | None:
        """The releases that it plans or charges."""
        return self.plan.schedule if self.plan else self.rounds


class Kind(NamedTuple):
    """Kind ``kind``: a round with all its releases, and its cost, for entries that charge it."""

    charged: Release  # the charged round
    noise_multiplier: float | None  # of the round, if it has several releases
    releases: tuple[NoisySum, ...]  # all its releases, or empty if its sum is the only release
    cost: Totals  # of the charged round. In entries of version 0.3 it is missing

    @property
    def is_bare(self) -> bool:
        """True if a sum has no noise."""
        return not all(release.noise_multiplier for release in self.releases)


@dataclass(frozen=True, slots=True)
class Reserve:
    """Kind ``reserve``: a round, or several equal ones of a plan, are charged."""

    kind: int  # the number of the entry that describes the round
    slot: int | None  # the number of the first in the plan, from 0. None: outside of it
    count: int = 1
    cost: Totals = ()  # if it is not that of the kind
    freed: Totals = ()  # the part of the held room that ends, if it is not the cost


@dataclass(frozen=True, slots=True)
class Plain:
    """Kinds without content, or with nothing that counts.

    ``commit`` and ``abandon``: a reservation was released, or given back. ``resume`` of a run.
    ``row``: a run of correlated noise takes its next row of noise. All rows were charged together:
    the entry keeps a row from being released twice. ``recount``: see Rule 6.
    """


@dataclass(frozen=True, slots=True)
class Finish:
    """Kind ``finish``: a run takes no more rounds."""

    room: PlanRoom | None  # the new division of delta, if it changes


Said = Opening | Start | Kind | Reserve | Finish | Plain


def read(entry: Entry) -> Said:
    """Return the content of an entry."""
    data, found = entry.data, Plain()
    with reading():
        match entry.kind:
            case "ledger":
                found = _opening(data)
            case "run" | "charge":
                found = _start(data, at_once=entry.kind == "charge")
            case "kind":
                found = kind_of(entry)
            case "reserve":
                if entry.old:
                    return Reserve(entry.number, data["slot"])
                totals = (whole(data.get(key, ())) for key in ("cost", "freed"))
                slot, count = data.get("s"), data.get("n", 1)
                if type(count) is not int or not 1 <= count <= MOST_AHEAD:
                    raise LedgerError(f"several rounds are 1 to {MOST_AHEAD}")
                number, *_ = whole([data["k"], *(() if slot is None else (slot,))])
                found = Reserve(number, slot, count, *totals)
            case "finish":
                found = Finish(_room(data))
            case "commit" | "abandon" | "row" | "resume" | "recount":
                pass
            case _:
                raise LedgerError(f"its kind {line(entry.kind, 40)!r} is not known")
    return found


def kind_of(entry: Entry) -> Kind:
    """Return the round that an entry ``kind`` describes, or an entry ``reserve`` of version 0.3."""
    data = entry.data
    with reading():
        if entry.kind != "kind" and not (entry.old and entry.kind == "reserve"):
            raise LedgerError("it describes no round")
        releases = tuple(NoisySum(**part) for part in data.get("releases", ()))
        noise, cost = data.get("noise_multiplier"), whole(data.get("cost", ()))
        noise = None if noise is None else typed(float, noise)
        return Kind(read_alone(data["charged"]), noise, releases, cost)


def kind_to_json(kind: Kind) -> dict[str, Any]:
    """Return the entry of a kind of round."""
    data = {"charged": release_entry(kind.charged, alone=True), "cost": kind.cost}
    if kind.releases:
        data |= {"noise_multiplier": kind.noise_multiplier}
        data |= {"releases": list(map(asdict, kind.releases))}
    return data


def start_to_json(start: Start) -> dict[str, Any]:
    """Return the entry of a run."""
    plan = start.plan
    data: dict[str, Any] = {"name": start.name, "private": start.private}
    data["details"] = start.details
    data["plan"] = None if plan is None else schedule_to_json(plan.schedule)
    data |= {
        key: value for key in ("over_budget", "project", "part") if (value := getattr(start, key))
    }
    if plan is not None and plan.accountant != PAIRS:
        data["accountant"] = plan.accountant
    if plan is None and start.rounds is not None:
        data["rounds"] = schedule_to_json(start.rounds)
    return data | ({"cost": start.cost} if start.cost else {}) | room_to_json(start.room)


def room_to_json(room: PlanRoom | None) -> dict[str, Any]:
    """Return the division of delta as a key of an entry, if it changes."""
    return {} if room is None else {"room": list(room[1:])}


def _room(data: dict[str, Any]) -> PlanRoom | None:
    if "room" not in data:
        return None
    delta, plan_delta, promised = data["room"]
    promised = None if promised is None else typed(float, promised)
    return PlanRoom(True, typed(float, delta), typed(float, plan_delta), promised)  # noqa: FBT003 - it fitted


def _opening(data: dict[str, Any]) -> Opening:
    budget = Budget(**data["budget"])
    orders, weights = (
        tuple([typed(float, value) for value in data[key]]) for key in ("orders", "weights")
    )
    if not all(1 < o < math.inf and w > 0 for o, w in zip(orders, weights, strict=True)):
        raise LedgerError("its orders are above 1, and their weights above 0")
    # A larger sum of weights would let more be spent than the bound covers.
    if sum(map(Fraction, weights)) > 1:
        raise LedgerError("its weights add up to more than 1")
    promised = validate.below_one("promised_delta", data.get("promised_delta", 0.0), "a share")
    mixture = Mixture(orders, weights, promised, typed(bool, data.get("adds_up", False)))
    partitions, adjacency = checked_partitions(data.get("partitions")), data.get("adjacency", "")
    unit, software = typed(str, data["unit"]), typed(str, data["software"])
    return Opening(budget, mixture, unit, software, partitions, adjacency)


def _start(data: dict[str, Any], *, at_once: bool) -> Start:
    planned, accountant = data["plan"], data.get("accountant", PAIRS)
    plan = None if planned is None else Plan(schedule_from_json(planned), accountant)
    rounds = None
    if at_once:
        rounds = plan.schedule if plan else schedule_from_json(data["rounds"])
    return Start(
        typed(str, data["name"]),
        plan,
        typed(bool, data["private"]),
        typed(cast("type[dict[str, Any]]", dict), data["details"]),
        typed(bool, data.get("over_budget", False)),
        typed(str, data.get("project", "")),
        typed(str, data.get("part", "")),
        rounds,
        whole(data.get("cost", ())),
        _room(data),
    )
