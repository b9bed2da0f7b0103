"""delta(eps) of a composition by contours: which one suits it.

Derivation: docs/derivations/inversion.md, docs/derivations/few-large-losses.md.
"""

from __future__ import annotations

import math
from contextlib import suppress

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT
from dpacct.tight.composition import Composition
from dpacct.tight.contour import Composed, Contour
from dpacct.tight.moment_bounds import NEXT_TO_NOTHING, chernoff_delta
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
from dpacct.tight.saddle import log_delta_estimate, tilt_at_epsilon
from dpacct.tight.tilts import cheapest_tilt
from dpacct.tight.truncation import TruncatedComposition

_TINY, _TINIEST = 1e-320, 1e-250
# Where nothing is known of it, what a delta is at least of which most losses are above epsilon.
_CERTAIN = 0.01
# A width with which no blurred contour can compete there.
_NEARLY = 1e-5


def inversion_delta(composition: Composition, epsilon: float) -> Interval:
    """delta(eps) of one direction of a composition, eps >= 0.

    Error: inside the interval; relative width typically 1e-9 and less.
    Raises:
        NotConverged: see `Contour`.
    """
    if epsilon >= composition.largest_loss:
        return Interval(0.0, 0.0)
    best = Interval(0.0, 1.0)
    for attempt in (_as_it_is, _without_far_tail, _few_large, _from_below, _far_out):
        with suppress(NotConverged):
            best = intersection(best, attempt(composition, epsilon, best))
        if best.width <= WIDE * best.upper or best.upper <= NEXT_TO_NOTHING:
            return best
    if best.lower > _CERTAIN and best.width <= _NEARLY * best.upper:
        return best
    if not TruncatedComposition.applies(composition):
        return _refine_delta(composition, 0.0, epsilon, best)
    for attempts in (1, ATTEMPTS):
        # What may be lost depends on what is left: a first, coarse contour tells that.
        aim = best.lower if best.lower > 0.0 else 1e-5 * best.upper
        rest = TruncatedComposition.losing(composition, LOST * aim)
        best = _refine_delta(rest, rest.lost, epsilon, best, attempts)
    return best


def _as_it_is(composition: Composition, epsilon: float, _: Interval) -> Interval:
    return _plain_delta(composition, 0.0, epsilon)


def _without_far_tail(composition: Composition, epsilon: float, best: Interval) -> Interval:
    """Where there is much noise the far tail explodes late: little is cut off."""
    if not TruncatedComposition.applies(composition):
        return best
    upper = min(best.upper, chernoff_delta(composition, epsilon))
    best = Interval.bracket(min(best.lower, upper), upper)
    if is_loud(composition):
        rest = TruncatedComposition.losing(composition, FAR * max(upper, _TINIEST))
        with suppress(NotConverged):
            best = intersection(best, _plain_delta(rest, rest.lost, epsilon))
    return best


def _few_large(composition: Composition, epsilon: float, best: Interval) -> Interval:
    # Hardly any contour gets here, and none pays for the import before.
    from dpacct.tight.few_large import FewLarge, few_large_delta  # noqa: PLC0415 - as said

    return few_large_delta(composition, epsilon) if FewLarge.applies(composition) else best


def _from_below(composition: Composition, epsilon: float, best: Interval) -> Interval:
    """A contour left of zero, where most losses are above epsilon."""
    from dpacct.tight.complement import Complement, lies_below  # noqa: PLC0415 - hardly any needs it

    # The laws of other pairs are made for tilts above zero.
    if composition.is_symmetric or not lies_below(composition.alike(), epsilon):
        return best
    log_delta = math.log(max(best.lower, _CERTAIN))
    return Complement(composition, epsilon, log_delta).delta(epsilon)


def _far_out(composition: Composition, epsilon: float, _: Interval) -> Interval:
    """What is left where nothing is expected any more."""
    from dpacct.tight.hardly_ever import far_delta  # noqa: PLC0415 - hardly any needs it

    return Interval(0.0, far_delta(composition, epsilon))


def _plain_delta(composition: Composed, lost: float, epsilon: float) -> Interval:
    """One contour at the saddle point, without a blur."""
    tilt, at = tilt_at_epsilon(few_kinds(composition), epsilon)
    log_delta = min(0.0, log_delta_estimate(tilt, at, epsilon))
    most = MANY if lost else None
    found = Contour(composition, tilt, epsilon, log_delta, 0.0, at.variance, most).delta(epsilon)
    return Interval(found.lower, min(1.0, (found.upper + lost) * (1 + 4 * UNIT)))


def _refine_delta(
    composition: Composed,
    lost: float,
    epsilon: float,
    best: Interval,
    attempts: int = ATTEMPTS,
) -> Interval:
    """Ever less blurred contours, intersected; ``lost`` belongs to delta, not to the contour."""
    try:
        saddle, at = tilt_at_epsilon(composition, epsilon)
        log_delta = min(0.0, log_delta_estimate(saddle, at, epsilon))
        tilt = cheapest_tilt(composition, saddle, epsilon, log_delta)
    except NotConverged:
        return _known(best)
    # Coarse first: it says where delta is.
    width, before, failed = COARSE * max(epsilon, 1 / tilt), math.inf, 0
    while attempts > 0 and failed < FAILURES:
        try:
            contour = Contour(composition, tilt, epsilon, log_delta, width, at.variance)
            found = contour.delta(epsilon)
        except NotConverged:
            failed += 1
            tilt, width = easier(tilt, width, before)
            continue
        attempts -= 1
        upper = min(1.0, (found.upper + lost) * (1 + 4 * UNIT))
        best = Interval.bracket(max(best.lower, found.lower), min(best.upper, upper))
        gap = best.width
        if gap <= WIDE * best.upper or (not contour.blur and tilt == saddle):
            break
        log_delta = math.log(max(best.upper, _TINY))
        worth, before = gap <= WORTH * before, gap
        if contour.rounding_dominates:
            # Nearer to the saddle point less is lost against M(c) e^{-c eps}.
            tilt = min(saddle, tilt / LESS)
            continue
        if contour.blur > 1.01 * width / (1 + tilt) or not worth:
            # As fine as it can be.
            break
        width = min(width * 0.5 * WIDE * best.upper / gap, BLUR * max(epsilon, 1 / tilt))
    return _known(best)


def _known(best: Interval) -> Interval:
    if best.upper >= 1.0:
        raise NotConverged("no contour reaches delta")
    return best
