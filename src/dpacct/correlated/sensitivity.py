"""The sensitivity of a strategy if the participations of a client are far apart.

A pattern is a set of at most k rounds, of which any two are at least b rounds apart. The client
sends vectors g_i of norm at most 1 in the rounds of its pattern. With M = C^T C,

    sens^2 = max over patterns and g of |C G|^2 = max sum_{i,j in pattern} M_ij <g_i, g_j>.

* Upper end: sum |M_ij| over the best pattern. Let m_s(i) = max_{l >= s b} |M_{i,i+l}|. The s-th
  later participation is at least s b rounds later, so with r participations left after round i

      sens^2 <= max over patterns of sum_i w_r(i),    w_r(i) = M_ii + 2 sum_{s <= r} m_s(i),

  which a recursion over r solves. If the bands do not exceed b, all m_s are 0: the bound is exact.
* Toeplitz, with coefficients that are nonnegative and do not increase: M_{i,i+l} decreases in i and
  in l, so the pattern 0, b, 2b, ... is the best one, and exact (Kalinin, Lampert 2024, theorem 2).
* Lower end: |C x| for an explicit x with entries 0, 1 and -1 on a pattern.

Rounding: sums of n terms are off by at most n units relative to the sum of absolute values.
docs/derivations/correlated-noise.md has the proofs.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct import validate
from dpacct.budget import Interval
from dpacct.correlated.matrix import MAX_ROUNDS, LowerTriangular
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.numerics.rounding import UNIT, Array

# Above this number of entries, m_s(i) is replaced by its maximum over i.
_MOST_WEIGHTS = 3 * 10**7
# Some ten seconds.
_MOST_PRODUCTS = 2 * 10**9


def check_participation(
    rounds: int, min_separation: int, participations: int | None
) -> tuple[int, int]:
    """Return the separation, and the number of participations, by default as many as fit.

    Raises:
        InvalidParameter: a value out of range, or more participations than fit.
    """
    noun = "the least number of rounds between two participations"
    separation = validate.count("min_separation", min_separation, noun, MAX_ROUNDS)
    most = -(-rounds // separation)
    if participations is None:
        return separation, most
    noun = "the number of participations of a client"
    times = validate.count("participations", participations, noun, MAX_ROUNDS)
    if times > most:
        rule = f"{rounds} rounds with a separation of {separation} have at most {most}"
        raise InvalidParameter("participations", times, rule, "Leave it out for as many as fit.")
    return separation, times


def bound_sensitivity(matrix: LowerTriangular, b: int, k: int) -> Interval:
    """Return bounds of the sensitivity for separation b and at most k participations."""
    if has_best_pattern(matrix):
        return _norm_of_regular_pattern(matrix, b, k)
    upper, pattern = _weighted_bound(matrix, b, k)
    lower = pattern_norm(matrix, pattern, best_signs(matrix, pattern)).lower
    return Interval.bracket(lower, upper)


def has_best_pattern(matrix: LowerTriangular) -> bool:
    """Return True for Toeplitz coefficients that are nonnegative and do not increase."""
    column = matrix.diagonals
    return matrix.is_toeplitz and column[-1] >= 0.0 and bool((np.diff(column) <= 0.0).all())


def _norm_of_regular_pattern(matrix: LowerTriangular, b: int, k: int) -> Interval:
    """Return bounds of |C x| for x = 1 in rounds 0, b, ..., (k - 1) b, for Toeplitz C >= 0.

    S_m(t) = sum_{j < m} c_{t - j b} satisfies S_{m + l}(t) = S_m(t) + S_l(t - m b): n log k sums of
    nonnegative terms, of which at most 2 log k follow each other.
    """
    n = matrix.rounds
    total, power = np.zeros(n), np.concatenate([matrix.diagonals, np.zeros(n - matrix.bands)])
    done, size = 0, 1
    for bit in range(k.bit_length()):
        if k >> bit & 1:
            total[done * b :] += power[: n - done * b]
            done += size
        if size * b < n:
            power = power + np.concatenate([np.zeros(size * b), power[: n - size * b]])
        size *= 2
    norm = math.sqrt(float(total @ total))
    error = UNIT * (n + 2 * k.bit_length() + 8) * (1 + 1e-6) * norm
    return Interval(max(0.0, norm - error), math.nextafter(norm + error, math.inf))


def pattern_norm(matrix: LowerTriangular, pattern: list[int], signs: Array) -> Interval:
    """Return bounds of |C x| for x = signs on the rounds of a pattern, else 0.

    Error: each entry of C x is a sum of at most k terms, and its norm one of n squares.
    """
    n, k = matrix.rounds, len(pattern)
    found, absolute = np.zeros(n), np.zeros(n)
    for at, sign in zip(pattern, signs, strict=True):
        column = matrix.column(at)
        found[at : at + len(column)] += sign * column
        absolute[at : at + len(column)] += np.abs(column)
    norm, size = math.sqrt(float(found @ found)), math.sqrt(float(absolute @ absolute))
    error = UNIT * ((n + 8) * norm + (k + 1) * (1 + UNIT * (n + k)) * size) * (1 + 1e-6)
    return Interval(max(0.0, norm - error), math.nextafter(norm + error, math.inf))


def column_norms(matrix: LowerTriangular) -> Array:
    """Return |C e_i| for every round i, within (bands + 4) units. Shape (rounds,)."""
    n, squares = matrix.rounds, matrix.diagonals**2
    if matrix.is_toeplitz:
        sums = np.cumsum(squares)
        return np.sqrt(sums[np.minimum(matrix.bands, n - np.arange(n)) - 1])
    return np.sqrt(squares.sum(axis=0))


def best_signs(matrix: LowerTriangular, pattern: list[int]) -> Array:
    """Return signs that make |C x| large, each chosen after the earlier ones. All 1 if C >= 0."""
    signs = np.ones(len(pattern))
    if matrix.diagonals.min() >= 0.0:
        return signs
    found = np.zeros(matrix.rounds)
    for j, at in enumerate(pattern):
        column = matrix.column(at)
        here = found[at : at + len(column)]
        signs[j] = -1.0 if float(here @ column) < 0.0 else 1.0
        here += signs[j] * column
    return signs


def gram_diagonal(matrix: LowerTriangular, lag: int) -> Array:
    """Return M_{i,i+lag} for every i. Shape (rounds - lag,)."""
    n, bands, entries = matrix.rounds, matrix.bands, matrix.diagonals
    if matrix.is_toeplitz:
        sums = np.cumsum(entries[: bands - lag] * entries[lag:])
        return sums[np.minimum(bands - lag, n - lag - np.arange(n - lag)) - 1]
    return np.einsum("si,si->i", entries[lag:, : n - lag], entries[: bands - lag, lag:])


def _weighted_bound(matrix: LowerTriangular, b: int, k: int) -> tuple[float, list[int]]:
    """Return the upper end for any matrix, and the pattern that attains the recursion."""
    n, bands = matrix.rounds, matrix.bands
    norms = column_norms(matrix) ** 2
    # Each entry of M is a sum of at most `bands` products, whose absolute values add up to at most
    # the product of two column norms, and to M itself if C >= 0.
    slack = UNIT * (bands + 8)
    norms = norms * (1 + 2 * slack)
    signed = matrix.diagonals.min() < 0.0
    absolute = 2 * slack * float(norms.max()) if signed else 0.0
    steps = min(k - 1, (bands - 1) // b)
    if steps and (bands - b) * n > _MOST_PRODUCTS:
        raise Unsupported(
            f"the sensitivity of {n} rounds with {bands} bands and a separation of {b} takes too "
            f"long, unless the coefficients are Toeplitz, nonnegative and do not increase"
        )
    wide = steps * n > _MOST_WEIGHTS
    later = np.zeros((steps, 1 if wide else n))
    running = np.zeros(n)
    for lag in range(bands - 1, b - 1, -1) if steps else ():
        gram = np.abs(gram_diagonal(matrix, lag)) * (1 + 2 * slack) + absolute
        np.maximum(running[: n - lag], gram, out=running[: n - lag])
        if lag % b == 0 and lag // b <= steps:
            later[lag // b - 1] = running.max() if wide else running
    # best[i] is the bound of patterns from round i on, with r participations.
    best, weights = np.zeros(n + b), norms
    choices: list[Array] = []
    for r in range(k):
        if 0 < r <= steps:
            weights = weights + 2 * later[r - 1]
        value = weights + best[b:]
        here = np.maximum.accumulate(value[::-1])[::-1]
        choices.append(value)
        best = np.concatenate([here, np.zeros(b)])
    pattern: list[int] = []
    start = 0
    for value in reversed(choices):
        if start >= n:
            break
        pattern.append(start + int(np.argmax(value[start:])))
        start = pattern[-1] + b
    total = float(best[0]) * (1 + UNIT * (4 * k + 8))
    return math.nextafter(math.sqrt(total), math.inf), pattern
