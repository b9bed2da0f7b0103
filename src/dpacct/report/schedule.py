"""The report on rounds that are planned, or ran elsewhere: what they promise if they run so."""

from __future__ import annotations

import math
from typing import Any

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant, spend
from dpacct.budget import Spent
from dpacct.display import chosen, line
from dpacct.report.assumptions import of_schedule, to_sign
from dpacct.report.chart import bars, draw
from dpacct.report.document import Block, Heading, Paragraph, Picture, Table
from dpacct.report.front import Promise, front_page, nothing_promised, risk_to_json
from dpacct.report.glossary import glossary
from dpacct.report.page import Report
from dpacct.report.people import risks_of_rounds
from dpacct.report.words import bracket, neighbors, rounds_words, sampling_words
from dpacct.rounds import Phase, Round, Schedule
from dpacct.schedules.build import as_schedule
from dpacct.schedules.files import phase_entry
from dpacct.tight.accountant import TightAccountant

# Points of the picture, and kinds of rounds up to which it is drawn: each point is an epsilon.
_POINTS = 16
_MANY_KINDS = 12
_MOST_PHASES = 40


def on_schedule(
    schedule: Schedule | Round,
    *,
    delta: float,
    accountant: str = DEFAULT_ACCOUNTANT,
    unit: str = "client",
    num_units: int | None = None,
    name: str = "",
) -> Report:
    """The report on a schedule.

    Args:
        schedule: at least one round.
        delta: in (0, 1).
        accountant: which theory proves epsilon and what an attacker can do.
        unit: whose data one neighbor lacks, in words.
        num_units: how many there are, where that is known.
        name: of the report, one line; by default it tells the rounds.
    Raises:
        InvalidParameter: an argument out of range. Unsupported: the accountant knows no bound.
    """
    plan = as_schedule(schedule)
    validate.rounds(plan.rounds)
    at, engine = validate.delta(delta), find_accountant(accountant)
    one = validate.line("unit", unit, "the unit of privacy")
    title = validate.line("name", name, "the name of a report") if name else _title(plan)
    spent = spend(plan, at, engine.name)
    promise = _promise(plan, spent, engine.name, one, num_units)
    facts = _facts(plan, spent, promise, accountant=engine.name, unit=one, num_units=num_units)
    blocks = _blocks(title, plan, spent, promise, facts)
    return Report({"kind": "schedule", "name": title} | facts, tuple(blocks))


def _promise(
    plan: Schedule, spent: Spent, accountant: str, unit: str, num_units: int | None
) -> Promise | None:
    if not math.isfinite(spent.upper):
        return None
    risks = risks_of_rounds(plan, accountant)
    return Promise(unit, plan.adjacency, spent.upper, spent.delta, risks, num_units, planned=True)


def _title(plan: Schedule) -> str:
    kinds = plan.distinct()
    if len(kinds) > 1:
        return f"{rounds_words(plan.rounds)} of {len(kinds)} kinds"
    noise = chosen(next(iter(kinds)).noise_multiplier, least=True)
    return f"{rounds_words(plan.rounds)}, noise multiplier {noise}"


def _facts(
    plan: Schedule,
    spent: Spent,
    promise: Promise | None,
    *,
    accountant: str,
    unit: str,
    num_units: int | None,
) -> dict[str, Any]:
    return {
        "unit": unit,
        "num_units": num_units,
        "adjacency": str(plan.adjacency),
        "epsilon": {"lower": spent.lower, "upper": _finite(spent.upper)},
        "delta": spent.delta,
        "accountant": accountant,
        "rounds": plan.rounds,
        "phases": [phase_entry(phase) for phase in plan],
        "risk": risk_to_json(promise),
        "assumptions": list(of_schedule(plan, accountant)),
        "points": _points(plan, spent, accountant),
    }


def _points(plan: Schedule, spent: Spent, accountant: str) -> list[dict[str, Any]]:
    """Epsilon over the rounds, where that is quick: no game is played for each of them."""
    engine = find_accountant(accountant)
    plays = isinstance(engine, TightAccountant) and engine.plays(plan)
    last = {"round": plan.rounds, "upper": spent.upper, "lower": spent.lower}
    found: list[dict[str, Any]] = []
    if not plays and len(plan.distinct()) <= _MANY_KINDS:
        due = sorted({max(1, plan.rounds * k // _POINTS) for k in range(1, _POINTS)})
        for rounds in due:
            if rounds < plan.rounds:
                part = engine.epsilon(_first(plan, rounds), spent.delta)
                found.append({"round": rounds, "upper": part.upper, "lower": part.lower})
    points = [*found, last]
    return [
        point | {"upper": _finite(point["upper"]), "lower": point["lower"], "guarantee": "planned"}
        for point in points
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _first(plan: Schedule, rounds: int) -> Schedule:
    """The first rounds of a plan."""
    phases: list[Phase] = []
    for round_, count in plan:
        taken = min(count, rounds)
        if taken:
            phases.append(Phase(round_, taken))
        rounds -= taken
    return Schedule(phases)


def _blocks(
    title: str, plan: Schedule, spent: Spent, promise: Promise | None, facts: dict[str, Any]
) -> list[Block]:
    none = "no epsilon is proven at this delta."
    return [
        Heading(1, f"Privacy report: {line(title)}"),
        *(nothing_promised(none) if promise is None else front_page(promise)),
        *(to_sign(tuple(facts["assumptions"])) if promise else []),
        *figures(plan, spent, facts["accountant"], facts["unit"]),
        *_picture(facts),
        *glossary(),
    ]


def _picture(facts: dict[str, Any]) -> list[Block]:
    drawn: dict[str, Any] = facts | {"budget": None, "part_of_plan": False, "marks": []}
    return [Picture(draw(drawn), bars(drawn))] if len(facts["points"]) > 1 else []


def figures(plan: Schedule, spent: Spent, accountant: str, unit: str) -> list[Block]:
    """The section for reviewers: what runs, and what it costs."""
    rows = (
        ("unit of privacy", f"one {line(unit)}, with all its data, in all rounds"),
        ("adjacency", neighbors(str(plan.adjacency), unit)),
        ("epsilon [achieved, proven]", bracket(spent.lower, spent.upper)),
        ("delta", chosen(spent.delta)),
        ("accountant", f"{accountant}, of dpacct; rounding errors are part of the proven end"),
        ("setting", "central: a trusted server adds the noise to each sum, once"),
        ("what is covered", "the noisy sums of these rounds, and all that is computed of them"),
    )
    phases = plan.phases[:_MOST_PHASES]
    lines = tuple(
        (
            f"{count:,}",
            chosen(round_.noise_multiplier, least=True),
            sampling_words(round_.sampling),
        )
        for round_, count in phases
    )
    more = len(plan.phases) - len(phases)
    blocks: list[Block] = [
        Heading(2, "The figures", new_page=True),
        Table(("", ""), rows, "What is claimed"),
        Heading(3, "What runs"),
        Table(("rounds", "noise multiplier", "sampling"), lines, "The rounds, in their order"),
    ]
    if more:
        blocks.append(Paragraph(f"And {more} more phases; the JSON of this report has them all."))
    return blocks
