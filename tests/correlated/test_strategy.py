"""Strategies as values, and the rows of their noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpacct import Poisson, Uniform
from dpacct.correlated import (
    Correlated,
    Strategy,
    Workload,
    banded,
    buffered_toeplitz,
    independent,
    optimized,
    square_root,
    toeplitz,
)
from dpacct.errors import InvalidParameter

BUFFERS = [(0.3, 0.9), (0.1, 0.5)]
STRATEGIES = [
    independent(9),
    square_root(9),
    square_root(9, 4),
    buffered_toeplitz(9, BUFFERS),
    toeplitz([2.0, 0.5, -0.25], 9),
    banded(np.tril(np.random.default_rng(1).random((9, 9))) + np.eye(9)),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_rows_of_noise_are_those_of_the_inverse(strategy):
    fresh = np.random.default_rng(0).normal(size=(9, 3))
    expected = np.linalg.solve(strategy.matrix(), fresh)
    memory: tuple[Any, ...] = ()
    for t in range(9):
        row, memory = strategy.noise_row(t, fresh[t], memory)
        assert row == pytest.approx(expected[t], abs=1e-12)
        assert len(memory) <= strategy.memory


def test_numbers_serve_as_rows_too():
    strategy = square_root(3)
    first, memory = strategy.noise_row(0, 1.0)
    second, memory = strategy.noise_row(1, 1.0, memory)
    assert (first, second) == (1.0, 0.5)
    assert memory == (0.5, 1.0)


def test_buffers_need_one_row_each():
    strategy = buffered_toeplitz(1000, BUFFERS)
    assert strategy.bands == 1000
    assert strategy.memory == 2
    assert square_root(1000, 8).memory == 7
    assert independent(1000).memory == 0


def test_rows_and_columns_are_those_of_the_matrix():
    for strategy in STRATEGIES:
        matrix = strategy.matrix()
        for t in range(strategy.rounds):
            row, column = strategy.row(t), strategy.column(t)
            assert (matrix[t, t - len(row) + 1 : t + 1][::-1] == row).all()
            assert (matrix[t : t + len(column), t] == column).all()
            assert matrix[t].sum() == pytest.approx(row.sum())


def test_equal_matrices_are_equal_strategies():
    first, second = square_root(50, 7), toeplitz(square_root(50, 7).diagonals, 50)
    assert first == second
    assert hash(first) == hash(second)
    assert first.fingerprint == second.fingerprint
    assert first != square_root(51, 7)
    assert first != square_root(50, 8)
    assert first != "square-root"
    # The buffers decide how noise is made, to the last bit.
    assert buffered_toeplitz(5, [(0.3, 0.9)]) != toeplitz([1, 0.3, 0.27, 0.243, 0.2187], 5)


def test_strategies_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        square_root(5).diagonals[0] = 2.0


def test_entries_below_the_matrix_do_not_count():
    """Column i of a banded matrix ends in row n - 1, whatever the diagonals hold there."""
    full = Strategy(3, np.array([[1.0, 1.0, 1.0], [0.5, 0.5, 7.0]]))
    assert full == Strategy(3, np.array([[1.0, 1.0, 1.0], [0.5, 0.5, 0.0]]))


def test_the_square_root_squares_to_the_running_sum():
    root = square_root(40).matrix()
    assert root @ root == pytest.approx(np.tril(np.ones((40, 40))), abs=1e-12)


def make(**changes: Any) -> Correlated:
    given: dict[str, Any] = {"noise_multiplier": 1.0, "strategy": square_root(20, 4)}
    return Correlated(**(given | {"min_separation": 5} | changes))


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: independent(0), "rounds"),
        (lambda: independent(2.5), "rounds"),
        (lambda: square_root(10, 11), "bands"),
        (lambda: square_root(10, 0), "bands"),
        (lambda: toeplitz([0.0, 1.0], 10), "coefficients"),
        (lambda: toeplitz([-1.0, 1.0], 10), "coefficients"),
        (lambda: toeplitz([], 10), "coefficients"),
        (lambda: toeplitz([1.0, float("nan")], 10), "coefficients"),
        (lambda: toeplitz([1.0, 1e80], 10), "coefficients"),
        (lambda: toeplitz(["one"], 10), "coefficients"),
        (lambda: toeplitz([[1.0]], 10), "coefficients"),
        (lambda: toeplitz([1.0] * 11, 10), "bands"),
        (lambda: banded([[1.0, 0.0], [0.5, 0.0]]), "coefficients"),
        (lambda: banded([[1.0, 0.5], [0.5, 1.0]]), "matrix"),
        (lambda: banded([[1.0, 0.0]]), "matrix"),
        (lambda: banded([[1.0], [0.0, 1.0]]), "matrix"),
        (lambda: buffered_toeplitz(10, []), "buffers"),
        (lambda: buffered_toeplitz(10, [(0.3, 1.0)]), "buffers"),
        (lambda: buffered_toeplitz(10, [(0.3, -0.1)]), "buffers"),
        (lambda: buffered_toeplitz(10, [0.3, 0.5]), "buffers"),
        (lambda: buffered_toeplitz(10, 0), "buffers"),
        (lambda: buffered_toeplitz(10, True), "buffers"),
        (lambda: buffered_toeplitz(10, BUFFERS, min_separation=2), "min_separation"),
        (lambda: buffered_toeplitz(10, 2, min_separation=5, participations=3), "participations"),
        (lambda: optimized(10, 5, 4), "bands"),
        (lambda: optimized(10**5, 1000, 1000), "bands"),
        (lambda: optimized(10, 2, 4, workload=Workload((0.1,) * 9)), "learning_rates"),
        (lambda: optimized(10, 2, 4, workload="sum"), "workload"),
        (lambda: Workload((0.1, 0.0)), "learning_rates"),
        (lambda: Workload(momentum=1.0), "momentum"),
        (lambda: square_root(6000).matrix(), "rounds"),
        (lambda: square_root(60).prefix_error(0.0), "noise_multiplier"),
        (lambda: square_root(60).prefix_error(1.0, "sum"), "workload"),
        (lambda: square_root(10).sensitivity(0), "min_separation"),
        (lambda: square_root(10).sensitivity(3, 0), "participations"),
        (lambda: square_root(10).sensitivity(3, 5), "participations"),
        (lambda: make(noise_multiplier=0.0), "noise_multiplier"),
        (lambda: make(strategy="square-root"), "strategy"),
        (lambda: make(min_separation=0), "min_separation"),
        (lambda: make(participations=5), "participations"),
        (lambda: make(sampling=Uniform(5, 10)), "sampling"),
        (lambda: make(sampling=0.1), "sampling"),
        (lambda: make(sampling=Poisson(0.1), participations=2), "participations"),
        (lambda: make(sampling=Poisson(0.1), min_separation=3), "bands"),
        (lambda: make(adjacency="swap"), "adjacency"),
    ],
)
def test_bad_input_is_named(build, name):
    with pytest.raises(InvalidParameter) as caught:
        build()
    assert caught.value.name == name
