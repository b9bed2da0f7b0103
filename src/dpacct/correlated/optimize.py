"""Strategies that minimize the error of a workload at a given privacy cost.

* `optimized`: any matrix with b bands. Its columns have norm 1, so that k participations at least b
  rounds apart have the sensitivity sqrt(k). Only |A C^{-1}| is left to minimize, over all entries,
  with exact derivatives (`matrix`).
* `buffered_toeplitz`: c_j = sum_i a_i d_i^{j-1} with few buffers, of which a server keeps one row
  each. It minimizes sens |A C^{-1}| for running sums.

Source: Choquette-Choo et al. 2023 (arXiv:2306.08153), section 4; McMahan, Xu, Zhang 2024
(arXiv:2408.08868).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import numpy as np

from dpacct import validate
from dpacct.correlated.matrix import (
    MAX_ROUNDS,
    LowerTriangular,
    Workload,
    as_workload,
    banded_product,
    inverse_norm_gradient,
)
from dpacct.correlated.sensitivity import bound_sensitivity, check_participation
from dpacct.correlated.strategy import Strategy, from_buffers, square_root
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import Array, Numbers

_MOST_PARAMETERS = 5 * 10**6
_ITERATIONS, _MAX_BUFFERS, _STEP = 200, 16, 1e-5
# Relative changes of the error at which the searches end.
_TOLERANCE, _BUFFER_TOLERANCE = 1e-8, 1e-9


def optimized(
    rounds: int,
    bands: int,
    min_separation: int,
    *,
    workload: Workload | None = None,
    iterations: int = _ITERATIONS,
) -> Strategy:
    """Return the strategy with ``bands`` bands and columns of norm 1 of least error.

    Args:
        rounds: the number of rounds.
        bands: the number of diagonals, at most the separation.
        min_separation: two participations of one client are at least this many rounds apart.
        workload: learning rates and momentum of the server. Default: running sums.
        iterations: the most steps of the search.
    Returns:
        The strategy. Its sensitivity is sqrt(participations).
    Raises:
        InvalidParameter: a value out of range.
    """
    n = validate.count("rounds", rounds, "the number of rounds", MAX_ROUNDS)
    separation, _ = check_participation(n, min_separation, None)
    width = validate.count("bands", bands, "the number of bands", n)
    steps = validate.count("iterations", iterations, "the number of iterations", 10**6)
    if width > separation:
        rule = f"bands within a separation of {separation} have no rows in common"
        raise InvalidParameter("bands", width, rule, "Use at most as many bands.")
    if width * n > _MOST_PARAMETERS:
        rule = f"a search has at most {_MOST_PARAMETERS:.0e} entries, and {n} rounds are many"
        raise InvalidParameter("bands", width, rule, "Use fewer bands, or square_root.")
    inverse = as_workload(workload).inverse(n)
    inside = np.arange(width)[:, None] < n - np.arange(n)

    def normalized(values: Array) -> tuple[Array, Array]:
        entries = np.where(inside, values.reshape(width, n), 0.0)
        norms = np.sqrt((entries**2).sum(axis=0))
        return entries / norms, norms

    def objective(values: Array) -> tuple[float, Array]:
        entries, norms = normalized(values)
        value, by_product = inverse_norm_gradient(banded_product(entries, inverse))
        slope = np.zeros_like(entries)
        for j in range(min(len(inverse), n)):
            for offset in range(min(width, len(by_product) - j)):
                # The product has the terms C_{i+j+offset,i+j} R_{i+j,i}, see `banded_product`.
                slope[offset, j:] += by_product[j + offset, : n - j] * inverse[j, : n - j]
        slope = np.where(inside, slope, 0.0)
        # Only the part along the unit sphere changes the normalized column.
        slope = (slope - entries * (slope * entries).sum(axis=0)) / norms
        return float(np.log(value)), (slope / value).ravel()

    start = np.repeat(square_root(n, width).diagonals[:, None], n, axis=1)
    options = {"maxiter": steps, "maxfun": 2 * steps, "ftol": _TOLERANCE}
    _, best = _search(objective, normalized(start)[0].ravel(), jac=True, options=options)
    entries, _ = normalized(best)
    # The sign of a row changes neither |A C^{-1}| nor the columns' norms.
    signs = np.sign(entries[0])
    for j in range(width):
        entries[j, : n - j] *= signs[j:]
    return Strategy(n, entries, name="optimized")


def buffered_toeplitz(
    rounds: int,
    buffers: int | Numbers,
    *,
    min_separation: int | None = None,
    participations: int | None = None,
) -> Strategy:
    """Return a buffered Toeplitz strategy, whose noise needs one row of memory for each buffer.

    Args:
        rounds: the number of rounds n.
        buffers: pairs (scale a_i, decay d_i in [0, 1)) with c_j = sum_i a_i d_i^{j-1}. Or the
            number of buffers, which are then chosen for the least error of running sums.
        min_separation: for a number of buffers, the least number of rounds between two
            participations of one client. Default: all rounds, a single participation.
        participations: for a number of buffers, the most participations of one client.
    Raises:
        InvalidParameter: a value out of range, or a separation without a number of buffers.
    Source: Dvijotham et al. 2024 (arXiv:2404.16706); McMahan, Xu, Zhang 2024 (arXiv:2408.08868).
    """
    if not isinstance(buffers, int) or isinstance(buffers, bool):
        for name, value in {
            "min_separation": min_separation,
            "participations": participations,
        }.items():
            if value is not None:
                rule = "these buffers are given, and nothing is left to optimize"
                raise InvalidParameter(name, value, rule, "Give the number of buffers.")
        return from_buffers(rounds, cast("Numbers", buffers))
    n = validate.count("rounds", rounds, "the number of rounds", MAX_ROUNDS)
    number = validate.count("buffers", buffers, "the number of buffers", _MAX_BUFFERS)
    separation = n if min_separation is None else min_separation
    b, k = check_participation(n, separation, participations)

    def pairs(values: Array) -> Array:
        """Return positive scales that add up to less than 1, and decays: c_j does not increase."""
        grown = np.exp(values[:number])
        return np.stack([grown / (1 + grown.sum()), 1 / (1 + np.exp(-values[number:]))], axis=1)

    def objective(values: Array) -> float:
        each = pairs(values)
        powers = each[:, 1, None] ** np.arange(n - 1)
        column = np.concatenate([[1.0], each[:, 0] @ powers])
        norm = bound_sensitivity(LowerTriangular(n, column), b, k).upper
        sums = np.cumsum(_inverse_series(each, n))
        return float(np.log(norm) + 0.5 * np.log(sums**2 @ np.arange(n, 0, -1)))

    limits = [(-30.0, 10.0)] * number + [(-10.0, 30.0)] * number
    # Central differences: the error of the objective, about 1e-12, does not stop the search.
    options = {"maxiter": _ITERATIONS, "ftol": _BUFFER_TOLERANCE, "finite_diff_rel_step": _STEP}
    lengths = {float(b), float(n), math.sqrt(b * n)}
    starts = [_like_square_root(number, longest) for longest in sorted(lengths)]
    best = min(
        (_search(objective, x, jac="3-point", bounds=limits, options=options) for x in starts),
        key=lambda reached: reached[0],
    )
    ordered = sorted(pairs(best[1]).tolist(), key=lambda pair: pair[1])
    return from_buffers(n, [(scale, decay) for scale, decay in ordered])


def _search(function: Callable[[Array], Any], start: Array, **settings: Any) -> tuple[float, Array]:
    """Return the least value of a function that L-BFGS reaches, and its argument."""
    # A fifth of a second of every start, and scipy brings no types.
    optimize = cast("Any", import_module("scipy.optimize"))
    least = optimize.minimize(function, start, method="L-BFGS-B", **settings)
    return float(least.fun), least.x


def _like_square_root(number: int, longest: float) -> Array:
    """Return logarithms of scales and odds of decays, so that c_j falls like 1 / sqrt(j).

    The lifetimes lie between 1 and ``longest`` rounds. The scales fall with their roots.
    """
    lifetimes = np.geomspace(1.0, max(longest, 2.0), number + 1)[1:]
    scales = 1 / np.sqrt(lifetimes)
    return np.concatenate([np.log(scales / scales.sum()), -np.log(np.expm1(1 / lifetimes))])


def _inverse_series(buffers: Array, rounds: int) -> Array:
    """Return the first column of C^{-1}: c(x) is the ratio of two polynomials of the buffers."""
    below = np.ones(1)
    for decay in buffers[:, 1]:
        below = np.convolve(below, [1.0, -decay])
    over = below.copy()
    for i, (scale, _) in enumerate(buffers):
        others = np.ones(1)
        for decay in np.delete(buffers[:, 1], i):
            others = np.convolve(others, [1.0, -decay])
        over[1:] += scale * others
    impulse = np.zeros(rounds)
    impulse[0] = 1.0
    return cast("Any", import_module("scipy.signal")).lfilter(below, over, impulse)
