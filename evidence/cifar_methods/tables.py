"""The tables of `cifar_methods`, from its runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from dpacct.reproduce import Records, spread
from evidence.pages import markdown

CONCENTRATIONS = (0.1, 0.6)
SMALLER = (2.0, 4.0)
BUDGETED = ("dp-fedavg", "dp-fed-ls", "dp-fedsam", "dp-fedpgn")
BY_NORM = ("fed-alpha-normec", "alpha-normec", "fedavg-smoothed")
# Accuracy in percent on CIFAR-10. DP-FedPGN, tables II (ResNet-10) and III (ResNet-18), Dirichlet
# 0.1 and 0.6. DP-FedSAM, journal version, table I, Dirichlet 0.6.
PUBLISHED: Mapping[str, tuple[float | None, ...]] = {
    "dp-fedavg": (45.53, 56.47, 38.69, 53.86, 50.05),
    "blur": (45.84, 56.31, 39.85, 54.19, 51.05),
    "blurs": (None, None, None, None, 54.11),
    "fed-smp-randk": (None, None, None, None, 51.33),
    "fed-smp-topk": (45.19, 55.28, 39.44, 54.17, 54.11),
    "dp-fedsam": (38.41, 45.90, 30.07, 44.50, 54.14),
    "dp-fedsam-topk": (None, None, None, None, 57.00),
    "dp-fedpgn": (58.46, 70.98, 53.37, 69.39, None),
    "dp-fedpgn-ls": (61.80, 70.95, 55.63, 70.72, None),
    "dp-fed-ls": (46.61, 56.20, 39.33, 54.09, None),
}
PARTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("`dp-fedavg`", {"role": "main", "method": "dp-fedavg"}),
    ("`dp-fedpgn`", {"role": "main", "method": "dp-fedpgn"}),
    ("`dp-fedpgn` with rho = 0", {"role": "ablation", "method": "dp-fedpgn"}),
    ("`dp-fedavg`, momentum on the server", {"role": "ablation", "method": "dp-fedavg"}),
    ("`fedcm`", {"role": "ablation", "method": "fedcm"}),
)

METHODS = (
    "dp-fedavg", "blur", "blurs", "fed-smp-randk", "fed-smp-topk", "dp-fedsam", "dp-fedsam-topk",
    "dp-fedpgn", "dp-fedpgn-ls", "dp-fed-ls", "fed-alpha-normec", "alpha-normec",
    "fedavg-smoothed",
)  # fmt: skip


def tables(records: Records) -> dict[str, str]:
    """Return every table of the page, by name."""
    parts = _tuning, _accuracy, _published, _budget, _ablation, _time
    return {part.__name__[1:]: part(records) for part in parts}


def accuracies(records: Records, method: str, concentration: float) -> dict[int, float]:
    """Return final accuracy of the main runs, by run number."""
    return _by_run(records, role="main", method=method, concentration=concentration)


def _by_run(records: Records, **wanted: Any) -> dict[int, float]:
    return {
        record.setting["run"]: record.result["accuracy"]
        for record in records
        if record.matches(**wanted)
    }


def gains(records: Records, method: str, concentration: float) -> list[float]:
    """Return accuracy over that of DP-FedAvg with the same partition and starting weights."""
    base = accuracies(records, "dp-fedavg", concentration)
    own = accuracies(records, method, concentration)
    return [own[run] - base[run] for run in sorted(own) if run in base]


def pooled_deviation(records: Records) -> float:
    """Return standard deviation of a paired difference, pooled over methods and partitions."""
    squares, freedom = 0.0, 0
    for method in METHODS:
        for concentration in CONCENTRATIONS:
            found = gains(records, method, concentration)
            if method != "dp-fedavg" and len(found) > 1:
                squares += statistics.variance(found) * (len(found) - 1)
                freedom += len(found) - 1
    return math.sqrt(squares / freedom) if freedom else math.nan


def _gain(records: Records, method: str, concentration: float) -> str:
    found = gains(records, method, concentration)
    if not found or method == "dp-fedavg":
        return "-"
    error = pooled_deviation(records) / math.sqrt(len(found))
    mean = f"{statistics.mean(found):+.1f}"
    return mean if math.isnan(error) else f"{mean} ±{error:.1f}"


def _wording(setting: Mapping[str, Any]) -> str:
    words = [str(setting["options"])] if setting["options"] else []
    if setting["method"] not in BY_NORM:
        words.append(f"C={setting['clip_norm']:g}")
    if setting["server_lr"] != 1:
        words.append(f"server rate {setting['server_lr']:g}")
    if setting["method"] not in BY_NORM[:2]:
        words.append(f"rate {setting['lr']:g}")
    return ", ".join([*words, f"{setting['rounds']} rounds"] if setting["rounds"] != 40 else words)


def _tuning(records: Records) -> str:
    rows: list[list[str]] = []
    for method in METHODS:
        found = [record for record in records if record.matches(role="grid", method=method)]
        found.sort(key=lambda record: -record.result["accuracy"])
        name = f"`{method}`"
        if not found:
            # A single setting was not tried beside others.
            own = next(record for record in records if record.matches(role="main", method=method))
            rows.append([name, "1", _wording(own.setting), "-"])
            continue
        words = [f"{_wording(r.setting)}: {r.result['accuracy']:.1f}" for r in found]
        rows.append([name, str(len(found)), f"**{words[0]}**", "; ".join(words[1:]) or "-"])
    return markdown(["method", "settings tried", "chosen", "others"], rows)


def _last(records: Records, method: str, concentration: float, name: str) -> str:
    found = [
        record.result["history"][-1][name]
        for record in records
        if record.matches(role="main", method=method, concentration=concentration)
    ]
    return f"{statistics.mean(found):.2f}" if found else "-"


def _accuracy(records: Records) -> str:
    rows: list[list[str]] = []
    for method in METHODS:
        row = [f"`{method}`"]
        for concentration in CONCENTRATIONS:
            own = list(accuracies(records, method, concentration).values())
            row += [spread(own), _gain(records, method, concentration)]
        free = method in (*BY_NORM, "dp-fed-ls")
        row.append(_last(records, method, 0.6, "norm_median"))
        row.append("-" if free else _last(records, method, 0.6, "clipped"))
        row.append(_last(records, method, 0.6, "signal_to_noise"))
        rows.append(row)
    header = ["method", "Dirichlet 0.1", "over `dp-fedavg`", "Dirichlet 0.6", "over `dp-fedavg`"]
    return markdown([*header, "median norm", "clipped", "signal to noise"], rows)


def _published(records: Records) -> str:
    rows: list[list[str]] = []
    base = PUBLISHED["dp-fedavg"]
    for method, printed in PUBLISHED.items():
        if method == "dp-fedavg":
            continue
        over = [
            "-" if own is None or first is None else f"{own - first:+.1f}"
            for own, first in zip(printed, base, strict=True)
        ]
        here = [_gain(records, method, concentration) for concentration in CONCENTRATIONS]
        rows.append([f"`{method}`", *here, *over])
    printed = [f"ResNet-{depth} {share}" for depth in (10, 18) for share in (0.1, 0.6)]
    header = ["method", "here 0.1", "here 0.6", *printed, "ResNet-18 0.6 (DP-FedSAM's paper)"]
    return markdown(header, rows)


def _budget(records: Records) -> str:
    """Return accuracy at smaller epsilons, runs 0 and 1."""
    rows: list[list[str]] = []
    for method in BUDGETED:
        cells = [
            spread(records.values("accuracy", role="budget", method=method, epsilon=epsilon))
            for epsilon in SMALLER
        ]
        main = accuracies(records, method, 0.6)
        cells.append(spread([main[run] for run in (0, 1) if run in main]))
        rows.append([f"`{method}`", *cells])
    return markdown(["method", *(f"{epsilon:g}" for epsilon in SMALLER), "8"], rows)


def _ablation(records: Records) -> str:
    """Return parts of DP-FedPGN, and their gains over DP-FedAvg in the same runs."""
    deviation = pooled_deviation(records)
    rows: list[list[str]] = []
    for name, wanted in PARTS:
        cells: list[str] = []
        everywhere: list[float] = []
        for concentration in CONCENTRATIONS:
            own = _by_run(records, concentration=concentration, **wanted)
            base = accuracies(records, "dp-fedavg", concentration)
            found = [own[run] - base[run] for run in sorted(own) if run in base]
            everywhere += found
            cells += [spread(list(own.values())), _over(found, deviation)]
        rows.append([name, *cells, _over(everywhere, deviation)])
    rows[0][2] = rows[0][4] = rows[0][5] = "-"
    header = ["", "Dirichlet 0.1", "over `dp-fedavg`", "Dirichlet 0.6", "over `dp-fedavg`"]
    return markdown([*header, "over it in both"], rows)


def _over(found: Sequence[float], deviation: float) -> str:
    """Return a mean difference with its standard error."""
    if not found:
        return "-"
    return f"{statistics.mean(found):+.1f} ±{deviation / math.sqrt(len(found)):.1f}"


def _relative(values: Sequence[float], base: Sequence[float]) -> list[str]:
    if not values or not base:
        return ["-", "-"]
    middle = statistics.median(values)
    return [f"{middle:.2f}", f"{middle / statistics.median(base):.2f}"]


def _time(records: Records) -> str:
    turns = [record.result for record in records if record.matches(role="time")]
    alone = {m: records.values("seconds_per_round", role="main", method=m) for m in METHODS}
    rows: list[list[str]] = []
    for method in METHODS:
        in_turn = _relative([turn[method] for turn in turns], [turn["dp-fedavg"] for turn in turns])
        in_runs = _relative(alone[method], alone["dp-fedavg"])
        rows.append([f"`{method}`", *in_turn, *in_runs])
    return markdown(["method", "in turn: s", "relative", "in the runs: s", "relative"], rows)
