"""delta(eps) of a single sampled Gaussian round, in closed form: what one round alone achieves.

The likelihood ratio r is increasing in x, so the worst event is a half-line. With
e^{eps0} = 1 + (e^eps - 1) / q,
    remove:  delta(eps) = q delta_Gauss(eps0),
and for the add direction, with e^{-eps1} = 1 - (1 - e^{-eps}) / q where that is positive,
    add:     delta(eps) = e^eps q (e^{-eps1} E - G) with the half-line {r < e^{-eps}},
which is e^{eps - eps1} q delta_Gauss(eps1).

Source: Balle, Barthe, Gaboardi 2018 (arXiv:1807.01647); docs/derivations/one-round.md.
"""

from __future__ import annotations

import math

from dpacct.budget import Interval
from dpacct.dominating import Direction, SampledGaussianPair
from dpacct.gaussian import gaussian_delta
from dpacct.rounding import UNIT


def one_round_delta(epsilon: float, pair: SampledGaussianPair) -> Interval:
    """delta(eps) of one round, eps >= 0.

    Args:
        epsilon: eps >= 0.
        pair: rate, noise std and direction.
    Error:
        Inside the interval; relative width below 1e-8 where delta exceeds 1e-30.
    """
    q, mu = pair.sampling_rate, 1 / pair.noise_std
    if q == 1.0:
        return gaussian_delta(epsilon, mu)
    if pair.direction is Direction.REMOVE:
        odds = math.expm1(epsilon) / q if epsilon < 700 else math.inf
        base = math.log1p(odds)
        if math.isinf(odds):
            base = epsilon - math.log(q) + math.log1p(-(1 - q) * math.exp(-epsilon))
        scale = q
        error = 32 * UNIT * base
    else:
        # Two ways to write 1 - (1 - e^-eps) / q; each is exact enough on its side of 1/2. It is a
        # difference: its absolute error becomes relative as it vanishes.
        if q > 0.5:
            kept = (math.exp(-epsilon) - (1 - q)) / q
            kept_error = 32 * UNIT * (math.exp(-epsilon) + (1 - q))
        else:
            kept = 1 + math.expm1(-epsilon) / q
            kept_error = 32 * UNIT * (2 - kept)
        if kept + kept_error <= 0:
            return Interval(0.0, 0.0)
        if kept <= kept_error:
            return Interval(0.0, math.exp(min(0.0, math.log((kept + kept_error) * q) + epsilon)))
        base = -math.log(kept)
        scale = q * kept * math.exp(epsilon)
        error = 32 * UNIT * base + 2 * kept_error / kept
    # delta_Gauss decreases, so an error of its argument widens both ends.
    low, high = gaussian_delta(base + error, mu), gaussian_delta(max(0.0, base - error), mu)
    spread = error + 32 * UNIT
    return Interval(
        max(0.0, scale * low.lower * (1 - spread)),
        min(1.0, math.nextafter(scale * high.upper * (1 + spread), math.inf)),
    )
