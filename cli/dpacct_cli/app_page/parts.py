"""The parts of the page as HTML, and ``python -m dpacct_cli.app_page.parts``, which computes them.

That process says ``null`` when it is ready. It reads a request a line, as JSON, answers with a line
for each part as it is ready, its name and its HTML, and ends the answer by ``null``.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dpacct import DpacctError, Ledger, validate
from dpacct.accountant import DEFAULT_ACCOUNTANT
from dpacct.display import chosen, down, line, up
from dpacct.outputs import LedgerSummary
from dpacct.pictures import Setting, epsilon_picture, spent_panel
from dpacct.pictures.schedules import describe
from dpacct.report.risks import chosen_of_thousand, of_thousand, risks_of_rounds
from dpacct_cli import words
from dpacct_cli.app_page import calculate, draw
from dpacct_cli.app_page.calculate import Job, Sweep
from dpacct_cli.commands import compare, explore
from dpacct_cli.options import number
from dpacct_cli.render import safe

Request = Mapping[str, Any]
Part = tuple[str, str]  # Its name and its HTML
TABLE = "Show as a table"


def paragraph(said: str, kind: str = "") -> str:
    """Return a paragraph of plain text."""
    return f'<p class="{kind}">{draw.safe(said)}</p>'


def alert(error: DpacctError) -> str:
    """Return what is wrong."""
    return f'<div role="alert">{paragraph(calculate.sentence(error), "wrong")}</div>'


def hero(before: str, figure: str, after: str, below: str, *, good: bool) -> str:
    """Return the answer of a tab in large letters, with a sentence."""
    large = f"{draw.safe(before)} <strong>{draw.safe(figure)}</strong> {draw.safe(after)}"
    kind = "hero ok" if good else "hero over"
    return f'<div class="{kind}"><p class="big">{large}</p>{paragraph(below)}</div>'


def headline(job: Job) -> str:
    """Return the solution."""
    upper, fits = up(job.spent.upper), job.spent.upper <= job.budget
    before, figure, after = "epsilon", upper, ""
    if job.solve == "noise":
        before, figure = "noise multiplier", safe("noise_multiplier", job.number, zeros=True)
    elif job.solve == "rounds":
        before, figure, after = "", f"{job.number:,.0f}", "epochs fit"
        if not job.options.by_epochs:
            after = f"rounds{f', {job.epochs:,.4g} epochs,' if job.epochs else ''} fit"
    below = (
        f"Epsilon is at most {upper} at delta {chosen(job.delta)}, "
        f"{'within' if fits else 'above'} the budget of {chosen(job.budget)}. "
        f"Two data sets attain {down(job.spent.lower)}. {describe(job.plan)}."
    )
    return hero(before, figure, after, below, good=fits)


def curve(job: Job) -> str:
    """Return epsilon over the run."""
    setting = Setting("", job.plan, DEFAULT_ACCOUNTANT)
    picture = epsilon_picture([setting], job.delta, target=job.budget)
    (panel,) = picture.panels
    (only,) = panel.curves
    points = zip(only.x, only.y, only.lower or only.y, strict=True)
    rows = [(f"{x:,.0f}", up(high), down(low)) for x, high, low in points]
    note = paragraph("The line is proven. A band reaches down to the lower bound.", "note")
    table = draw.table([panel.x, "epsilon, proven", "achieved"], rows, TABLE)
    return draw.curve(panel, picture.title) + note + table


def risk(job: Job) -> str:
    """Return the best attack, as 100 guesses and as a table."""
    risks = risks_of_rounds(job.plan, DEFAULT_ACCOUNTANT)
    if risks is None:
        return paragraph("No bound on attacks is proven for these rounds.")
    right = math.ceil(100 * risks.best_guess)
    said = (
        f"Of 100 guesses whether one example was used, at most {right} are right: 50 by chance "
        f"(gray) and {right - 50} because of the release (orange)."
    )
    header = ["falsely accused, of 1,000 others", "found at most, of 1,000 members"]
    rows = [(chosen_of_thousand(rate), of_thousand(tpr)) for rate, tpr, _ in risks.rates]
    return draw.dots(right) + paragraph(said) + draw.table(header, rows)


def ways(job: Job) -> Iterator[str]:
    """Yield the costs of four ways of drawing the batches, filled in one by one."""
    known, marked = job.ways(), job.options["sampling"]
    if not known:
        yield paragraph("Examples, a batch size and at least one epoch are needed to compare.")
        return
    done: list[draw.Bar] = []
    rows: list[list[str]] = []
    for way in known:
        wait = [(other.name, None, None, "computing ...") for other in known[len(done) :]]
        yield draw.bars([*done, *wait], marked)
        (cost,) = compare.read_costs([way], job.delta)
        lower, upper = cost.ends
        done.append((way.name, lower, upper, cost.note or "no bound"))
        ends = ["-"] * 2 if upper is None else [up(upper), down(lower or 0.0)]
        rows.append([way.name, way.words, *ends])
    note = paragraph("One example is zeroed out. A bar is dark up to the lower bound.", "note")
    table = draw.table(["sampling", "", "epsilon, proven", "achieved"], rows, TABLE)
    yield draw.bars(done, marked) + note + table


def calculator(request: Request) -> Iterator[Part]:
    """Yield the parts of the calculator, the headline first."""
    try:
        job = calculate.read_job(request["fields"])
    except DpacctError as error:
        yield "headline", alert(error)
        yield from ((name, "") for name in ("code", "curve", "risk", "ways"))
        return
    yield "headline", headline(job)
    yield "code", "".join(map(draw.code, job.commands()))
    for name, compute in {"curve": curve, "risk": risk}.items():
        try:
            yield name, compute(job)
        except DpacctError as error:
            yield name, alert(error)
    yield from (("ways", shown) for shown in ways(job))


def heat(asked: Sweep, rows: list[dict[str, Any]], budget: float) -> str:
    """Return the map as far as it is computed."""
    sides = (asked.down, asked.across)
    ys, xs = (list(dict.fromkeys(options[key] for options, _ in asked.settings)) for key in sides)
    known: dict[tuple[str, ...], draw.Cell] = {
        tuple(options[key] for key in sides): (row["epsilon_upper"], row["error"] or "")
        for (options, _), row in zip(asked.settings, rows, strict=False)
    }
    corner = " \\ ".join(calculate.LABELS[key] for key in sides)
    return draw.heat(corner, xs, ys, [[known.get((y, x)) for x in xs] for y in ys], budget)


def sweep(request: Request) -> Iterator[Part]:
    """Yield the map while it fills. At its end come the command and the table as CSV."""
    fields = request["fields"]
    yield "csv", ""
    try:
        asked, budget = calculate.read_sweep(fields), number(calculate.text(fields, "epsilon"))
        budget = validate.target_epsilon(budget)
    except DpacctError as error:
        yield "heat", alert(error)
        return
    rows: list[dict[str, Any]] = []
    for place in range(len(asked.settings)):
        if place % max(1, len(asked.settings) // 12) == 0:
            yield "heat", heat(asked, rows, budget)
        rows.append(asked.row(place))
    inside = sum((row["epsilon_upper"] or math.inf) <= budget for row in rows)
    note = f"{inside} of {len(rows)} settings are within the budget of {chosen(budget)} (blue)."
    yield "csv", explore.to_bytes(rows, ".csv").decode()
    below = f"{paragraph(note, 'note')}{draw.code(asked.command)}<p data-done hidden></p>"
    yield "heat", heat(asked, rows, budget) + below


def spent(facts: LedgerSummary) -> str:
    """Return the total, its claim and the budget."""
    budget, total = facts["budget"]["epsilon"], facts["epsilon_any_stop"]
    below = (
        f"Unit: one {line(facts['unit'], 40)}, {facts['adjacency'] or 'no rounds yet'}, delta "
        f"{chosen(facts['delta'], 3)}. {facts['claim']}"
    )
    figure, after = up(total or 0.0, 4), f"of {chosen(budget, least=True)} is spent"
    if total is None:
        figure, after = "no bound", "holds"
    share = 1.0 if total is None else min(1.0, total / budget)
    bar = f'<progress max="1" value="{share:.4f}" aria-label="spent part of the budget"></progress>'
    return hero("epsilon", figure, after, below, good=total is not None and total <= budget) + bar


def timeline(facts: LedgerSummary) -> str:
    """Return the total by date, for wide and for narrow windows."""
    panel = spent_panel(facts)
    if panel is None:
        return paragraph("There is nothing to draw: no run has a bound.")
    said = (
        "A color is what the runs of a project added to the total when they were charged. The "
        "epsilons of projects alone are others, and do not add up."
    )
    finding = f"epsilon {up(panel.curves[-1].y[-1], 4)} of {panel.levels[0].words} is spent"
    sizes = {"wide": 980, "narrow": 400}
    charts = "".join(draw.stack(panel, finding, width, kind) for kind, width in sizes.items())
    return draw.legend(curve.name for curve in panel.curves) + charts + paragraph(said, "note")


def runs(facts: LedgerSummary) -> str:
    """Return the runs as a table."""
    rows: list[list[str]] = []
    for run in facts["runs"]:
        ends = (run["total_after"], run["epsilon"]["upper"])
        figures = ["-" if value is None else up(value, 4) for value in ends]
        named = [run["latest"][:10], line(run["project"], 40), line(run["name"], 60)]
        rows.append([*named, f"{run['rounds']:,}", *figures])
    header = ["date", "project", "run", "rounds", "total after it", "epsilon alone"]
    return draw.table(header, rows)


def ledgers(request: Request) -> Iterator[Part]:
    """Yield the parts about a ledger, which is opened for reading only."""
    try:
        with Ledger.open(request["path"], read_only=True) as ledger:
            facts = ledger.summary()
            yield "spent", spent(facts)
            try:
                fits, why = calculate.may_run(ledger, request["fields"])
                yield "verdict", paragraph(why, "yes" if fits else "wrong")
            except DpacctError as error:
                yield "verdict", alert(error)
        yield "timeline", timeline(facts)
        yield "runs", runs(facts)
    except DpacctError as error:
        yield "spent", alert(error)
        yield from ((name, "") for name in ("verdict", "timeline", "runs"))


TABS: dict[str, Callable[[Request], Iterator[Part]]] = {
    "calculator": calculator, "ledgers": ledgers, "sweep": sweep,
}  # fmt: skip


def main() -> None:
    """Answer requests until their end."""
    words.about_examples()
    print("null", flush=True)
    for asked in sys.stdin:
        request = json.loads(asked)
        for part in TABS[request["tab"]](request):
            print(json.dumps(part), flush=True)
        print("null", flush=True)


if __name__ == "__main__":
    main()
