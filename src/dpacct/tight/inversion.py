"""delta(eps) and eps(delta) of a composition by contour inversion of its moments.

The integral is `contour.Contour`; here the tilt is chosen, and epsilon found on the contour.
"""

from __future__ import annotations

import math
from contextlib import suppress

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT
from dpacct.tight.composition import Composition
from dpacct.tight.contour import Composed, Contour
from dpacct.tight.crossing import crossing
from dpacct.tight.moment_bounds import NEXT_TO_NOTHING, chernoff_delta
from dpacct.tight.saddle import (
    epsilon_estimate,
    log_delta_estimate,
    tilt_at_delta,
    tilt_at_epsilon,
)
from dpacct.tight.tilts import cheapest_tilt
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
_TINY, _TINIEST = 1e-320, 1e-250
# The least epsilon that is guessed, in units of 1 / c.
_LEAST_GUESS = 1e-4
# A tilt times the standard deviation of the loss under it; more only where a tail is heavy.
HEAVY = 12.0
# The share of delta that a truncation may lose: no more than is seen, and next to nothing.
_LOST, _FAR = 1e-8, 1e-26
# With less noise than this the moments explode long before that.
_LOUD = 1.5
# Where nothing is known of it, what a delta is at least of which most losses are above epsilon.
_CERTAIN = 0.01
# A width with which no blurred contour can compete there.
_NEARLY = 1e-5
# Nodes of a contour without a blur, where most of the tail is gone.
_MANY = 8000


def inversion_delta(composition: Composition, epsilon: float) -> Interval:
    """delta(eps) of one direction of a composition, eps >= 0.

    Error: inside the interval; relative width typically 1e-9 and less.
    Raises:
        NotConverged: see `Contour`.
    """
    if epsilon >= composition.largest_loss:
        return Interval(0.0, 0.0)
    best = Interval(0.0, 1.0)
    with suppress(NotConverged):
        best = _plain_delta(composition, 0.0, epsilon)
        if best.width <= _WIDE * best.upper:
            return best
    if not TruncatedComposition.applies(composition):
        best = _from_below(composition, epsilon, best)
        if best.width <= _WIDE * best.upper:
            return best
        return _refine_delta(composition, 0.0, epsilon, best)
    best = Interval(best.lower, min(best.upper, chernoff_delta(composition, epsilon)))
    if _is_loud(composition):
        rest = TruncatedComposition.losing(composition, _FAR * max(best.upper, _TINIEST))
        with suppress(NotConverged):
            best = _intersection(best, _plain_delta(rest, rest.lost, epsilon))
            if best.width <= _WIDE * best.upper:
                return best
    # Hardly any contour gets here, and none pays for the import before.
    from dpacct.tight.few_large import FewLarge, few_large_delta  # noqa: PLC0415 - as said

    if FewLarge.applies(composition):
        with suppress(NotConverged):
            best = _intersection(best, few_large_delta(composition, epsilon))
            if best.width <= _WIDE * best.upper:
                return best
    best = _from_below(composition, epsilon, best)
    if best.width <= _NEARLY * best.upper:
        return best
    from dpacct.tight.hardly_ever import far_delta  # noqa: PLC0415 - as said

    best = Interval(best.lower, min(best.upper, far_delta(composition, epsilon)))
    if best.upper <= NEXT_TO_NOTHING:
        return best
    for attempts in (1, _ATTEMPTS):
        # What may be lost depends on what is left: a first, coarse contour tells that.
        aim = best.lower if best.lower > 0.0 else 1e-5 * best.upper
        rest = TruncatedComposition.losing(composition, _LOST * aim)
        best = _refine_delta(rest, rest.lost, epsilon, best, attempts)
    return best


def _plain_delta(composition: Composed, lost: float, epsilon: float) -> Interval:
    """One contour at the saddle point, without a blur."""
    tilt, at = tilt_at_epsilon(_few_kinds(composition), epsilon)
    log_delta = min(0.0, log_delta_estimate(tilt, at, epsilon))
    most = _MANY if lost else None
    found = Contour(composition, tilt, epsilon, log_delta, 0.0, at.variance, most).delta(epsilon)
    return Interval(found.lower, min(1.0, (found.upper + lost) * (1 + 4 * UNIT)))


def _from_below(composition: Composition, epsilon: float, best: Interval) -> Interval:
    """What a contour left of zero adds, where most losses are above epsilon."""
    from dpacct.tight.complement import Complement, lies_below  # noqa: PLC0415 - hardly any needs it

    with suppress(NotConverged):
        if lies_below(composition.alike(), epsilon):
            log_delta = math.log(max(best.lower, _CERTAIN))
            best = _intersection(best, Complement(composition, epsilon, log_delta).delta(epsilon))
    return best


def _few_kinds(composition: Composed) -> Composed:
    """What a search may take for the composition."""
    return composition.alike() if isinstance(composition, Composition) else composition


def _is_loud(composition: Composition) -> bool:
    return bool(composition.noise.size) and float(composition.noise.min()) >= _LOUD


def _intersection(first: Interval, second: Interval) -> Interval:
    return Interval.bracket(max(first.lower, second.lower), min(first.upper, second.upper))


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
    best = Interval(0.0, composition.largest_loss)
    with suppress(NotConverged):
        best = _plain_epsilon(composition, 0.0, delta)
        if best.width <= _WIDE * best.upper:
            return best
    if not TruncatedComposition.applies(composition):
        return _refine_epsilon(composition, 0.0, delta, best)
    if _is_loud(composition):
        rest = TruncatedComposition.losing(composition, _FAR * delta)
        with suppress(NotConverged):
            best = _intersection(best, _plain_epsilon(rest, rest.lost, delta))
            if best.width <= _WIDE * best.upper:
                return best
    from dpacct.tight.few_large import FewLarge, few_large_epsilon  # noqa: PLC0415 - as above

    if FewLarge.applies(composition):
        with suppress(NotConverged):
            best = _intersection(best, few_large_epsilon(composition, delta))
            if best.width <= _WIDE * best.upper:
                return best
    rest = TruncatedComposition.losing(composition, _LOST * delta)
    return _refine_epsilon(rest, rest.lost, delta, best)


def _plain_epsilon(composition: Composed, lost: float, delta: float) -> Interval:
    """One contour at the saddle point, without a blur."""
    log_delta, log_rest = math.log(delta), _log_rest(delta, lost)
    tilt, at = tilt_at_delta(_few_kinds(composition), log_delta)
    guess = max(epsilon_estimate(tilt, at, log_delta), _LEAST_GUESS / tilt)
    most = _MANY if lost else None
    contour = Contour(composition, tilt, guess, log_delta, 0.0, at.variance, most)
    return crossing(contour, guess, log_rest, log_delta)


def _log_rest(delta: float, lost: float) -> float:
    """log of what a contour may still have of delta, rounded down."""
    if not lost < delta:
        raise NotConverged("what is cut off of the losses is more than delta")
    return math.log(delta - lost) - 4 * UNIT if lost else math.log(delta)


def without_far_tail(composition: Composition, delta: float) -> Composed:
    """The composition, where there is much noise without losses that are next to impossible."""
    if _is_loud(composition) and TruncatedComposition.applies(composition):
        return TruncatedComposition.losing(composition, _FAR * delta)
    return composition


def quick_epsilon(composition: Composition, delta: float, near: float) -> float:
    """About eps(delta) next to a heavy tail; nothing is proven of it.

    ``near``: about what it is; it is the more accurate the nearer this is.

    Raises:
        NotConverged: a search needs too many nodes.
    """
    from dpacct.tight.few_large import FewLarge  # noqa: PLC0415 - as above

    if FewLarge.applies(composition):
        from dpacct.tight.few_large_guess import epsilon_near  # noqa: PLC0415 - as above

        with suppress(NotConverged):
            return epsilon_near(composition, math.log(delta), near)
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
    log_delta, log_rest = math.log(delta), _log_rest(delta, lost)
    saddle, at = tilt_at_delta(composition, log_delta)
    guess = max(epsilon_estimate(saddle, at, log_delta), _LEAST_GUESS / saddle)
    tilt = cheapest = cheapest_tilt(composition, saddle, guess, log_delta)
    # Coarse first: it says where epsilon is.
    width: float = _COARSE * guess
    before, failed = math.inf, 0
    while attempts > 0 and failed < _FAILURES:
        try:
            contour = Contour(composition, tilt, guess, log_delta, width, at.variance)
            found = crossing(contour, guess, log_rest, log_delta)
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
