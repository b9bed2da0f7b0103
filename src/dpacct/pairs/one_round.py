"""delta(eps) of a single sampled Gaussian round, in closed form: what one round alone achieves.

The likelihood ratio r is increasing in x, so the worst event is a half-line. With
e^{eps0} = 1 + (e^eps - 1) / q,
    remove:  delta(eps) = q delta_Gauss(eps0),
and for the add direction, with e^{-eps1} = 1 - (1 - e^{-eps}) / q where that is positive,
    add:     delta(eps) = e^eps q (e^{-eps1} E - G) with the half-line {r < e^{-eps}},
which is e^{eps - eps1} q delta_Gauss(eps1).

Where a client is replaced by its opposite, P - e^eps Q = q (N(1) - c N(0) - e^eps N(-1)) with
c = (1 - q) (e^eps - 1) / q, and for each share w in [0, 1]

    delta(eps) <= q (w delta_1(log(c / w)) + (1 - w) delta_2(eps - log(1 - w))),

delta_1 and delta_2 those of Gaussians with shifts 1 and 2: with equality where both half-lines are
{x > x*}, at which r(x*) = e^eps r(-x*).

Source: Balle, Barthe, Gaboardi 2018 (arXiv:1807.01647); docs/derivations/one-round.md.
"""

from __future__ import annotations

import math

from dpacct.budget import Interval
from dpacct.numerics.rounding import UNIT
from dpacct.pairs.dominating import AchievedPair, Direction, ReplacementPair
from dpacct.pairs.gaussian import gaussian_delta


def one_round_delta(epsilon: float, pair: AchievedPair) -> Interval:
    """delta(eps) of one round, eps >= 0.

    Args:
        epsilon: eps >= 0.
        pair: any but that of C_q, whose profile for eps >= 0 is that of the remove pair.
    Error:
        Inside the interval; relative width below 1e-8 where delta exceeds 1e-30, for a replacement
        7e-14 / sigma^2 more. The upper end never exceeds q: who is not drawn tells nothing.
    """
    q, mu = pair.sampling_rate, 1 / pair.noise_std
    if isinstance(pair, ReplacementPair):
        return _replacement_delta(epsilon, q, pair.noise_std)
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
            log_upper = math.log((kept + kept_error) * q) + epsilon
            return Interval(0.0, min(q, math.exp(min(0.0, log_upper))))
        base = -math.log(kept)
        scale = q * kept * math.exp(epsilon)
        error = 32 * UNIT * base + 2 * kept_error / kept
    # delta_Gauss decreases, so an error of its argument widens both ends.
    low, high = gaussian_delta(base + error, mu), gaussian_delta(max(0.0, base - error), mu)
    spread = error + 32 * UNIT
    return Interval(
        max(0.0, scale * low.lower * (1 - spread)),
        min(q, math.nextafter(scale * high.upper * (1 + spread), math.inf)),
    )


def _replacement_delta(epsilon: float, q: float, sigma: float) -> Interval:
    mu, inverse = 1 / sigma, 1 / sigma**2
    if q == 1.0 or epsilon == 0.0:
        whole = gaussian_delta(epsilon, 2 * mu)
        return Interval(q * whole.lower * (1 - 4 * UNIT), min(q, q * whole.upper * (1 + 4 * UNIT)))
    log_odds = math.log1p(-q) - math.log(q)
    # x* / sigma^2 = eps / 2 + asinh((1 - q) / q e^{1 / (2 sigma^2)} sinh(eps / 2)).
    log_growth = epsilon + math.log(-math.expm1(-epsilon))
    log_sinh = log_odds + inverse / 2 + log_growth - epsilon / 2 - math.log(2.0)
    arc = log_sinh + math.log(2.0) if log_sinh > 300.0 else math.asinh(math.exp(log_sinh))
    threshold = epsilon / 2 + arc
    error = 64 * UNIT * (abs(log_odds) + inverse + epsilon + abs(log_growth) + threshold + 1)
    # The shares add up to one, but for rounding, and any that do give an upper bound.
    shares = [
        math.exp(min(log_odds + log_growth - threshold + inverse / 2, 0.0)),
        math.exp(min(epsilon - 2 * threshold, 0.0)),
    ]
    total = sum(shares)
    costs = [log_odds + log_growth, epsilon]
    lower, upper = 0.0, 0.0
    for share, cost, shift in zip(shares, costs, (mu, 2 * mu), strict=True):
        if share > 0.0:
            at = cost - math.log(share / total)
            lower += share / total * _gaussian(at + error, shift).lower
            upper += share / total * _gaussian(at - error, shift).upper
    # Both half-lines end within the error of each other; beyond x* lies this much of N(1).
    tail = 0.5 * math.erfc((threshold * sigma - mu) / math.sqrt(2)) * (1 + 1e-6)
    spread = error + 32 * UNIT
    return Interval(
        max(0.0, q * (lower * (1 - spread) - 4 * error * tail)),
        min(q, math.nextafter(q * upper * (1 + spread), math.inf)),
    )


def _gaussian(epsilon: float, mu: float) -> Interval:
    """delta(eps) of a Gaussian for any real eps: 1 - e^eps + e^eps delta(-eps) where eps < 0."""
    if epsilon >= 0.0:
        return gaussian_delta(epsilon, mu)
    ratio, swapped = math.exp(epsilon), gaussian_delta(-epsilon, mu)
    lower, upper = ratio * swapped.lower, ratio * swapped.upper
    rest = -math.expm1(epsilon)
    slack = 8 * UNIT * (rest + upper)
    return Interval(max(0.0, lower + rest - slack), upper + rest + slack)
