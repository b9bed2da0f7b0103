"""The report on a schedule: the guarantee of its rounds if they run as planned."""

from __future__ import annotations

import math
from typing import Any

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant, spend
from dpacct.budget import Spent
from dpacct.display import chosen, line, up
from dpacct.report.document import Report, chart, filled, heading, table
from dpacct.report.front import Promise, front_page, nothing_promised, risk_to_json
from dpacct.report.risks import risks_of_rounds
from dpacct.report.words import (
    bracket,
    glossary,
    neighbors,
    rounds_words,
    sampling_words,
    schedule_assumptions,
    to_sign,
)
from dpacct.rounds import MAX_CLIENTS, Round, Schedule, as_schedule, first_rounds
from dpacct.schedules.files import phase_entry
from dpacct.tight.accountant import TightAccountant

# Points of the chart, and kinds of rounds up to which it is drawn: each point is an epsilon.
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
    """Return the report on a schedule.

    Args:
        schedule: at least one round.
        delta: in (0, 1).
        accountant: that bounds epsilon and the success of attacks.
        unit: the privacy unit, in words.
        num_units: their number, if known.
        name: of the report, one line. Default: the rounds.
    Raises:
        InvalidParameter: an argument out of range. Unsupported: the accountant knows no bound.
    """
    plan = as_schedule(schedule)
    validate.rounds(plan.rounds)
    at, engine = validate.delta(delta), find_accountant(accountant)
    one = validate.line("unit", unit, "the unit of privacy")
    title = validate.line("name", name, "the name of a report") if name else _title(plan)
    if num_units is not None:
        num_units = validate.count("num_units", num_units, "the number of units", MAX_CLIENTS)
    spent = spend(plan, at, engine.name)
    bounded = math.isfinite(spent.upper)
    promise = None
    if bounded:
        risks = risks_of_rounds(plan, engine.name)
        promise = Promise(
            one, plan.adjacency, spent.upper, spent.delta, risks, num_units, planned=True
        )
    assumed = schedule_assumptions(plan, engine.name)
    facts: dict[str, Any] = {
        "kind": "schedule",
        "name": title,
        "unit": one,
        "num_units": num_units,
        "adjacency": str(plan.adjacency),
        "epsilon": {"lower": spent.lower, "upper": spent.upper if bounded else None},
        "delta": spent.delta,
        "accountant": engine.name,
        "rounds": plan.rounds,
        "phases": [phase_entry(phase) for phase in plan],
        "risk": risk_to_json(promise),
        "assumptions": list(assumed),
        "points": _points(plan, spent, engine.name),
    }
    blocks = [
        heading(1, f"Privacy report: {line(title)}"),
        *(front_page(promise) if promise else nothing_promised("no epsilon is proven.")),
        *(to_sign(assumed) if promise else []),
        *_figures(plan, spent, engine.name, one),
    ]
    points = None
    if len(facts["points"]) > 1 and bounded:
        points = facts | {"budget": None, "part_of_plan": False, "epsilon_any_stop": None}
        caption = f"Epsilon is at most {up(spent.upper)} after {rounds_words(plan.rounds)}"
        blocks.append(chart(caption))
    return Report(facts, (*blocks, *glossary()), points)


def _title(plan: Schedule) -> str:
    kinds = plan.distinct()
    if len(kinds) > 1:
        return f"{rounds_words(plan.rounds)} of {len(kinds)} kinds"
    only = next(iter(kinds))
    if not isinstance(only, Round):
        return f"{plan.rounds:,} x {only!r}"
    noise = chosen(only.noise_multiplier, least=True)
    return f"{rounds_words(plan.rounds)}, noise multiplier {noise}"


def _points(plan: Schedule, spent: Spent, accountant: str) -> list[dict[str, Any]]:
    """Return epsilon by round if that is quick: the game of fixed-size sampling is not."""
    engine = find_accountant(accountant)
    plays = isinstance(engine, TightAccountant) and engine.plays(plan)
    found = {plan.rounds: spent.interval}
    if not plays and len(plan.distinct()) <= _MANY_KINDS:
        due = {max(1, plan.rounds * k // _POINTS) for k in range(1, _POINTS)} - {plan.rounds}
        found |= {n: engine.epsilon(first_rounds(plan, n), spent.delta) for n in due}
    return [
        {
            "round": rounds,
            "upper": part.upper if math.isfinite(part.upper) else None,
            "lower": part.lower,
            "guarantee": "planned",
        }
        for rounds, part in sorted(found.items())
    ]


def _figures(plan: Schedule, spent: Spent, accountant: str, unit: str) -> list[str]:
    """Return the section for reviewers: the mechanism and its cost."""
    phases = tuple(
        (
            f"{count:,}",
            *(
                (chosen(kind.noise_multiplier, least=True), sampling_words(kind.sampling))
                if isinstance(kind, Round)
                else ("-", repr(kind))
            ),
        )
        for kind, count in plan.phases[:_MOST_PHASES]
    )
    more = len(plan.phases) - len(phases)
    return filled(
        "figures.md",
        {"phases": table(("rounds", "noise multiplier", "sampling"), phases)},
        unit=line(unit),
        neighbors=neighbors(str(plan.adjacency), unit),
        epsilon=bracket(spent.lower, spent.upper),
        delta=chosen(spent.delta),
        accountant=accountant,
        more=f"And {more} more phases. The JSON report lists all of them." if more else "",
    )
