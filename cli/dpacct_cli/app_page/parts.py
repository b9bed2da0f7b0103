"""The parts of the page as HTML, and ``python -m dpacct_cli.app_page.parts``, which computes them.

That process reads a request as a line of JSON, and answers with a line for each part as it is
ready: its name and its HTML.
"""

from __future__ import annotations

import json
import math
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpacct import DpacctError, InvalidParameter, Ledger
from dpacct.accountant import DEFAULT_ACCOUNTANT
from dpacct.display import chosen, down, line, up
from dpacct.outputs import LedgerSummary
from dpacct.packages import import_package
from dpacct.pictures import Setting, compare_picture, epsilon_picture, ledger_picture
from dpacct.pictures.schedules import describe
from dpacct.report.front import chosen_of_thousand, of_thousand, risks_of_rounds
from dpacct_cli import words
from dpacct_cli.app_page import calculate, draw
from dpacct_cli.app_page.calculate import Job
from dpacct_cli.app_page.draw import paragraph
from dpacct_cli.commands import compare, explore
from dpacct_cli.errors import OptionConflict
from dpacct_cli.render import safe

Request = Mapping[str, Any]
Part = tuple[str, str]  # Its name and its HTML
MOST_CELLS = 400


def alert(error: DpacctError) -> str:
    """Return what is wrong."""
    return draw.alert(calculate.sentence(error))


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
    return draw.hero(before, figure, after, below, good=fits)


def curve(job: Job) -> str:
    """Return epsilon over the run."""
    setting = Setting("", job.plan, DEFAULT_ACCOUNTANT)
    return draw.figure(epsilon_picture([setting], job.delta, target=job.budget))


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
    known = job.ways()
    if not known:
        yield paragraph("Examples, a batch size and at least one epoch are needed to compare.")
        return
    costs: list[tuple[str, float | None, float | None, str]] = [
        (way.name, None, None, "computing ...") for way in known
    ]
    for place in range(len(known) + 1):
        picture = compare_picture(job.plan, job.delta, costs, "One example is zeroed out.")
        if place < len(known):
            picture = replace(picture, title="Computing ...")
        rows = [
            [way.name, way.words, *(("-", "-") if upper is None else (up(upper), down(lower or 0)))]
            for way, (_, lower, upper, _) in zip(known, costs, strict=True)
        ]
        data = draw.closed(["sampling", "", "epsilon, proven", "achieved"], rows)
        yield draw.figure(picture, data=False) + data
        if place < len(known):
            (cost,) = compare.read_costs([known[place]], job.delta)
            costs[place] = (cost.name, *cost.ends, cost.note)


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


def sweep(request: Request) -> Iterator[Part]:
    """Yield the map of a sweep, with the command and the table as a file."""
    fields = request["fields"]
    try:
        options, delta = calculate.read_options(fields), calculate.text(fields, "delta")
        settings, budget = explore.read_settings(options, delta), calculate.read_budget(fields)
        if len(settings) > MOST_CELLS:
            rule = f"the page computes at most {MOST_CELLS}. The command line has no such limit"
            raise OptionConflict(f"These are {len(settings):,} cells, and {rule}.")
        explore.check_picture(settings, budget)
        rows: list[dict[str, Any]] = []
        for setting in settings:
            if len(rows) % (1 + len(settings) // 12) == 0:
                yield "heat", paragraph(f"{len(rows)} of {len(settings)} cells are computed.")
            rows.append(explore.compute(*setting, DEFAULT_ACCOUNTANT))
        command = f"dpacct explore {options.retyped()} --delta {delta} -o sweep.csv"
        file = b64encode(explore.to_bytes(rows, ".csv")).decode()
        link = f'href="data:text/csv;base64,{file}" download="sweep.csv"'
        below = f'{draw.code(command)}<a id="table" class="button" {link}>Download CSV</a>'
        yield "heat", draw.figure(explore.to_picture(settings, rows, budget), draw.WHOLE) + below
    except DpacctError as error:
        yield "heat", alert(error)


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
    good = total is not None and total <= budget
    return draw.hero("epsilon", figure, after, below, good=good) + bar


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


def path_of(ledgers: Sequence[str], fields: Mapping[str, Any]) -> str:
    """Return the ledger that a browser names by its place."""
    places = {str(place): file for place, file in enumerate(ledgers)}
    asked = fields.get("ledger")
    if not isinstance(asked, str) or asked not in places:
        raise InvalidParameter("ledger", asked, "it is not one of those of dpacct app")
    return places[asked]


def ledgers(request: Request) -> Iterator[Part]:
    """Yield the parts about a ledger, which is opened for reading only."""
    fields = request["fields"]
    try:
        with Ledger.open(path_of(request["ledgers"], fields), read_only=True) as ledger:
            facts = ledger.summary()
            yield "spent", spent(facts)
            try:
                fits, why = calculate.may_run(ledger, fields)
                yield "verdict", paragraph(why, "yes" if fits else "wrong")
            except DpacctError as error:
                yield "verdict", alert(error)
        yield "runs", runs(facts)
        try:
            yield "timeline", draw.figure(ledger_picture(facts), draw.WHOLE, data=False)
        except DpacctError as error:
            yield "timeline", alert(error)
    except DpacctError as error:
        yield "spent", alert(error)
        yield from ((name, "") for name in ("verdict", "timeline", "runs"))


TABS: dict[str, Callable[[Request], Iterator[Part]]] = {
    "calculator": calculator, "ledgers": ledgers, "sweep": sweep,
}  # fmt: skip


def main() -> None:
    """Answer a request."""
    words.about_examples()
    import_package("dpacct.pictures.matplotlib", "matplotlib", "3.8", "app")
    request = json.loads(sys.stdin.readline())
    for part in TABS[request["tab"]](request):
        print(json.dumps(part), flush=True)


if __name__ == "__main__":
    main()
