"""`dpacct claims check` and `list`: check the epsilons of publications."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from dpacct.certificates import certified, in_words
from dpacct.claims.files import Claim, Claims, NoiseBy, load_claims, shipped_claims
from dpacct.claims.judge import Judged, Judgment, Verdict, facts_of, judge
from dpacct.claims.stored import shipped_verdicts
from dpacct.display import down, safe, up
from dpacct.errors import InvalidParameter
from dpacct.outputs import JudgedClaim, JudgedReading
from dpacct.rounds import Round
from dpacct.synonyms import meant_name
from dpacct_cli import mechanism, waiting
from dpacct_cli.options import OUTPUT, StyleOptions, argument, flag
from dpacct_cli.output import names_a_file
from dpacct_cli.outputs import ClaimsAnswer
from dpacct_cli.render import Answer, Grid, Page, Row, Style, plain, show, shown_delta, wrapped

File = Annotated[str, argument("FILE", "A file of claims, or the id of a shipped claim.",
    known=lambda: [claim.id for claim in shipped_claims().claims])]  # fmt: skip
Certify = Annotated[bool, flag("--certify", OUTPUT,
    "Prove the stated epsilon again by ball arithmetic, if the proof covers what ran.",
    advanced=True)]  # fmt: skip
MEANS = {
    Verdict.PROVEN: "no neighboring data sets exceed the stated epsilon",
    Verdict.REFUTED: "explicit neighboring data sets exceed the stated epsilon",
    Verdict.ROUNDED: "the proven epsilon is above the stated one, and rounds to it",
    Verdict.OPEN: "neither proven nor refuted",
    Verdict.NOT_PRIVATE: "no epsilon holds at this delta",
    Verdict.UNSTATED: "the text states no epsilon here",
}


def check(file: File, *, certify: Certify = False, shown: StyleOptions) -> None:
    """Check whether the claims in a file hold, reading by reading.

    Proven: no neighboring data sets exceed the stated epsilon. Refuted: explicit data sets do.
    True to the printed digits: the proven epsilon rounds to the stated one.
    Open: the stated epsilon lies between the two bounds. Not private as described: something is
    released without protection. The weakest reading of the run decides. -q prints one verdict a
    line.

    Examples:
      dpacct claims check paper.toml
      dpacct claims check dp-fed-ls-t3-uniform-z2.0
      dpacct claims check dp-fedpgn-t4-eps8 --certify
    """
    style = shown.style
    judged = _judged(read_claims(file).claims, quick=style is Style.QUIET)
    facts = [facts_of(one) for one in judged]
    for one, fact in zip(judged, facts, strict=True):
        for reading, row in zip(one.readings, fact["readings"], strict=True) if certify else ():
            # Only a reading with a stated epsilon and bounds of its own has a certificate.
            stated = None if reading.epsilon is None else one.claim.epsilon
            plan, delta = reading.reading.schedule, one.claim.delta
            row["certified"] = None if stated is None else certified(plan, stated, delta)
    if style is not Style.HUMAN:
        show(_answer(facts, Page([])), style)
        return
    for one, fact in zip(judged, facts, strict=True):
        show(_answer([fact], _page(one, fact)), style)


def list_claims(*, shown: StyleOptions) -> None:
    """List the shipped claims with their verdicts. -q prints only their ids.

    Example:
      dpacct claims list
    """
    style = shown.style
    claims = shipped_claims().claims
    if style is Style.QUIET:
        print("\n".join(claim.id for claim in claims))
        return
    number = {claim.id: number for number, claim in enumerate(claims)}
    verdicts = shipped_verdicts(
        lambda claim: waiting.say(f"dpacct claims, {claim.id}", number[claim.id], len(claims))
    )
    show(_answer(verdicts, _table(verdicts)), style)


COMMANDS = {"check": check, "list": list_claims}


def read_claims(file: str | None) -> Claims:
    """Return the claims of a file, or a shipped one by its id."""
    if not file:
        raise InvalidParameter("FILE", None, "name a file of claims, or the id of a shipped claim")
    if names_a_file(file, (".toml",)):
        return load_claims(file)
    claims = {claim.id: claim for claim in shipped_claims().claims}
    if file not in claims:
        rule = "there is no such file, and no shipped claim has that id"
        near = meant_name(file, claims)
        hint = f"Did you mean {near}?" if near else "dpacct claims list shows all of them."
        raise InvalidParameter("FILE", file, rule, hint)
    return Claims((claims[file],))


def _judged(claims: Sequence[Claim], *, quick: bool) -> list[Judgment]:
    judgments: list[Judgment] = []
    for number, claim in enumerate(claims):
        waiting.say(f"dpacct claims, {claim.id}", number, len(claims))
        judgments.append(judge(claim, quick=quick))
    return judgments


def _answer(verdicts: list[JudgedClaim], page: Page) -> Answer:
    data: ClaimsAnswer = {"claims": verdicts}
    return Answer(data, "\n".join(one["verdict"] for one in verdicts), lambda: page)


def _page(judged: Judgment, facts: JudgedClaim) -> Page:
    claim = judged.claim
    weakest = "" if judged.agreed else ". Readings differ. The weakest of the actual run decides"
    epsilon = "no epsilon" if claim.epsilon is None else f"epsilon {plain(claim.epsilon)}"
    delta = plain(claim.delta)
    if claim.delta_words:
        delta = f"{shown_delta(claim.delta)} ({claim.delta_words})"
    rows = [
        Row("verdict", str(judged.verdict)),
        *wrapped("", f"{MEANS[judged.verdict]}{weakest}"),
        *wrapped("claim", f"{claim.id}: {claim.source.name}, {claim.place}"),
        Row("stated", f"{epsilon} at delta {delta}"),
    ]
    if claim.accountant:
        rows += wrapped("", f"by {claim.accountant}")
    for number, reading in enumerate(judged.readings, start=1):
        rows += [Row("", ""), *_reading_rows(claim, reading, number, len(judged.readings))]
        again = facts["readings"][number - 1].get("certified")
        rows += [] if again is None else wrapped("", in_words(again))
    return Page(rows, remarks=[claim.note] if claim.note else [])


def _reading_rows(claim: Claim, judged: Judged, number: int, count: int) -> list[Row]:
    reading = judged.reading
    label = f"as {reading.role}" if count == 1 else f"{number}, as {reading.role}"
    rows = wrapped(label, reading.words)
    if judged.epsilon is None:
        rows += [Row("", str(judged.verdict)), *wrapped("", f"because {judged.reason}")]
    else:
        upper, lower = up(judged.epsilon.upper), down(judged.epsilon.lower)
        rows.append(Row("", f"{judged.verdict}: epsilon is {lower} (achieved) to {upper} (proven)"))
    rows += [Row("", row.value) for row in mechanism.rows(reading.schedule)]
    only = reading.only
    if isinstance(only, Round):
        noise = f"noise {safe('noise_multiplier', only.noise_multiplier)} x clip norm on the sum"
        if reading.noise_by is not NoiseBy.SERVER:
            noise += f", by the {reading.noise_by}"
        rows += wrapped("", noise)
    if judged.data_sets:
        rows += wrapped("", f"achieved so: {judged.data_sets}")
    if judged.noise is not None and claim.epsilon is not None:
        true = f"noise {up(judged.noise, 6)} on the sum would make epsilon {plain(claim.epsilon)}"
        rows += wrapped("", f"{true} true, all else as it is")
    if judged.noise_scale is not None and claim.epsilon is not None:
        true = f"{up(judged.noise_scale, 6)} x all noise would make epsilon {plain(claim.epsilon)}"
        rows += wrapped("", f"{true} true")
    return rows


def _table(verdicts: list[JudgedClaim]) -> Page:
    lines: list[list[str]] = []
    for one in verdicts:
        readings = one["readings"]
        # The bounds of the weakest reading that has them, which decides.
        known = [_ends(r) for r in readings if r["verdict"] == one["verdict"] and r["epsilon"]]
        worst = max(known, default=None)
        agreed = len({reading["verdict"] for reading in readings}) == 1
        lines.append(
            [
                one["id"],
                "-" if one["stated"] is None else plain(one["stated"]),
                "-" if worst is None else f"[{down(worst[0])},{up(worst[1])}]",
                one["verdict"],
                "" if agreed else str(len(readings)),
            ]
        )
    words = [one["verdict"] for one in verdicts]
    counts = [f"{words.count(each)} {each}" for each in Verdict if each in words]
    return Page(
        [Row("claims", str(len(verdicts)), ", ".join(counts))],
        grids=[Grid(["claim", "stated", "as run", "verdict", "readings that differ"], lines)],
        closing="dpacct claims check ID shows one with all its readings.",
    )


def _ends(reading: JudgedReading) -> tuple[float, float]:
    """Return the achieved and the proven epsilon of a reading. What is not finite is null."""
    ends = reading["epsilon"] or {"lower": None, "upper": None}
    lower, upper = ends["lower"], ends["upper"]
    return math.inf if lower is None else lower, math.inf if upper is None else upper
