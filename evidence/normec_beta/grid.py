"""Which runs the page on NormEC is made of, and the tables that they give."""

from __future__ import annotations

from typing import Any

from dpacct.display import up
from evidence.pages import markdown
from evidence.records import Records, Setting, spread

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
# Runs of the best gamma of each beta, where more than one.
REPEATED = {
    ("mnist", 20, "epsilon 8"): 3,
    ("mnist", 100, "epsilon 8"): 2,
    ("mnist", 20, "printed"): 3,
    ("cifar", 20, "std on D"): 2,
    ("cifar", 20, "none"): 2,
}
# With fewer participants: data, clients, noise, method, beta.
PARTIAL = (
    ("cifar", 20, "none", NORMEC, 0.01),
    ("mnist", 100, "epsilon 8", NORMEC, 0.01),
)
# MNIST with pixels from 0 to 1, in two cells that are best with standardized pixels.
UNIT = "mnist, pixels 0 to 1"
PIXELS = ((NORMEC, 0.001, 0.1), (FEDAVG, 0.1, 0.1))
# Rates beyond the published grid, at one beta: rates that the grid excludes.
WIDER = {NORMEC: ((0.001, 1.0), (0.1, 1.0)), FEDAVG: ((0.1, 1.0), (0.1, 10.0))}
# Cells in which a method does not move the model, or the noise alone moves it far, are not run:
# FedAvg moves it by at most gamma beta 300, here 0.03.
LEAST_PRODUCT, LARGEST_PRODUCT_IF_LOUD = 0.9e-4, 1.1e-4
# Cells that are behind with 20 clients, not run with 100.
SLOW_AND_BEHIND = {
    NORMEC: ((0.001, 1.0), (0.1, 1.0)),
    FEDAVG: ((0.01, 0.01), (0.1, 0.001), (0.1, 10.0)),
}


def setting(
    data: str,
    clients: int,
    noise: str,
    method: str,
    beta: float,
    gamma: float,
    sampling_rate: float = 1.0,
    run: int = 1,
) -> dict[str, str | int | float]:
    """Return one run, with a target if the noise is calibrated for it."""
    found: dict[str, str | int | float] = {
        "data": data,
        "clients": clients,
        "sampling_rate": sampling_rate,
        "noise": noise,
        "method": method,
        "beta": beta,
        "gamma": gamma,
        "run": run,
    }
    return found | ({"epsilon": 8.0} if noise == "epsilon 8" else {})


def pairs_of(data: str, clients: int, noise: str, method: str) -> list[tuple[float, float]]:
    """Return betas with gammas: the published grid, and wider rates if they matter."""
    pairs = [(beta, gamma) for beta in BETAS for gamma in reversed(GAMMAS)]
    if method == FEDAVG or noise.startswith("std on D"):
        pairs = [(beta, gamma) for beta, gamma in pairs if beta * gamma > LEAST_PRODUCT]
    elif data == "cifar" and noise == "printed":
        low, high = LEAST_PRODUCT / 10, LARGEST_PRODUCT_IF_LOUD
        pairs = [(beta, gamma) for beta, gamma in pairs if low < beta * gamma < high]
    pairs += list(WIDER[method] if noise in ("none", "epsilon 8") else ())
    slow = SLOW_AND_BEHIND[method] if clients == 100 else ()
    return [pair for pair in pairs if pair not in slow]


def grid_settings(records: Records) -> list[Setting]:
    """Return whole grids of beta and gamma, and wider rates, once each."""
    del records
    return [
        setting(data, clients, noise, method, beta, gamma)
        for data, clients, noise, methods in GRIDS
        for method in methods
        for beta, gamma in pairs_of(data, clients, noise, method)
    ]


def repeated_settings(records: Records) -> list[Setting]:
    """Return the best gamma of every beta again, with fresh noise, shares and starting weights."""
    methods = {(data, clients, noise): known for data, clients, noise, known in GRIDS}
    found: list[Setting] = []
    for (data, clients, noise), count in REPEATED.items():
        for method in methods[data, clients, noise]:
            for beta in BETAS:
                gamma = best_gamma(records, data, clients, noise, method, beta)
                cell = (data, clients, noise, method, beta, gamma)
                found += [setting(*cell, run=run) for run in range(2, count + 1)]
    return found


def partial_settings(records: Records) -> list[Setting]:
    """Return fewer participants, at the gammas that are best for full participation."""
    found: list[Setting] = []
    for data, clients, noise, method, beta in PARTIAL:
        gamma = best_gamma(records, data, clients, noise, method, beta)
        found += [setting(data, clients, noise, method, beta, gamma, p) for p in (0.5, 0.25)]
    return found


def pixel_settings(records: Records) -> list[Setting]:
    """Return two cells again, with pixels from 0 to 1."""
    del records
    return [
        setting(UNIT, 100, "epsilon 8", method, beta, gamma, run=run)
        for run in (1, 2)
        for method, beta, gamma in PIXELS
    ]


def pixel_table(records: Records) -> str:
    """Return final accuracy of these cells with both scales of the pixels."""
    rows = [
        [
            TITLES[method],
            f"{beta:g}",
            *(
                spread(
                    records.values(
                        "accuracy",
                        data=data, clients=100, noise="epsilon 8", sampling_rate=1.0,
                        method=method, beta=beta, gamma=gamma,
                    )
                )
                for data in ("mnist", UNIT)
            ),
        ]
        for method, beta, gamma in PIXELS
    ]  # fmt: skip
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
        name: value
        for name, value in setting(data, clients, noise, method, beta, gamma, p).items()
        if name != "run"
    }


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
