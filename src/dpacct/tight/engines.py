"""delta(eps) and eps(delta) of one direction of a composition, between two proven bounds.

The accountant calls `composed_epsilon` and `composed_delta`. They proceed in this order:

1. Rounds that matter less than a share of delta are left out. Their total variation is added.
2. A single sampled round has a closed form. Gaussians without sampling compose to one Gaussian.
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
from functools import partial
from typing import NamedTuple

import numpy as np

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT
from dpacct.numerics.search import bracket_root
from dpacct.pairs.atoms import AtomicPair, convolved
from dpacct.pairs.dominating import (
    AchievedPair,
    Direction,
    GeneralPair,
    SampledGaussianPair,
    proven_pairs,
)
from dpacct.pairs.one_round import gaussian_delta, gaussian_epsilon, one_round_delta
from dpacct.rounds import Schedule
from dpacct.tight.composition import Composed, Composition, Cumulants, TruncatedComposition
from dpacct.tight.contour import (
    Bounding,
    Complement,
    Contour,
    cheapest_tilt,
    crossing,
    epsilon_estimate,
    lies_below,
    log_chernoff_factor,
    log_delta_estimate,
    tilt_at_delta,
    tilt_at_epsilon,
)

# Rounds have to matter for this share of delta. Up to this number of kinds bounds delta from below.
_NEGLIGIBLE, _SOME_KINDS = 1e-13, 50
# A bound of delta that is as good as zero.
NEXT_TO_NOTHING = 1e-290
# Far above what a truncation loses where it loses next to nothing.
_LEAST_EXACT = 1e-280
_TOLERANCE = 1e-11
# Relative width above which another contour is tried. Largest width that a blur may add, and the
# first blur's.
_WIDE, _BLUR, _COARSE = 1e-6, 4e-7, 1e-3
_ATTEMPTS, _FAILURES = 4, 8
# The tilt was bad if epsilon falls below this share of its guess.
_FAR_OFF = 0.7
# Factors for a tilt or a width that was too large or too small.
_LESS, _MORE = 0.7, 2.5
# The share of delta that a truncation may lose: no more than is seen, and next to nothing.
_LOST, _FAR = 1e-8, 1e-26
# With less noise than this the moments explode long before a probability of `_FAR`.
_LOUD = 1.5
# Least guess of epsilon, in units of 1 / c, and the least delta whose logarithm is taken.
_LEAST_GUESS, _TINY, _TINIEST = 1e-4, 1e-320, 1e-250
# A tilt times the standard deviation of the loss under it exceeds the first value, or the second
# times that of a Gaussian loss, only next to a heavy tail.
_HEAVY, _HEAVIER, _LEAST_EPSILON = 12.0, 1.7, 1e-12
# With less noise than this the chi-square of a round says nothing.
_LEAST_NOISE = 0.1
# A share of delta that is too small to be seen.
_UNSEEN = 1e-12
# Far out less than `NEXT_TO_NOTHING` is cut off. Tilts are in units of 1 / epsilon, the largest one
# first: it is good where nothing is left at all. Exponents below the last number are nothing.
_CUT_OFF, _FAR_TILTS, _NOTHING = 1e-297, np.geomspace(3e4, 40.0, 10), -690.0


def composed_delta(composition: Composition, epsilon: float) -> Interval:
    """Return delta(eps) of one direction, eps >= 0.

    Raises:
        NotConverged: nothing bounds it but 1.
    """
    # Any one round bounds delta from below.
    pairs = _pairs(composition) if composition.kinds <= _SOME_KINDS else []
    least = max((one_round_delta(epsilon, pair).lower for pair, _ in pairs), default=0.0)
    rest, lost = composition.without_least(_NEGLIGIBLE * least)
    try:
        found = _delta_of_rest(rest, epsilon)
    except NotConverged:
        # The moments and delta(0) bound delta all the same, unless they say nothing either.
        upper = chernoff_delta(composition, epsilon)
        if pairs:
            upper = min(upper, _most_at_zero(composition))
        if upper >= 1.0:
            raise
        return Interval.bracket(least, upper)
    upper = min(1.0, (found.upper + lost) * (1 + 2 * UNIT)) if lost else found.upper
    if pairs and found.width > _WIDE * found.upper:
        upper = min(upper, _most_at_zero(composition))
    return Interval.bracket(found.lower, upper)


def closed_form_delta(composition: Composition) -> Callable[[float], Interval] | None:
    """Return delta as a function of epsilon, if it takes no contour. Else None."""
    alone, low, high = only_pair(composition), *_precision_bounds(composition)
    if alone is not None:
        return lambda epsilon: one_round_delta(epsilon, alone)
    if is_repeated(composition):
        # As below.
        from dpacct.tight.self_composition import repeated_delta  # noqa: PLC0415

        return partial(repeated_delta, composition)
    if composition.sampled_rounds:
        return None

    def gaussian(epsilon: float) -> Interval:
        lower = gaussian_delta(epsilon, math.sqrt(low)).lower
        return Interval(lower, gaussian_delta(epsilon, math.sqrt(high)).upper)

    return gaussian


def _delta_of_rest(composition: Composition, epsilon: float) -> Interval:
    exactly = closed_form_delta(composition)
    if exactly is None:
        found, mass = inversion_delta(composition, epsilon), composition.infinite_mass
        return Interval(found.lower, min(1.0, (found.upper + mass) * (1 + 2 * UNIT)))
    found = exactly(epsilon)
    if is_repeated(composition) or found.lower > 0.0 or found.upper == 0.0:
        return found
    # Closed forms stop at about 1e-290. Below that, the moments give a better bound.
    return Interval(0.0, min(found.upper, chernoff_delta(composition, epsilon)))


def composed_epsilon(composition: Composition, delta: float) -> Interval:
    """Return eps(delta) of one direction, at least 0.

    Raises:
        NotConverged: no contour reaches it.
    """
    if _most_at_zero(composition, delta) <= delta:
        return Interval(0.0, 0.0)
    rest, lost = composition.without_least(_NEGLIGIBLE * delta)
    found = _epsilon_of_rest(rest, delta)
    if not lost:
        return found
    left = math.nextafter(delta - lost, 0.0)
    return Interval(found.lower, max(found.upper, _epsilon_of_rest(rest, left).upper))


def _epsilon_of_rest(composition: Composition, delta: float) -> Interval:
    alone, low, high = only_pair(composition), *_precision_bounds(composition)
    if alone is not None:
        return _alone_epsilon(alone, delta)
    if is_repeated(composition):
        # Other schedules do not pay for this import.
        from dpacct.tight.self_composition import repeated_epsilon  # noqa: PLC0415

        return repeated_epsilon(composition, delta)
    if composition.sampled_rounds:
        return _inversion_epsilon(composition, delta)
    lower = gaussian_epsilon(delta, math.sqrt(low)).lower
    return Interval(lower, gaussian_epsilon(delta, math.sqrt(high)).upper)


def _inversion_epsilon(composition: Composition, delta: float) -> Interval:
    """Return eps(delta) by contours, with the mass of infinite losses taken from delta."""
    mass = composition.infinite_mass
    if mass <= _UNSEEN * delta:
        return inversion_epsilon(composition, delta, mass)
    left = math.nextafter(delta - mass, 0.0)
    if not left > 0.0:
        return Interval(0.0, math.inf)
    return Interval.bracket(
        inversion_epsilon(composition, delta).lower, inversion_epsilon(composition, left).upper
    )


def only_pair(composition: Composition) -> AchievedPair | GeneralPair | None:
    """Return the only pair of a composition, or all its atoms as one. Else None."""
    if composition.precision or not composition.sampled_rounds:
        return None
    pairs = _pairs(composition)
    if composition.sampled_rounds == 1.0:
        return pairs[0][0]
    atoms = tuple((p, n) for p, n in composition.general if isinstance(p, AtomicPair))
    return convolved(atoms) if len(atoms) == len(pairs) else None


def is_repeated(composition: Composition) -> bool:
    """Return True if all releases have their losses on grids of whole numbers."""
    if composition.precision or not composition.general:
        return False
    on_grids = sum(count for pair, count in composition.general if hasattr(pair, "law"))
    return composition.sampled_rounds == on_grids


def _pairs(composition: Composition) -> list[tuple[AchievedPair | GeneralPair, float]]:
    """Return all pairs but full rounds, with multiplicities, as one alone is for eps >= 0."""
    # For eps >= 0 the profile of C_q is that of the remove pair.
    symmetrized: list[tuple[AchievedPair, float]] = [
        (SampledGaussianPair(pair.sampling_rate, pair.noise_std, Direction.REMOVE), float(n))
        for pair, n in composition.symmetrized
    ]
    general = ((pair, float(n)) for pair, n in composition.general)
    return [*composition.sampled_pairs(), *symmetrized, *general]


def _precision_bounds(composition: Composition) -> tuple[float, float]:
    slack = UNIT * (2 * composition.kinds + 8)
    return composition.precision * (1 - slack), composition.precision * (1 + slack)


def _most_at_zero(composition: Composition, enough: float = math.inf) -> float:
    """Return a bound of delta(0), rounded up, which no delta(eps) exceeds.

    That is the sum of delta(0) over the rounds, or a part of it above ``enough``. Many sampled
    rounds have less by `_total_variation`.
    """
    total = gaussian_delta(0.0, math.sqrt(_precision_bounds(composition)[1])).upper
    slack = 1 + UNIT * (2 * composition.kinds + 16)
    for pair, count in _pairs(composition):
        if total * slack > enough:
            break
        total += count * one_round_delta(0.0, pair).upper
    return min(total * slack, _total_variation(composition))


def _total_variation(composition: Composition) -> float:
    """Return a bound of the total variation of sampled rounds, infinite if they are not alone.

    It is at most sqrt(chi^2) / 2 (Cauchy-Schwarz). A round has chi^2 = q^2 (e^{1 / sigma^2} - 1),
    and 1 + chi^2 multiplies: with s the sum of all, chi^2 <= e^s - 1 <= s (1 + s) for s <= 1.
    """
    rates, noise, counts = composition.sampled
    if composition.kinds != len(rates) or not noise.size or noise.min() < _LEAST_NOISE:
        return math.inf
    # Relative to the highest rate, whose square may be too small for a float.
    most = float(rates.max())
    relative = float(counts @ ((rates / most) ** 2 * np.expm1(noise**-2)))
    total = most * most * relative
    if total > 1.0:
        return math.inf
    # Above all rounding of the sum.
    return most * math.sqrt(relative * (1 + total)) / 2 * (1 + 1e-11)


def _alone_epsilon(pair: AchievedPair | GeneralPair, delta: float) -> Interval:
    """Return eps(delta) of one round: the roots of both bounds of its closed form."""
    known = pair.epsilon_at(delta) if isinstance(pair, GeneralPair) else None
    if known is not None:
        return known

    def above(epsilon: float) -> float:
        return (one_round_delta(epsilon, pair).upper - delta) / delta

    def below(epsilon: float) -> float:
        return (one_round_delta(epsilon, pair).lower - delta) / delta

    def root(function: Callable[[float], float]) -> tuple[float, float]:
        if function(0.0) <= 0:
            return 0.0, 0.0
        ends = bracket_root(lambda t: function(math.exp(t)), -2.0, (-40.0, 30.0), _TOLERANCE)
        return math.exp(ends[0]), math.exp(ends[1])

    lower, upper = root(below)[0], root(above)[1]
    if isinstance(pair, GeneralPair) and pair.infinite_mass <= delta:
        upper = min(upper, pair.largest_loss)
    # The search may end at its edge without a root.
    return Interval.bracket(
        lower if below(lower) > 0 else 0.0, upper if above(upper) <= 0 else math.inf
    )


class _Place(NamedTuple):
    """About where delta will be asked for, and its logarithm there."""

    epsilon: float
    log_delta: float


class _AtDelta:
    """The question at which epsilon delta has fallen to a target.

    Attributes:
        least_unit: widths of blurs are in units of epsilon, and at least this over the tilt.

    ``mass``: a part of delta that every contour lacks, far less than what matters.
    """

    least_unit = 0.0

    def __init__(self, delta: float, mass: float = 0.0) -> None:
        self._delta, self._log_delta, self._mass = delta, math.log(delta), mass

    def saddle(self, composition: Composed) -> tuple[float, Cumulants, _Place]:
        """Return the best tilt, the cumulants there, and an unproven estimate of the answer."""
        tilt, at = tilt_at_delta(composition, self._log_delta)
        guess = max(epsilon_estimate(tilt, at, self._log_delta), _LEAST_GUESS / tilt)
        return tilt, at, _Place(guess, self._log_delta)

    def answer(self, contour: Bounding, place: _Place, lost: float) -> Interval:
        """Return the proven bracket. ``lost`` is the part of delta that the contour lacks."""
        lost = (lost + self._mass) * (1 + 2 * UNIT)
        if not lost < self._delta:
            raise NotConverged("the losses that were cut off exceed delta")
        # Rounded down.
        log_rest = math.log(self._delta - lost) - 4 * UNIT if lost else self._log_delta
        return crossing(contour, place.epsilon, log_rest, self._log_delta)

    def moved(self, place: _Place, best: Interval) -> _Place:
        """Return the place, once an answer is known."""
        return place._replace(epsilon=best.upper)


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
        found = self.contour.delta(epsilon)
        return Interval(found.lower, min(1.0, (found.upper + self.lost) * (1 + 4 * UNIT)))


class _AtEpsilon:
    """The question how large delta is at an epsilon. ``made`` receives the contours."""

    least_unit = 1.0

    def __init__(self, epsilon: float, made: list[Made] | None = None) -> None:
        self._epsilon, self._made = epsilon, [] if made is None else made

    def saddle(self, composition: Composed) -> tuple[float, Cumulants, _Place]:
        """See `_AtDelta`."""
        tilt, at = tilt_at_epsilon(composition, self._epsilon)
        log_delta = min(0.0, log_delta_estimate(tilt, at, self._epsilon))
        return tilt, at, _Place(self._epsilon, log_delta)

    def answer(self, contour: Bounding, place: _Place, lost: float) -> Interval:
        """See `_AtDelta`."""
        self._made.append(Made(contour, lost))
        return self._made[-1].delta(place.epsilon)

    def moved(self, place: _Place, best: Interval) -> _Place:
        """See `_AtDelta`."""
        return place._replace(log_delta=math.log(max(best.upper, _TINY)))


_Question = _AtDelta | _AtEpsilon


def inversion_epsilon(composition: Composition, delta: float, mass: float = 0.0) -> Interval:
    """Return eps(delta) of sampled rounds by contours, relative width typically at most 1e-9.

    Args:
        composition: any composition. Its infinite losses are left out.
        delta: the target.
        mass: the probability of those, far below delta. It is taken from delta.
    Raises:
        NotConverged: the integrand of each contour decays too slowly.
    """
    question, best = _AtDelta(delta, mass), Interval(0.0, composition.largest_loss)
    if delta < _LEAST_EXACT:
        # The part that is cut off is no small share of this delta. A smaller delta costs no less.
        lower = inversion_epsilon(composition, _LEAST_EXACT).lower
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
    question, best = _AtEpsilon(epsilon, made), Interval(0.0, 1.0)
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
    return _plain(_AtEpsilon(epsilon), composition, 0.0)


def _quickly(composition: Composition, epsilon: float, _: Interval) -> Interval:
    upper = chernoff_delta(composition, epsilon)
    if upper > NEXT_TO_NOTHING:
        upper = min(upper, far_delta(composition, epsilon))
    return Interval(0.0, upper)


def _without_far_tail(composition: Composition, epsilon: float, best: Interval) -> Interval:
    """Cut off the far tail first. With much noise it explodes late, so little is cut off."""
    if not (_is_loud(composition) and TruncatedComposition.applies(composition)):
        return best
    rest = truncated(composition, _FAR * max(best.upper, _TINIEST))
    return _plain(_AtEpsilon(epsilon), *rest)


def _with_atoms_apart(composition: Composition, epsilon: float, best: Interval) -> Interval:
    """Return delta with the atoms of general pairs counted apart."""
    if not composition.general:
        return best
    # Hardly any contour gets here, and none pays for the import before.
    from dpacct.tight.atoms_apart import AtomsApart  # noqa: PLC0415 - as said

    return AtomsApart(composition, epsilon).delta(epsilon)


def _atoms_apart_epsilon(question: _AtDelta, composition: Composition, delta: float) -> Interval:
    """Return one contour of all but the atoms, and their exact part."""
    from dpacct.tight.atoms_apart import AtomsApart, atoms_alone  # noqa: PLC0415 - as above

    # Next to the largest loss atoms alone say where epsilon is, and they bound it from below.
    least = _alone_epsilon(atoms_alone(composition), delta).lower
    place = question.saddle(composition)[2]
    guess = max(least, min(place.epsilon, composition.largest_loss * (1 - 1e-9)))
    found = Interval(least, math.inf)
    with suppress(NotConverged):
        contour = AtomsApart(composition, guess)
        answer = question.answer(contour, place._replace(epsilon=guess), 0.0)
        found = _intersection(found, answer)
    return found


def _left_of_zero(composition: Composition, epsilon: float, best: Interval) -> Interval:
    """Bound delta if most losses exceed epsilon. Some pairs only have laws for positive tilts."""
    if composition.is_symmetric or not lies_below(composition.alike(), epsilon):
        return best
    return Complement(composition, epsilon, math.log(max(best.lower, 0.01))).delta(epsilon)


def _plain(question: _Question, composition: Composed, lost: float) -> Interval:
    """Return one contour at the saddle point, without a blur."""
    few_kinds = composition.alike() if isinstance(composition, Composition) else composition
    tilt, at, place = question.saddle(few_kinds)
    contour = Contour(composition, tilt, *place, 0.0, at.variance)
    return question.answer(contour, place, lost)


def _refine(
    question: _Question,
    composition: Composed,
    lost: float,
    best: Interval,
    attempts: int = _ATTEMPTS,
) -> Interval:
    """Return ever less blurred contours, intersected."""
    saddle, at, place = question.saddle(composition)
    tilt = cheapest = cheapest_tilt(composition, saddle, *place)
    # Coarse first: it says where the answer is.
    width = _COARSE * max(place.epsilon, question.least_unit / tilt)
    known, failed = False, 0
    while attempts > 0 and failed < _FAILURES:
        try:
            contour = Contour(composition, tilt, *place, width, at.variance)
            found = question.answer(contour, place, lost)
        except NotConverged:
            failed += 1
            # A smaller tilt, or a wider blur once one was found.
            if known:
                width *= _MORE
            else:
                tilt *= _LESS
            continue
        attempts -= 1
        best = _intersection(best, found)
        if best.width <= _WIDE * best.upper or (not contour.blur and tilt == saddle):
            break
        guess, place = place.epsilon, question.moved(place, best)
        if place.epsilon < _FAR_OFF * guess:
            tilt = cheapest = cheapest_tilt(composition, saddle, *place)
        known = True
        if contour.rounding_dominates:
            # Nearer to the saddle point less is lost against M(c) e^{-c eps}.
            tilt = min(saddle, tilt / _LESS)
            continue
        if contour.blur > 1.01 * width / (1 + tilt):
            if tilt <= cheapest:
                # As fine as it can be.
                break
            tilt = cheapest
        most = _BLUR * max(place.epsilon, question.least_unit / tilt)
        width = min(width * 0.5 * _WIDE * best.upper / best.width, most)
    return best


def truncated(composition: Composition, mass: float) -> tuple[Composed, float]:
    """Return the composition without far tails of about this mass, if possible, and the mass."""
    if not TruncatedComposition.applies(composition):
        return composition, 0.0
    rest = TruncatedComposition.losing(composition, mass)
    return rest, rest.lost


def _is_loud(composition: Composition) -> bool:
    """Return True if there is so much noise that moments explode only far out."""
    noise = [pair.noise_std for pair, _ in composition.sampled_pairs()]
    return min(noise, default=0.0) >= _LOUD


def _intersection(first: Interval, second: Interval) -> Interval:
    return Interval.bracket(max(first.lower, second.lower), min(first.upper, second.upper))


def without_far_tail(composition: Composition, delta: float) -> Composed:
    """Return the composition, with much noise without losses that are next to impossible."""
    return truncated(composition, _FAR * delta)[0] if _is_loud(composition) else composition


def quick_epsilon(composition: Composition, delta: float) -> float:
    """Estimate eps(delta) next to a heavy tail by one coarse contour.

    Raises:
        NotConverged: a search needs too many nodes.
    """
    rest = truncated(composition, _LOST * delta)
    found = _refine(_AtDelta(delta), *rest, Interval(0.0, math.inf), attempts=1)
    if math.isinf(found.upper):
        raise NotConverged("no contour reaches epsilon")
    return (found.lower + found.upper) / 2


def estimate_epsilon(schedule: Schedule, delta: float) -> float:
    """Estimate epsilon(delta) > 0 in the remove direction: the saddle point or a coarse contour.

    Error: often 1e-4 relative. About 1e-2 next to a heavy tail, where the saddle point gives no
        estimate. NaN if the searches need too many nodes.
    """
    composition = Composition.of_schedule(schedule, proven_pairs, Direction.REMOVE)
    log_delta = math.log(delta)
    try:
        # With much noise and tiny rates, losses that never occur dominate the moments.
        tilt, cumulants = tilt_at_delta(without_far_tail(composition, delta), log_delta)
        usual = math.sqrt(-2 * log_delta)
        if tilt * math.sqrt(cumulants.variance) > min(_HEAVY, _HEAVIER * usual):
            return max(quick_epsilon(composition, delta), _LEAST_EPSILON)
    except NotConverged:
        return math.nan
    return max(epsilon_estimate(tilt, cumulants, log_delta), _LEAST_EPSILON)


def chernoff_delta(composition: Composition, epsilon: float) -> float:
    """Return a quick upper bound of delta(eps) of one direction, at most 1, rarely 20-fold."""
    mass = composition.infinite_mass
    if epsilon >= composition.largest_loss:
        return mass
    tilt, _ = tilt_at_epsilon(composition.alike(), epsilon)
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
    tilts = _FAR_TILTS / epsilon
    for tilt in tilts[1 + tilts > 1].tolist():
        with suppress(NotConverged):
            least = min(least, _chernoff_exponent(rest, tilt, epsilon))
        if least < _NOTHING:
            break
    return min(1.0, math.exp(max(least, -700.0)) * (1 + 4 * UNIT) + rest.lost * (1 + 4 * UNIT))
