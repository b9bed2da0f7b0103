"""The tables of `longer_training`, from its runs."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from dpacct.pictures import Drawing, Panel, Picture
from dpacct.reproduce import Record, Records, spread
from evidence.natural_clients.tables import difference
from evidence.pages import accuracy_curve, bracket, markdown

EVERY = 10


class Claim(NamedTuple):
    """A claim, and the setting that all its methods share, the baseline first."""

    title: str
    population: int
    cohort: int
    noise_multiplier: float
    delta: float
    rounds: int
    methods: tuple[str, ...]


CLAIMS = {
    "smoothing": Claim(
        "DP-Fed-LS: smoothing pays late", 2000, 100, 2.4, 2000**-1.1, 200,
        ("projected", "projected, smoothed", "clipped once", "clipped once, smoothed"),
    ),
    "sam": Claim(
        "DP-FedSAM: many local steps", 500, 50, 0.95, 1 / 500, 30,
        ("rho 0", "rho 0.1", "rho 0.5", "adaptive, rho 0.5"),
    ),
}  # fmt: skip


def of(records: Records, name: str, method: str) -> list[Record]:
    """Return the runs of one method."""
    return [record for record in records if record.matches(claim=name, method=method)]


def accuracies(runs: list[Record], after: int) -> dict[int, float]:
    """Return accuracy after a round, by the number of the run."""
    return {
        record.setting["run"]: row["accuracy"]
        for record in runs
        for row in record.result["history"]
        if row["round"] == after
    }


def looks(claim: Claim) -> list[int]:
    """Return the rounds of the table: early, half-way and at the end, if evaluated."""
    parts = [round(claim.rounds * share / EVERY) * EVERY for share in (0.1, 0.3, 0.5, 0.7)]
    return sorted({*(part for part in parts if part), claim.rounds})


def tables(records: Records) -> dict[str, str]:
    """Return the tables of the page, from the recorded runs alone."""
    found = {"cost": _cost_table(records), "ceiling": _ceiling_table(records)}
    found["left"] = _left_table(records)
    for name, claim in CLAIMS.items():
        found[name] = _accuracy_table(records, name, claim)
    return found


def _cost_table(records: Records) -> str:
    rows: list[list[str]] = []
    for name, claim in CLAIMS.items():
        ends = [record.result for record in records if record.matches(claim=name)]
        # Alike but for the accountant that was there: they share noise, cohorts and rounds.
        worst = max(ends, key=lambda end: end["epsilon"])
        rows.append(
            [
                claim.title,
                f"{claim.cohort} of {claim.population}",
                str(claim.rounds),
                f"{claim.noise_multiplier:g}",
                f"{claim.delta:.3g}",
                bracket(worst["epsilon_achieved"], worst["epsilon"]),
            ]
        )
    header = ["claim", "cohort", "rounds", "z", "delta", "[achieved, proven] epsilon"]
    return markdown(header, rows)


def _ceiling_table(records: Records) -> str:
    after = looks(CLAIMS["smoothing"])
    rows = [
        [record.setting["method"], *(f"{accuracies([record], one)[0]:.2f}" for one in after)]
        for record in records
        if record.matches(ceiling="smoothing")
    ]
    return markdown(["almost no noise", *(f"round {one}" for one in after)], rows)


def _left_table(records: Records) -> str:
    moments = {"start": "starting weights", "trained": "after 400 steps without noise"}
    rows = [
        [words, *(f"{one:.2f}" for one in records.values(key, quantity="left"))]
        for key, words in moments.items()
    ]
    runs = [f"run {record.setting['run']}" for record in records if record.matches(quantity="left")]
    return markdown(["progress that smoothing leaves", *runs], rows)


def _accuracy_table(records: Records, name: str, claim: Claim) -> str:
    rows: list[list[str]] = []
    first = next(iter(claim.methods))
    for method in claim.methods:
        runs = of(records, name, method)
        row = [method, str(len(runs))]
        row += [spread(list(accuracies(runs, after).values())) for after in looks(claim)]
        for after in (looks(claim)[0], claim.rounds):
            base = accuracies(of(records, name, first), after)
            told = difference(accuracies(runs, after), base, paired=True)
            row.append("-" if method == first else told)
        last = [record.result["history"][-1] for record in runs]
        for key, form in (("norm_median", ".2f"), ("clipped", ".0%"), ("signal_to_noise", ".3f")):
            row.append(format(statistics.mean(one[key] for one in last), form) if last else "-")
        rows.append(row)
    header = ["method", "runs", *(f"round {after}" for after in looks(claim))]
    header += [f"over {first}, round {after}" for after in (looks(claim)[0], claim.rounds)]
    return markdown([*header, "median norm", "clipped", "signal to noise"], rows)


def draw(records: Records) -> Drawing:
    """Draw accuracy over rounds, a line for each method of both claims."""
    panels: list[Panel] = []
    for name, claim in CLAIMS.items():
        curves = [accuracy_curve(method, of(records, name, method)) for method in claim.methods]
        label = f'claim "{claim.title}": test accuracy [%]'
        panels.append(Panel("round", label, curves, from_zero=False))
    title = "Smoothing costs 4 to 6 points in every round; plain SAM with rho 0.5 fails"
    return Drawing(
        Picture(title, panels, "Lines are means over runs, bands reach to the worst run.")
    )


PICTURES = {"picture.png": draw}
