"""Entries: a chain of texts, and the content of each kind of entry.

Rule 1: an entry is text: one JSON object, keys sorted, no spaces, ASCII, no NaN.
Rule 2: its hash covers that text and the hash of the entry before.
Rule 3: entries are numbered 1, 2, 3, ... The number orders them, never the clock.
Rule 4: an entry that cannot be read is rejected in one line. Callers add its number and the file.

Texts (names, unit, reasons, details, software) stay as they were given and are not checked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from functools import cached_property
from typing import Any

from dpacct.budget import Budget
from dpacct.display import line
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.items import read_alone
from dpacct.ledger.record.events import (
    NoisySum,
    schedule_from_json,
)
from dpacct.ledger.record.parts import Partitions, checked_partitions
from dpacct.ledger.record.plans import PAIRS, Plan
from dpacct.renyi.odometer import Mixture
from dpacct.rounds import Release

GENESIS = bytes(32)
_KEYS = ("number", "kind", "run", "time", "data", "state")
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


# The chain


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    number: int  # its place, from 1
    kind: str  # one of the kinds below
    run: int  # the run it belongs to, 0 for none
    text: str  # the hashed text
    hash: bytes  # SHA-256 of the previous hash and the text, 32 bytes

    @cached_property
    def content(self) -> dict[str, Any]:
        """The parsed text."""
        with reading():
            found = json.loads(self.text)
            if [found[key] for key in ("number", "kind", "run")] != [
                self.number, self.kind, self.run,
            ]:  # fmt: skip
                raise LedgerError("it contradicts its own index")
        return found


@contextmanager
def reading() -> Generator[None]:
    """Turn the errors of an entry that no ledger wrote into a `LedgerError` of one line."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise LedgerError(f"it cannot be read: {line(why).removesuffix('.')}") from None


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
    """Kind ``reserve``: a round is charged."""

    charged: Release  # the charged round
    noise_multiplier: float | None  # of the round, if it has several releases
    releases: tuple[NoisySum, ...]  # all its releases, or empty if its sum is the only release
    slot: int | None  # its number in the plan of its run, from 0, or None outside the plan
    left: bool  # whether its run left the plan with it


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
    """Kinds without content.

    ``resume`` and ``finish`` of a run. ``recount``: the totals of the ledger, which were too low,
    are those of its runs again.
    """


Said = Opening | Start | Reserve | Settle | Row | Plain


def read(entry: Entry) -> Said:
    """Return the content of an entry."""
    data, found = entry.content["data"], Plain()
    with reading():
        match entry.kind:
            case "ledger":
                found = _opening(data)
            case "run":
                found = _start(data)
            case "reserve":
                found = Reserve(
                    read_alone(data["charged"]),
                    data.get("noise_multiplier"),
                    tuple(NoisySum(**part) for part in data.get("releases", ())),
                    data["slot"],
                    data["left"],
                )
            case "commit" | "abandon":
                found = Settle(data["round"], data.get("reason", ""))
            case "row":
                found = Row(data["row"])
            case "resume" | "finish" | "recount":
                pass
            case _:
                raise LedgerError(f"its kind {line(entry.kind, 40)!r} is not known")
    return found


def _opening(data: dict[str, Any]) -> Opening:
    budget, weights = Budget(**data["budget"]), tuple(data["weights"])
    # A larger sum of weights would let more be spent than the bound covers.
    if sum(map(Fraction, weights)) > 1:
        raise LedgerError("its weights add up to more than 1")
    promised, adds_up = data.get("promised_delta", 0.0), data.get("adds_up", False)
    mixture = Mixture(tuple(data["orders"]), weights, promised, adds_up)
    partitions = checked_partitions(data.get("partitions"))
    return Opening(budget, mixture, data["unit"], data["software"], partitions)


def _start(data: dict[str, Any]) -> Start:
    plan, accountant = data["plan"], data.get("accountant", PAIRS)
    return Start(
        data["name"],
        None if plan is None else Plan(schedule_from_json(plan), accountant),
        data["private"],
        data["details"],
        data.get("over_budget", False),
        data.get("project", ""),
        data.get("part", ""),
    )
