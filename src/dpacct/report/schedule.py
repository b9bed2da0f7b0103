"""The report on a schedule: the guarantee of its rounds if they run as planned."""

from __future__ import annotations

import math

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, Accountant, find_accountant, spend
from dpacct.budget import Spent
from dpacct.certificates import certified, in_words
from dpacct.display import chosen, line, up
from dpacct.gaussian_dp import gdp
from dpacct.items import all_in_words, count_of, noun_of, parts_in_words
from dpacct.outputs import Point, ScheduleReport, mechanism_of
from dpacct.report.document import Report, chart, filled, heading, table
from dpacct.report.front import (
    Promise,
    bracket,
    front_page,
    gdp_in_words,
    glossary,
    neighbors,
    nothing_promised,
    risk_to_json,
    risks_of_rounds,
    schedule_assumptions,
    to_sign,
)
from dpacct.rounds import MAX_CLIENTS, AccountantName, Round, Schedule, as_schedule, first_rounds
from dpacct.tight.accountant import TightAccountant

# Points of the chart, and kinds of rounds up to which it is drawn: each point is an epsilon.
_POINTS = 16
_MANY_KINDS = 12
_MOST_PHASES = 40


def on_schedule(
    schedule: Schedule | Round,
    *,
    delta: float,
    accountant: AccountantName = DEFAULT_ACCOUNTANT,
    unit: str = "client",
    num_units: int | None = None,
    name: str = "",
    certify: bool = False,
    gdp_slack: float | None = None,
) -> Report:
    """Return the report on a schedule.

    Args:
        schedule: at least one round.
        delta: in (0, 1).
        accountant: that bounds epsilon and the success of attacks.
        unit: the privacy unit, in words.
        num_units: their number, if known.
        name: of the report, one line. Default: the rounds.
        certify: prove epsilon again by ball arithmetic, or state why not (extra ``certify``).
        gdp_slack: state mu of Gaussian DP with this slack as well.
    Raises:
        InvalidParameter: an argument out of range. Unsupported: the accountant knows no bound, or
            python-flint is missing.
    """
    plan = as_schedule(schedule)
    validate.rounds(plan.rounds)
    at, engine = validate.delta(delta), find_accountant(accountant)
    one = validate.line("unit", unit, "the unit of privacy")
    title = validate.line("name", name, "the name of a report") if name else all_in_words(plan)
    if num_units is not None:
        num_units = validate.count("num_units", num_units, "the number of units", MAX_CLIENTS)
    spent = spend(plan, at, engine.name)
    promise = None
    if math.isfinite(spent.upper):
        risks = risks_of_rounds(plan, engine.name)
        promise = Promise(
            one, plan.adjacency, spent.upper, spent.delta, risks, num_units, planned=True
        )
    assumed = schedule_assumptions(plan, engine.name)
    facts: ScheduleReport = {
        "kind": "schedule",
        "name": title,
        "unit": one,
        "num_units": num_units,
        **mechanism_of(plan),
        "epsilon": {"lower": spent.lower, "upper": _finite(spent.upper)},
        "delta": spent.delta,
        "accountant": engine.name,
        "risk": risk_to_json(promise),
        "assumptions": list(assumed),
        "points": _points(plan, spent, engine),
    }
    if certify and promise:
        facts["certified"] = certified(plan, spent.upper, spent.delta)
    if gdp_slack is not None:
        mu = gdp(plan, gdp_slack, accountant=engine.name)
        facts["gdp"] = {"mu": {"lower": mu.lower, "upper": mu.upper}, "slack": mu.slack}
    again, gaussian = facts.get("certified"), facts.get("gdp")
    shown = parts_in_words(plan)[:_MOST_PHASES]
    blocks = [
        heading(1, f"Privacy report: {line(title)}"),
        *(front_page(promise) if promise else nothing_promised("no epsilon is proven.")),
        *(to_sign(assumed, _signed(spent, plan)) if promise else []),
        *filled(
            "figures.md",
            {"phases": table(("what runs",), [(words,) for words in shown])},
            unit=line(one),
            neighbors=neighbors(str(plan.adjacency), one),
            epsilon=bracket(spent.lower, spent.upper),
            delta=chosen(spent.delta),
            accountant=engine.name,
            gaussian="" if gaussian is None else gdp_in_words(gaussian),
            certificate="" if again is None else in_words(again),
            more=str(max(0, len(plan.parts) - _MOST_PHASES) or ""),
        ),
    ]
    points = None
    if len(facts["points"]) > 1 and promise:
        points = {**facts, "budget": None, "part_of_plan": False, "epsilon_any_stop": None}
        many = count_of(plan.rounds, noun_of(plan))
        caption = f"Epsilon is at most {up(spent.upper)} after {many}"
        blocks.append(chart(caption))
    return Report({**facts}, (*blocks, *glossary()), points)


def _signed(spent: Spent, plan: Schedule) -> str:
    """Return what a signature is for."""
    return f"epsilon {up(spent.upper)} at delta {chosen(spent.delta)}, of {all_in_words(plan)}"


def _points(plan: Schedule, spent: Spent, engine: Accountant) -> list[Point]:
    """Return epsilon by round if that is quick: the game of fixed-size sampling is not."""
    plays = isinstance(engine, TightAccountant) and engine.plays(plan)
    by_count = {plan.rounds: spent.interval}
    if not plays and len(plan.distinct()) <= _MANY_KINDS:
        due = {max(1, plan.rounds * k // _POINTS) for k in range(1, _POINTS)} - {plan.rounds}
        by_count |= {n: engine.epsilon(first_rounds(plan, n), spent.delta) for n in due}
    return [
        {"round": n, "upper": _finite(one.upper), "lower": one.lower, "guarantee": "planned"}
        for n, one in sorted(by_count.items())
    ]


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
