"""Tables and pictures of `normec_beta`, from its runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any

from dpacct import Full, Poisson, Round, Schedule, calibrate, epsilon
from dpacct.display import up
from dpacct.pictures import Curve, Drawing, Level, Panel, Picture
from dpacct.reproduce import Record, Records, spread
from evidence.pages import accuracy_curve, bracket, markdown

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
CHANCE = 15.0  # A run below it, in percent, has not learned ten classes
# Noise, method, beta, gamma. The most decisive runs come first, since a run takes ten minutes.
CELLS: tuple[tuple[str, str, float, float], ...] = (
    ("none", NORMEC, 0.01, 0.1), ("none", NORMEC, 0.1, 0.1), ("printed", NORMEC, 0.01, 0.1),
    ("std on D", NORMEC, 0.01, 0.1), ("epsilon 8", NORMEC, 0.01, 0.1),
    ("none", NORMEC, 0.001, 0.1), ("std on D", NORMEC, 0.1, 0.1), ("none", FEDAVG, 0.1, 0.1),
    ("printed", NORMEC, 0.01, 0.01), ("std on D", NORMEC, 0.1, 0.01),
    ("epsilon 8", NORMEC, 0.01, 0.01), ("std on D", NORMEC, 0.001, 0.1),
)  # fmt: skip


# The accounting. With S = sqrt(T ln(1/delta)) / epsilon, the theory gives each of p N participants
# noise of standard deviation p S on its contribution D. The sum then has z = p S sqrt(p N).
ROUNDS, CLIENTS, DELTA, TARGET = 300, 20, 1e-5, 8.0
SCALE = math.sqrt(ROUNDS * math.log(1 / DELTA)) / TARGET
MODELS = {"small CNN": 3962, "logistic": 7850, "ResNet-20": 272_474}


def plan(noise: float, p: float, adjacency: Any) -> Schedule:
    """Return the rounds of the experiments with a noise multiplier on the sum."""
    return ROUNDS * Round(noise, Full() if p == 1 else Poisson(p), adjacency)


def printed_noise() -> str:
    """Return what the noise of the theory costs, on each participant and once on the sum."""
    rows: list[list[str]] = []
    for p in (1.0, 0.5, 0.25):
        once = p * SCALE
        total, costs, needed = once * math.sqrt(p * CLIENTS), list[str](), list[str]()
        for adjacency in ("add-remove", "replace-one"):
            for noise in (total, once):
                spent = epsilon(plan(noise, p, adjacency), delta=DELTA)
                costs.append(bracket(spent.lower, spent.upper, 4))
            z = needed_noise(p, adjacency)
            needed.append(f"{up(z, 4)} ({z / total:.2f}, {z / once:.2f})")
        rows.append([f"{p:g}", f"{once:.3f}", f"{total:.2f}", *costs, *needed])
    costs = [f"{a}, {noise}" for a in ("add-remove", "replace-one") for noise in ("sum", "once")]
    needed = ["z for 8, add-remove", "z for 8, replace-one"]
    return markdown(["p", "std a client", "z on the sum", *costs, *needed], rows)


def needed_noise(p: float, adjacency: Any) -> float:
    """Return the noise multiplier on the sum that meets the stated epsilon."""
    return calibrate(
        epsilon=TARGET, delta=DELTA, rounds=ROUNDS, sampling=Full() if p == 1 else Poisson(p),
        adjacency=adjacency,
    ).noise_multiplier  # fmt: skip


def readings() -> str:
    """Return noise and proven epsilon of readings of the printed noise, by beta, for p = 1."""
    stds: dict[str, Callable[[float], float]] = {
        "std p S on D (theory)": lambda _: SCALE, "std p S on beta D": lambda beta: SCALE / beta,
        "variance p beta S on beta D": lambda beta: math.sqrt(beta * SCALE) / beta,
        "variance p beta S on D": lambda beta: math.sqrt(beta * SCALE),
        "std p beta S on D": lambda beta: beta * SCALE,
    }  # fmt: skip
    rows: list[list[str]] = []
    for name, std in stds.items():
        levels = [std(beta) * math.sqrt(CLIENTS) for beta in BETAS]
        ends = [epsilon(plan(z, 1, "add-remove"), delta=DELTA).upper for z in levels]
        cells = [(f"{z:.4g}", up(end, 4)) for z, end in zip(levels, ends, strict=True)]
        rows.append([name, *(cell for pair in cells for cell in pair)])
    return markdown(["reading", *(c for b in BETAS for c in (f"z, beta {b:g}", "epsilon"))], rows)


def reach(noise: float, weights: int) -> float:
    """Return the longest push by all clients over the expected path of the noise, for p = 1.

    Each of T contributions has norm 1 and moves all later iterates: a push of T (T + 1) / 2 steps,
    and noise of z / N sqrt(d T (T + 1) (2 T + 1) / 6).
    """
    pushed = math.sqrt(3 * ROUNDS * (ROUNDS + 1) / (2 * (2 * ROUNDS + 1)))
    return CLIENTS / noise * pushed / math.sqrt(weights)


def paths() -> str:
    """Return the reach of each model, and the number of clients with which it is 1."""
    printed, least = SCALE * math.sqrt(CLIENTS), needed_noise(1, "add-remove")
    rows: list[list[str]] = []
    for name, weights in MODELS.items():
        # The noise on the sum grows with the root of the clients as printed, and not at all else.
        ends = [(reach(printed, weights), 2), (reach(least, weights), 1)]
        cells = [(f"{x:.4f}", str(math.ceil(CLIENTS / x**power))) for x, power in ends]
        by_beta = [f"{reach(printed * beta, weights):.2f}" for beta in reversed(BETAS)]
        rows.append([f"{name}, {weights}", *(c for pair in cells for c in pair), *by_beta])
    head = ["printed", "clients for 1", "epsilon 8", "clients for 1", "std on D, beta 0.1"]
    return markdown(["model, weights", *head, "beta 0.01", "beta 0.001"], rows)


def lengths() -> str:
    """Return the longest push in ResNet-20, and the paths of noises, by beta and gamma."""
    grid = [(beta, gamma) for beta in BETAS for gamma in GAMMAS]
    printed, least = SCALE * math.sqrt(CLIENTS), needed_noise(1, "add-remove")
    rows = [["longest push"], ["printed"], ["epsilon 8"], ["std on D"]]
    for beta, gamma in grid:
        push = beta * gamma * ROUNDS * (ROUNDS + 1) / 2
        ratios = [1.0, *(reach(z, MODELS["ResNet-20"]) for z in (printed, least, beta * printed))]
        for row, ratio in zip(rows, ratios, strict=True):
            row.append(f"{push / ratio:.3g}")
    return markdown(["beta, gamma", *(f"{beta:g}, {gamma:g}" for beta, gamma in grid)], rows)


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
    found |= {"printed noise": printed_noise(), "readings": readings()}
    found |= {"paths": paths(), "lengths": lengths()}
    return {**found, "scale": scale_table(records), **grids}


# Noises of the picture with their names, by data.
DRAWN: dict[str, dict[str, str]] = {
    "mnist": {"none": "no noise", "epsilon 8": "epsilon 8", "printed": "printed, epsilon {}"},
    "cifar": {
        "none": "no noise", "std on D": "std on D, epsilon {}", "printed": "printed, epsilon {}",
    },
}  # fmt: skip


def draw_noise(records: Records) -> Drawing:
    """Draw accuracy of NormEC over rounds, each noise at the best beta and gamma of its grid."""
    panels: list[Panel] = []
    for data, noises in DRAWN.items():
        curves: list[Curve] = []
        for noise, name in noises.items():
            gammas = {b: best_gamma(records, data, 20, noise, NORMEC, b) for b in BETAS}
            cells = [setting_of(data, 20, noise, NORMEC, *pair) for pair in gammas.items()]
            best = max(cells, key=lambda cell: fmean(records.values("accuracy", **cell)))
            spent = up(max(records.values("epsilon", **best)), 4)
            runs = [record for record in records if record.matches(**best)]
            label = f"{name.format(spent)} (beta {best['beta']:g})"
            curves.append(accuracy_curve(label, runs))
        title = {"mnist": "MNIST", "cifar": "CIFAR-10"}[data]
        panels.append(Panel("round", f"{title}, 20 clients: test accuracy [%]", curves))
    title = "On MNIST, NormEC reaches 62 % at epsilon 8, and 28 % with the printed noise"
    note = "Small models, add-remove. Each noise at its best beta and gamma of the grid. "
    note += "Lines are means over runs, bands reach down to the worst."
    return Drawing(Picture(title, panels, note))


def draw_beta(records: Records) -> Drawing:
    """Draw the last accuracy of both methods over beta, each at the best gamma of its grid."""
    panels: list[Panel] = []
    for data, clients, noise in (
        ("cifar", 20, "none"), ("mnist", 20, "epsilon 8"), ("mnist", 100, "epsilon 8"),
    ):  # fmt: skip
        curves: list[Curve] = []
        for method, title in TITLES.items():
            ends: list[list[float]] = []
            for beta in BETAS:
                gamma = best_gamma(records, data, clients, noise, method, beta)
                cell = setting_of(data, clients, noise, method, beta, gamma)
                ends.append(records.values("accuracy", **cell))
            curves.append(Curve(title, BETAS, [*map(fmean, ends)], [*map(min, ends)]))
        name = {"cifar": "CIFAR-10", "mnist": "MNIST"}[data]
        words = f"{name}, {clients} clients, {noise.replace('none', 'no noise')}"
        panels.append(Panel("beta", f"{words}: test accuracy [%]", curves, log_x=True))
    title = "A larger beta helps NormEC without noise, and hurts it at epsilon 8"
    note = (
        "Accuracy after 300 rounds, at the best gamma of the grid for each beta. Lines are means "
    )
    return Drawing(Picture(title, panels, f"{note}over runs. Bands reach down to the worst run."))


def draw_scale(records: Records) -> Drawing:
    """Draw accuracy over rounds of every run with ResNet-20. Cells that train have names."""
    curves: list[Curve] = []
    best = 0.0
    for noise, method, beta, gamma in CELLS:
        wanted = {"data": DATA, "noise": noise, "method": method, "beta": beta, "gamma": gamma}
        runs = [record for record in records if record.matches(**wanted)]
        lines = [[row["accuracy"] for row in run.result["history"]] for run in runs]
        rounds = [[float(row["round"]) for row in run.result["history"]] for run in runs]
        ends = [line[-1] for line in lines]
        best = max(best, *ends)
        if fmean(ends) < CHANCE:
            curves += [Curve("", x, y, plain=True) for x, y in zip(rounds, lines, strict=True)]
            continue
        words = "no noise" if noise == "none" else f'"{noise}", not private'
        name = f"{TITLES[method]}, {words}, beta {beta:g}: {fmean(ends):.0f} %"
        high, low = ([of(step) for step in zip(*lines, strict=True)] for of in (max, min))
        curves.append(Curve(name, rounds[0], high, low))
    title = f"At the published scale, no run comes near 70 %: the best ends at {best:.1f} %"
    panel = Panel("round", "test accuracy [%]", curves, levels=[Level(70, "published: about 70 %")])
    note = "ResNet-20 on CIFAR-10, 20 clients. A band reaches from the worse run of a cell to the "
    note += "better one, the figure is their mean. Gray: runs of all other cells, which stay at "
    return Drawing(Picture(title, [panel], f"{note}chance."))


PICTURES = {"noise.png": draw_noise, "picture.png": draw_beta, "scale.png": draw_scale}
