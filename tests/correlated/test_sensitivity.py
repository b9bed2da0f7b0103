"""Sensitivities of strategies, against brute force over all patterns of participation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from dpacct.correlated import Strategy, banded, buffered_toeplitz, square_root, toeplitz
from dpacct.correlated import sensitivity as sensitivity_module
from dpacct.correlated.sensitivity import bound_sensitivity
from dpacct.errors import Unsupported

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
def test_published_brute_force_values_are_met(strategy, value):
    """Values of a search over all patterns, computed apart from this package."""
    found = strategy.sensitivity(3, 4)
    assert found.lower == pytest.approx(value, abs=1e-12)
    assert found.upper == pytest.approx(value, abs=1e-12)


def random_case(seed: int) -> tuple[Strategy, int, int]:
    """A strategy of one of four kinds with its separation and participations."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 15 if seed % 2 == 0 else 10))
    separation = int(rng.integers(1, n + 1))
    times = int(rng.integers(1, -(-n // separation) + 1))
    bands = int(rng.integers(1, n + 1))
    # Even seeds have no signs: brute force over signs is for short runs.
    draw = rng.random if seed % 2 == 0 else rng.normal
    if seed % 4 < 2:
        column = np.concatenate([[0.5 + rng.random()], np.asarray(draw(size=bands - 1))])
        return toeplitz(column, n), separation, times
    matrix = np.triu(np.tril(np.asarray(draw(size=(n, n)))), 1 - bands)
    np.fill_diagonal(matrix, 0.5 + rng.random(n))
    return banded(matrix), separation, times


@pytest.mark.parametrize("seed", range(100))
def test_random_strategies_against_all_patterns(seed):
    strategy, separation, times = random_case(seed)
    if strategy.diagonals.min() >= 0.0 and separation == 1:
        # Then more participations are worse, and 2^14 patterns with signs are left out.
        matrix = strategy.matrix()
        sets = itertools.combinations(range(strategy.rounds), times)
        reached = absolute = max(float(np.linalg.norm(matrix[:, s].sum(axis=1))) for s in sets)
    else:
        reached, absolute = brute_force(strategy.matrix(), separation, times)
    found = strategy.sensitivity(separation, times)
    assert found.lower <= reached * (1 + 1e-13)
    assert reached <= found.upper * (1 + 1e-13)
    # The search ends with the best pattern of absolute values, in each of these.
    assert found.upper == pytest.approx(absolute, rel=1e-11)
    if strategy.diagonals.min() >= 0.0:
        assert found.lower == pytest.approx(absolute, rel=1e-11)


def exact_square(strategy: Strategy, pattern: list[int]) -> Fraction:
    """|C x|^2 in whole numbers, x = 1 on the pattern."""
    total = Fraction(0)
    for row in strategy.matrix():
        total += sum((Fraction(float(row[i])) for i in pattern), start=Fraction(0)) ** 2
    return total


@pytest.mark.parametrize("seed", range(12))
def test_rounding_never_moves_an_end_to_the_wrong_side(seed):
    """Exact squares of a regular pattern, and of column norms if no two columns meet."""
    rng = np.random.default_rng(seed)
    column = np.sort(rng.random(60))[::-1].copy()
    regular = toeplitz(column, 60).sensitivity(7, 5)
    square = exact_square(toeplitz(column, 60), [0, 7, 14, 21, 28])
    assert Fraction(regular.lower) ** 2 <= square <= Fraction(regular.upper) ** 2
    matrix = np.triu(np.tril(rng.random((20, 20))), -4) + np.eye(20)
    apart = banded(matrix)
    found = apart.sensitivity(5, 2)
    squares = max(exact_square(apart, list(pair)) for pair in patterns(20, 5, 2))
    assert Fraction(found.lower) ** 2 <= squares <= Fraction(found.upper) ** 2
    # The slack is a few units, as it is claimed.
    assert found.width < 1e-13 * found.upper


def test_rounding_errors_are_at_hand():
    """Without slack, some of these ends would be wrong: the plain norm is on either side."""
    below = above = 0
    for seed in range(40):
        column = np.sort(np.random.default_rng(seed).random(30))[::-1].copy()
        strategy = toeplitz(column, 30)
        plain = Fraction(float(np.linalg.norm(strategy.matrix()[:, ::10].sum(axis=1))))
        square = exact_square(strategy, [0, 10, 20])
        below += plain**2 < square
        above += plain**2 > square
    assert below > 5
    assert above > 5


@pytest.mark.parametrize("limits", [["_MOST_NODES"], ["_MOST_NODES", "_MOST_WEIGHTS"]])
def test_the_bound_without_search_holds(limits, monkeypatch):
    """The later terms m_s(i): without them the bound of these strategies is too low."""
    for limit in limits:
        monkeypatch.setattr(sensitivity_module, limit, 0)
    for seed in range(20, 60, 2):
        strategy, separation, times = random_case(seed)
        if separation > 1:
            _, absolute = brute_force(strategy.matrix(), separation, times)
            assert bound_sensitivity(strategy, separation, times).upper >= absolute * (1 - 1e-13)


def test_long_runs_have_exact_ends():
    full, short = square_root(10_000), square_root(10_000, 500)
    assert full.sensitivity(100, 100).upper == pytest.approx(81.08861963603177, rel=1e-12)
    assert full.sensitivity(100, 100).width < 1e-9
    norm = float(np.linalg.norm(short.diagonals))
    assert short.sensitivity(500, 20).upper == pytest.approx(norm * 20**0.5, rel=1e-12)
    assert short.sensitivity(500).upper == short.sensitivity(500, 20).upper


def test_a_search_that_would_take_too_long_is_refused():
    rng = np.random.default_rng(0)
    strategy = toeplitz(np.concatenate([[1.0], rng.random(60_000)]), 100_000)
    with pytest.raises(Unsupported, match="takes too long"):
        strategy.sensitivity(10)
