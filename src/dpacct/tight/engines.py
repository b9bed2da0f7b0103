"""delta(eps) and eps(delta) of compositions, between two proven bounds.

`AtDelta` and `AtEpsilon` are the two questions. The accountant asks them by `by_pairs`, of a
schedule in both directions. For one direction they proceed in this order:

1. Rounds that matter less than a share of delta are left out. Their total variation is added.
2. Some compositions have closed forms (`closed_forms`).
3. A contour through the saddle point (`contour`) gives a narrow bracket in nearly all cases.
4. With much noise, the far tail of the losses is cut off first. Otherwise the moments are
   dominated by losses that never occur.
5. Brackets that are still wide are refined: contours with less and less blur are intersected.

Where no contour reaches, Chernoff's inequality bounds delta from above.

Moments and contours leave infinite losses out. Their probability is added to delta(eps), or taken
from the delta at which epsilon is asked for.

Derivation: docs/derivations/inversion.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT
from dpacct.pairs.dominating import Direction, PairsOf, proven_pairs
from dpacct.pairs.one_round import one_round_delta
from dpacct.rounds import Schedule
from dpacct.tight.closed_forms import (
    alone_epsilon,
    closed_form_delta,
    closed_form_epsilon,
    is_repeated,
    most_at_zero,
    pairs_alone,
)
from dpacct.tight.composition import (
    Composed,
    Composition,
    Cumulants,
    TruncatedComposition,
    is_same_both_ways,
)
from dpacct.tight.contour import (
    Bounding,
    Complement,
    Contour,
    cheapest_tilt,
    crossing,
    epsilon_estimate,
    is_near,
    lies_below,
    log_chernoff_factor,
    log_delta_estimate,
    on_lattice,
    tilt_at_delta,
    tilt_at_epsilon,
)

# Rounds have to matter for this share of delta.
_NEGLIGIBLE = 1e-13
# A bound of delta that is as good as zero.
NEXT_TO_NOTHING = 1e-290
# The relative width above which another contour is tried, and the ratio of the bounds below which
# other bounds are.
_WIDE, WORTH_A_LOOK = 1e-6, 1 - 1e-3
# The share of delta that a truncation may lose: no more than is seen, and next to nothing.
_LOST, _FAR = 1e-8, 1e-26
# The contours of one refinement.
_ATTEMPTS = 4


class _Place(NamedTuple):
    """About where delta will be asked for, and its logarithm there."""

    epsilon: float
    log_delta: float


@dataclass(frozen=True, slots=True)
class AtDelta:
    """At which epsilon delta has fallen to a value.

    Attributes:
        value: delta, in (0, 1).
        mass: a part of it that every contour lacks, far less than what matters.
        least_unit: widths of blurs are in units of epsilon, and at least this over the tilt.
    """

    value: float
    mass: float = 0.0
    least_unit = 0.0

    def solve(self, composition: Composition) -> Interval:
        """Return the answer of one direction. See `composed_epsilon`."""
        return composed_epsilon(composition, self.value)

    def most(self, composition: Composition) -> float:
        """Return a bound that needs no engine."""
        return composition.largest_loss

    def point(self, answer: float) -> tuple[float, float]:
        """Return epsilon and delta where this is the answer."""
        return answer, self.value

    def is_wide(self, bracket: Interval) -> bool:
        """Return True if other bounds may be much narrower."""
        return bracket.lower < WORTH_A_LOOK * bracket.upper

    def saddle(self, composition: Composed) -> tuple[float, Cumulants, _Place]:
        """Return the best tilt, the cumulants there, and an unproven estimate of the answer."""
        log_delta = math.log(self.value)
        tilt, at = tilt_at_delta(composition, log_delta)
        least = 1e-4 / tilt
        return tilt, at, _Place(max(epsilon_estimate(tilt, at, log_delta), least), log_delta)

    def bracket(self, contour: Bounding, place: _Place, lost: float) -> Interval:
        """Return the proven bracket. ``lost`` is the part of delta that the contour lacks."""
        log_delta, lost = math.log(self.value), (lost + self.mass) * (1 + 2 * UNIT)
        if not lost < self.value:
            raise NotConverged("the losses that were cut off exceed delta")
        # Rounded down.
        log_rest = math.log(self.value - lost) - 4 * UNIT if lost else log_delta
        return crossing(contour, place.epsilon, log_rest, log_delta)


class Made(NamedTuple):
    """A contour that serves epsilons near the one it was made for.

    Attributes:
        contour: bounds of delta without the part that was cut off.
        lost: the probability of that part, rounded up.
    """

    contour: Bounding
    lost: float

    def delta(self, epsilon: float) -> Interval:
        """Return proven bounds of delta at an epsilon, with the part that was cut off."""
        at = self.contour.delta(epsilon)
        return Interval(at.lower, min(1.0, (at.upper + self.lost) * (1 + 4 * UNIT)))


@dataclass(frozen=True, slots=True)
class AtEpsilon:
    """How large delta is at an epsilon. Methods are those of `AtDelta`.

    Attributes:
        value: epsilon, at least 0.
        made: receives the contours, the sharpest one last.
    """

    value: float
    made: list[Made] | None = field(default=None, compare=False)
    least_unit = 1.0

    def solve(self, composition: Composition) -> Interval:
        """See `composed_delta`."""
        return composed_delta(composition, self.value)

    def most(self, _: Composition) -> float:
        """See `AtDelta`."""
        return 1.0

    def point(self, answer: float) -> tuple[float, float]:
        """See `AtDelta`."""
        return self.value, answer

    def is_wide(self, bracket: Interval) -> bool:
        """See `AtDelta`."""
        wide = bracket.lower < WORTH_A_LOOK * bracket.upper
        return bracket.upper >= 1.0 or (wide and bracket.upper > NEXT_TO_NOTHING)

    def saddle(self, composition: Composed) -> tuple[float, Cumulants, _Place]:
        """See `AtDelta`."""
        tilt, at = tilt_at_epsilon(composition, self.value)
        log_delta = min(0.0, log_delta_estimate(tilt, at, self.value))
        return tilt, at, _Place(self.value, log_delta)

    def bracket(self, contour: Bounding, place: _Place, lost: float) -> Interval:
        """See `AtDelta`."""
        one = Made(contour, lost)
        if self.made is not None:
            self.made.append(one)
        return one.delta(place.epsilon)


Question = AtDelta | AtEpsilon


# A search asks for the proven end, and a report on its result for both.
@lru_cache(maxsize=16)
def by_pairs(question: Question, pairs: PairsOf, schedule: Schedule) -> Interval:
    """Return the larger answer of both directions of a schedule. Infinite if no epsilon is."""
    if not schedule.rounds:
        return Interval(0.0, 0.0)
    remove, add = (Composition.of_schedule(schedule, pairs, d) for d in Direction)
    worse = _solved(question, remove)
    if is_same_both_ways(remove, add):
        return worse
    with suppress(NotConverged):
        # Then the bound of one direction surely covers the other one.
        if worse.upper < question.most(remove) and _is_below(question, add, worse.upper):
            return worse
    other = _solved(question, add)
    return Interval(max(worse.lower, other.lower), max(worse.upper, other.upper))


def _solved(question: Question, composition: Composition) -> Interval:
    try:
        return question.solve(composition)
    except NotConverged:
        return Interval(0.0, question.most(composition))


def _is_below(question: Question, composition: Composition, upper: float) -> bool:
    """Return True if a quick bound shows that a direction has at most ``upper``."""
    epsilon, delta = question.point(upper)
    exactly = closed_form_delta(composition)
    most = exactly(epsilon).upper if exactly else chernoff_delta(composition, epsilon)
    return most <= delta


def is_surely_below(question: Question, pairs: PairsOf, schedule: Schedule, upper: float) -> bool:
    """Return True if quick bounds show that both directions have at most ``upper`` > 0."""
    with suppress(NotConverged):
        both = (Composition.of_schedule(schedule, pairs, d) for d in Direction)
        return upper > 0.0 and all(_is_below(question, each, upper) for each in both)
    return False


def composed_delta(composition: Composition, epsilon: float) -> Interval:
    """Return delta(eps) of one direction, eps >= 0.

    Raises:
        NotConverged: nothing bounds it but 1.
    """
    # Any one of few kinds of rounds bounds delta from below.
    pairs = pairs_alone(composition) if composition.kinds <= 50 else []
    least = max((one_round_delta(epsilon, pair).lower for pair, _ in pairs), default=0.0)
    rest, lost = composition.without_least(_NEGLIGIBLE * least)
    try:
        bracket = _delta_of_rest(rest, epsilon)
    except NotConverged:
        # The moments and delta(0) bound delta all the same, unless they say nothing either.
        upper = chernoff_delta(composition, epsilon)
        if pairs:
            upper = min(upper, most_at_zero(composition))
        if upper >= 1.0:
            raise
        return Interval.bracket(least, upper)
    upper = min(1.0, (bracket.upper + lost) * (1 + 2 * UNIT)) if lost else bracket.upper
    if pairs and bracket.width > _WIDE * bracket.upper:
        upper = min(upper, most_at_zero(composition))
    return Interval.bracket(bracket.lower, upper)


def _delta_of_rest(composition: Composition, epsilon: float) -> Interval:
    exactly = closed_form_delta(composition)
    if exactly is None:
        finite, mass = inversion_delta(composition, epsilon), composition.infinite_mass
        return Interval(finite.lower, min(1.0, (finite.upper + mass) * (1 + 2 * UNIT)))
    known = exactly(epsilon)
    if is_repeated(composition) or known.lower > 0.0 or known.upper == 0.0:
        return known
    # Closed forms stop at about 1e-290. Below that, the moments give a better bound.
    return Interval(0.0, min(known.upper, chernoff_delta(composition, epsilon)))


def composed_epsilon(composition: Composition, delta: float) -> Interval:
    """Return eps(delta) of one direction, at least 0.

    Raises:
        NotConverged: no contour reaches it.
    """
    if most_at_zero(composition, delta) <= delta:
        return Interval(0.0, 0.0)
    rest, lost = composition.without_least(_NEGLIGIBLE * delta)
    bracket = _epsilon_of_rest(rest, delta)
    if not lost:
        return bracket
    left = math.nextafter(delta - lost, 0.0)
    return Interval(bracket.lower, max(bracket.upper, _epsilon_of_rest(rest, left).upper))


def _epsilon_of_rest(composition: Composition, delta: float) -> Interval:
    """Return eps(delta), by contours with the mass of infinite losses taken from delta."""
    known, mass = closed_form_epsilon(composition, delta), composition.infinite_mass
    if known is not None:
        return known
    # A share of delta that is too small to be seen.
    if mass <= 1e-12 * delta:
        return inversion_epsilon(composition, delta, mass)
    left = math.nextafter(delta - mass, 0.0)
    if not left > 0.0:
        return Interval(0.0, math.inf)
    return Interval.bracket(
        inversion_epsilon(composition, delta).lower, inversion_epsilon(composition, left).upper
    )


def inversion_epsilon(composition: Composition, delta: float, mass: float = 0.0) -> Interval:
    """Return eps(delta) of sampled rounds by contours, relative width typically at most 1e-9.

    Args:
        composition: any composition. Its infinite losses are left out.
        delta: the target.
        mass: the probability of those, far below delta. It is taken from delta.
    Raises:
        NotConverged: the integrand of each contour decays too slowly.
    """
    question, best = AtDelta(delta, mass), Interval(0.0, composition.largest_loss)
    # Far above what a truncation loses where it loses next to nothing.
    least = 1e-280
    if delta < least:
        # The part that is cut off is no small share of this delta. A smaller delta costs no less.
        lower = inversion_epsilon(composition, least).lower
        best = Interval.bracket(lower, best.upper)
    attempts = [partial(_plain, question, composition, 0.0)]
    if composition.general:
        attempts.append(partial(_atoms_apart_epsilon, question, composition, delta))
    for attempt in attempts:
        with suppress(NotConverged):
            best = _intersection(best, attempt())
            if best.width <= _WIDE * best.upper:
                return best
    rest, lost = truncated(composition, _LOST * delta)
    if not lost < _WIDE * delta:
        # Of so small a delta nothing that is lost is hardly any.
        rest, lost = composition, 0.0
    best = _refine(question, rest, lost, best)
    if math.isinf(best.upper):
        raise NotConverged("no contour reaches epsilon")
    return best


def inversion_delta(
    composition: Composition, epsilon: float, made: list[Made] | None = None
) -> Interval:
    """Return delta(eps) of sampled rounds by contours, relative width typically at most 1e-9.

    Args:
        composition: any composition. Its infinite losses are left out.
        epsilon: at least 0.
        made: receives the contours that refine the answer, the sharpest one last.
    Raises:
        NotConverged: see `inversion_epsilon`.
    """
    if epsilon >= composition.largest_loss:
        return Interval(0.0, 0.0)
    question, best = AtEpsilon(epsilon, made), Interval(0.0, 1.0)
    for attempt in (_unblurred, _quickly, _without_far_tail, _with_atoms_apart, _left_of_zero):
        with suppress(NotConverged):
            best = _intersection(best, attempt(composition, epsilon, best))
        if best.width <= _WIDE * best.upper or best.upper <= NEXT_TO_NOTHING:
            return best
    # A first, coarse contour estimates delta, which decides how much may be lost.
    for attempts in (1, _ATTEMPTS) if TruncatedComposition.applies(composition) else (_ATTEMPTS,):
        aim = best.lower if best.lower > 0.0 else 1e-5 * best.upper
        with suppress(NotConverged):
            best = _refine(question, *truncated(composition, _LOST * aim), best, attempts)
        if best.upper >= 1.0:
            raise NotConverged("no contour reaches delta")
    return best


def _unblurred(composition: Composition, epsilon: float, _: Interval) -> Interval:
    return _plain(AtEpsilon(epsilon), composition, 0.0)


def _quickly(composition: Composition, epsilon: float, _: Interval) -> Interval:
    upper = chernoff_delta(composition, epsilon)
    if upper > NEXT_TO_NOTHING:
        upper = min(upper, far_delta(composition, epsilon))
    return Interval(0.0, upper)


def _without_far_tail(composition: Composition, epsilon: float, best: Interval) -> Interval:
    """Cut off the far tail first. With much noise it explodes late, so little is cut off."""
    if not (_is_loud(composition) and TruncatedComposition.applies(composition)):
        return best
    rest = truncated(composition, _FAR * max(best.upper, 1e-250))
    return _plain(AtEpsilon(epsilon), *rest)


def _with_atoms_apart(composition: Composition, epsilon: float, best: Interval) -> Interval:
    """Return delta with the atoms of general pairs counted apart."""
    if not composition.general:
        return best
    # Hardly any contour gets here, and none pays for the import before.
    from dpacct.tight.atoms_apart import AtomsApart  # noqa: PLC0415 - as said

    return AtomsApart(composition, epsilon).delta(epsilon)


def _atoms_apart_epsilon(question: AtDelta, composition: Composition, delta: float) -> Interval:
    """Return one contour of all but the atoms, and their exact part."""
    from dpacct.tight.atoms_apart import AtomsApart, atoms_alone  # noqa: PLC0415 - as above

    # Next to the largest loss atoms alone say where epsilon is, and they bound it from below.
    least = alone_epsilon(atoms_alone(composition), delta).lower
    place = question.saddle(composition)[2]
    guess = max(least, min(place.epsilon, composition.largest_loss * (1 - 1e-9)))
    bracket = Interval(least, math.inf)
    with suppress(NotConverged):
        contour = AtomsApart(composition, guess)
        answer = question.bracket(contour, place._replace(epsilon=guess), 0.0)
        bracket = _intersection(bracket, answer)
    return bracket


def _left_of_zero(composition: Composition, epsilon: float, best: Interval) -> Interval:
    """Bound delta if most losses exceed epsilon. Some pairs only have laws for positive tilts."""
    if composition.is_symmetric or not lies_below(composition.alike(), epsilon):
        return best
    return Complement(composition, epsilon, math.log(max(best.lower, 0.01))).delta(epsilon)


def _shared(tilt: float, at: Cumulants, parts: int, rounded: Callable[[float], int]) -> float:
    """Return a tilt near this saddle point that other plans share: M(c) e^{-c eps} hardly grows."""
    return on_lattice(tilt, parts, rounded) if is_near(tilt, at) else tilt


def _plain(question: Question, composition: Composed, lost: float) -> Interval:
    """Return one contour at the saddle point, without a blur."""
    few_kinds = composition.alike() if isinstance(composition, Composition) else composition
    tilt, at, place = question.saddle(few_kinds)
    contour = Contour(composition, _shared(tilt, at, 2, math.floor), *place, 0.0, at.variance)
    return question.bracket(contour, place, lost)


def _refine(
    question: Question,
    composition: Composed,
    lost: float,
    best: Interval,
    attempts: int = _ATTEMPTS,
) -> Interval:
    """Return ever less blurred contours, intersected."""
    saddle, at, place = question.saddle(composition)
    tilt = cheapest = cheapest_tilt(composition, saddle, *place)
    # Coarse first: it says where the answer is.
    width = 1e-3 * max(place.epsilon, question.least_unit / tilt)
    known, failed, less = False, 0, 0.7
    while attempts > 0 and failed < 8:
        try:
            contour = Contour(composition, tilt, *place, width, at.variance)
            bracket = question.bracket(contour, place, lost)
        except NotConverged:
            failed += 1
            # A smaller tilt, or a wider blur once one was found.
            if known:
                width *= 2.5
            else:
                tilt *= less
            continue
        attempts -= 1
        best = _intersection(best, bracket)
        if best.width <= _WIDE * best.upper or (not contour.blur and tilt == saddle):
            break
        guess, (epsilon, delta) = place.epsilon, question.point(best.upper)
        place = _Place(epsilon, math.log(max(delta, 1e-320)))
        # The tilt was bad if epsilon falls far below its guess.
        if epsilon < 0.7 * guess:
            tilt = cheapest = cheapest_tilt(composition, saddle, *place)
        known = True
        if contour.rounding_dominates(epsilon):
            # Nearer to the saddle point less is lost against M(c) e^{-c eps}.
            tilt = min(saddle, tilt / less)
            continue
        if contour.blur > 1.01 * width / (1 + tilt):
            if tilt <= cheapest:
                # As fine as it can be.
                break
            tilt = cheapest
        most = 4e-7 * max(place.epsilon, question.least_unit / tilt)
        width = min(width * 0.5 * _WIDE * best.upper / best.width, most)
    return best


def truncated(composition: Composition, mass: float) -> tuple[Composed, float]:
    """Return the composition without far tails of about this mass, if possible, and the mass."""
    if not TruncatedComposition.applies(composition):
        return composition, 0.0
    rest = TruncatedComposition.losing(composition, mass)
    return rest, rest.lost


def _is_loud(composition: Composition) -> bool:
    """Return True if there is so much noise that moments explode only beyond `_FAR`."""
    return min((pair.noise_std for pair, _ in composition.sampled_pairs()), default=0.0) >= 1.5


def _intersection(first: Interval, second: Interval) -> Interval:
    return Interval.bracket(max(first.lower, second.lower), min(first.upper, second.upper))


def estimate_epsilon(schedule: Schedule, delta: float) -> float:
    """Estimate epsilon(delta) > 0 in the remove direction: the saddle point or a coarse contour.

    Error: often 1e-4 relative. About 1e-2 next to a heavy tail, where the saddle point gives no
        estimate. NaN if the searches need too many nodes.
    """
    composition = Composition.of_schedule(schedule, proven_pairs, Direction.REMOVE)
    log_delta, loud = math.log(delta), _is_loud(composition)
    try:
        # With much noise and tiny rates, losses that never occur dominate the moments.
        kept = truncated(composition, _FAR * delta)[0] if loud else composition
        tilt, at = tilt_at_delta(kept, log_delta)
        epsilon = epsilon_estimate(tilt, at, log_delta)
        # Only next to a heavy tail this exceeds the first value, or so many times a Gaussian's.
        if tilt * math.sqrt(at.variance) > min(12.0, 1.7 * math.sqrt(-2 * log_delta)):
            rest = truncated(composition, _LOST * delta)
            coarse = _refine(AtDelta(delta), *rest, Interval(0.0, math.inf), attempts=1)
            epsilon = (coarse.lower + coarse.upper) / 2
    except NotConverged:
        return math.nan
    return max(epsilon, 1e-12) if math.isfinite(epsilon) else math.nan


def chernoff_delta(composition: Composition, epsilon: float) -> float:
    """Return a quick upper bound of delta(eps) of one direction, at most 1, rarely 20-fold."""
    mass = composition.infinite_mass
    if epsilon >= composition.largest_loss:
        return mass
    tilt = _shared(*tilt_at_epsilon(composition.alike(), epsilon), 8, round)
    exponent = _chernoff_exponent(composition, tilt, epsilon)
    # Never rounded down to zero.
    return min(1.0, (math.exp(min(max(exponent, -700.0), 0.0)) + mass) * (1 + 2 * UNIT))


def _chernoff_exponent(composition: Composed, tilt: float, epsilon: float) -> float:
    """Return log of M(c) c^c / (1 + c)^(1 + c) e^{-c eps}, rounded up, a bound of delta(eps)."""
    # The order is 1 + c. Rounding it must not change c.
    tilt = (1 + tilt) - 1
    log_moment = float(composition.log_moment(tilt).upper)
    exponent = log_moment + log_chernoff_factor(tilt) - tilt * epsilon
    return exponent + 16 * UNIT * (abs(log_moment) + tilt * epsilon + 2 * tilt + 8)


# Far out less than `NEXT_TO_NOTHING` is cut off.
_CUT_OFF = 1e-297


def far_delta(composition: Composition, epsilon: float) -> float:
    """Return an upper bound of delta(eps), at most 1, for an epsilon beyond nearly all losses.

    Moments are far too large there, since losses that never occur dominate them. So the far ends
    of the losses are cut off first, at a negligible probability. Chernoff's inequality bounds the
    rest at any tilt. The bound is never rounded down to zero.
    """
    if not (epsilon > 0.0 and TruncatedComposition.applies(composition)):
        return 1.0
    rest = TruncatedComposition.losing(composition, _CUT_OFF)
    least = 0.0
    # In units of 1 / epsilon, the largest first: it is good where nothing is left at all.
    tilts = np.geomspace(3e4, 40.0, 10) / epsilon
    for tilt in tilts[1 + tilts > 1].tolist():
        with suppress(NotConverged):
            least = min(least, _chernoff_exponent(rest, tilt, epsilon))
        if least < -690.0:
            break
    return min(1.0, math.exp(max(least, -700.0)) * (1 + 4 * UNIT) + rest.lost * (1 + 4 * UNIT))
