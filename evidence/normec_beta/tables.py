"""Tables and pictures of `normec_beta`, from its runs."""

from __future__ import annotations

from typing import Any

from dpacct.display import up
from dpacct.reproduce import Record, Records, spread
from evidence.pages import markdown

BETAS = (0.001, 0.01, 0.1)
GAMMAS = (0.001, 0.01, 0.1)
NORMEC, FEDAVG = "fed-alpha-normec", "fedavg-smoothed"
TITLES = {NORMEC: "NormEC", FEDAVG: "FedAvg"}
# Data, clients, noise, methods: whole grids, in the order in which they are played.
GRIDS: tuple[tuple[str, int, str, tuple[str, ...]], ...] = (
    ("cifar", 20, "none", (NORMEC, FEDAVG)),
    ("mnist", 20, "none", (NORMEC, FEDAVG)),
    ("mnist", 20, "epsilon 8", (NORMEC, FEDAVG)),
    ("mnist", 100, "epsilon 8", (NORMEC, FEDAVG)),
    ("mnist", 20, "printed", (NORMEC,)),
    ("cifar", 20, "std on D", (NORMEC,)),
    ("cifar", 20, "std on D, louder", (NORMEC,)),
    ("cifar", 20, "printed", (NORMEC,)),
)
# With fewer participants: data, clients, noise, method, beta.
PARTIAL = (
    ("cifar", 20, "none", NORMEC, 0.01),
    ("mnist", 100, "epsilon 8", NORMEC, 0.01),
)
# MNIST with pixels from 0 to 1, in two cells that are best with standardized pixels.
UNIT = "mnist, pixels 0 to 1"
PIXELS = ((NORMEC, 0.001, 0.1), (FEDAVG, 0.1, 0.1))
DATA = "cifar32"
# Noise, method, beta, gamma. The most decisive runs come first, since a run takes ten minutes.
CELLS: tuple[tuple[str, str, float, float], ...] = (
    ("none", NORMEC, 0.01, 0.1), ("none", NORMEC, 0.1, 0.1), ("printed", NORMEC, 0.01, 0.1),
    ("std on D", NORMEC, 0.01, 0.1), ("epsilon 8", NORMEC, 0.01, 0.1),
    ("none", NORMEC, 0.001, 0.1), ("std on D", NORMEC, 0.1, 0.1), ("none", FEDAVG, 0.1, 0.1),
    ("printed", NORMEC, 0.01, 0.01), ("std on D", NORMEC, 0.1, 0.01),
    ("epsilon 8", NORMEC, 0.01, 0.01), ("std on D", NORMEC, 0.001, 0.1),
)  # fmt: skip


def pixel_table(records: Records) -> str:
    """Return final accuracy of these cells with both scales of the pixels."""
    rows: list[list[str]] = []
    for method, beta, gamma in PIXELS:
        cells = [setting_of(d, 100, "epsilon 8", method, beta, gamma) for d in ("mnist", UNIT)]
        shown = [spread(records.values("accuracy", **cell)) for cell in cells]
        rows.append([TITLES[method], f"{beta:g}", *shown])
    return markdown(["method", "beta", "standardized", "from 0 to 1"], rows)


def best_gamma(
    records: Records, data: str, clients: int, noise: str, method: str, beta: float
) -> float:
    """Return the gamma of the published grid with the best end of its first run."""
    seen = {
        record.setting["gamma"]: record.result["accuracy"]
        for record in records
        if record.setting["gamma"] in GAMMAS
        and record.matches(data=data, clients=clients, noise=noise, method=method, beta=beta)
        and record.matches(run=1, sampling_rate=1.0)
    }
    return max(seen, key=lambda gamma: seen[gamma])


def grid_table(records: Records, data: str, clients: int, noise: str) -> str:
    """Return final accuracy of a whole grid, with the spread where there are several runs."""
    rows: list[list[str]] = []
    for method, title in TITLES.items():
        for beta in BETAS:
            wanted: dict[str, Any] = {"data": data, "clients": clients, "noise": noise}
            wanted |= {"method": method, "beta": beta, "sampling_rate": 1.0}
            epsilons = records.values("epsilon", **wanted)
            if not epsilons:
                continue
            cells = [
                spread(records.values("accuracy", gamma=gamma, **wanted))
                for gamma in (0.001, 0.01, 0.1, 1.0, 10.0)
            ]
            rows.append([f"{title}, {beta:g}", *cells, up(max(epsilons), 4)])
    return markdown(["method, beta", "0.001", "0.01", "gamma 0.1", "1", "10", "epsilon"], rows)


def best_table(records: Records) -> str:
    """Return accuracy with the best gamma of the published grid, for every beta."""
    rows: list[list[str]] = []
    for data, clients, noise, methods in GRIDS:
        for method in methods:
            row = [f"{data}, {clients}", noise, TITLES[method]]
            for beta in BETAS:
                gamma = best_gamma(records, data, clients, noise, method, beta)
                found = records.values(
                    "accuracy",
                    **setting_of(data, clients, noise, method, beta, gamma),
                )
                row.append(f"{spread(found)} ({gamma:g})")
            rows.append(row)
    return markdown(["data, clients", "noise", "method", *(f"beta {b:g}" for b in BETAS)], rows)


def setting_of(
    data: str, clients: int, noise: str, method: str, beta: float, gamma: float, p: float = 1.0
) -> dict[str, Any]:
    """Return the settings that all runs of a cell share."""
    return {
        "data": data, "clients": clients, "sampling_rate": p, "noise": noise, "method": method,
        "beta": beta, "gamma": gamma, **({"epsilon": 8.0} if noise == "epsilon 8" else {}),
    }  # fmt: skip


def reached(records: Records, level: float, wanted: dict[str, Any]) -> int | None:
    """Return first recorded round at which a run is at a level."""
    for record in records:
        if record.matches(**wanted):
            rounds = [row["round"] for row in record.result["history"] if row["accuracy"] >= level]
            return int(min(rounds)) if rounds else None
    return None


def partial_table(records: Records) -> str:
    """Return rounds and messages to nine tenths of full participation's result in 300 rounds."""
    rows: list[list[str]] = []
    for data, clients, noise, method, beta in PARTIAL:
        gamma = best_gamma(records, data, clients, noise, method, beta)
        cell = (data, clients, noise, method, beta, gamma)
        level = 0.9 * max(records.values("accuracy", run=1, **setting_of(*cell)))
        for p in (1.0, 0.5, 0.25):
            wanted = {"run": 1, **setting_of(*cell, p)}
            first = reached(records, level, wanted)
            epsilons = records.values("epsilon", **wanted)
            rows.append(
                [
                    f"{data}, {clients}, {noise}",
                    f"{TITLES[method]}, {beta:g}, {gamma:g}",
                    f"{p:g}",
                    spread(records.values("accuracy", **wanted)),
                    f"{level:.1f}",
                    "not reached" if first is None else str(first),
                    "-" if first is None else f"{first * p * clients:.0f}",
                    up(max(epsilons), 4),
                ]
            )
    header = ["data, clients, noise", "method, beta, gamma", "p", "accuracy", "level", "round"]
    return markdown([*header, "messages", "epsilon"], rows)


def scale_table(records: Records) -> str:
    """Return one row a run: its accuracy at the end, at its best, and its cost."""
    rows = [
        _row(record)
        for noise, method, beta, gamma in CELLS
        for record in sorted(
            (
                record
                for record in records
                if record.matches(data=DATA, noise=noise, method=method, beta=beta, gamma=gamma)
            ),
            key=lambda record: record.setting["run"],
        )
    ]
    header = ["noise", "method", "beta", "gamma", "run", "z", "epsilon", "rounds", "at the end"]
    return markdown([*header, "best seen", "norm of weights"], rows)


def _row(record: Record) -> list[str]:
    wanted, found = record.setting, record.result
    best = max(found["history"], key=lambda row: row["accuracy"])
    ended = found["history"][-1]["round"]
    return [
        wanted["noise"], TITLES[wanted["method"]], f"{wanted['beta']:g}", f"{wanted['gamma']:g}",
        str(wanted["run"]), f"{found['noise_multiplier']:.4g}", up(found["epsilon"], 4),
        f"{ended}, given up" if "rounds" in found else str(ended), f"{found['accuracy']:.2f}",
        f"{best['accuracy']:.2f} ({best['round']})", f"{found['norm']:.4g}",
    ]  # fmt: skip


def tables(records: Records) -> dict[str, str]:
    """Return the page's tables."""
    grids = {
        f"{data} {clients} {noise}": grid_table(records, data, clients, noise)
        for data, clients, noise, _ in GRIDS
    }
    found = {"best": best_table(records), "partial": partial_table(records)}
    found["pixels"] = pixel_table(records)
    return {**found, "scale": scale_table(records), **grids}
