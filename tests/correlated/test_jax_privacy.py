"""Sensitivities beside those of JAX Privacy, where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from dpacct.correlated import banded, buffered_toeplitz, square_root, toeplitz

jax = pytest.importorskip("jax", reason="jax is not installed")
peer_buffered = pytest.importorskip("jax_privacy.matrix_factorization.buffered_toeplitz")
peer = pytest.importorskip("jax_privacy.matrix_factorization.sensitivity")
peer_toeplitz = pytest.importorskip("jax_privacy.matrix_factorization.toeplitz")
# Without it, JAX computes in single precision.
jax.config.update("jax_enable_x64", val=True)


@pytest.mark.parametrize("seed", range(50))
def test_banded_matrices_agree(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 60))
    separation = int(rng.integers(1, n + 1))
    bands = int(rng.integers(1, separation + 1))
    times = int(rng.integers(1, -(-n // separation) + 1))
    matrix = np.triu(np.tril(rng.normal(size=(n, n))), 1 - bands)
    np.fill_diagonal(matrix, rng.random(n) + 0.1)
    theirs = float(peer.get_sensitivity_banded(matrix, separation, times))
    ours = banded(matrix).sensitivity(separation, times)
    assert ours.lower <= theirs * (1 + 1e-12)
    assert theirs <= ours.upper * (1 + 1e-12)
    assert ours.width <= 1e-12 * ours.upper


@pytest.mark.parametrize("seed", range(50))
def test_toeplitz_matrices_that_do_not_increase_agree(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 200))
    separation = int(rng.integers(1, n + 1))
    times = int(rng.integers(1, -(-n // separation) + 1))
    column = np.sort(rng.random(n))[::-1].copy()
    theirs = float(peer_toeplitz.minsep_sensitivity_squared(column, separation, times)) ** 0.5
    ours = toeplitz(column, n).sensitivity(separation, times)
    assert theirs == pytest.approx(ours.upper, rel=1e-12)
    assert ours.width <= 1e-12 * ours.upper


@pytest.mark.parametrize("seed", range(30))
def test_our_upper_end_is_no_larger_than_theirs(seed):
    """More bands than the separation: theirs bounds any matrix with nonnegative C^T C."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 14))
    separation = int(rng.integers(1, n + 1))
    matrix = np.tril(rng.random((n, n))) + 0.1 * np.eye(n)
    theirs = float(peer.get_min_sep_sensitivity_upper_bound(matrix, separation))
    assert banded(matrix).sensitivity(separation).upper <= theirs * (1 + 1e-12)


def test_errors_of_running_sums_agree():
    n = 500
    for strategy in (square_root(n), square_root(n, 20), buffered_toeplitz(n, [(0.3, 0.9)])):
        column = np.pad(strategy.diagonals, (0, n - strategy.bands))
        theirs = float(np.mean(peer_toeplitz.per_query_error(strategy_coef=column, n=n)))
        assert strategy.prefix_error(2.0) == pytest.approx(2.0 * theirs**0.5, rel=1e-9)


def test_a_buffered_strategy_has_their_coefficients():
    theirs = peer_buffered.BufferedToeplitz.build(buf_decay=[0.9, 0.5], output_scale=[0.3, 0.1])
    ours = buffered_toeplitz(50, [(0.3, 0.9), (0.1, 0.5)])
    assert ours.diagonals == pytest.approx(np.asarray(theirs.toeplitz_coefs(50)), rel=1e-12)
