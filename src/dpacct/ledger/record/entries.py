"""What each kind of entry says, and the one place where it is read.

Rule 1: an entry of a kind has the keys of that kind and no others; each value has its type.
Rule 2: whatever is read of a ledger is read here, or in `state_json` for the totals, so that a
damaged or forged entry is refused in words. Callers add its number, and the file.

Texts (names, unit, reasons, details, software) are as whoever wrote them said; nothing checks them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any, NamedTuple, cast

from dpacct.budget import Budget
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.record.chain import Entry
from dpacct.ledger.record.charged import PAIRS, TIGHT
from dpacct.ledger.record.events import round_from_json, schedule_from_json
from dpacct.ledger.record.fields import flag, items, members, numbers, real, refuse, whole, words
from dpacct.ledger.record.state import LedgerState, RunState
from dpacct.ledger.record.state_json import state_from_json
from dpacct.renyi.odometer import Mixture
from dpacct.rounds import Adjacency, Round, Schedule
from dpacct.validate import MAX_ORDER, MAX_ROUNDS, NOISE_MULTIPLIER_RANGE

# `odometer.design_mixture` chooses none nearer to 1.
_LEAST_ORDER = 1 + 1e-6
_LEAST_WEIGHT = 1e-9
_MOST_ORDERS = 1000
_SENSITIVITY = (5e-324, sys.float_info.max)


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
    """A release as it stands in an entry; an old one may have any name."""

    name: str
    noise_multiplier: float
    sensitivity: float | None


@dataclass(frozen=True, slots=True)
class Reserve:
    """Kind ``reserve``: a round is charged.

    Attributes:
        charged: what it is charged as.
        noise_multiplier: of the round, where it has several releases.
        releases: everything that it releases; none if that is its sum alone.
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


def read_opening(entry: Entry) -> Opening:
    """The first entry.

    Raises:
        LedgerError: it is something else.
    """
    said = read(entry)
    if not isinstance(said, Opening):
        raise LedgerError("a ledger begins with its budget")
    return said


def read(entry: Entry) -> Said:
    """What an entry says.

    Raises:
        LedgerError: it says nothing that an entry of its kind can say.
    """
    reader = _READERS.get(entry.kind)
    if reader is None:
        return refuse("kind", entry.kind, "a kind of entry that is known")
    return reader(entry.content["data"])


def content_of(entry: Entry) -> dict[str, Any]:
    """All of an entry as it stands in the file.

    Raises:
        LedgerError: it is no entry.
    """
    return entry.content


def read_state(entry: Entry, orders: int) -> tuple[LedgerState, RunState | None]:
    """The totals behind an entry.

    Args:
        entry: of any kind.
        orders: how many orders the ledger has.
    Raises:
        LedgerError: it has none.
    """
    return state_from_json(
        entry.content["state"], orders, of_run=entry.kind not in ("ledger", "relabel")
    )


def read_time(entry: Entry) -> str:
    """When an entry was written, as the clock said, in the one form that entries have.

    Raises:
        LedgerError: it is no date.
    """
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
    plan = None if data["plan"] is None else _plan(data["plan"])
    return Start(
        words("name", data["name"]),
        plan,
        flag("private", data["private"]),
        _details(data),
        flag("over_budget", data.get("over_budget", False)),
        _accountant(data.get("accountant", PAIRS)),
    )


def _accountant(value: Any) -> str:
    if value not in (PAIRS, TIGHT):
        refuse("accountant", value, "an accountant of plans")
    return words("accountant", value)


def _plan(value: Any) -> Schedule:
    plan = schedule_from_json(value)
    if not plan.rounds:
        raise LedgerError("its plan has no rounds")
    return plan


def _reserve(value: Any) -> Reserve:
    needed = ("charged", "slot", "left")
    data = members("data", value, needed, ("noise_multiplier", "releases", "details"))
    if ("releases" in data) != ("noise_multiplier" in data):
        raise LedgerError("it has releases without the noise of the round, or that without them")
    slot = data["slot"]
    releases = tuple(map(_part, items("releases", data.get("releases", []))))
    noise = (
        real("noise_multiplier", data["noise_multiplier"], *NOISE_MULTIPLIER_RANGE)
        if releases
        else None
    )
    return Reserve(
        round_from_json(data["charged"]),
        noise,
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
