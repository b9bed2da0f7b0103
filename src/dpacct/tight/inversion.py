"""eps(delta) of a composition by contour inversion of its moments; delta(eps): `inverted_delta`.

The integral is `contour.Contour`; here the tilt is chosen, and epsilon found on the contour.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT
from dpacct.pairs.dominating import Direction
from dpacct.tight.composition import Composition
from dpacct.tight.contour import Composed, Contour
from dpacct.tight.crossing import crossing
from dpacct.tight.refining import (
    ATTEMPTS,
    BLUR,
    COARSE,
    FAILURES,
    FAR,
    LESS,
    LOST,
    MANY,
    WIDE,
    WORTH,
    easier,
    few_kinds,
    intersection,
    is_loud,
)
from dpacct.tight.saddle import epsilon_estimate, tilt_at_delta
from dpacct.tight.tilts import cheapest_tilt
from dpacct.tight.truncation import TruncatedComposition

# A guess of epsilon that was this much too large chose the tilt badly.
_FAR_OFF = 0.7
# The least epsilon that is guessed, in units of 1 / c.
_LEAST_GUESS = 1e-4
# Below this rate a client hardly takes part.
_RARE = 1e-4
# A tilt times the standard deviation of the loss under it; more only where a tail is heavy.
HEAVY = 12.0


def inversion_epsilon(composition: Composition, delta: float) -> Interval:
    """eps(delta) of one direction of a composition, at least 0.

    Error: inside the interval; relative width typically 1e-9 and less.
    Raises:
        NotConverged: see `Contour`.
    """
    best = Interval(0.0, composition.largest_loss)
    for attempt in _attempts(composition):
        with suppress(NotConverged):
            best = intersection(best, attempt(composition, delta))
            if best.width <= WIDE * best.upper:
                return best
    if not TruncatedComposition.applies(composition):
        return _refine_epsilon(composition, 0.0, delta, best)
    rest = TruncatedComposition.losing(composition, LOST * delta)
    return _refine_epsilon(rest, rest.lost, delta, best)


def _attempts(composition: Composition) -> list[Callable[[Composition, float], Interval]]:
    """What to try before a blur, the cheapest first."""
    if not TruncatedComposition.applies(composition):
        return [_as_it_is, _few_large]
    if not is_loud(composition):
        return [_as_it_is, _few_large]
    # Who is added and hardly takes part needs many nodes over the whole line, and few on a part.
    rare = float(composition.rates.max(initial=0.0)) < _RARE
    if composition.direction is Direction.ADD and rare:
        return [_without_far_tail, _as_it_is]
    return [_as_it_is, _without_far_tail, _few_large]


def _as_it_is(composition: Composition, delta: float) -> Interval:
    return _plain_epsilon(composition, 0.0, delta)


def _without_far_tail(composition: Composition, delta: float) -> Interval:
    """Where there is much noise the far tail explodes late: little is cut off."""
    rest = TruncatedComposition.losing(composition, FAR * delta)
    return _plain_epsilon(rest, rest.lost, delta)


def _few_large(composition: Composition, delta: float) -> Interval:
    # Hardly any contour gets here, and none pays for the import before.
    from dpacct.tight.few_large import FewLarge, few_large_epsilon  # noqa: PLC0415 - as said

    if not FewLarge.applies(composition):
        raise NotConverged("losses of such rounds are not split")
    return few_large_epsilon(composition, delta)


def _plain_epsilon(composition: Composed, lost: float, delta: float) -> Interval:
    """One contour at the saddle point, without a blur."""
    log_delta, log_rest = math.log(delta), _log_rest(delta, lost)
    tilt, at = tilt_at_delta(few_kinds(composition), log_delta)
    guess = max(epsilon_estimate(tilt, at, log_delta), _LEAST_GUESS / tilt)
    most = MANY if lost else None
    contour = Contour(composition, tilt, guess, log_delta, 0.0, at.variance, most)
    return crossing(contour, guess, log_rest, log_delta)


def _log_rest(delta: float, lost: float) -> float:
    """log of what a contour may still have of delta, rounded down."""
    if not lost < delta:
        raise NotConverged("what is cut off of the losses is more than delta")
    return math.log(delta - lost) - 4 * UNIT if lost else math.log(delta)


def without_far_tail(composition: Composition, delta: float) -> Composed:
    """The composition, where there is much noise without losses that are next to impossible."""
    if is_loud(composition) and TruncatedComposition.applies(composition):
        return TruncatedComposition.losing(composition, FAR * delta)
    return composition


def quick_epsilon(composition: Composition, delta: float, near: float) -> float:
    """About eps(delta) next to a heavy tail; nothing is proven of it.

    ``near``: about what it is; it is the more accurate the nearer this is.

    Raises:
        NotConverged: a search needs too many nodes.
    """
    from dpacct.tight.few_large import FewLarge  # noqa: PLC0415 - as said

    if FewLarge.applies(composition):
        from dpacct.tight.few_large_guess import epsilon_near  # noqa: PLC0415 - as said

        with suppress(NotConverged):
            return epsilon_near(composition, math.log(delta), near)
    rest, lost = composition, 0.0
    if TruncatedComposition.applies(composition):
        rest = TruncatedComposition.losing(composition, LOST * delta)
        lost = rest.lost
    found = _refine_epsilon(rest, lost, delta, Interval(0.0, math.inf), attempts=1)
    return (found.lower + found.upper) / 2


def _refine_epsilon(
    composition: Composed,
    lost: float,
    delta: float,
    best: Interval,
    attempts: int = ATTEMPTS,
) -> Interval:
    """Ever less blurred contours, intersected; ``lost`` belongs to delta, not to the contour."""
    log_delta, log_rest = math.log(delta), _log_rest(delta, lost)
    saddle, at = tilt_at_delta(composition, log_delta)
    guess = max(epsilon_estimate(saddle, at, log_delta), _LEAST_GUESS / saddle)
    tilt = cheapest = cheapest_tilt(composition, saddle, guess, log_delta)
    # Coarse first: it says where epsilon is.
    width: float = COARSE * guess
    before, failed = math.inf, 0
    while attempts > 0 and failed < FAILURES:
        try:
            contour = Contour(composition, tilt, guess, log_delta, width, at.variance)
            found = crossing(contour, guess, log_rest, log_delta)
        except NotConverged:
            failed += 1
            tilt, width = easier(tilt, width, before)
            continue
        attempts -= 1
        best = Interval.bracket(max(best.lower, found.lower), min(best.upper, found.upper))
        gap = best.upper - best.lower
        if gap <= WIDE * best.upper or (not contour.blur and tilt == saddle):
            break
        if best.upper < _FAR_OFF * guess:
            tilt = cheapest = cheapest_tilt(composition, saddle, best.upper, log_delta)
        guess = best.upper
        worth, before = gap <= WORTH * before, gap
        if contour.rounding_dominates:
            # Nearer to the saddle point less is lost against M(c) e^{-c eps}.
            tilt = min(saddle, tilt / LESS)
            continue
        if contour.blur > 1.01 * width / (1 + tilt) or not worth:
            if tilt <= cheapest:
                # As fine as it can be.
                break
            tilt = cheapest
        width = min(width * 0.5 * WIDE * best.upper / gap, BLUR * best.upper)
    if math.isinf(best.upper):
        raise NotConverged("no contour reaches epsilon")
    return best
