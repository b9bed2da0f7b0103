"""What `dpacct claims` shows: a page for a claim, and a table of many."""

from __future__ import annotations

from collections.abc import Sequence

from dpacct.claims.claim import Claim, NoiseBy
from dpacct.claims.judge import Judged, Judgment, Verdict
from dpacct.display import chosen, down, up
from dpacct_cli import mechanism
from dpacct_cli.render import Grid, Page, Row, plain, shown_delta, wrapped

MEANS = {
    Verdict.PROVEN: "no neighboring data sets exceed what is stated",
    Verdict.REFUTED: "explicit neighboring data sets exceed what is stated",
    Verdict.OPEN: "neither proven nor refuted",
    Verdict.NOT_PRIVATE: "no epsilon holds at this delta",
    Verdict.UNSTATED: "the text states no epsilon here",
}


def claim_page(judged: Judgment) -> Page:
    """All there is to say about one claim."""
    claim = judged.claim
    weakest = "" if judged.agreed else "; readings differ, and the weakest of what runs counts"
    rows = [
        Row("verdict", str(judged.verdict)),
        *wrapped("", f"{MEANS[judged.verdict]}{weakest}"),
        *wrapped("claim", f"{claim.id}: {claim.source.name}, {claim.place}"),
        Row("stated", _stated(claim)),
    ]
    if claim.accountant:
        rows += wrapped("", f"by {claim.accountant}")
    for number, reading in enumerate(judged.readings, start=1):
        rows += [Row("", ""), *_reading_rows(claim, reading, number, len(judged.readings))]
    return Page(rows, remarks=[claim.note] if claim.note else [])


def _stated(claim: Claim) -> str:
    epsilon = "no epsilon" if claim.epsilon is None else f"epsilon {plain(claim.epsilon)}"
    origin = f" ({claim.delta_words})" if claim.delta_words else ""
    delta = shown_delta(claim.delta) if claim.delta_words else plain(claim.delta)
    return f"{epsilon} at delta {delta}{origin}"


def _reading_rows(claim: Claim, judged: Judged, number: int, count: int) -> list[Row]:
    reading = judged.reading
    label = f"as {reading.role}" if count == 1 else f"{number}, as {reading.role}"
    rows = wrapped(label, reading.words)
    if judged.epsilon is None:
        rows.append(Row("", str(judged.verdict)))
        rows += wrapped("", f"because {judged.reason}")
    else:
        upper, lower = up(judged.epsilon.upper), down(judged.epsilon.lower)
        rows.append(Row("", f"{judged.verdict}: epsilon is {lower} (achieved) to {upper} (proven)"))
    rows += [Row("", row.value) for row in mechanism.rows(reading.schedule)]
    noise = f"noise {chosen(reading.round.noise_multiplier)} x clip norm on the sum"
    if reading.noise_by is not NoiseBy.SERVER:
        noise += f", by the {reading.noise_by}"
    rows += [*wrapped("", noise)]
    if judged.data_sets:
        rows += wrapped("", f"achieved so: {judged.data_sets}")
    if judged.noise is not None and claim.epsilon is not None:
        true = f"noise {up(judged.noise, 6)} on the sum would make epsilon {plain(claim.epsilon)}"
        rows += wrapped("", f"{true} true, all else as it is")
    return rows


def table(judged: Sequence[Judgment]) -> Page:
    """One line a claim."""
    lines = [
        [
            one.claim.id,
            "-" if one.claim.epsilon is None else plain(one.claim.epsilon),
            _span(one),
            str(one.verdict),
            "" if one.agreed else f"{len(one.readings)} readings differ",
        ]
        for one in judged
    ]
    grid = Grid(["claim", "stated", "as run", "verdict", ""], lines)
    counts = [
        f"{sum(one.verdict is verdict for one in judged)} {verdict}"
        for verdict in Verdict
        if any(one.verdict is verdict for one in judged)
    ]
    rows = [Row("claims", str(len(judged)), ", ".join(counts))]
    closing = "dpacct claims check ID shows one with all its readings."
    return Page(rows, grid=grid, closing=closing)


def _span(judged: Judgment) -> str:
    """The bracket of the weakest reading that has one, which decides."""
    known = [
        one.epsilon
        for one in judged.readings
        if one.verdict is judged.verdict and one.epsilon is not None
    ]
    if not known:
        return "-"
    worst = max(known, key=lambda found: found.lower)
    return f"[{down(worst.lower)}, {up(worst.upper)}]"
