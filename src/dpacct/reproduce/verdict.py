"""Runs beside printed values: cells, claims, a table in Markdown and a picture.

Rule: a verdict needs three runs. Cells compare means by Welch's interval at 95 %, claims compare
rows by the paired differences of runs with one seed. Else the verdict is open.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]

from dpacct.display import up
from dpacct.pictures import Curve, Panel, Picture
from dpacct.report.document import heading, safe
from dpacct.reproduce.records import Record, Records, spread
from dpacct.reproduce.table import FIGURES, MEASURES, Cell, OrderClaim, PaperTable

LEAST_RUNS, CONFIDENCE = 3, 0.975
AGREES, ABOVE, BELOW, OPEN = "agrees", "above", "below", "open"
REPRODUCED, CONTRADICTED = "reproduced", "contradicted"
_MOST_PANELS = 4


@dataclass(frozen=True, slots=True)
class JudgedCell:
    """The values of a cell's runs, by seed, and their verdict against the printed mean."""

    cell: Cell
    values: dict[int, float]
    verdict: str


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """A claim with its verdict.

    Attributes:
        printed: the printed difference, None if not all of it is printed.
        difference, error: of the runs, with half the width of its interval at 95 %.
    """

    claim: OrderClaim
    printed: float | None
    difference: float | None
    error: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Judged:
    """A table with all runs so far. ``runs`` are by cell, in the order of the seeds."""

    table: PaperTable
    cells: tuple[JudgedCell, ...]
    claims: tuple[JudgedClaim, ...]
    runs: Mapping[tuple[str, str], Sequence[Record]]
    tiny: bool

    def markdown(self) -> str:
        """Return title, table, claims and notes as Markdown."""
        table = self.table
        head = f"{heading(1, table.title)}\n\n{safe(table.source)}. {MEASURES[table.measure]}"
        lines = [f"{head}, here / as printed, mean ±deviation.", "", *_lines(*self.grid())]
        if self.claims:
            lines += ["", *_lines(CLAIM_HEADER, [claim_row(one) for one in self.claims])]
        notes = [table.note, TINY if self.tiny else ""]
        return "\n".join([*lines, *(f"\n{safe(note)}" for note in notes if note)]) + "\n"

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and the rows of the table."""
        rows = {name: [name] for name in self.table.rows}
        for one in self.cells:
            rows[one.cell.row].append(_shown(one, self.table.measure))
        return ["", *self.table.columns], [*rows.values()]

    def counts(self) -> dict[str, int]:
        """Return how many cells with a printed value have each verdict."""
        known = [one.verdict for one in self.cells if one.cell.printed is not None]
        return {word: known.count(word) for word in (AGREES, ABOVE, BELOW, OPEN) if word in known}


TINY = "Tiny runs test that the table can be run. Their values mean nothing."
CLAIM_HEADER = ["claim", "printed", "here", "verdict"]


def claim_row(one: JudgedClaim) -> list[str]:
    """Return a row of the table of claims."""
    here = "-" if one.difference is None else f"{one.difference:+.2f}"
    here += "" if one.error is None else f" ±{one.error:.2f}"
    return [
        one.claim.says,
        "-" if one.printed is None else f"{one.printed:+.2f}",
        here,
        one.verdict,
    ]


def judge(table: PaperTable, records: Records, *, tiny: bool = False) -> Judged:
    """Return the verdicts on the runs that are finished."""
    runs: dict[tuple[str, str], list[Record]] = {}
    values: dict[tuple[str, str], dict[int, float]] = {}
    for cell, setting in table.settings(tiny=tiny):
        place = cell.row, cell.column
        of_place, measured = runs.setdefault(place, []), values.setdefault(place, {})
        if (record := records.of(setting)) is not None:
            of_place.append(record)
            value = measure(table, record.result)
            if value is not None:
                measured[setting["public_seed"]] = value
    cells = tuple(
        JudgedCell(cell, own, OPEN if tiny else _compared(table, cell, [*own.values()]))
        for cell in table.cells
        for own in [values[cell.row, cell.column]]
    )
    claims = tuple(_claimed(claim, cells, tiny=tiny) for claim in table.claims)
    return Judged(table, cells, claims, runs, tiny)


def measure(table: PaperTable, result: Mapping[str, Any]) -> float | None:
    """Return the measure of a table in the result of a run, None if the run does not have it."""
    history = _evaluations(result)
    match table.measure:
        case "best_accuracy":
            return max((row["accuracy"] for row in history), default=None)
        case "validation_accuracy":
            return history[-1]["accuracy"] if history else None
        case "gap":
            seen, unseen = result.get("train_accuracy"), result.get("accuracy")
            return None if seen is None or unseen is None else seen - unseen
        case "rounds_to":
            reached = [row["round"] for row in history if row["accuracy"] >= table.target]
            return min(reached, default=None)
        case name:
            return result.get(name)


def _evaluations(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in result.get("history", []) if row.get("accuracy") is not None]


def _compared(table: PaperTable, cell: Cell, ours: Sequence[float]) -> str:
    """Return the verdict on a cell. A printed mean without a deviation counts as exact."""
    if cell.printed is None or len(ours) < LEAST_RUNS:
        return OPEN
    theirs = 0.0 if cell.spread is None else cell.spread**2 / table.printed_runs
    own = statistics.variance(ours) / len(ours)
    # Degrees of freedom by Welch and Satterthwaite.
    parts = own**2 / (len(ours) - 1) + theirs**2 / max(table.printed_runs - 1, 1)
    freedom = (own + theirs) ** 2 / parts if parts else math.inf
    margin = float(stdtrit(freedom, CONFIDENCE)) * math.sqrt(own + theirs) if parts else 0.0
    apart = statistics.mean(ours) - cell.printed
    return AGREES if abs(apart) <= margin else ABOVE if apart > 0 else BELOW


def _claimed(claim: OrderClaim, cells: Sequence[JudgedCell], *, tiny: bool) -> JudgedClaim:
    places = {(one.cell.row, one.cell.column): one for one in cells}
    sides = [[places[row, c] for c in claim.columns] for row in (claim.better, claim.than)]
    printed = [[one.cell.printed for one in side] for side in sides]
    known = [value for side in printed for value in side if value is not None]
    half = len(claim.columns)
    stated = (sum(known[:half]) - sum(known[half:])) / half if len(known) == 2 * half else None
    seeds = set[int].intersection(*(set(one.values) for side in sides for one in side))
    gaps = [
        statistics.mean(a.values[seed] - b.values[seed] for a, b in zip(*sides, strict=True))
        for seed in sorted(seeds)
    ]
    mean = statistics.mean(gaps) if gaps else None
    if mean is None or tiny or len(gaps) < LEAST_RUNS:
        return JudgedClaim(claim, stated, mean, None, OPEN)
    error = float(stdtrit(len(gaps) - 1, CONFIDENCE)) * statistics.stdev(gaps) / len(gaps) ** 0.5
    verdict = REPRODUCED if mean > error else CONTRADICTED if mean < -error else OPEN
    return JudgedClaim(claim, stated, mean, error, verdict)


def _shown(one: JudgedCell, name: str) -> str:
    values = [*one.values.values()]
    ours = spread(values, up) if name == "epsilon" else spread(values)  # Proven: never rounded down
    if one.cell.printed is None:
        return ours
    deviation = "" if one.cell.spread is None else f" ±{one.cell.spread:g}"
    verdict = "" if one.verdict == OPEN else f" {one.verdict}"
    return f"{ours} / {one.cell.printed:g}{deviation}{verdict}"


def _lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table. Names in a file are text, whatever they are."""
    first, *others = (f"| {' | '.join(map(safe, line))} |" for line in (header, *rows))
    return [first, f"| {' | '.join(['---'] * len(header))} |", *others]


def picture(judged: Judged) -> Picture:
    """Return the figure of a table: lines are means over runs, bands reach down to the worst run.

    Against columns it also has the printed values, as thin lines.
    """
    table = judged.table
    if table.figure == "column":
        curves = [curve for row in table.rows for curve in _over_columns(judged, row)]
        axis = table.columns[0].rstrip("0123456789. ") or "column"
        panels = [Panel(axis, MEASURES[table.measure], curves, from_zero=False)]
    else:
        panels: list[Panel] = []
        for column in table.columns[:_MOST_PANELS]:
            curves = [curve for row in table.rows for curve in _over_rounds(judged, row, column)]
            label = f"{column}: {MEASURES['accuracy']}"
            panels.append(Panel(FIGURES[table.figure], label, curves, from_zero=False))
    counts = judged.counts()
    told = f"{counts.get(AGREES, 0)} of {sum(counts.values()) - counts.get(OPEN, 0)} verdicts agree"
    means = [(statistics.mean(one.values.values()), one.cell) for one in judged.cells if one.values]
    if means and not counts and "accuracy" in table.measure:
        best, cell = max(means, key=lambda pair: pair[0])
        told = f"{cell.row} ends best, with {best:.1f} %"
    note = "Lines are means over runs, bands reach down to the worst run."
    note += " Thin lines are printed." if counts else ""
    return Picture(f"{table.title}: {told}", panels, TINY if judged.tiny else note)


def _over_columns(judged: Judged, row: str) -> list[Curve]:
    cells = [one for one in judged.cells if one.cell.row == row]
    places = list(zip(judged.table.values, cells, strict=True))
    ours = [(x, [*one.values.values()]) for x, one in places if one.values]
    print_ = [(x, one.cell.printed) for x, one in places if one.cell.printed is not None]
    curves: list[Curve] = []
    if ours:
        xs, values = zip(*ours, strict=True)
        curves.append(Curve(row, xs, [*map(statistics.mean, values)], [*map(min, values)]))
    if print_ and not judged.tiny:
        xs, values = zip(*print_, strict=True)
        curves.append(Curve("", xs, values, plain=True))
    return curves


def _over_rounds(judged: Judged, row: str, column: str) -> list[Curve]:
    """Return accuracy over rounds, epsilon, or messages of one client, of the shortest run."""
    runs = judged.runs.get((row, column), ())
    if not runs:
        return []
    histories = [_evaluations(run.result) for run in runs]
    steps = list(zip(*histories, strict=False))
    messages = statistics.mean(run.result.get("cohort") or 1.0 for run in runs)

    def across(step: Mapping[str, Any]) -> float:
        if judged.table.figure == "messages":
            return step["round"] * messages
        return step.get(judged.table.figure) or math.nan

    values = [[one["accuracy"] for one in step] for step in steps]
    xs = [across(step[0]) for step in steps]
    return [Curve(row, xs, [*map(statistics.mean, values)], [*map(min, values)])]
