"""The pairs of Poisson cohorts of which a random part of a largest size B is kept.

The number o of other clients that are drawn may be published. With o < B the client joins at rate
q and moves the sum by at most 1. Otherwise it is kept at rate q B / (o + 1) and takes the place of
another one: a move of at most 2. For data sets of a to b clients, o is Bin(a - 1, q) where the
cohort is surely full, and the rest has rate q and a move of 2, which dominates all of these.

The cost is not monotone in the size of the data set. `dpacct.tight.sizes` covers all sizes.

Derivation: docs/derivations/epochs.md, theorem 5.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dpacct.numerics.binomial import binomial_blocks, binomial_tail
from dpacct.numerics.rounding import UNIT, Array
from dpacct.numerics.special import ndtr
from dpacct.pairs.atoms import AtomicPair
from dpacct.pairs.kinds import Direction, SampledGaussianPair
from dpacct.pairs.records import ChoicePair, RecordsPair

# So many rates are kept, more are moved to so many knots.
_KEPT, _KNOTS = 16, 4
# A smaller probability counts as this one.
_LEAST = 1e-280
# The relative error of masses of cells.
_CELL_ERROR = 1e-11


class CohortLaw(NamedTuple):
    """Probabilities of the pair with the usual rate and a move of 1, and of rates with a move of 2.

    ``rates`` and ``weights`` have the shape (k,).
    """

    usual: float
    rates: Array
    weights: Array


@lru_cache(maxsize=1024)
def cohort_law(rate: float, cohort: int, sizes: tuple[int, int]) -> CohortLaw:
    """Return a choice that dominates a round for all data sets of ``sizes``, from and to.

    The weights are those of theorem 5 on a few knots. Hats keep the mean rate, and H_k is convex in
    the rate. What rounding takes from the known rates has the rate q, which dominates.
    """
    least, most = sizes
    if most <= cohort:
        return CohortLaw(1.0, np.empty(0), np.empty(0))
    full = max(binomial_tail(most - 1, rate, cohort).upper, _LEAST)
    values, masses = binomial_blocks(least - 1, rate, cohort)
    known = float(masses.sum()) * (1 - UNIT * (2 * len(masses) + 16))
    knots: Array = np.empty(0)
    weights: Array = np.empty(0)
    if known > 0.0:
        # Falling. Rounded up.
        rates = np.minimum(rate * cohort / (values + 1) * (1 + 8 * UNIT), rate)
        # A small share of the masses lies below the last knot.
        last = int(np.searchsorted(np.cumsum(masses), (1 - 5e-3) * known))
        lowest = float(rates[min(last, len(rates) - 1)])
        knots = np.linspace(lowest, float(rates[0]), _KNOTS)
        if len(rates) <= _KEPT:
            knots = rates[::-1]
        if knots[-1] <= knots[0] * (1 + 1e-6):
            knots, weights = rates[:1], np.array([known])
        else:
            place = np.clip(np.searchsorted(knots, rates, "right") - 1, 0, len(knots) - 2)
            # Moved up a little: a higher rate costs no less.
            share = (rates - knots[place]) / np.diff(knots)[place] + 1e-9
            upper = masses * np.clip(share, 0.0, 1.0)
            weights = np.zeros(len(knots))
            np.add.at(weights, place, masses - upper)
            np.add.at(weights, place + 1, upper)
    rest = max(full - known, 0.0)
    knots, weights = np.append(knots, rate), np.append(weights, rest)
    some = weights > 0.0
    return CohortLaw(1.0 - full, knots[some], weights[some])


def cohort_pair(
    rate: float, noise: float, cohort: int, sizes: tuple[int, int], direction: Direction
) -> SampledGaussianPair | ChoicePair:
    """Return a pair that dominates a round for all data sets of ``sizes``, from and to."""
    usual, rates, weights = cohort_law(rate, cohort, sizes)
    if not len(weights):
        return SampledGaussianPair(rate, noise, direction)
    if usual <= 0.0 and len(weights) == 1:
        return SampledGaussianPair(float(rates[0]), noise / 2, direction)
    pairs = [RecordsPair(q, noise / 2, 1, direction) for q in rates.tolist()]
    probabilities = weights.tolist()
    if usual > 0.0:
        pairs.append(RecordsPair(rate, noise, 1, direction))
        probabilities.append(usual)
    return ChoicePair(tuple(pairs), tuple(probabilities))


@lru_cache(maxsize=64)
def crowd_pair(
    rate: float, noise: float, cohort: int, clients: int, direction: Direction
) -> AtomicPair | None:
    """Return an achieved pair: all others send 1, the target sends -1, seen in cells of the line.

    It has finitely many losses. What is seen of cells is less than the release. None if the
    deviation of the number of others is above 250.
    """
    others = clients - 1
    if others * rate * (1 - rate) > 250.0**2:
        return None
    values, masses = binomial_blocks(others, rate, 0)
    missing = max(0.0, 1 - float(masses.sum())) + UNIT * (len(masses) + 16)
    if missing > 1e-10:
        return None
    short = values < cohort
    few, mass = values[short], masses[short]
    full, kept = masses[~short], masses[~short] * (rate * cohort / (values[~short] + 1))
    centers = np.concatenate([few, [cohort]])
    low, high = float(centers[0]) - 2 - 7 * noise, cohort + 7 * noise
    # A dozen cells for each deviation of the noise.
    number = min(math.ceil((high - low) / noise * 12), 1000)
    edges = np.concatenate([[-np.inf], np.linspace(low, high, number), [np.inf]])
    ends = np.array([full.sum(), kept.sum()])
    away = _cells(edges, centers, noise, np.append(mass, ends[0]))
    moved = rate * mass, _cells(edges, centers - 1, noise, np.append(rate * mass, 0.0))
    stays = _cells(edges, centers, noise, np.append(mass - moved[0], ends[0] - ends[1]))
    there = stays + moved[1] + _cells(edges, np.array([cohort - 2.0]), noise, ends[1:])
    first, second = (there, away) if direction is Direction.REMOVE else (away, there)
    # The second one is rounded up, and both add up to one within the errors that are stated.
    some = first > 1e-290
    second = second * (1 + _CELL_ERROR) + missing
    loss = np.log(first[some]) - np.log(second[some]) + math.log(float(second.sum()))
    error = 2 * (missing * (number + 1) + 4 * _CELL_ERROR)
    return AtomicPair(loss, first[some] / float(first.sum()), 0.0, error, error)


def _cells(edges: Array, centers: Array, noise: float, masses: Array) -> Array:
    """Return the masses of cells under a mixture of Gaussians around the centers."""
    at = (edges - centers[:, None]) / noise
    left, right = at[:, :-1], at[:, 1:]
    # Of two tails the smaller ones are subtracted.
    sign = np.where(left > 0.0, -1.0, 1.0)
    return masses @ np.abs(ndtr(sign * right) - ndtr(sign * left))
