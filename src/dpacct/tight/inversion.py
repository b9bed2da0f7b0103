"""delta(eps) and eps(delta) of a composition by contour inversion of its moments.

The integral is `contour.Contour`; here the tilt is chosen, and epsilon found on the contour.
"""

from __future__ import annotations

import math

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT
from dpacct.tight.composition import Composition
from dpacct.tight.contour import (
    CHERNOFF_TILTS,
    Composed,
    Contour,
    alias_distance,
)
from dpacct.tight.moment_bounds import chernoff_delta
from dpacct.tight.saddle import (
    epsilon_estimate,
    log_chernoff_factor,
    log_delta_estimate,
    tilt_at_delta,
    tilt_at_epsilon,
)
from dpacct.tight.truncation import TruncatedComposition

# What a blur may add to epsilon, and the width that sends for a finer one; both relative.
_BLUR, _WIDE = 4e-7, 1e-6
_ATTEMPTS, _FAILURES = 4, 8
# A contour that leaves more of the width than this was the last.
_WORTH = 0.7
_COARSE = 1e-3
# What a tilt or a width is multiplied by where it was too much or too little.
_LESS, _MORE = 0.7, 2.5
# A guess of epsilon that was this much too large chose the tilt badly.
_FAR_OFF = 0.7
# Shares of the saddle point's tilt that are tried for a blurred contour.
_SHARES = (1.0, 0.85, 0.7, 0.55, 0.4)
_TINY = 1e-320
_NEWTON_STEPS, _FARTHEST = 30, 1e9
# The least epsilon that is guessed, in units of 1 / c.
_LEAST_GUESS = 1e-4
# The share of delta that a truncation may lose.
_LOST = 1e-8


def inversion_delta(composition: Composition, epsilon: float) -> Interval:
    """delta(eps) of one direction of a composition, eps >= 0.

    Error: inside the interval; relative width typically 1e-9 and less.
    Raises:
        NotConverged: see `Contour`.
    """
    if epsilon >= composition.largest_loss:
        return Interval(0.0, 0.0)
    try:
        tilt, at = tilt_at_epsilon(composition, epsilon)
        log_delta = min(0.0, log_delta_estimate(tilt, at, epsilon))
        best = Contour(composition, tilt, epsilon, log_delta, 0.0, at.variance).delta(epsilon)
        if best.width <= _WIDE * best.upper:
            return best
    except NotConverged:
        best = Interval(0.0, 1.0)
    if not TruncatedComposition.applies(composition):
        return _refine_delta(composition, 0.0, epsilon, best)
    best = Interval(best.lower, min(best.upper, chernoff_delta(composition, epsilon)))
    for attempts in (1, _ATTEMPTS):
        # What may be lost depends on what is left: a first, coarse contour tells that.
        aim = best.lower if best.lower > 0.0 else 1e-5 * best.upper
        rest = TruncatedComposition.losing(composition, _LOST * aim)
        best = _refine_delta(rest, rest.lost, epsilon, best, attempts)
    return best


def _refine_delta(
    composition: Composed,
    lost: float,
    epsilon: float,
    best: Interval,
    attempts: int = _ATTEMPTS,
) -> Interval:
    """Ever less blurred contours, intersected; ``lost`` belongs to delta, not to the contour."""
    try:
        saddle, at = tilt_at_epsilon(composition, epsilon)
        log_delta = min(0.0, log_delta_estimate(saddle, at, epsilon))
        tilt = cheapest_tilt(composition, saddle, epsilon, log_delta)
    except NotConverged:
        return _known(best)
    # Coarse first: it says where delta is.
    width, before, failed = _COARSE * max(epsilon, 1 / tilt), math.inf, 0
    while attempts > 0 and failed < _FAILURES:
        try:
            contour = Contour(composition, tilt, epsilon, log_delta, width, at.variance)
            found = contour.delta(epsilon)
        except NotConverged:
            failed += 1
            tilt, width = _easier(tilt, width, before)
            continue
        attempts -= 1
        upper = min(1.0, (found.upper + lost) * (1 + 4 * UNIT))
        best = Interval.bracket(max(best.lower, found.lower), min(best.upper, upper))
        gap = best.width
        if gap <= _WIDE * best.upper or (not contour.blur and tilt == saddle):
            break
        log_delta = math.log(max(best.upper, _TINY))
        worth, before = gap <= _WORTH * before, gap
        if contour.rounding_dominates:
            # Nearer to the saddle point less is lost against M(c) e^{-c eps}.
            tilt = min(saddle, tilt / _LESS)
            continue
        if contour.blur > 1.01 * width / (1 + tilt) or not worth:
            # As fine as it can be.
            break
        width = min(width * 0.5 * _WIDE * best.upper / gap, _BLUR * max(epsilon, 1 / tilt))
    return _known(best)


def _easier(tilt: float, width: float, before: float) -> tuple[float, float]:
    """What to try where a contour failed: a smaller tilt, or a wider blur once one was found."""
    return (_LESS * tilt, width) if math.isinf(before) else (tilt, _MORE * width)


def _known(best: Interval) -> Interval:
    if best.upper >= 1.0:
        raise NotConverged("no contour reaches delta")
    return best


def inversion_epsilon(composition: Composition, delta: float) -> Interval:
    """eps(delta) of one direction of a composition, at least 0.

    Error: inside the interval; relative width typically 1e-9 and less.
    Raises:
        NotConverged: see `Contour`.
    """
    try:
        log_delta = math.log(delta)
        tilt, at = tilt_at_delta(composition, log_delta)
        guess = max(epsilon_estimate(tilt, at, log_delta), _LEAST_GUESS / tilt)
        contour = Contour(composition, tilt, guess, log_delta, 0.0, at.variance)
        best = _crossing(contour, guess, log_delta, log_delta)
        if best.width <= _WIDE * best.upper:
            return best
    except NotConverged:
        best = Interval(0.0, composition.largest_loss)
    if not TruncatedComposition.applies(composition):
        return _refine_epsilon(composition, 0.0, delta, best)
    rest = TruncatedComposition.losing(composition, _LOST * delta)
    return _refine_epsilon(rest, rest.lost, delta, best)


def coarse_epsilon(composition: Composition, delta: float) -> float:
    """About eps(delta), by one contour with a wide blur; nothing is proven of it.

    Raises:
        NotConverged: see `Contour`.
    """
    rest, lost = composition, 0.0
    if TruncatedComposition.applies(composition):
        rest = TruncatedComposition.losing(composition, _LOST * delta)
        lost = rest.lost
    found = _refine_epsilon(rest, lost, delta, Interval(0.0, math.inf), attempts=1)
    return (found.lower + found.upper) / 2


def _refine_epsilon(
    composition: Composed,
    lost: float,
    delta: float,
    best: Interval,
    attempts: int = _ATTEMPTS,
) -> Interval:
    """Ever less blurred contours, intersected; ``lost`` belongs to delta, not to the contour."""
    if not lost < delta:
        raise NotConverged("what is cut off of the losses is more than delta")
    log_delta = math.log(delta)
    # Rounded down: what the contour may still have.
    log_rest = math.log(delta - lost) - 4 * UNIT
    saddle, at = tilt_at_delta(composition, log_delta)
    guess = max(epsilon_estimate(saddle, at, log_delta), _LEAST_GUESS / saddle)
    tilt = cheapest = cheapest_tilt(composition, saddle, guess, log_delta)
    # Coarse first: it says where epsilon is.
    width: float = _COARSE * guess
    before, failed = math.inf, 0
    while attempts > 0 and failed < _FAILURES:
        try:
            contour = Contour(composition, tilt, guess, log_delta, width, at.variance)
            found = _crossing(contour, guess, log_rest, log_delta)
        except NotConverged:
            failed += 1
            tilt, width = _easier(tilt, width, before)
            continue
        attempts -= 1
        best = Interval.bracket(max(best.lower, found.lower), min(best.upper, found.upper))
        gap = best.upper - best.lower
        if gap <= _WIDE * best.upper or (not contour.blur and tilt == saddle):
            break
        if best.upper < _FAR_OFF * guess:
            tilt = cheapest = cheapest_tilt(composition, saddle, best.upper, log_delta)
        guess = best.upper
        worth, before = gap <= _WORTH * before, gap
        if contour.rounding_dominates:
            # Nearer to the saddle point less is lost against M(c) e^{-c eps}.
            tilt = min(saddle, tilt / _LESS)
            continue
        if contour.blur > 1.01 * width / (1 + tilt) or not worth:
            if tilt <= cheapest:
                # As fine as it can be.
                break
            tilt = cheapest
        width = min(width * 0.5 * _WIDE * best.upper / gap, _BLUR * best.upper)
    if math.isinf(best.upper):
        raise NotConverged("no contour reaches epsilon")
    return best


def cheapest_tilt(composition: Composed, tilt: float, epsilon: float, log_delta: float) -> float:
    """A tilt, at most the one given, at which a blurred contour has the fewest nodes.

    Next to a heavy tail the moments explode soon, and a smaller tilt has its aliases nearer.
    """

    def nodes(factor: float) -> float:
        c = factor * tilt
        tops = [
            (b, composition.cumulants(b).log_moment + log_chernoff_factor(b))
            for b in (c * CHERNOFF_TILTS).tolist()
        ]
        # The blur's variance is a width divided by 1 + c.
        return alias_distance(c, epsilon, log_delta, tops) * math.sqrt(1 + c)

    return tilt * min(_SHARES, key=nodes)


def _crossing(contour: Contour, guess: float, log_upper: float, log_lower: float) -> Interval:
    """Where the bounds of delta on a contour cross e^log_upper and e^log_lower; at least 0."""
    # Both logarithms may be off by their functions' errors: each end has that much to spare.
    spare = 4 * FUNCTION_ERROR * (1 - log_lower)

    def above(epsilon: float) -> tuple[float, float]:
        found, slope = contour.delta_and_slope(epsilon)
        return math.log(max(found.upper, _TINY)) - log_upper + spare, slope

    def below(epsilon: float) -> float:
        return math.log(max(contour.delta(epsilon).lower, _TINY)) - log_lower - spare

    # Newton's iteration in epsilon; where it ends is proven by what follows.
    tolerance = (1e-9 if contour.blur else 3e-11) * guess
    center, move = guess, math.inf
    excess, slope = above(center)
    for _ in range(_NEWTON_STEPS):
        move = max(-excess / slope, -0.75 * center)
        if abs(move) <= tolerance:
            break
        center += min(move, 4 * center + 1.0)
        excess, slope = above(center)
    upper, step = center + max(0.0, -excess / slope) + tolerance, tolerance
    # Written so that what is no number proves nothing.
    while not above(upper)[0] <= 0:
        upper, step = upper + step, 2 * step
        if not upper < _FARTHEST:
            raise NotConverged("delta does not fall to its target on this contour")
    if upper <= 4 * tolerance and above(0.0)[0] <= 0:
        return Interval(0.0, 0.0)
    lower = min(center, upper) - 1.02 * max(0.0, below(center) / slope) - tolerance
    step = max(tolerance, 0.1 * (center - lower))
    while lower > 0 and not below(lower) >= 0:
        lower, step = lower - step, 2 * step
    return Interval(max(lower, 0.0), upper)
