"""The noise that Fed-alpha-NormEC's paper prints, in its readings, and the cost of each.

With S = sqrt(T ln(1/delta)) / epsilon at T = 300, delta = 1e-5, epsilon = 8, and p the rate at
which clients take part, the theory gives each participant a standard deviation of p S on every
coordinate of its normalized contribution D_i, and the experiments name a "variance p beta S". Noise
from participants only is not private under sampling, so here the sum over the cohort gets the
planned amount once: a standard deviation per client of s becomes z = s sqrt(p N).
"""

from __future__ import annotations

import math
from functools import cache

from dpacct import Full, Interval, Poisson, calibrate, epsilon
from dpacct.rounds import AdjacencyName, Sampling
from evidence.pages import markdown

CLIENTS, ROUNDS, DELTA, TARGET = 20, 300, 1e-5, 8.0
RATES = (1.0, 0.5, 0.25)
SCALE = math.sqrt(ROUNDS * math.log(1 / DELTA)) / TARGET
# As good as no noise, for runs that show a method without it. The library's minimum is 0.001. With
# sampling, bounds on such epsilons take seconds, and the runs compute them often.
LEAST, LEAST_SAMPLED = 1e-3, 1e-2
SMALL_CNN, RESNET20 = 3962, 272_474


def per_client(noise: str, *, sampling_rate: float, beta: float) -> float:
    """Return standard deviation on D_i, per coordinate and client, of a reading."""
    printed = sampling_rate * SCALE
    return {
        "printed": printed,
        "std on beta D": printed / beta,
        "variance on beta D": math.sqrt(printed * beta) / beta,
        "variance on D": math.sqrt(printed * beta),
        "std on D": printed * beta,
    }[noise]


def multiplier(noise: str, *, sampling_rate: float, beta: float, clients: int) -> float | None:
    """Return the noise multiplier on the sum over the cohort, or None if a budget decides."""
    if noise == "epsilon 8":
        return None
    if noise == "none":
        return LEAST if sampling_rate == 1 else LEAST_SAMPLED
    reading = noise.removesuffix(", louder")
    deviation = per_client(reading, sampling_rate=sampling_rate, beta=beta)
    if reading != noise:
        # As long a vector of noise in the small CNN as the reading gives ResNet-20.
        deviation *= math.sqrt(RESNET20 / SMALL_CNN)
    return deviation * math.sqrt(sampling_rate * clients)


def sampling_of(rate: float) -> Sampling:
    """Return full participation, or Poisson cohorts."""
    return Full() if rate == 1 else Poisson(rate)


def cost(noise_multiplier: float, rate: float, adjacency: AdjacencyName = "add-remove") -> Interval:
    """Return achieved and proven epsilon of 300 rounds."""
    return epsilon(
        noise_multiplier=noise_multiplier,
        rounds=ROUNDS,
        sampling=sampling_of(rate),
        delta=DELTA,
        adjacency=adjacency,
    )


@cache
def needed(rate: float, adjacency: AdjacencyName) -> float:
    """Return noise multiplier on the sum that epsilon 8 takes."""
    found = calibrate(
        epsilon=TARGET,
        delta=DELTA,
        rounds=ROUNDS,
        sampling=sampling_of(rate),
        adjacency=adjacency,
    )
    return found.noise_multiplier or math.inf


def _bracket(spent: Interval) -> str:
    return f"[{spent.lower:.2f}, {spent.upper:.2f}]"


def noise_tables() -> dict[str, str]:
    """Return the cost of the printed noise and its readings, and their path for the signal."""
    printed: list[list[str]] = []
    for rate in RATES:
        deviation = per_client("printed", sampling_rate=rate, beta=1.0)
        total = deviation * math.sqrt(rate * CLIENTS)
        row = [f"{rate:g}", f"{deviation:.3f}", f"{total:.2f}"]
        for adjacency in ("add-remove", "replace-one"):
            row += [_bracket(cost(z, rate, adjacency)) for z in (total, deviation)]
        for adjacency in ("add-remove", "replace-one"):
            need = needed(rate, adjacency)
            row.append(f"{need:.2f} ({need / total:.2f}, {need / deviation:.2f})")
        printed.append(row)
    readings: list[list[str]] = []
    titles = {
        "printed": "std p S on D (theory)",
        "std on beta D": "std p S on beta D",
        "variance on beta D": "variance p beta S on beta D",
        "variance on D": "variance p beta S on D",
        "std on D": "std p beta S on D",
    }
    for noise, title in titles.items():
        row = [title]
        for beta in (0.001, 0.01, 0.1):
            z = multiplier(noise, sampling_rate=1.0, beta=beta, clients=CLIENTS) or 0.0
            row += [f"{z:.4g}", f"{cost(z, 1.0).upper:.4g}"]
        readings.append(row)
    paths: list[list[str]] = []
    for size, model in ((SMALL_CNN, "small CNN"), (7850, "logistic"), (RESNET20, "ResNet-20")):
        row = [f"{model}, {size}"]
        # The printed sum has more noise with more clients, that for epsilon 8 has not.
        for z, growth in ((SCALE * math.sqrt(CLIENTS), 0.5), (needed(1.0, "add-remove"), 1.0)):
            ratio = path_ratio(CLIENTS, z, size)
            row += [f"{ratio:.4f}", f"{math.ceil(CLIENTS * ratio ** (-1 / growth))}"]
        for beta in (0.1, 0.01, 0.001):
            z = multiplier("std on D", sampling_rate=1.0, beta=beta, clients=CLIENTS) or 0.0
            row.append(f"{path_ratio(CLIENTS, z, size):.2f}")
        paths.append(row)
    header = ["p", "std a client", "z on the sum", "add-remove, sum", "add-remove, once"]
    header += ["replace-one, sum", "replace-one, once", "z for 8, add-remove"]
    header.append("z for 8, replace-one")
    by_beta = ["reading"]
    for beta in (0.001, 0.01, 0.1):
        by_beta += [f"z, beta {beta:g}", "epsilon"]
    ratios = ["model, weights", "printed", "clients for 1", "epsilon 8", "clients for 1"]
    ratios += ["std on D, beta 0.1", "beta 0.01", "beta 0.001"]
    return {
        "printed noise": markdown(header, printed),
        "readings": markdown(by_beta, readings),
        "paths": markdown(ratios, paths),
        "lengths": lengths_table(),
    }


def path_ratio(clients: int, noise_multiplier: float, size: int) -> float:
    """Return the longest path of contributions / expected length of the noise's path.

    This is for NormEC after T rounds of full participation, at every beta and server rate.
    """
    return longest_push(1.0) / noise_path(1.0, clients, noise_multiplier, size)


def longest_push(step: float) -> float:
    """Return eta beta T (T + 1) / 2: all clients push in one direction, and no memory is ever full.

    Args:
        step: eta beta, the server rate times the rate of the memories.
    """
    return step * ROUNDS * (ROUNDS + 1) / 2


def noise_path(step: float, clients: int, noise_multiplier: float, size: int) -> float:
    """Return the root mean square distance by noise alone, for ``size`` weights in T rounds.

    The noise of round t is in the server's memory for T - t + 1 rounds, so that this is
    eta beta (z / N) sqrt(d T (T + 1) (2 T + 1) / 6).
    """
    repeated = math.sqrt(size * ROUNDS * (ROUNDS + 1) * (2 * ROUNDS + 1) / 6)
    return step * noise_multiplier / clients * repeated


def lengths_table() -> str:
    """Return the largest distances of ResNet-20 by contributions and by noise, over the grid."""
    betas, gammas = (0.001, 0.01, 0.1), (0.001, 0.01, 0.1)
    cells = [(beta, gamma) for beta in betas for gamma in gammas]
    rows = [["longest push", *(f"{longest_push(beta * gamma):.3g}" for beta, gamma in cells)]]
    for noise in ("printed", "epsilon 8", "std on D"):
        row = [noise]
        for beta, gamma in cells:
            z = multiplier(noise, sampling_rate=1.0, beta=beta, clients=CLIENTS)
            z = needed(1.0, "add-remove") if z is None else z
            row.append(f"{noise_path(beta * gamma, CLIENTS, z, RESNET20):.3g}")
        rows.append(row)
    return markdown(["beta, gamma", *(f"{beta:g}, {gamma:g}" for beta, gamma in cells)], rows)
