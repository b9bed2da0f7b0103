"""Pictures of the runs of `cifar_methods`: accuracy, norms of updates, and the loss around models.

``python -m evidence.pictures.play FOLDER --models MODELS``. FOLDER holds CIFAR-10, MODELS the
weights that ``cifar_methods FOLDER --models MODELS`` left. Losses are those of 1000 training
images, the first of the data set. There are 10 random directions, filter-normalized. The largest
eigenvalue of the Hessian takes 30 steps of power iteration. Without ``--models``, tables and
pictures are made from the recorded figures.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dpacct import fl
from evidence.cifar_methods import play as cifar_methods
from evidence.cifar_methods.play import cifar, cross_entropy, model_file, network
from evidence.cifar_methods.settings import PICTURED
from evidence.pages import EVIDENCE, add_into, home, markdown, put_tables
from evidence.pictures.landscape import largest_curvature, losses_on_lines, losses_on_plane
from evidence.records import Record, Records, Setting, spread

PAGE, RUNS = "pictures/README.md", "pictures/runs.jsonl"
IMAGES, DIRECTIONS, ITERATIONS = 1000, 10, 30
ON_THE_WAY = (10, 20, 30)
LENGTHS = tuple(round(0.25 * step, 2) for step in range(-4, 5))
PLANE = tuple(round(step / 6, 4) for step in range(-6, 7))


def trained_runs(folder: Path = EVIDENCE) -> Records:
    """Return the runs that the pictures show."""
    return Records(folder / cifar_methods.RUNS)


def around(folder: str, models: Path, setting: Setting) -> dict[str, Any]:
    """Return the loss around one trained model, for one run of each method also in a plane."""
    model = network()
    file = models / model_file(setting, int(setting["round"] or 0))
    model.load_state_dict(torch.load(file, weights_only=True))
    model.eval()
    examples = cifar(folder)[1]
    data = fl.ClientData(examples.inputs[:IMAGES], examples.targets[:IMAGES])
    found: dict[str, Any] = {
        "loss": round(fl.evaluate(model, cross_entropy, data).loss, 4),
        "lines": losses_on_lines(
            model, cross_entropy, data, lengths=LENGTHS, directions=DIRECTIONS
        ),
        "curvature": round(largest_curvature(model, cross_entropy, data, iterations=ITERATIONS), 3),
        "weights": round(sum(float((p.detach() ** 2).sum()) for p in model.parameters()) ** 0.5, 3),
    }
    if setting["plane"]:
        found["plane"] = losses_on_plane(model, cross_entropy, data, lengths=PLANE)
    return found


def wanted() -> list[Setting]:
    """Return the models at the end of the main runs, and earlier DP-FedPGN ones of the last run."""
    found: list[Setting] = []
    for record in trained_runs():
        if not record.matches(role="main") or record.setting["method"] not in PICTURED:
            continue
        watched = record.matches(method="dp-fedpgn", concentration=0.6, run=1)
        found += [
            {
                "role": "around",
                "method": record.setting["method"],
                "concentration": record.setting["concentration"],
                "run": record.setting["run"],
                "round": number,
                "plane": record.matches(run=0, concentration=0.6),
            }
            for number in ((*ON_THE_WAY, 40) if watched else (40,))
        ]
    return found


def tables(records: Records) -> dict[str, str]:
    """Return the tables of the page."""
    return {
        "norms": _norms(),
        "sharpness 0.6": _sharpness(records, 0.6),
        "sharpness 0.1": _sharpness(records, 0.1),
        "on the way": _on_the_way(records),
    }


def _norms() -> str:
    rows: list[list[str]] = []
    for concentration in (0.6, 0.1):
        for method in PICTURED:
            own = [
                record
                for record in trained_runs()
                if record.matches(role="main", method=method, concentration=concentration)
            ]
            if own:
                clip = own[0].setting["clip_norm"]
                cells = [_norm_cells(own, when, clip) for when in ("norms_early", "norms_late")]
                rows.append(
                    [f"`{method}`", f"{concentration:g}", f"{clip:g}", *cells[0], *cells[1]]
                )
    columns = ["median norm", "over C", "clipped"]
    header = ["method", "Dirichlet", "C", *(f"early: {name}" for name in columns)]
    return markdown([*header, *(f"late: {name}" for name in columns)], rows)


def _norm_cells(runs: Sequence[Record], when: str, clip: float) -> list[str]:
    norms = [norm for record in runs for norm in record.result[when]]
    middle = statistics.median(norms)
    clipped = statistics.mean(norm > clip for norm in norms)
    return [f"{middle:.2f}", f"{middle / clip:.2f}", f"{100 * clipped:.0f} %"]


def increases(result: dict[str, Any], length: float) -> list[float]:
    """Return loss at this distance less loss at the model, mean of both signs, per direction."""
    far = [LENGTHS.index(-length), LENGTHS.index(length)]
    return [
        statistics.mean(line[place] for place in far) - result["loss"] for line in result["lines"]
    ]


def _around(name: str, results: Sequence[dict[str, Any]]) -> list[str]:
    rises = [
        spread([rise for result in results for rise in increases(result, length)])
        for length in (0.25, 0.5, 1.0)
    ]
    rest = [spread([result[key] for result in results]) for key in ("curvature", "weights")]
    return [name, spread([result["loss"] for result in results]), *rises, *rest]


AROUND = (
    "training loss",
    "rise at 0.25",
    "rise at 0.5",
    "rise at 1",
    "largest eigenvalue",
    "norm of the weights",
)


def _sharpness(records: Records, concentration: float) -> str:
    rows: list[list[str]] = []
    for method in PICTURED:
        wanted = {"method": method, "concentration": concentration, "round": 40}
        own = [record.result for record in records if record.matches(**wanted)]
        if own:
            rows.append(_around(f"`{method}`", own))
    return markdown(["method", *AROUND], rows)


def _on_the_way(records: Records) -> str:
    rows: list[list[str]] = []
    wanted = [("dp-fedpgn", number) for number in (*ON_THE_WAY, 40)] + [("dp-fedavg", 40)]
    for method, number in wanted:
        where = {"method": method, "concentration": 0.6, "run": 1, "round": number}
        own = [record.result for record in records if record.matches(**where)]
        if own:
            rows.append(_around(f"`{method}`, round {number}", own))
    return markdown(["run 1", *AROUND], rows)


def main() -> None:
    """Look around the models that are new, then write tables and pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="")
    parser.add_argument("--models", type=Path)
    add_into(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = home(given.into, PAGE)
    records = Records(folder / RUNS)
    if given.models is not None:
        records.need(wanted(), partial(around, given.folder, given.models))
    put_tables(folder / PAGE, tables(records))
    from evidence.pictures.drawn import draw  # noqa: PLC0415 - it needs matplotlib

    draw(folder, trained_runs(folder), records, methods=PICTURED, lengths=LENGTHS, plane=PLANE)


if __name__ == "__main__":
    main()
