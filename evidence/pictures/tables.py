"""Tables and pictures of `pictures`: norms of updates, and the loss around models."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from dpacct.pictures import Curve, Drawing, Panel, Picture
from dpacct.reproduce import Record, Records, spread
from evidence.pages import EVIDENCE, accuracy_curve, markdown

PICTURED = ("dp-fedavg", "dp-fedsam", "dp-fedpgn", "dp-fedpgn-ls")
ON_THE_WAY = (10, 20, 30)
LENGTHS = tuple(round(0.25 * step, 2) for step in range(-4, 5))
AROUND = (
    "training loss", "rise at 0.25", "rise at 0.5", "rise at 1", "largest eigenvalue",
    "norm of the weights",
)  # fmt: skip


def trained_runs() -> Records:
    """Return the runs that the pictures show."""
    return Records(EVIDENCE / "cifar_methods" / "runs.jsonl")


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


LED = ("dp-fedpgn", "dp-fedavg", "dp-fedsam", "fed-smp-topk")
SCALE = "CIFAR-10, a CNN of 10,986 weights (papers: ResNets), 3 runs"


def _panels(x: str, y: str, curves: Callable[[float], Iterable[Curve]]) -> tuple[Panel, ...]:
    """Return a panel for each partition."""
    skews = {0.6: "label ratios Dirichlet(0.6)", 0.1: "label ratios Dirichlet(0.1), more skewed"}
    return tuple(
        Panel(x, f"{words}: {y}", tuple(curves(skew)), from_zero=False)
        for skew, words in skews.items()
    )


def draw_accuracy(_: Records) -> Drawing:
    """Draw accuracy over epsilon, a line for each of four methods."""

    def curves(skew: float) -> Iterable[Curve]:
        for method in LED:
            wanted = {"role": "main", "method": method, "concentration": skew}
            own = [one for one in trained_runs() if one.matches(**wanted)]
            yield accuracy_curve(method, own, "epsilon")

    title = "DP-FedPGN leads DP-FedAvg by 2 to 3 points; DP-FedSAM and top-k trail it"
    panels = _panels("epsilon spent, proven", "test accuracy [%]", curves)
    return Drawing(Picture(title, panels, f"{SCALE}. Bands reach down to the worst run."))


def draw_norms(_: Records) -> Drawing:
    """Draw the share of late updates above a length, in lengths of the clip norm."""
    places = [step / 20 for step in range(10, 51)]

    def curves(skew: float) -> Iterable[Curve]:
        for method in PICTURED[:3]:
            wanted = {"role": "main", "method": method, "concentration": skew}
            own = [one for one in trained_runs() if one.matches(**wanted)]
            norms = [n / r.setting["clip_norm"] for r in own for n in r.result["norms_late"]]
            shares = [100 * statistics.mean(norm > place for norm in norms) for place in places]
            yield Curve(method, places, shares)

    title = "Nearly all late updates are clipped, and DP-FedSAM's are not shorter"
    panels = _panels("length / clip norm", "longer updates [%]", curves)
    return Drawing(Picture(title, panels, f"{SCALE}, rounds 38 to 40. Beyond 1, clipped."))


def draw_lines(records: Records) -> Drawing:
    """Draw the mean rise of the loss along random directions."""

    def curves(skew: float) -> Iterable[Curve]:
        for method in PICTURED[:3]:
            wanted = {"method": method, "concentration": skew, "round": 40}
            own = [one.result for one in records if one.matches(**wanted)]
            lines = [[v - r["loss"] for v in line] for r in own for line in r["lines"]]
            yield Curve(method, LENGTHS, [*map(statistics.mean, zip(*lines, strict=True))])

    title = "DP-FedSAM is a little flatter than DP-FedAvg, DP-FedPGN sharper"
    panels = _panels("distance, in lengths of the filters", "rise of the training loss", curves)
    return Drawing(Picture(title, panels, f"{SCALE}, means over 10 directions."))


@dataclass(frozen=True)
class Planes:
    """Contours of the rise of the loss in one plane, for each method."""

    records: Records

    def save(self, path: Path, *, replace: bool) -> None:
        """Draw to a file, over one that is there."""
        if path.exists() and not replace:
            raise FileExistsError(path)
        figure: Any = import_module("matplotlib.figure").Figure(
            figsize=(7.2, 7.0), dpi=110, layout="constrained"
        )
        levels = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
        for axes, method in zip(
            figure.subplots(2, 2, sharex=True, sharey=True).flat, PICTURED, strict=True
        ):
            (own,) = (one.result for one in self.records if one.matches(method=method, plane=True))
            rise = [[value - own["loss"] for value in row] for row in own["plane"]]
            ends = [2 * step / (len(rise) - 1) - 1 for step in range(len(rise))]
            lines = axes.contour(ends, ends, rise, levels, colors="#0072B2", linewidths=1.4)
            axes.clabel(lines, fmt="%g", fontsize=9, colors="#1c1c1c")
            axes.plot([0], [0], "+", color="#1c1c1c", markersize=9)
            axes.set_title(method, loc="left", fontsize=10.5)
            axes.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], aspect="equal")
        figure.supxlabel(
            "distance along the first direction, in lengths of the filters", fontsize=10
        )
        figure.supylabel("distance along the second direction", fontsize=10)
        title = "Rise of the training loss: the valleys of DP-FedPGN are narrower"
        figure.suptitle(title, x=0.012, ha="left", fontsize=11.5, fontweight="bold")
        figure.savefig(path)


PICTURES = {
    "accuracy.png": draw_accuracy, "norms.png": draw_norms, "lines.png": draw_lines,
    "planes.png": Planes,
}  # fmt: skip
