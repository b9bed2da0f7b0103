"""How often an attacker may guess right which of two contributions each of many clients sent.

Each of m canaries holds one of two contributions, by a fair coin of its own. An attacker sees what
one run releases, guesses r of the coins, and is right W times. Whatever the other coins show, the
run is private in one canary's: TPR <= g(FPR) for every event, with g concave. Then for all c

    E[W; W >= c] / m  <=  g( E[r - W; W >= c - 1] / m ),

for a guess is right, and at least c - 1 of the others are, on an event of which the coin decides
nothing but the side. The largest P(W >= c) under all of these is found by a recursion from c down.

Source: the game is that of Steinke, Nasr, Jagielski 2023 (arXiv:2305.08846), the constraints those
of Mahloujifar, Melis, Chaudhuri 2024 (arXiv:2410.22235); proofs, also of the rounding:
docs/derivations/auditing.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array

_HYPOTHESES = 64
_LARGEST_EPSILON = 100.0


@dataclass(frozen=True, slots=True)
class Guesses:
    """What an attacker did.

    Attributes:
        canaries: how many coins were thrown, m. made: how many were guessed, r; decided before the
            run is seen. right: how many of them were right, W.
    """

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        validate.count("canaries", self.canaries, "contributions that a coin decided")
        validate.count("made", self.made, "guesses", self.canaries)
        if isinstance(self.right, bool) or self.right not in range(self.made + 1):
            rule = f"of {self.made} guesses a whole number from 0 to {self.made} is right"
            raise InvalidParameter("right", self.right, rule)


def smallest_tail(guesses: Guesses, epsilons: Array, deltas: Array, *, least: float) -> float:
    """A bound of the probability that so many guesses are right, of a run that keeps its promise.

    Args:
        guesses: what was seen.
        epsilons, deltas: float64 [k]; the run is (eps, delta)-private for each pair, for both
            choices of which data set comes first.
        least: smaller probabilities are not told apart.
    Returns:
        An upper bound of P(W >= right), within 1 % of the best that these constraints give; at
        least ``least``.
    """
    epsilons, deltas = epsilons[np.newaxis], deltas[np.newaxis]
    low, high = math.log(least), 0.0
    if refutes(guesses, epsilons, deltas, least)[0]:
        return least
    while high - low > 0.01:
        middle = (low + high) / 2
        if refutes(guesses, epsilons, deltas, math.exp(middle))[0]:
            high = middle
        else:
            low = middle
    return math.exp(high)


def least_epsilon(guesses: Guesses, delta: float, error: float) -> float:
    """An epsilon that the run exceeds, whatever it is, but for the probability of an error.

    Args:
        guesses: what was seen. delta: of the claim (eps, delta) that is tested.
        error: probability that what is returned is above the epsilon of the run.
    Returns:
        Rounded down by less than 0.1 % and 0.001; 0 where the guesses refute nothing.
    """
    low, high = 0.0, _LARGEST_EPSILON
    while high - low > 1e-3 * max(1.0, low):
        tried = np.linspace(low, high, _HYPOTHESES)
        refuted = refutes(guesses, tried[:, np.newaxis], np.full((len(tried), 1), delta), error)
        # Claims of larger epsilon say less: those refuted come first.
        count = int(np.argmin(refuted)) if not refuted.all() else len(tried)
        if count == 0:
            return 0.0
        if count == len(tried):
            return float(tried[-1])
        low, high = float(tried[count - 1]), float(tried[count])
    return low


def refutes(guesses: Guesses, epsilons: Array, deltas: Array, error: float) -> np.ndarray:
    """Whether P(W >= right) < error for every run that keeps each of these promises.

    Args:
        guesses: what was seen.
        epsilons, deltas: float64 [h, k]; hypothesis h promises all (eps, delta) of its row.
        error: in (0, 1).
    Returns:
        bool [h]. All roundings go against True.
    """
    m, r, c = guesses.canaries, guesses.made, guesses.right
    # What is too large for a number promises nothing.
    with np.errstate(over="ignore"):
        growth = np.exp(epsilons) * (1 + FUNCTION_ERROR)
    # The mass on W = c: at most the error, and no less wrong for what is right.
    mass = np.full(len(epsilons), error / m)
    wrong = _down(mass * (r - c))
    right = _down(wrong * c / (r - c)) if c < r else _down(mass * r)
    refuted = np.zeros(len(epsilons), dtype=bool)
    for level in range(c, 0, -1):
        needed = np.maximum(wrong, _least_fpr(right, growth, deltas))
        gained = _down((needed - wrong) * (level - 1) / (r - level + 1))
        right, wrong = _down(right + gained), needed
        # Only ever more mass is needed.
        refuted |= _down(_down(right + wrong) * m / r) > 1.0
        right, wrong = np.where(refuted, 0.0, right), np.where(refuted, 0.0, wrong)
        if refuted.all():
            break
    return refuted


def _least_fpr(tpr: Array, growth: Array, deltas: Array) -> Array:
    """At most the FPR that a TPR costs under the promises of a row, [h] from [h] and [h, k]."""
    tpr = tpr[:, np.newaxis]
    plain = (tpr - deltas) / growth
    limited = np.isfinite(growth)
    factor = np.where(limited, growth, 0.0)
    turned = (1 - deltas) - factor * (1 - tpr) - 16 * UNIT * (1 + factor)
    turned = np.where(limited, turned, -np.inf)
    return _down(np.maximum(np.maximum(plain, turned).max(axis=1), 0.0))


def _down(value: Array) -> Array:
    """At most what a value >= 0 would be without its last three roundings."""
    return value * (1 - 4 * UNIT)
