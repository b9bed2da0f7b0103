"""The report on a claim: its verdict, and the guarantee that is proven instead.

Rule 1: the first page is about the reading that decides the verdict. The figures list all readings.
Rule 2: the promise is the proven epsilon of the actual run, not the stated one.
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
from dpacct.rounds import Round

_VERDICTS = {
    Verdict.UNSTATED: "This report computes it.",
    Verdict.PROVEN: "This holds: no data sets exceed it.",
    Verdict.OPEN: "Whether this holds is open.",
    Verdict.REFUTED: "This does not hold: there are data sets that exceed it.",
    Verdict.NOT_PRIVATE: "What it describes is not private: no epsilon holds at this delta.",
}
_DIVISORS = {
    Divisor.PLANNED: "the planned cohort size",
    Divisor.REALIZED: "the number of clients that took part",
}


def on_claim(claim: Claim, *, unit: str = "client") -> Report:
    """Return the report on one claim, by all its readings.

    Args:
        claim: from a file, or shipped.
        unit: the privacy unit, in words.
    """
    judged = judge(claim)
    decides = deciding(judged)
    reading, spent = decides.reading, decides.epsilon
    plan = reading.schedule
    promise = None
    if spent is not None and math.isfinite(spent.upper):
        risks = risks_of_rounds(plan, DEFAULT_ACCOUNTANT)
        promise = Promise(
            unit, plan.adjacency, spent.upper, claim.delta, risks, reading.population, planned=True
        )
    assumed = (
        f"What ran is what this report judges: {line(reading.words, 500)}.",
        *schedule_assumptions(plan, DEFAULT_ACCOUNTANT),
    )
    place = f"{line(claim.source.name)} ({line(claim.place)})"
    stated = "states no epsilon"
    if claim.epsilon is not None:
        stated = f"promises epsilon {_as_stated(claim.epsilon)}"
    reason = line(decides.reason, 1000) or "no epsilon is proven at this delta"
    blocks: list[Block] = [
        Heading(1, f"Privacy report: {line(claim.source.name)}, {line(claim.id)}"),
        Paragraph(f"{place} {stated}. {_VERDICTS[judged.verdict]}", strong=True),
        *(front_page(promise) if promise else nothing_promised(f"{reason}.")),
        *(to_sign(assumed) if promise else []),
        *_figures(judged, unit),
        *glossary(),
    ]
    facts: dict[str, Any] = {
        "kind": "claim",
        "unit": unit,
        **facts_of(judged),
        "risk": risk_to_json(promise),
        "assumptions": list(assumed),
    }
    return Report(facts, tuple(blocks))


def deciding(judged: Judgment) -> Judged:
    """Return the reading that decides the verdict, and of several the largest epsilon."""
    run = [one for one in judged.readings if one.reading.role is Role.RUN] or judged.readings
    worst = [one for one in run if one.verdict is judged.verdict]
    return max(worst, key=lambda one: math.inf if one.epsilon is None else one.epsilon.upper)


def _as_stated(value: float) -> str:
    """Return all digits, because the verdict is about exactly this figure."""
    return repr(value).removesuffix(".0")


def _figures(judged: Judgment, unit: str) -> list[Block]:
    claim = judged.claim
    stated = "none" if claim.epsilon is None else _as_stated(claim.epsilon)
    rows = [
        ("text", line(claim.source.name)),
        ("place", line(claim.place)),
        ("data", line(claim.data)),
        ("stated epsilon", f"{stated} at delta {_as_stated(claim.delta)}"),
        ("computed there by", line(claim.accountant)),
        ("verdict", str(judged.verdict)),
        ("note", line(claim.note, 1000)),
    ]
    blocks: list[Block] = [Heading(2, "The figures", new_page=True), _table(rows, "The claim")]
    if not judged.agreed:
        words = "The text has several readings. The weakest reading of the actual run decides."
        blocks.append(Paragraph(words))
    for number, one in enumerate(judged.readings, start=1):
        blocks += _reading(claim, one, number, unit)
    return blocks


def _reading(claim: Claim, judged: Judged, number: int, unit: str) -> list[Block]:
    reading, spent = judged.reading, judged.epsilon
    round_ = reading.round
    kind = "the actual run" if reading.role is Role.RUN else "the setting behind the stated epsilon"
    epsilon = enough = ""
    if spent is not None:
        epsilon = bracket(spent.lower, spent.upper)
        if math.isinf(spent.upper):
            epsilon = f"at least {down(spent.lower)}; nothing is proven"
    if judged.noise is not None and claim.epsilon is not None:
        least, stated = up(judged.noise, 6), _as_stated(claim.epsilon)
        enough = f"a multiplier of {least} would make epsilon {stated} true"
    rows = [
        ("verdict", str(judged.verdict)),
        ("epsilon [achieved, proven]", epsilon),
        ("reason", line(judged.reason, 1000)),
        ("data sets that achieve it", judged.data_sets),
        ("rounds", rounds_words(reading.rounds)),
        ("adjacency", neighbors(str(round_.adjacency), unit)),
    ]
    if isinstance(round_, Round):
        rows += [
            ("sampling", sampling_words(round_.sampling)),
            ("noise multiplier", chosen(round_.noise_multiplier, least=True)),
            ("noise is added by", f"the {reading.noise_by}"),
            ("clip norm", str(reading.clip_from)),
            ("the sum is divided by", _DIVISORS[reading.divisor]),
        ]
    else:
        rows.append(("mechanism", line(repr(round_))))
    rows.append(("sufficient noise", enough))
    name, words = f"Reading {number}: {kind}", line(reading.words, 500)
    return [
        Heading(3, name), Paragraph(f"{words[:1].upper()}{words[1:]}."), _table(rows, name),
    ]  # fmt: skip


def _table(rows: list[tuple[str, str]], caption: str) -> Table:
    return Table(("", ""), tuple(row for row in rows if row[1]), caption)
