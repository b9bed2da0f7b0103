"""The settings of `cifar_methods`: the grid of each method, its choice, and the final runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evidence.records import Record, Records, Setting

CONCENTRATIONS = (0.1, 0.6)
SMALLER = (2.0, 4.0)
BUDGETED = ("dp-fedavg", "dp-fed-ls", "dp-fedsam", "dp-fedpgn")
START: dict[str, Any] = {
    "epsilon": 8.0,
    "rounds": 40,
    "clip_norm": 0.2,
    "lr": 0.1,
    "server_lr": 1.0,
    "options": "",
}
BY_NORM = ("fed-alpha-normec", "alpha-normec", "fedavg-smoothed")
PICTURED = ("dp-fedavg", "dp-fedsam", "dp-fedpgn", "dp-fedpgn-ls")

# Changes to the best setting of DP-FedAvg. clip_factor multiplies its clip norm.
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


def best(records: Records, method: str) -> Record | None:
    """Return the most accurate run of a method's grid, the first of equals."""
    found = [record for record in records if record.matches(role="grid", method=method)]
    return max(found, key=lambda record: record.result["accuracy"], default=None)


def tuned(records: Records, method: str) -> dict[str, Any]:
    """Return the grid's choice for a method, or its only setting.

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
    """Return a setting of the grid, in which the clip factor has become a clip norm."""
    clip = round(changed.get("clip_factor", 1.0) * base["clip_norm"], 4)
    own = {name: value for name, value in changed.items() if name != "clip_factor"}
    return {**base, "clip_norm": clip, **own}


def grid(records: Records) -> list[Setting]:
    """Return the tuning: DP-FedAvg alone first, then methods with a choice, at its rates."""
    first = best(records, "dp-fedavg")
    base = START if first is None else {name: first.setting[name] for name in START}
    where = {"concentration": 0.6, "run": 100}
    return [
        {"role": "grid", "method": method, **where, **changed_from(base, changed)}
        for method, changes in GRID.items()
        for changed in changes
        if len(changes) > 1
    ]


def main_runs(records: Records, run: int) -> list[Setting]:
    """Return all methods in both partitions, with the grid's choices. The pictured ones first."""
    others = tuple(method for method in GRID if method not in PICTURED)
    return [
        {"role": "main", "method": m, "concentration": c, "run": run, **tuned(records, m)}
        for methods in (PICTURED, others)
        for c in CONCENTRATIONS
        for m in methods
    ]


def ablation_runs(records: Records, run: int) -> list[Setting]:
    """Return the parts of DP-FedPGN, one at a time, in both partitions.

    First, without perturbation. Second, with its momentum on the server alone, at a server rate
    that moves the model as far and carries as much noise. Third, with momentum along the local
    path (FedCM), where the public part is bounded together with the rest.
    """
    found = tuned(records, "dp-fedpgn")
    _, beta = str(found["options"]).split(", ")
    share = float(beta.removeprefix("beta="))
    base = tuned(records, "dp-fedavg")
    parts: dict[str, dict[str, Any]] = {
        "dp-fedpgn": {**found, "options": f"rho=0, {beta}"},
        "dp-fedavg": {**base, "server_lr": share, "momentum": 1 - share},
        "fedcm": {**base, "options": f"alpha={share:g}"},
    }
    return [
        {"role": "ablation", "method": m, "concentration": c, "run": run, **changed}
        for m, changed in parts.items()
        for c in CONCENTRATIONS
    ]


def sam_runs(records: Records, run: int) -> list[Setting]:
    """Return DP-FedSAM at the published radius, adaptive as its authors' code runs it."""
    setting = {**tuned(records, "dp-fedsam"), "options": "rho=0.5, adaptive=True"}
    where = {"role": "sam", "method": "dp-fedsam", "concentration": 0.6, "run": run}
    return [{**where, **setting}]


def pgn_runs(records: Records, run: int) -> list[Setting]:
    """Return DP-FedPGN as its authors' code runs it: local momentum 0.5 and no perturbation.

    At the tuned learning rate, and at half of it, with which a client walks about as far.
    """
    found = tuned(records, "dp-fedpgn")
    _, beta = str(found["options"]).split(", ")
    where = {"role": "pgn", "method": "dp-fedpgn", "concentration": 0.6, "run": run}
    changed = {"options": f"rho=0, {beta}", "local_momentum": 0.5}
    return [{**where, **found, **changed, "lr": share * float(found["lr"])} for share in (1.0, 0.5)]


def budget_runs(records: Records) -> list[Setting]:
    """Return smaller epsilons at 0.6, with the grid's choices at epsilon 8."""
    return [
        {
            "role": "budget",
            "method": m,
            "concentration": 0.6,
            "run": run,
            **tuned(records, m),
            "epsilon": epsilon,
        }
        for run in range(2)
        for epsilon in SMALLER
        for m in BUDGETED
    ]
