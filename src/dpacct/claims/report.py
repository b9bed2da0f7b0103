"""The report on a claim: whether what a text promises holds, and what can be promised instead.

Rule 1: the first page is about the reading that decides the verdict, the others stand in the
figures.
Rule 2: what people can be promised is the proven epsilon of what runs, whatever the text states.
"""

from __future__ import annotations

import math
from typing import Any

from dpacct.accountant import DEFAULT_ACCOUNTANT
from dpacct.claims.claim import Claim, Divisor, Role
from dpacct.claims.judge import Judged, Judgment, Verdict, facts_of, judge
from dpacct.display import chosen, down, line, up
from dpacct.report.document import Block, Heading, Paragraph, Report, Table
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

_UNIT = "client"
_VERDICTS = {
    Verdict.UNSTATED: "It is told here what that is worth.",
    Verdict.PROVEN: "This holds: no data sets exceed it.",
    Verdict.OPEN: "Whether this holds is open.",
    Verdict.REFUTED: "This does not hold: there are data sets that exceed it.",
    Verdict.NOT_PRIVATE: "What it describes is not private: no epsilon holds at this delta.",
}
_DIVISORS = {
    Divisor.PLANNED: "the size of the cohort that was planned",
    Divisor.REALIZED: "the number of those who took part",
}


def on_claim(claim: Claim, *, unit: str = _UNIT) -> Report:
    """The report on one claim, by all its readings.

    Args:
        claim: from a file, or shipped.
        unit: whose data one neighbor lacks, in words.
    """
    judged = judge(claim)
    decides = deciding(judged)
    promise = _promise(claim, decides, unit)
    assumed = _assumed(decides)
    facts: dict[str, Any] = {
        "kind": "claim",
        "unit": unit,
        **facts_of(judged),
        "risk": risk_to_json(promise),
        "assumptions": list(assumed),
    }
    blocks = [
        Heading(1, f"Privacy report: {line(claim.source.name)}, {line(claim.id)}"),
        Paragraph(_verdict(judged), strong=True),
        *_first(promise, decides),
        *(to_sign(assumed) if promise else []),
        *_figures(judged, unit),
        *glossary(),
    ]
    return Report(facts, tuple(blocks))


def deciding(judged: Judgment) -> Judged:
    """The reading that decides the verdict; of several the one that costs most."""
    run = [one for one in judged.readings if one.reading.role is Role.RUN] or judged.readings
    worst = [one for one in run if one.verdict is judged.verdict]
    return max(worst, key=lambda one: math.inf if one.epsilon is None else one.epsilon.upper)


def _promise(claim: Claim, decides: Judged, unit: str) -> Promise | None:
    if decides.epsilon is None or not math.isfinite(decides.epsilon.upper):
        return None
    plan = decides.reading.schedule
    return Promise(
        unit,
        plan.adjacency,
        decides.epsilon.upper,
        claim.delta,
        risks_of_rounds(plan, DEFAULT_ACCOUNTANT),
        decides.reading.population,
        planned=True,
    )


def _verdict(judged: Judgment) -> str:
    claim = judged.claim
    place = f"{line(claim.source.name)} ({line(claim.place)})"
    if claim.epsilon is None:
        return f"{place} states no epsilon. {_VERDICTS[judged.verdict]}"
    stated = _as_stated(claim.epsilon)
    return f"{place} promises epsilon {stated}. {_VERDICTS[judged.verdict]}"


def _as_stated(value: float) -> str:
    """All digits: what is said of a figure is said of this one, not of one beside it."""
    return repr(value).removesuffix(".0")


def _first(promise: Promise | None, decides: Judged) -> list[Block]:
    if promise is None:
        reason = line(decides.reason, 1000) or "no epsilon is proven at this delta"
        return nothing_promised(f"{reason}.")
    return front_page(promise)


def _assumed(decides: Judged) -> tuple[str, ...]:
    reading = decides.reading
    what = f"What ran is what this report judges: {line(reading.words, 500)}."
    return (what, *schedule_assumptions(reading.schedule, DEFAULT_ACCOUNTANT))


def _figures(judged: Judgment, unit: str) -> list[Block]:
    claim = judged.claim
    stated = "none" if claim.epsilon is None else _as_stated(claim.epsilon)
    rows = [
        ("text", line(claim.source.name)),
        ("place", line(claim.place)),
        ("data", line(claim.data)),
        ("epsilon that is stated", f"{stated} at delta {_as_stated(claim.delta)}"),
        ("computed there by", line(claim.accountant)),
        ("verdict", str(judged.verdict)),
        ("note", line(claim.note, 1000)),
    ]
    table = Table(("", ""), tuple(row for row in rows if row[1]), "The claim")
    blocks: list[Block] = [Heading(2, "The figures", new_page=True), table]
    if not judged.agreed:
        blocks.append(
            Paragraph(
                "The text can be read in several ways, which differ. The weakest reading of what "
                "runs decides."
            )
        )
    for number, one in enumerate(judged.readings, start=1):
        blocks += _reading(claim, one, number, unit)
    return blocks


def _reading(claim: Claim, judged: Judged, number: int, unit: str) -> list[Block]:
    reading = judged.reading
    kind = "what runs" if reading.role is Role.RUN else "what the epsilon was computed for"
    rows = [
        ("verdict", str(judged.verdict)),
        ("epsilon [achieved, proven]", _epsilon(judged)),
        ("why", line(judged.reason, 1000)),
        ("achieved so", judged.data_sets),
        ("rounds", rounds_words(reading.rounds)),
        ("sampling", sampling_words(reading.round.sampling)),
        ("adjacency", neighbors(str(reading.round.adjacency), unit)),
        ("noise multiplier", chosen(reading.round.noise_multiplier, least=True)),
        ("noise is added by", f"the {reading.noise_by}"),
        ("clip norm", str(reading.clip_from)),
        ("the sum is divided by", _DIVISORS[reading.divisor]),
        ("noise that would do", _enough(claim, judged)),
    ]
    name, words = f"Reading {number}: {kind}", line(reading.words, 500)
    return [
        Heading(3, name),
        Paragraph(f"{words[:1].upper()}{words[1:]}."),
        Table(("", ""), tuple(row for row in rows if row[1]), name),
    ]


def _epsilon(judged: Judged) -> str:
    if judged.epsilon is None:
        return ""
    if math.isinf(judged.epsilon.upper):
        return f"at least {down(judged.epsilon.lower)}; nothing is proven"
    return bracket(judged.epsilon.lower, judged.epsilon.upper)


def _enough(claim: Claim, judged: Judged) -> str:
    if judged.noise is None or claim.epsilon is None:
        return ""
    stated = _as_stated(claim.epsilon)
    return f"a multiplier of {up(judged.noise, 6)} would make epsilon {stated} true"
