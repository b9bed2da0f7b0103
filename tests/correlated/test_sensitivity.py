"""Sensitivities of strategies, against brute force over all patterns of participation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from dpacct.correlated import (
    Strategy,
    buffered_toeplitz,
    independent,
    square_root,
)

Array = NDArray[np.float64]
BUFFERS = [(0.3, 0.9), (0.1, 0.5)]


def patterns(n: int, separation: int, most: int) -> Iterator[tuple[int, ...]]:
    """Every set of at most ``most`` rounds that are ``separation`` apart."""
    for size in range(1, most + 1):
        for rounds in itertools.combinations(range(n), size):
            if all(b - a >= separation for a, b in itertools.pairwise(rounds)):
                yield rounds


def brute_force(matrix: Array, separation: int, most: int) -> tuple[float, float]:
    """The largest |C x| over patterns and signs, and the largest sum of |C^T C| over patterns."""
    gram = matrix.T @ matrix
    reached, absolute = 0.0, 0.0
    for rounds in patterns(len(matrix), separation, most):
        part = gram[np.ix_(rounds, rounds)]
        absolute = max(absolute, float(np.abs(part).sum()))
        for signs in itertools.product((1.0, -1.0), repeat=len(rounds) - 1):
            x = np.array((1.0, *signs))
            reached = max(reached, float(x @ part @ x))
    return reached**0.5, absolute**0.5


@pytest.mark.parametrize(
    ("strategy", "value"),
    [
        (square_root(14), 3.850783713426),
        (square_root(14, 3), 2.358495283014),
        (buffered_toeplitz(14, BUFFERS), 3.380450272884),
    ],
)
def test_published_brute_force_values_are_met(strategy: Strategy, value: float) -> None:
    """Values of a search over all patterns, computed apart from this package."""
    found = strategy.sensitivity(3, 4)
    assert found.lower == pytest.approx(value, abs=1e-12)
    assert found.upper == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    ("strategy", "sensitivity", "noise", "error"),
    [
        (independent(2000), 4.472136, 2.684307, 84.91),
        (square_root(2000, 100), 7.115268, 4.270792, 13.32),
        (square_root(2000), 17.190575, 10.318286, 18.36),
    ],
)
def test_the_table_of_2000_rounds(
    strategy: Strategy, sensitivity: float, noise: float, error: float
) -> None:
    """Separation 100, 20 participations. The noise has epsilon 8 at delta 1e-5."""
    found = strategy.sensitivity(100, 20)
    assert found.upper == pytest.approx(sensitivity, abs=1e-6)
    assert found.width < 1e-11
    assert strategy.prefix_error(noise) == pytest.approx(error, abs=0.005)
