"""Errors of workloads against dense matrices, and the searches that make them small."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpacct.correlated import (
    Strategy,
    Workload,
    banded,
    buffered_toeplitz,
    optimized,
    square_root,
    toeplitz,
)
from dpacct.correlated.matrix import inverse_norm_gradient, inverse_norm_squared

Array = NDArray[np.float64]
RATES = tuple(1.0 / (1 + t) for t in range(40))
WORKLOADS = [
    Workload(),
    Workload(momentum=0.9),
    Workload(RATES),
    Workload(RATES, momentum=0.5),
]


def dense(workload: Workload, n: int) -> Array:
    """A by its definition: models after steps with one unit gradient each."""
    rates = workload.learning_rates or (1.0,) * n
    matrix = np.zeros((n, n))
    for s in range(n):
        model = velocity = 0.0
        for t in range(n):
            velocity = workload.momentum * velocity + (s == t)
            model += rates[t] * velocity
            matrix[t, s] = model
    return matrix


@pytest.mark.parametrize("workload", WORKLOADS, ids=repr)
@pytest.mark.parametrize(
    "strategy",
    [
        square_root(40, 6),
        toeplitz([1.0, -0.5, 0.25], 40),
        banded(np.tril(np.triu(np.random.default_rng(3).random((40, 40)), -4)) + np.eye(40)),
    ],
    ids=repr,
)
def test_errors_are_those_of_dense_matrices(strategy, workload):
    expected = np.linalg.norm(dense(workload, 40) @ np.linalg.inv(strategy.matrix()))
    found = strategy.prefix_error(2.0, workload)
    assert found == pytest.approx(2.0 * expected / 40**0.5, rel=1e-11)


@pytest.mark.parametrize(("n", "width"), [(1, 0), (5, 4), (50, 3), (100, 40), (65, 32), (90, 0)])
def test_inverse_norms_and_their_derivatives(n, width):
    rng = np.random.default_rng(n)
    diagonals = rng.random((width + 1, n)) * (np.arange(width + 1)[:, None] < n - np.arange(n))
    diagonals[0] += 1.0
    matrix = Strategy(n, diagonals).matrix()
    value, slope = inverse_norm_gradient(diagonals)
    assert value == pytest.approx((np.linalg.inv(matrix) ** 2).sum(), rel=1e-10)
    assert inverse_norm_squared(diagonals) == pytest.approx(value, rel=1e-12)
    way = rng.normal(size=diagonals.shape) * (diagonals != 0)
    step = 1e-6
    ahead, behind = (inverse_norm_squared(diagonals + s * way) for s in (step, -step))
    assert (ahead - behind) / (2 * step) == pytest.approx((slope * way).sum(), rel=1e-5)


@pytest.mark.parametrize("workload", [WORKLOADS[0], WORKLOADS[3]], ids=repr)
def test_an_optimized_strategy_has_no_better_neighbor(workload):
    found = optimized(40, 5, 8, workload=workload)
    assert found.bands == 5
    assert np.linalg.norm(found.matrix(), axis=0) == pytest.approx(np.ones(40), rel=1e-12)
    assert found.sensitivity(8, 4).upper == pytest.approx(2.0, rel=1e-12)
    best = found.prefix_error(1.0, workload)
    plain = square_root(40, 5).matrix()
    start = banded(plain / np.linalg.norm(plain, axis=0))
    assert best < 0.995 * start.prefix_error(1.0, workload)
    rng = np.random.default_rng(0)
    for _ in range(20):
        near = found.matrix() * (1 + 0.01 * rng.normal(size=(40, 40)))
        near = banded(near / np.linalg.norm(near, axis=0))
        assert near.prefix_error(1.0, workload) > best * (1 - 1e-9)


def test_an_optimized_strategy_knows_its_workload():
    for workload in WORKLOADS[1:]:
        own, other = optimized(40, 5, 8, workload=workload), optimized(40, 5, 8)
        assert own.prefix_error(1.0, workload) < other.prefix_error(1.0, workload)


@pytest.mark.parametrize(("number", "most"), [(1, 1.0), (2, 0.983), (3, 0.983)])
def test_buffers_are_about_as_good_as_bands(number, most):
    """2,000 rounds, separation 100: one buffer beats the 100 bands of the square root."""
    found = buffered_toeplitz(2000, number, min_separation=100, participations=20)
    assert len(found.buffers) == number
    bands = square_root(2000, 100)

    def cost(strategy: Strategy) -> float:
        return strategy.prefix_error(1.0) * strategy.sensitivity(100, 20).upper

    assert cost(found) < most * cost(bands)
    assert found.sensitivity(100, 20).width < 1e-11


def test_buffers_of_a_single_participation():
    """Four buffers come within one percent of the best factorization, about log(n) / pi."""
    found = buffered_toeplitz(1000, 4)
    cost = found.prefix_error(1.0) * found.sensitivity(1000).upper
    root = square_root(1000)
    assert cost < 0.99 * root.prefix_error(1.0) * root.sensitivity(1000).upper


@pytest.mark.slow
def test_the_full_size_search():
    """2,000 rounds, 100 bands: the error is 10 % below that of the square root's bands."""
    found = optimized(2000, 100, 100)
    assert found.prefix_error(1.0) * 20**0.5 == pytest.approx(19.88204, abs=2e-4)
    assert found.sensitivity(100, 20).upper == pytest.approx(20**0.5, rel=1e-12)
