"""What `cifar_methods` tries for each method, what its runs chose, and the tables made of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.evidence.pages import markdown
from benchmarks.evidence.records import Record, Records, spread

CONCENTRATIONS = (0.1, 0.6)
START: dict[str, Any] = {
    "epsilon": 8.0,
    "rounds": 40,
    "clip_norm": 0.2,
    "lr": 0.1,
    "server_lr": 1.0,
    "options": "",
}
BY_NORM = ("fed-alpha-normec", "alpha-normec", "fedavg-smoothed")

# Changes to what DP-FedAvg was found to want; clip_factor multiplies its clip norm.
GRID: dict[str, list[dict[str, Any]]] = {
    "dp-fedavg": [
        {"lr": lr, "clip_norm": clip}
        for lr, clips in (
            (0.05, (0.1, 0.2, 0.4)),
            (0.1, (0.1, 0.2, 0.4)),
            (0.2, (0.4, 0.8)),
            (0.3, (1.2,)),
        )
        for clip in clips
    ],
    "blur": [{"options": "penalty=1"}, {"options": "penalty=4"}],
    "blurs": [{"options": "penalty=1, fraction=0.4"}],
    "fed-smp-randk": [{"options": "fraction=0.4", "clip_factor": 0.632}],
    "fed-smp-topk": [{"options": "fraction=0.4", "clip_factor": 0.632}],
    "dp-fedsam": [{"options": "rho=0.5"}, {"options": "rho=0.05"}],
    "dp-fedsam-topk": [{"options": "rho=0.05, fraction=0.4"}],
    "dp-fedpgn": [
        {"options": "rho=0.2, beta=0.3", "clip_factor": 0.3},
        {"options": "rho=0.05, beta=0.5", "clip_factor": 0.5},
    ],
    "dp-fedpgn-ls": [
        {"options": "rho=0.05, beta=0.5, smoothing=0.01", "clip_factor": 0.5},
        {"options": "rho=0.05, beta=0.5, smoothing=1", "clip_factor": 0.5},
    ],
    "dp-fed-ls": [{"options": "smoothing=0.5"}, {"options": "smoothing=2"}],
    "fed-alpha-normec": [
        {"options": "beta=0.1", "server_lr": 0.2},
        {"options": "beta=0.1", "server_lr": 0.5},
    ],
    "alpha-normec": [
        {"options": "beta=0.1", "server_lr": 6.0, "rounds": 6},
        {"options": "beta=1", "server_lr": 0.6, "rounds": 6},
    ],
    "fedavg-smoothed": [{"options": "beta=0.8"}],
}

# Accuracy in percent on CIFAR-10. DP-FedPGN, tables II (ResNet-10) and III (ResNet-18), Dirichlet
# 0.1 and 0.6; DP-FedSAM, journal version, table I, Dirichlet 0.6.
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


def best(records: Records, method: str) -> Record | None:
    """The most accurate run of a method's grid, the first of equals."""
    found = [record for record in records if record.matches(role="grid", method=method)]
    return max(found, key=lambda record: record.result["accuracy"], default=None)


def tuned(records: Records, method: str) -> dict[str, Any]:
    """What the grid chose for a method; where there is one setting only, that one.

    Raises:
        SystemExit: its grid has not been played.
    """
    found = best(records, method)
    if found is not None:
        return {name: found.setting[name] for name in START}
    if len(GRID[method]) > 1:
        raise SystemExit(f"the grid of {method} comes first")
    return changed_from(tuned(records, "dp-fedavg"), GRID[method][0])


def changed_from(base: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """A setting of the grid, in which the clip factor has become a clip norm."""
    clip = round(changed.get("clip_factor", 1.0) * base["clip_norm"], 4)
    own = {name: value for name, value in changed.items() if name != "clip_factor"}
    return {**base, "clip_norm": clip, **own}


def all_tables(records: Records) -> dict[str, str]:
    """Every table of the page, by name."""
    return {
        "tuning": _tuning(records),
        "accuracy": _accuracy(records),
        "published": _published(records),
        "ablation": _ablation(records),
        "time": _time(records),
    }


def accuracies(records: Records, method: str, concentration: float) -> dict[int, float]:
    """Final accuracy of the main runs, by run number."""
    return {
        record.setting["run"]: record.result["accuracy"]
        for record in records
        if record.matches(role="main", method=method, concentration=concentration)
    }


def gains(records: Records, method: str, concentration: float) -> list[float]:
    """Accuracy over that of DP-FedAvg with the same partition and starting weights."""
    base = accuracies(records, "dp-fedavg", concentration)
    own = accuracies(records, method, concentration)
    return [own[run] - base[run] for run in sorted(own) if run in base]


def pooled_deviation(records: Records) -> float:
    """Standard deviation of a paired difference, pooled over methods and partitions."""
    squares, freedom = 0.0, 0
    for method in GRID:
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
    for method in GRID:
        found = [record for record in records if record.matches(role="grid", method=method)]
        found.sort(key=lambda record: -record.result["accuracy"])
        name = f"`{method}`"
        if not found:
            rows.append([name, "1", _wording({"method": method, **tuned(records, method)}), "-"])
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
    for method in GRID:
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
    return markdown(
        [
            "method",
            "here 0.1",
            "here 0.6",
            "ResNet-10 0.1",
            "ResNet-10 0.6",
            "ResNet-18 0.1",
            "ResNet-18 0.6",
            "ResNet-18 0.6 (DP-FedSAM's paper)",
        ],
        rows,
    )


def _ablation(records: Records) -> str:
    rows: list[list[str]] = []
    for name, wanted in (
        ("`dp-fedavg`", {"role": "main", "method": "dp-fedavg"}),
        ("`dp-fedpgn` with rho=0", {"role": "ablation", "method": "dp-fedpgn"}),
        ("`dp-fedpgn`", {"role": "main", "method": "dp-fedpgn"}),
    ):
        cells = [
            spread(records.values("accuracy", run=0, concentration=concentration, **wanted))
            for concentration in CONCENTRATIONS
        ]
        rows.append([name, *cells])
    return markdown(["run 0 of", "Dirichlet 0.1", "Dirichlet 0.6"], rows)


def _relative(values: Sequence[float], base: Sequence[float]) -> list[str]:
    if not values or not base:
        return ["-", "-"]
    middle = statistics.median(values)
    return [f"{middle:.2f}", f"{middle / statistics.median(base):.2f}"]


def _time(records: Records) -> str:
    turns = [record.result for record in records if record.matches(role="time")]
    alone = {m: records.values("seconds_per_round", role="main", method=m) for m in GRID}
    rows: list[list[str]] = []
    for method in GRID:
        in_turn = _relative([turn[method] for turn in turns], [turn["dp-fedavg"] for turn in turns])
        in_runs = _relative(alone[method], alone["dp-fedavg"])
        rows.append([f"`{method}`", *in_turn, *in_runs])
    return markdown(["method", "in turn: s", "relative", "in the runs: s", "relative"], rows)
