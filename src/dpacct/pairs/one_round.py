"""delta(eps) in closed form: of Gaussians without sampling, and of a single sampled round.

A release with noise std sigma per unit of shift has mu = 1 / sigma. T of them compose to one with
mu^2 = sum of mu_t^2. With a = eps/mu - mu/2, b = eps/mu + mu/2 and the Mills ratio
R(x) = (1 - Phi(x)) / phi(x),

    delta(eps) = (1 - Phi(a)) - e^eps (1 - Phi(b)) = phi(a) (R(a) - R(b)).

The likelihood ratio r of a sampled round increases in x, so the worst event is a half-line. With
e^{eps0} = 1 + (e^eps - 1) / q,
    remove:  delta(eps) = q delta_Gauss(eps0),
and for the add direction, with e^{-eps1} = 1 - (1 - e^{-eps}) / q where that is positive,
    add:     delta(eps) = e^eps q (e^{-eps1} E - G) with the half-line {r < e^{-eps}},
which is e^{eps - eps1} q delta_Gauss(eps1).

Where a client is replaced by its opposite, P - e^eps Q = q (N(1) - c N(0) - e^eps N(-1)) with
c = (1 - q) (e^eps - 1) / q, and for each share w in [0, 1]

    delta(eps) <= q (w delta_1(log(c / w)) + (1 - w) delta_2(eps - log(1 - w))),

where delta_1 and delta_2 belong to Gaussians with shifts 1 and 2. Equality holds if both half-lines
are {x > x*}, at which r(x*) = e^eps r(-x*).

Source: Balle, Wang 2018 (arXiv:1805.06530), theorem 8; Balle, Barthe, Gaboardi 2018
(arXiv:1807.01647), docs/derivations/gaussian.md, docs/derivations/one-round.md.
"""

from __future__ import annotations

import math

from dpacct.budget import Interval
from dpacct.numerics.rounding import UNIT
from dpacct.numerics.search import bisect
from dpacct.pairs.dominating import AchievedPair, Direction, GeneralPair, ReplacementPair

# From here on the continued fraction gives all digits in `_FRACTION_TERMS` steps.
_FRACTION_FROM = 4.0
_FRACTION_TERMS = 80
# phi(_FAR) is below 1e-290. The Gaussian tail alone bounds smaller deltas.
_FAR = 40.0
_SMALLEST_DELTA = 1e-280


def mills_ratio(x: float) -> Interval:
    """Return R(x) = (1 - Phi(x)) / phi(x), x >= -30.

    Error: inside the interval, for x >= 4 two convergents of the continued fraction
        1/(x + 1/(x + 2/(x + 3/(x + ...)))), which lie on both sides, relative width 1e-14.
    """
    if x < _FRACTION_FROM:
        value = 0.5 * math.erfc(x / math.sqrt(2)) * math.sqrt(2 * math.pi) * math.exp(x * x / 2)
        error = value * UNIT * (8 * x * x + 32)
        return Interval(value - error, value + error)
    tails = [x, x + _FRACTION_TERMS / x]
    for k in range(_FRACTION_TERMS - 1, 0, -1):
        tails = [x + k / tail for tail in tails]
    # Each step shrinks the tail's relative error to less than 0.7 of it: 4 roundings in all.
    first, second = sorted(1 / tail for tail in tails)
    return Interval(first * (1 - 8 * UNIT), second * (1 + 8 * UNIT))


def _slope(x: float, ratio: Interval) -> Interval:
    """Return -R'(x) = 1 - x R(x), which lies in (0, infinity)."""
    products = (x * ratio.lower, x * ratio.upper)
    error = 4 * UNIT * (1 + abs(x) * ratio.upper)
    return Interval(max(0.0, 1 - max(products) - error), 1 - min(products) + error)


def _difference(a: float, b: float, mu: float) -> Interval:
    """Return R(a) - R(b) for b = a + mu > a.

    Two bounds, the better of each side: the plain difference, and mu times the slope
    g(x) = -R'(x) = 1 - x R(x), which is convex (R is completely monotone), so that
    mu g(midpoint) <= R(a) - R(b) <= mu (g(a) + g(b)) / 2: no cancellation as mu -> 0.
    """
    points = (a, (a + b) / 2, b)
    ratios = [mills_ratio(x) for x in points]
    slopes = [_slope(x, ratio) for x, ratio in zip(points, ratios, strict=True)]
    # a and b carry rounding errors relative to their parts. g(a) is the steepest slope in reach.
    shift = 8 * UNIT * (abs(a) + abs(b) + mu)
    lower = ratios[0].lower - ratios[2].upper - shift * slopes[0].upper
    upper = ratios[0].upper - ratios[2].lower + shift * slopes[0].upper
    # |g'| = R'' = (1 + x^2) R - x, largest at a, bounds the effect of the shift on the slopes.
    bend = shift * ((1 + a * a) * ratios[0].upper + abs(a))
    lower = max(0.0, lower, mu * (slopes[1].lower - bend) * (1 - 4 * UNIT))
    upper = min(upper, mu * ((slopes[0].upper + slopes[2].upper) / 2 + bend) * (1 + 4 * UNIT))
    return Interval(lower, max(lower, upper))


def gaussian_delta(epsilon: float, mu: float) -> Interval:
    """Return delta(eps) of the Gaussian mechanism with mu = shift / noise std, eps >= 0.

    Error: inside the interval, relative width below 1e-8 for mu in [1e-9, 300], delta > 1e-30.
    Source: Balle, Wang 2018 (arXiv:1805.06530), theorem 8.
    """
    if mu == 0.0:
        return Interval(0.0, 0.0)
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if a > _FAR:
        return Interval(0.0, 1e-290)
    # The exponent a^2/2 inherits the error of a, which is relative to eps/mu + mu/2.
    exponent_error = UNIT * (8 * abs(a) * b + 4 * a * a)
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    if a < -5.0:
        tail = 0.5 * math.erfc(a / math.sqrt(2))
        error = 8 * UNIT + 4 * UNIT * b * density
        spread, norm = exponent_error + 32 * UNIT, math.sqrt(2 * math.pi)
        most = math.exp(min(0.0, spread - a * a / 2)) / norm
        least = math.exp(-spread - a * a / 2) / norm
        hidden = mills_ratio(b)
        lower, upper = tail - most * hidden.upper, tail - least * hidden.lower
        return Interval(max(0.0, lower - error), min(1.0, upper + error))
    difference = _difference(a, b, mu)
    if density < 1e-290:
        return Interval(0.0, 1e-290 * difference.upper)
    lower = density * difference.lower * (1 - exponent_error - 32 * UNIT)
    upper = density * difference.upper * (1 + exponent_error + 32 * UNIT)
    return Interval(max(0.0, lower), min(1.0, upper))


def gaussian_epsilon(delta: float, mu: float) -> Interval:
    """Return eps(delta) of the Gaussian mechanism with mu = shift / noise std, never negative.

    Error: inside the interval, relative width about 1e-12 beyond that of `gaussian_delta`.
    """
    if mu == 0.0:
        return Interval(0.0, 0.0)
    at_zero = gaussian_delta(0.0, mu)
    # delta(eps) <= e^{-a^2/2} / 2 for a >= 0, so this epsilon is always enough.
    enough = mu * (mu / 2 + math.sqrt(-2 * math.log(delta))) * (1 + 32 * UNIT)
    lower = 0.0
    if at_zero.lower > delta:
        lower = bisect(lambda eps: gaussian_delta(eps, mu).lower > delta, enough, 1e-13)[0]
    upper = 0.0
    if delta < _SMALLEST_DELTA:
        upper = enough
    elif at_zero.upper > delta:
        upper = bisect(lambda eps: gaussian_delta(eps, mu).upper > delta, enough, 1e-13)[1]
    return Interval(lower, upper)


def one_round_delta(epsilon: float, pair: AchievedPair | GeneralPair) -> Interval:
    """Return delta(eps) of one round, or of one other pair by its own function, eps >= 0.

    The pair of C_q is left out: its profile for eps >= 0 is that of the remove pair.

    Error:
        Inside the interval, relative width below 1e-8 if delta exceeds 1e-30, for a replacement
        7e-14 / sigma^2 more. The upper end never exceeds q, the chance that the client is drawn.
    """
    if isinstance(pair, GeneralPair):
        return pair.delta(epsilon)
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
        # Two ways to write 1 - (1 - e^-eps) / q. Each is exact enough on its side of 1/2. It is a
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
    # Both half-lines end within the error of each other. Beyond x* lies this much of N(1).
    tail = 0.5 * math.erfc((threshold * sigma - mu) / math.sqrt(2)) * (1 + 1e-6)
    spread = error + 32 * UNIT
    return Interval(
        max(0.0, q * (lower * (1 - spread) - 4 * error * tail)),
        min(q, math.nextafter(q * upper * (1 + spread), math.inf)),
    )


def _gaussian(epsilon: float, mu: float) -> Interval:
    """Return delta(eps) of a Gaussian for any eps: 1 - e^eps + e^eps delta(-eps) for eps < 0."""
    if epsilon >= 0.0:
        return gaussian_delta(epsilon, mu)
    ratio, swapped = math.exp(epsilon), gaussian_delta(-epsilon, mu)
    lower, upper = ratio * swapped.lower, ratio * swapped.upper
    rest = -math.expm1(epsilon)
    slack = 8 * UNIT * (rest + upper)
    return Interval(max(0.0, lower + rest - slack), upper + rest + slack)
