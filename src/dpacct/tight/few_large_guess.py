"""About epsilon and delta where few rounds with a large loss decide. Nothing here is proven."""

from __future__ import annotations

import math

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.search import bracket_root
from dpacct.pairs.gaussian import gaussian_epsilon
from dpacct.tight.composition import Composition
from dpacct.tight.laws.faded import faded_delta, faded_mass
from dpacct.tight.saddle import log_delta_estimate, tilt_at_epsilon
from dpacct.tight.small import SmallComposition
from dpacct.tight.split import MARGIN, SplitComposition, check_reach, split_at, split_cumulants

# The share of epsilon where small losses end, and the least epsilon.
_USUAL, _LEAST = 0.4, 1e-12
# Where others are below zero by more than this share of epsilon, a loss has to be larger; and how
# many of their standard deviations count.
_MUCH, _SPREADS = 0.1, 1.0
# The exponential of a larger epsilon overflows.
_FARTHEST = 600.0
# The longest step, in the logarithm of epsilon.
_FAR_OFF = 2.0


def about_epsilon(composition: Composition, log_delta: float, tolerance: float) -> float:
    """About eps(delta), a little too large rather than too small; nothing is proven of it."""
    most = math.exp(max(log_delta, -700.0))
    alone = max(
        _alone(pair.sampling_rate, pair.noise_std, most / n)
        for pair, n in composition.sampled_pairs()
    )
    start = math.log(max(alone, _LEAST))

    def excess(log_epsilon: float) -> float:
        return about_log_delta(composition, math.exp(log_epsilon), log_delta)[0] - log_delta

    found = bracket_root(excess, start + 0.02, (start - 2.0, start + 5.0), tolerance, 0.1)
    return math.exp(found[1] + 0.5 * tolerance)


def _alone(rate: float, noise: float, delta: float) -> float:
    """eps of one round."""
    if delta >= rate:
        return 0.0
    return math.log1p(
        rate * math.expm1(min(gaussian_epsilon(delta / rate, 1 / noise).upper, 600.0))
    )


def epsilon_near(composition: Composition, log_delta: float, epsilon: float) -> float:
    """About eps(delta) where it is next to an epsilon: one step of Newton's iteration.

    Raises:
        NotConverged: losses are too large for any split there.
    """
    check_reach(composition, MARGIN * epsilon, log_delta)
    found, slope = about_log_delta(composition, epsilon, log_delta)
    if not slope < 0.0:
        return epsilon * math.exp(-_FAR_OFF)
    step = (log_delta - found) / (slope * epsilon)
    return epsilon * math.exp(min(max(step, -_FAR_OFF), _FAR_OFF))


def about_log_delta(
    composition: Composition, epsilon: float, log_delta: float
) -> tuple[float, float]:
    """log of what large losses, a few of them, and all small ones have, and its derivative.

    Never NaN.
    """
    try:
        center = min(_USUAL * epsilon, of_a_client(composition))
        split = split_at(composition, center, MARGIN * epsilon, log_delta)
        rest = _usual_rest(split)
        if rest > _MUCH * epsilon:
            split = split_at(composition, center, MARGIN * epsilon + rest, log_delta)
        parts = [_of_some(split, epsilon), _of_some(SmallComposition.of(split), epsilon)]
    except NotConverged:
        return -math.inf, 0.0
    try:
        masses = [faded_mass(cut) for cut in split.cuts]
    except NotConverged:
        # What is enough by itself is not rare.
        return 0.0, -parts[0][1]
    faded, falling = 1e-300, 0.0
    if epsilon < _FARTHEST:
        counts = np.array([cut.count for cut in split.cuts])
        found = faded_delta(epsilon, counts, masses)[1]
        # Where what lies beyond the end is not enough, it is no part of delta.
        if found > faded:
            # Of what is faded out the derivative is minus e^eps times the mass under Q.
            rows = zip(counts.tolist(), masses, strict=True)
            falling = math.exp(epsilon) * sum(n * mass.most for n, mass in rows)
            faded = found
    several = sum(part for part, _ in parts)
    falling += sum(part * saddle for part, saddle in parts)
    return math.log(faded + several), -falling / (faded + several)


def _of_some(some: SplitComposition | SmallComposition, epsilon: float) -> tuple[float, float]:
    """What the saddle point says of their part of delta, and its tilt."""
    saddle, at = tilt_at_epsilon(some, epsilon)
    return math.exp(min(log_delta_estimate(saddle, at, epsilon), 0.0)), saddle


def _usual_rest(split: SplitComposition) -> float:
    """How far below zero small losses add up to as a rule."""
    small = [(cut.count, split_cumulants(cut, 0.0)[0]) for cut in split.cuts]
    mean = sum(count * part.mean for count, part in small)
    spread = math.sqrt(sum(count * part.variance for count, part in small))
    return max(0.0, _SPREADS * spread - mean)


def of_a_client(composition: Composition) -> float:
    """Half the usual loss of a round in which the client takes part; infinite where that is small.

    Several of them may be what epsilon is made of, and each of them is large.
    """
    usual = max(
        0.5 / pair.noise_std**2 + math.log(pair.sampling_rate)
        for pair, _ in composition.sampled_pairs()
    )
    return 0.5 * usual if usual > 1.0 else math.inf
