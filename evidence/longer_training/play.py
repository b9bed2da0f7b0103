"""The gain of smoothing in many rounds, and of SAM with many local steps, in a small network.

``python -m evidence.longer_training.play FOLDER [--part I/N] [--only CLAIM|others|page]`` with
Fashion-MNIST in the folder. Client-level privacy, uniform cohorts, replace-one. Noise, clip norm
and local training as printed, see `evidence.longer_training.runs`. No seed: each run is private.
"""

from __future__ import annotations

import argparse
import statistics
from importlib import import_module
from pathlib import Path
from typing import Any

from evidence.longer_training.runs import CLAIMS, EVERY, Claim, others, play, settings
from evidence.natural_clients.play import difference
from evidence.pages import add_into, bracket, home, markdown, put_tables
from evidence.records import Record, Records, spread
from evidence.strokes import stroke

PAGE, RUNS = "longer_training/README.md", "longer_training/runs.jsonl"
PICTURE = "longer_training/picture.png"
# What the panels show.
FINDINGS = {
    "smoothing": "Smoothing costs 4 to 6 points",
    "sam": "Only plain SAM with rho 0.5 fails",
}


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


def draw(records: Records, file: Path) -> None:
    """Draw accuracy over rounds: means, with bars from the lowest to the highest run."""
    # An extra that only the picture needs.
    figure: Any = import_module("matplotlib.figure").Figure(
        figsize=(11, 4.6), layout="constrained", dpi=110
    )
    for axes, (name, claim) in zip(figure.subplots(1, len(CLAIMS)), CLAIMS.items(), strict=True):
        for place, method in enumerate(claim.methods):
            runs = of(records, name, method)
            if not runs:
                continue
            history = [[row["accuracy"] for row in run.result["history"]] for run in runs]
            rounds = [row["round"] for row in runs[0].result["history"]]
            # Side by side, so that bars are distinct.
            shifted = [after + claim.rounds / 150 * (place - 1) for after in rounds]
            columns = list(zip(*history, strict=True))
            style = stroke(place)
            axes.plot(shifted, list(map(statistics.mean, columns)), **style, label=method)
            lowest, highest = list(map(min, columns)), list(map(max, columns))
            axes.vlines(shifted, lowest, highest, color=style["color"], linewidth=1)
        axes.set(xlabel="round", ylabel="test accuracy [%]", title=FINDINGS[name])
        axes.grid(alpha=0.3)
        axes.legend(fontsize=9, loc="lower right")
    figure.savefig(file)


def main() -> None:
    """Run the missing settings, then write the tables and the picture."""
    reading = argparse.ArgumentParser(description=__doc__)
    reading.add_argument("folder", type=Path)
    reading.add_argument("--part", default="1/1", help="I/N: every N-th run, from the I-th on")
    reading.add_argument(
        "--only", choices=(*CLAIMS, "others", "page"), help="one step, not all of them"
    )
    add_into(reading)
    told = reading.parse_args()
    index, count = (int(word) for word in told.part.split("/"))
    folder = home(told.into, PAGE)
    records = Records(folder / RUNS, (index - 1, count))
    for name in CLAIMS:
        if told.only in (None, name):
            records.need(settings(name), lambda setting: play(setting, told.folder))
    if told.only in (None, "others"):
        records.need(others(), lambda setting: play(setting, told.folder))
    if told.only in (None, "page"):
        put_tables(folder / PAGE, tables(records))
        draw(records, folder / PICTURE)


if __name__ == "__main__":
    main()
