"""What is printed as JSON, as types: one word for one thing in all outputs.

Pyright holds what is printed against them, and JSON Schemas are derived from them (`schema_of`).
Values of the package whose fields are what is printed are types of output, too (`as_data`).
Every object that is printed has ``"schema": 1`` as well. A bound that does not exist is null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    TypedDict,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from dpacct.accountant import ACCOUNTANTS
from dpacct.budget import Interval
from dpacct.epochs import Epoch, ShuffledEpoch
from dpacct.items import PHASE, RELEASES, SAMPLINGS, part_entry, phase_schema
from dpacct.rounds import Adjacency, Release, Round, Schedule
from dpacct.tight.profiles import ReleaseOfSchedule

_BY_SAMPLING = [name for name, item in RELEASES.items() if item.chosen_by == "--sampling"]
# Words, with all that there are.
AdjacencyWord = Annotated[str, tuple(map(str, Adjacency))]
AccountantWord = Annotated[str, tuple(ACCOUNTANTS)]
# Training draws cyclic cohorts as well.
SamplingWord = Annotated[str, (*SAMPLINGS, *_BY_SAMPLING, "cyclic")]
GuaranteeWord = Annotated[str, ("planned", "adaptive", "none")]
# Phases in the words of schedule files.
Phases = Annotated[list[dict[str, Any]], PHASE["$ref"]]
Object = dict[str, Any]


class Ends(TypedDict):
    """The achieved and the proven bound."""

    lower: float | None
    upper: float | None


class MechanismKeys(TypedDict):
    """What runs. ``adjacency`` and ``phases`` are those of a schedule file."""

    rounds: int
    sampling: SamplingWord | None
    sampling_rate: float | None
    adjacency: AdjacencyWord | None
    noise_multiplier: float | None
    phases: Phases


def single(schedule: Schedule) -> Release | None:
    """Return the only release of a schedule, or None if there are several kinds."""
    only, *others = schedule.distinct() or (None,)
    return None if others else only


def noise_multiplier(schedule: Schedule) -> float | None:
    """Return the noise of all releases, or of those that one is made of. None if it differs."""
    only = single(schedule)
    if isinstance(only, ReleaseOfSchedule) and schedule.rounds == 1:
        only = single(only.schedule)
    return getattr(only, "noise_multiplier", None)


def mechanism_of(schedule: Schedule) -> MechanismKeys:
    """Return the keys that describe a schedule."""
    only = single(schedule)
    names: set[str] = {each.sampling.name for each in schedule.only_rounds()}
    names |= {only.name} if isinstance(only, Epoch | ShuffledEpoch) else set()
    return {
        "rounds": schedule.rounds,
        "sampling": names.pop() if len(names) == 1 else None,
        "sampling_rate": only.sampling_rate if isinstance(only, Round) else None,
        "adjacency": str(schedule.adjacency),
        "noise_multiplier": noise_multiplier(schedule),
        "phases": [part_entry(part) for part in schedule.parts],
    }


class GaussianDPKeys(TypedDict):
    """mu of Gaussian differential privacy, which means nothing without its slack."""

    mu: Ends
    slack: float


class Certified(TypedDict):
    """A second proof of an epsilon at the delta beside it, or the reason why there is none."""

    finding: str | None
    epsilon: float
    delta: Ends | None
    reason: str


# Ledgers and reports.


class BudgetKeys(TypedDict):
    """A budget."""

    epsilon: float
    delta: float


class Slots(TypedDict):
    """Planned rounds."""

    used: int
    planned: int


class Reading(TypedDict):
    """Epsilon of charged rounds, with the conditions under which it holds."""

    guarantee: GuaranteeWord
    epsilon: Ends
    epsilon_any_stop: float | None
    claim: str
    part_of_plan: bool
    slots: Slots


class LedgerRun(Reading):
    """A run of a ledger. ``total_after`` is epsilon of all runs at its ``latest`` entry."""

    run: int
    name: str
    project: str
    part: str
    private: bool
    rounds: int
    committed: int
    uncommitted: int
    finished: bool
    started: str
    latest: str
    total_after: float | None
    planned_rounds: int | None
    planned_epsilon: float | None
    planned_first: bool
    left_plan: bool
    accountant: AccountantWord | None
    plan: Phases | None
    details: Object


class ProjectKeys(TypedDict):
    """A group of runs."""

    name: str
    runs: list[int]
    rounds: int
    epsilon: float | None


class LedgerTotals(Reading):
    """A ledger without its runs. ``verified``: the latest entry that was verified, 0 for none."""

    path: str
    budget: BudgetKeys
    unit: str
    adjacency: AdjacencyWord | None
    delta: float
    plan_delta: float
    adaptive_delta: float
    promised_delta: float
    promised_delta_left: float
    pure_beside_plans: float | None
    partitions: dict[str, list[str]]
    projects: list[ProjectKeys]
    held: bool
    rounds: int
    head: str
    entries: int
    verified: int


class LedgerSummary(LedgerTotals):
    """`Ledger.summary`."""

    schema: Literal[1]
    runs: list[LedgerRun]


class Point(TypedDict):
    """Epsilon after a number of rounds."""

    round: int
    upper: float | None
    lower: NotRequired[float | None]
    guarantee: GuaranteeWord


class Posterior(NamedTuple):
    """The share of accusations that are right, by that of members among the accused."""

    prior: float
    posterior: float


class AtRate(NamedTuple):
    """A bound on the best attack at a false positive rate."""

    fpr: float
    tpr: float
    posteriors: tuple[Posterior, ...]


class Risks(NamedTuple):
    """Bounds on all attacks: on the share of correct guesses at a prior, and at some rates."""

    prior: float
    best_guess: float
    rates: tuple[AtRate, ...]


class RiskKeys(NamedTuple):
    """The risks of a promise, and of the procedure that keeps it."""

    epsilon: float
    of_promise: Risks
    of_procedure: Risks | None


class ReportKeys(TypedDict):
    """What every report has."""

    kind: Literal["schedule", "ledger"]
    risk: RiskKeys | None
    assumptions: list[str]
    points: list[Point]
    title: NotRequired[str]
    author: NotRequired[str]
    date: NotRequired[str]


class ScheduleReport(ReportKeys, MechanismKeys):
    """The report on a schedule."""

    name: str
    unit: str
    num_units: int | None
    epsilon: Ends
    delta: float
    accountant: AccountantWord
    certified: NotRequired[Certified]
    gdp: NotRequired[GaussianDPKeys]


class ReleaseKeys(TypedDict):
    """A sum among several that a round releases."""

    name: str
    noise_multiplier: float
    sensitivity: float | None


class RunHistory(TypedDict):
    """What the entries of a run tell. Phases are those of files, with what was planned of them."""

    ended: str
    resumed: int
    left_at: int | None
    abandonments: int
    more_rounds: int
    phases: list[Object]


class ReportedRun(LedgerRun, RunHistory):
    """A run of a ledger with its history."""


class LedgerReport(LedgerTotals, ReportKeys):
    """`Ledger.report`."""

    schema: Literal[1]
    runs: list[ReportedRun]
    created: str
    latest: str
    software: str
    reporter: str


# Claims.


class JudgedReading(MechanismKeys):
    """The verdict on one reading of a claim."""

    words: str
    role: str
    verdict: str
    epsilon: Ends | None
    reason: str
    data_sets: str
    sufficient_noise: float | None
    noise_by: str
    clip_from: str
    divisor: str
    certified: NotRequired[Certified | None]


class JudgedClaim(TypedDict):
    """A claim with its verdict."""

    id: str
    source: str
    place: str
    data: str
    stated: float | None
    delta: float
    stated_accountant: str
    note: str
    verdict: str
    readings: list[JudgedReading]


# Schemas.

_PLAIN = {float: "number", int: "integer", str: "string", bool: "boolean", NoneType: "null"}


def as_data(value: Any) -> Any:
    """Return a value as JSON has it: an object of its fields, a list, or null for an infinity."""
    if is_dataclass(value):
        return {field.name: as_data(getattr(value, field.name)) for field in fields(value)}
    table: Any = value._asdict() if hasattr(value, "_asdict") else value
    if isinstance(table, Mapping):
        return {key: as_data(one) for key, one in cast("Mapping[str, Any]", table).items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_data(one) for one in cast("Sequence[Any]", value)]
    return None if isinstance(value, float) and math.isinf(value) else value


def schema_of(title: str, *kinds: Any) -> dict[str, Any]:
    """Return the JSON Schema of objects of one of these types."""
    tables = [_table(kind, {"schema": {"const": 1}}) for kind in kinds]
    return schema_around(title, tables[0] if len(tables) == 1 else {"anyOf": tables})


def schema_around(title: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return a whole schema, with that of phases if the content refers to it."""
    draft = "https://json-schema.org/draft/2020-12/schema"
    refers = PHASE["$ref"] in repr(content)
    defs = {"$defs": {"phase": phase_schema()}} if refers else {}
    return {"$schema": draft, "title": title, **content, **defs}


def _table(kind: Any, more: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    free = [name for name, hint in hints.items() if get_origin(hint) is NotRequired]
    properties = {name: _schema(hint) for name, hint in hints.items()} | more
    required = [name for name in properties if name not in free]
    return {"type": "object", "properties": properties, "required": required}


def _schema(hint: Any) -> dict[str, Any]:
    of, schema = get_args(hint), dict[str, Any]()
    if hint is Interval:
        schema = _table(Ends, {})
    elif is_typeddict(hint) or is_dataclass(hint) or hasattr(hint, "_fields"):
        schema = _table(hint, {})
    elif hint in _PLAIN:
        schema = {"type": _PLAIN[hint]}
    elif get_origin(hint) is Annotated:
        words = {"type": "string", "enum": [*of[1]]}
        schema = {"type": "array", "items": PHASE} if of[1] == PHASE["$ref"] else words
    elif get_origin(hint) is NotRequired:
        schema = _schema(of[0])
    elif get_origin(hint) is Literal:
        schema = {"enum": [*of]}
    elif get_origin(hint) in (list, tuple, Sequence):
        schema = {"type": "array", "items": _schema(of[0])}
    elif get_origin(hint) is dict:
        schema = {"type": "object", "additionalProperties": _schema(of[1])}
    elif get_origin(hint) in (UnionType, Union):
        schema = {"anyOf": [_schema(one) for one in of]}
    return schema
