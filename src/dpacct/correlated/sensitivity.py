"""The sensitivity of a strategy if the participations of a client are far apart.

A pattern is a set of at most k rounds, of which any two are at least b rounds apart. The client
sends vectors g_i of norm at most 1 in the rounds of its pattern. With M = C^T C,

    sens^2 = max over patterns and g of |C G|^2 = max sum_{i,j in pattern} M_ij <g_i, g_j>.

* Upper end: sum |M_ij| over the best pattern. Let m_s(i) = max_{l >= s b} |M_{i,i+l}|. The s-th
  later participation is at least s b rounds later, so with r participations left after round i

      sens^2 <= max over patterns of sum_i w_r(i),    w_r(i) = M_ii + 2 sum_{s <= r} m_s(i),

  which a recursion over r solves. If the bands do not exceed b, all m_s are 0: the bound is exact.
  Otherwise the search branches on rounds of the best pattern: either the next participation is that
  round, and its M_ij are exact from now on, or it is another one.
* Toeplitz, with coefficients that are nonnegative and do not increase: M_{i,i+l} decreases in i and
  in l, so the pattern 0, b, 2b, ... is the best one, and exact (Kalinin, Lampert 2024, theorem 2).
* Lower end: |C x| for an explicit x with entries 0, 1 and -1 on a pattern.

Rounding: sums of n terms are off by at most n units relative to the sum of absolute values.
docs/derivations/correlated-noise.md has the proofs.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np

from dpacct import validate
from dpacct.budget import Interval
from dpacct.correlated.matrix import MAX_ROUNDS, LowerTriangular
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.numerics.rounding import UNIT, Array, positive_sum

# Above this number of entries, m_s(i) is replaced by its maximum over i.
_MOST_WEIGHTS = 3 * 10**7
# Some ten seconds.
_MOST_PRODUCTS = 2 * 10**9
# The search for patterns ends after so many branches, or operations, or if both ends agree.
_MOST_NODES, _MOST_WORK, _SHARP = 2_000, 2e8, 1e-12


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
    return _search_patterns(matrix, b, k)


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
    square, relative = positive_sum(total**2)
    norm = math.sqrt(square)
    error = (relative + UNIT * (2 * k.bit_length() + 8)) * norm
    return Interval(max(0.0, norm - error), math.nextafter(norm + error, math.inf))


def pattern_norm(matrix: LowerTriangular, pattern: list[int], signs: Array) -> Interval:
    """Return bounds of |C x| for x = signs on the rounds of a pattern, else 0.

    Error: each entry of C x is a sum of at most k terms, and its norm one of n squares.
    """
    n, k = matrix.rounds, len(pattern)
    total, absolute = np.zeros(n), np.zeros(n)
    for at, sign in zip(pattern, signs, strict=True):
        column = matrix.column(at)
        total[at : at + len(column)] += sign * column
        absolute[at : at + len(column)] += np.abs(column)
    (square, relative), size = positive_sum(total**2), float(np.linalg.norm(absolute))
    norm = math.sqrt(square)
    error = (relative + 8 * UNIT) * norm + UNIT * (k + 1) * size * (1 + 1e-6)
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
    total = np.zeros(matrix.rounds)
    for j, at in enumerate(pattern):
        column = matrix.column(at)
        here = total[at : at + len(column)]
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


def _gram_row(matrix: LowerTriangular, at: int) -> Array:
    """Return M_{at,l} for l > at, and 0 for the other l. Shape (rounds,)."""
    column = matrix.column(at)
    row = np.zeros(matrix.rounds)
    for lag in range(1, len(column)):
        row[at + lag] = column[lag:] @ matrix.column(at + lag)[: len(column) - lag]
    return row


def _remaining_weights(matrix: LowerTriangular, b: int, k: int, relative: float) -> Array:
    """Return w_r(i), rounded up, for r = 0, 1, ... up to the last r that changes it."""
    n, bands = matrix.rounds, matrix.bands
    steps = min(k - 1, (bands - 1) // b)
    if steps and (bands - b) * n > _MOST_PRODUCTS:
        raise Unsupported(
            f"the sensitivity of {n} rounds with {bands} bands and a separation of {b} takes too "
            f"long, unless the coefficients are Toeplitz, nonnegative and do not increase"
        )
    squares = column_norms(matrix) ** 2 * (1 + relative)
    absolute = _absolute_error(matrix, relative)
    wide = steps * n > _MOST_WEIGHTS
    later = np.zeros((steps, 1 if wide else n))
    running = np.zeros(n)
    for lag in range(bands - 1, b - 1, -1) if steps else ():
        gram = np.abs(gram_diagonal(matrix, lag)) * (1 + relative) + absolute
        np.maximum(running[: n - lag], gram, out=running[: n - lag])
        if lag % b == 0 and lag // b <= steps:
            later[lag // b - 1] = running.max() if wide else running
    return np.concatenate([squares[None], squares + 2 * np.cumsum(later, axis=0)])


def _absolute_error(matrix: LowerTriangular, relative: float) -> float:
    """Return the error of M_ij that is not relative to it: units of |C e_i| |C e_j|, for signs."""
    return relative * float(column_norms(matrix).max()) ** 2 if matrix.diagonals.min() < 0 else 0.0


class _Node(NamedTuple):
    """Patterns that begin with ``prefix`` and go on at ``start`` or later, but not in ``banned``.

    ``bound`` is that of sens^2, and ``tail`` continues the prefix to the pattern that attains it.
    ``value`` is the sum of |M_ij| of the prefix, and ``gain`` 2 sum_j |M_ij| over it for each i.
    """

    bound: float
    prefix: tuple[int, ...]
    tail: tuple[int, ...]
    banned: frozenset[int]
    value: float
    gain: Array


def _search_patterns(matrix: LowerTriangular, b: int, k: int) -> Interval:
    """Return both ends for any matrix, by branch and bound."""
    n = matrix.rounds
    # Sums of `bands` products, and of k (k + 1) / 2 such sums one after the other, all rounded up.
    relative = 2 * UNIT * (matrix.bands + 8)
    absolute = _absolute_error(matrix, relative)
    weights = _remaining_weights(matrix, b, k, relative)

    def bounded(
        prefix: tuple[int, ...], banned: frozenset[int], value: float, gain: Array
    ) -> _Node:
        left = k - len(prefix)
        start = prefix[-1] + b if prefix else 0
        rest, tail = _best_completion(weights, gain, b, left, start, banned)
        return _Node(value + rest, prefix, tail, banned, value, gain)

    def reached(node: _Node) -> float:
        pattern = [*node.prefix, *node.tail]
        return pattern_norm(matrix, pattern, best_signs(matrix, pattern)).lower

    root = bounded((), frozenset(), 0.0, np.zeros(n))
    lower, heap, order = reached(root), [(-root.bound, 0, root)], count(1)
    slack = 1 + UNIT * (8 * k + 16)
    for _ in range(min(_MOST_NODES, int(_MOST_WORK / (k * n + matrix.bands**2)))):
        node = heap[0][2]
        if not node.tail or math.sqrt(node.bound) <= lower * (1 + _SHARP):
            break
        heappop(heap)
        at = node.tail[0]
        row = np.abs(_gram_row(matrix, at)) * (1 + relative) + absolute
        value = node.value + float(weights[0, at] + node.gain[at])
        taken = bounded((*node.prefix, at), frozenset(), value, node.gain + 2 * row)
        other = bounded(node.prefix, node.banned | {at}, node.value, node.gain)
        for child in (taken, other):
            lower = max(lower, reached(child))
            heappush(heap, (-child.bound, next(order), child))
    upper = math.nextafter(math.sqrt(heap[0][2].bound * slack), math.inf)
    return Interval.bracket(lower, upper)


def _best_completion(
    weights: Array, gain: Array, b: int, left: int, start: int, banned: frozenset[int]
) -> tuple[float, tuple[int, ...]]:
    """Return max sum of w_r(i) + gain(i) over at most ``left`` later rounds, and these rounds."""
    n = len(gain)
    best = np.zeros(n + b)
    choices: list[Array] = []
    for r in range(left):
        value = weights[min(r, len(weights) - 1)] + gain + best[b:]
        if r == left - 1 and banned:
            value[list(banned)] = 0.0
        choices.append(value)
        best = np.concatenate([np.maximum.accumulate(value[::-1])[::-1], np.zeros(b)])
    pattern: list[int] = []
    total = float(best[start]) if start < n else 0.0
    for value in reversed(choices):
        if start >= n or value[start:].max() <= 0.0:
            break
        pattern.append(start + int(np.argmax(value[start:])))
        start = pattern[-1] + b
    return total, tuple(pattern)
