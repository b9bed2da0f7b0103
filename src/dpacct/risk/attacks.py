"""The most successful attacks on a schedule: the best TPR at an FPR, proven and achieved.

An attacker knows that one of two neighboring data sets was used, sees everything that was released,
and accuses one of them. With delta_1(eps) of the accused data set against the other one, and
delta_2 the other way round, for every eps >= 0

    TPR <= e^eps FPR + delta_1(eps),        TPR <= 1 - e^-eps (1 - FPR - delta_2(eps)):

any eps gives a proven bound, and the least of them is the best TPR itself. As a function of
x = e^eps, in the second bound of x = e^-eps, they are one convex function F of x > 0. So its values
at a few points bound the least of *all* of them from below: that is the achieved side.

Source: Dong, Roth, Su 2022 (arXiv:1905.02383), propositions 2.4 and 2.12,
docs/derivations/tradeoff.md.

An `Accountant` answers for the worse of both directions, and a test of membership is about both at
once, each with its own delta(eps). `PrivacyProfile` looks at them separately, with the engine of
the accountant `tight` on the pairs of `dominating`. If the engine does not converge, and for the
upper side of all other accountants, the accountant's bound of the worse direction bounds both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache

from dpacct.accountant import Accountant
from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.rounding import above, below
from dpacct.numerics.search import least_convex_value, minimize_unimodal
from dpacct.pairs.achieved import affinity_delta
from dpacct.pairs.dominating import (
    Direction,
    PairsOf,
    SymmetrizedPair,
    achieved_pairs,
    infinite_mass,
    is_exact,
    pairs_of,
    proven_pairs,
)
from dpacct.pairs.moments import PairMoments
from dpacct.pairs.one_round import one_round_delta
from dpacct.rounds import Schedule
from dpacct.tight.accountant import TightAccountant
from dpacct.tight.closed_forms import closed_form_delta
from dpacct.tight.composition import Composition, is_same_both_ways
from dpacct.tight.contour import Contour, log_delta_estimate, tilt_at_epsilon
from dpacct.tight.engines import Made, composed_delta, inversion_delta

# Above this delta the game's grid hardly counts.
_LEAST_PLAYED = 1e-9
# Bounds of delta(eps), eps >= 0, of a direction.
Profile = Callable[[Direction, float], Interval]


class PrivacyProfile:
    """delta(eps) of a schedule in both directions, from the proven and from an achieved pair."""

    def __init__(self, schedule: Schedule, accountant: Accountant) -> None:
        tight = isinstance(accountant, TightAccountant)

        @cache
        def worse(epsilon: float) -> float:
            return accountant.delta(schedule, epsilon).upper

        self._worse = None if tight else worse
        self._schedule, self._plays = schedule, tight and accountant.plays(schedule)
        self._proven = _pairs_profile(schedule, proven_pairs, worse)
        #: Whether the pair that is proven to be the worst is also the one achieved.
        self.exact = tight and all(is_exact(kind) for kind in schedule.distinct())
        #: Bounds of delta(eps) of one explicit pair of data sets, the same at all epsilons.
        self.achieved: Profile = self._proven
        if not self.exact:
            self.achieved = _pairs_profile(schedule, achieved_pairs, worse)

    def proven(self, direction: Direction, epsilon: float) -> Interval:
        """Return an interval with an upper end that bounds delta(eps) for all neighbors.

        Its lower end bounds the dominating pair, or is 0 if the accountant has none.
        """
        if self._worse is not None:
            return Interval(0.0, self._worse(epsilon))
        upper = math.inf
        if self._plays:
            # A cold start about other rounds does not pay for the game.
            from dpacct.tight.game.bounds import curve_delta  # noqa: PLC0415

            upper = curve_delta(self._schedule, epsilon)
        if _LEAST_PLAYED < upper < math.inf:
            # The game proves less than fixed pairs, unless its grid dominates.
            return Interval(0.0, upper)
        bounds = self._proven(direction, epsilon)
        return Interval(min(bounds.lower, upper), min(bounds.upper, upper))


def _pairs_profile(schedule: Schedule, choice: PairsOf, worse: Callable[[float], float]) -> Profile:
    """Return delta(eps) of one choice of pairs, each computed once.

    ``worse`` bounds both directions from above if the engine does not converge.
    """
    pairs = {d: pairs_of(schedule.distinct(), choice, d) for d in Direction}
    compositions = {d: Composition.of(p, d) for d, p in pairs.items()}
    engines = {d: _Engine(composition) for d, composition in compositions.items()}
    symmetric = is_same_both_ways(*compositions.values())

    @cache
    def compute(direction: Direction, epsilon: float) -> Interval:
        if not pairs[direction]:
            return Interval(0.0, 0.0)
        try:
            return engines[direction].delta(epsilon)
        except NotConverged:
            # One round alone is contained in all of them.
            every = pairs[direction]
            known = [pair for pair in every if not isinstance(pair, SymmetrizedPair)]
            lower = max((one_round_delta(epsilon, pair).lower for pair in known), default=0.0)
            if len(known) == len(every):
                lower = max(lower, affinity_delta(PairMoments(every, direction), epsilon))
            return Interval.bracket(lower, worse(epsilon))

    return lambda direction, epsilon: compute(Direction.REMOVE if symmetric else direction, epsilon)


class _Engine:
    """delta of one composition at many epsilons: a contour serves all at which it is sharp."""

    def __init__(self, composition: Composition) -> None:
        self._composition = composition
        self._contours: dict[float, tuple[Made, float]] = {}
        # Contours leave infinite losses out, and closed forms are sharper.
        exactly = closed_form_delta(composition)
        self._inverts = exactly is None and not composition.infinite_mass
        self._plainly = self._inverts

    def delta(self, epsilon: float) -> Interval:
        """Return bounds of delta at one epsilon >= 0.

        Raises:
            NotConverged: neither a contour nor the engine converges.
        """
        if self._contours:
            near = min(self._contours, key=lambda at: abs(at - epsilon))
            made, width = self._contours[near]
            with suppress(NotConverged):
                answer = made.delta(epsilon)
                # Sharp, or as sharp as at the epsilon that it was made for.
                if answer.width <= max(1e-9, 2.0 * width) * answer.upper:
                    return answer
        if self._inverts and epsilon < self._composition.largest_loss:
            with suppress(NotConverged):
                if self._plainly:
                    tilt, at = tilt_at_epsilon(self._composition, epsilon)
                    log_delta = min(0.0, log_delta_estimate(tilt, at, epsilon))
                    contour = Contour(self._composition, tilt, epsilon, log_delta, 0.0, at.variance)
                    answer = contour.delta(epsilon)
                    if answer.width <= 1e-7 * answer.upper:
                        width = answer.width / answer.upper
                        self._contours[epsilon] = Made(contour, 0.0), width
                        return answer
            # Nearly an atom, at this epsilon and so at others: contours with less and less blur.
            self._plainly, blurred = False, list[Made]()
            with suppress(NotConverged):
                answer = inversion_delta(self._composition, epsilon, blurred)
                if blurred:
                    self._contours[epsilon] = blurred[-1], answer.width / answer.upper
                return answer
        return composed_delta(self._composition, epsilon)


# Below e^-40 = 4e-18 the second bound is within rounding of 1.
LEAST_EPSILON = -40.0
# Accuracy of eps where the bound is least, in units of the width of delta(eps). The bound is off
# by the square, times the density of the loss there: it is high next to the largest loss.
_TOLERANCE = 1e-5
# First step of the search.
_STEP = 0.1
_LARGEST_ADVANTAGE = 1 - 1e-9


class Attacks:
    """The most successful attacks on one schedule. Bounds at one FPR are kept for the next one."""

    def __init__(self, schedule: Schedule, accountant: Accountant) -> None:
        self.profile, self._certain = PrivacyProfile(schedule, accountant), infinite_mass(schedule)
        self._proven = [Attack(self.profile.proven, d) for d in Direction]
        self._achieved = self._proven
        if not self.profile.exact:
            self._achieved = [Attack(self.profile.achieved, d) for d in Direction]

    def proven(self, accused: Direction) -> Attack:
        """Return the attacks that accuse one of the two data sets, with their proven bounds."""
        return next(attack for attack in self._proven if attack.accused is accused)

    def upper_tpr(self, fpr: float) -> float:
        """Return the proven bound of the TPR at this FPR in [0, 1], for the worse direction."""
        if fpr in (0.0, 1.0):
            return max(fpr, self._certain)
        plain = self._by_advantage(fpr)
        if plain:
            return plain.upper
        first, second = sorted(self._proven, key=lambda attack: -attack.start(fpr)[1].upper)
        upper, epsilon = first.least(fpr)
        if second.bound(fpr, epsilon).upper <= upper:
            return upper
        return max(upper, second.least(fpr)[0])

    def tpr(self, fpr: float) -> Interval:
        """Return the achieved and proven TPR at this FPR in [0, 1], for the worse direction."""
        if fpr in (0.0, 1.0):
            # Only an infinite loss is an outcome that only one data set could give.
            return Interval(fpr, max(fpr, self._certain))
        plain = self._by_advantage(fpr)
        if plain:
            return plain
        first, second = sorted(self._achieved, key=lambda attack: -attack.start(fpr)[1].upper)
        bracket = first.tpr(fpr)
        lower = bracket.lower
        if second.bound(fpr, first.least(fpr)[1]).upper > bracket.upper:
            lower = max(lower, second.tpr(fpr).lower)
        return Interval.bracket(lower, self.upper_tpr(fpr))

    def curve(self, fprs: Sequence[float]) -> list[Interval]:
        """Return the achieved and proven TPR at many FPRs in (0, 1), as sharp as a chart needs.

        Each FPR contributes one eps at which the bound should be small. Any eps gives a valid bound
        at every FPR, so that the least over all of them is proven without a search.
        """
        # The achieved side needs to see the bound rise beyond both ends.
        beyond = [min(fprs) * share for share in (0.6, 0.3, 0.1)]
        beyond += [1.0 - (1.0 - max(fprs)) * share for share in (0.6, 0.3, 0.1)]
        for fpr in (*fprs, *beyond):
            for attack in (*self._proven, *self._achieved):
                attack.start(fpr)
        brackets: list[Interval] = []
        for fpr in fprs:
            upper = max(attack.start(fpr)[1].upper for attack in self._proven)
            lower = max(attack.achieved(fpr) for attack in self._achieved)
            plain = self._by_advantage(fpr)
            brackets.append(plain or Interval.bracket(lower, min(1.0, max(fpr, upper))))
        return brackets

    def _by_advantage(self, fpr: float) -> Interval | None:
        """Return the TPR from the advantage alone, if that is sharp, else None.

        FPR <= TPR <= FPR + advantage. The attack with that advantage has an FPR of at most one
        less it, and the TPR does not fall as the FPR grows.
        """
        whole = self.advantage()
        # So small a share of the error rates says all, and so does an advantage next to one.
        if whole.upper <= 1e-9 * min(fpr, 1 - fpr):
            return Interval(fpr, min(1.0, above(fpr + whole.upper, fpr)))
        if whole.lower >= 1 - 1e-12 and fpr >= 1 - whole.lower:
            return Interval(max(fpr, whole.lower), 1.0)
        return None

    def upper_advantage(self) -> float:
        """Return the proven bound of TPR - FPR. Each direction's delta(0) bounds both."""
        return min(self.profile.proven(d, 0.0).upper for d in Direction)

    def advantage(self) -> Interval:
        """Return the achieved and proven TPR - FPR: delta(0), the same in both directions."""
        lower = max(self.profile.achieved(d, 0.0).lower for d in Direction)
        return Interval.bracket(lower, self.upper_advantage())


class Attack:
    """Attacks that accuse one of the two data sets.

    Args:
        delta: delta(eps) in both directions.
        accused: the direction of which the accused data set is the first argument.
    """

    def __init__(self, delta: Profile, accused: Direction) -> None:
        self._delta, self.accused = delta, accused
        self._other = Direction.ADD if accused is Direction.REMOVE else Direction.REMOVE
        self._seen: dict[float, Interval] = {}
        self._least: dict[float, float] = {}

    def bound(self, fpr: float, epsilon: float) -> Interval:
        """Return an interval around F, the bound of the TPR by this eps (second kind: eps < 0)."""
        if epsilon not in self._seen:
            direction = self.accused if epsilon >= 0.0 else self._other
            self._seen[epsilon] = self._delta(direction, abs(epsilon))
        delta, ratio = self._seen[epsilon], math.exp(epsilon)
        if epsilon >= 0.0:
            lower, upper = ratio * fpr + delta.lower, ratio * fpr + delta.upper
            return Interval(below(lower, lower), above(upper, upper))
        lower, upper = 1 - ratio * (1 - fpr - delta.lower), 1 - ratio * (1 - fpr - delta.upper)
        return Interval(below(lower, 1.0, ratio), above(upper, 1.0, ratio))

    def start(self, fpr: float) -> tuple[float, Interval]:
        """Return an eps at which the bound should be small, and the bound there.

        It is that of the Gaussian with the same advantage, or a better one seen before.
        """
        self.bound(fpr, 0.0)
        mu = gaussian_mu(self._seen[0.0].upper)
        # log of the slope of the trade-off curve of a Gaussian.
        guess = -mu * normal_quantile(fpr) - mu * mu / 2
        guess = min(max(guess, LEAST_EPSILON), _largest_epsilon(fpr))
        # A point that was seen nearby serves as well.
        if min(abs(guess - seen) for seen in self._seen) > 0.2 * self._scale():
            self.bound(fpr, guess)
        return min(
            ((seen, self.bound(fpr, seen)) for seen in self._seen if seen <= -math.log(fpr)),
            key=lambda point: point[1].upper,
        )

    def least(self, fpr: float) -> tuple[float, float]:
        """Return the least bound of the TPR at an FPR in (0, 1), and its eps."""
        if fpr not in self._least:
            ends = (LEAST_EPSILON, _largest_epsilon(fpr))
            self._least[fpr] = minimize_unimodal(
                lambda epsilon: self.bound(fpr, epsilon).upper,
                self.start(fpr)[0],
                ends,
                self._tolerance(fpr),
                _STEP * self._scale(),
            )
        epsilon = self._least[fpr]
        return min(1.0, max(fpr, self.bound(fpr, epsilon).upper)), epsilon

    def tpr(self, fpr: float) -> Interval:
        """Return the best TPR of this pair at an FPR in (0, 1), achieved and bounded."""
        upper, best = self.least(fpr)
        for side in (-1.0, 1.0):
            # The achieved side needs to see the bound rise on both sides, beyond its brackets.
            away = self._tolerance(fpr)
            while LEAST_EPSILON <= best + side * away <= _largest_epsilon(fpr):
                if self.bound(fpr, best + side * away).lower > upper:
                    break
                away *= 3.0
        return Interval.bracket(self.achieved(fpr), upper)

    def achieved(self, fpr: float) -> float:
        """Return a TPR that this pair achieves at an FPR in (0, 1), by the eps seen so far."""
        top = -math.log(fpr)
        points = [(-math.inf, Interval(1.0, 1.0))]
        points += [(e, self.bound(fpr, e)) for e in sorted(self._seen) if e < top]
        # F is at least x FPR, so at least 1 from here on, up to the rounding of the logarithm.
        points.append((top, Interval(1 - 1e-12, 2.0)))
        return min(max(fpr, least_convex_value(points)), 1.0)

    def _scale(self) -> float:
        """Return about the range of eps on which delta changes."""
        return min(1.0, gaussian_mu(self._seen[0.0].upper))

    def _tolerance(self, fpr: float) -> float:
        """Return the distance from the best eps below which brackets hide all differences."""
        epsilon, known = self.start(fpr)
        # Without a lower bound of delta there is no achieved side.
        noise = known.width / known.upper if self._seen[epsilon].lower > 0.0 else 0.0
        return self._scale() * max(_TOLERANCE, math.sqrt(noise))


def _largest_epsilon(fpr: float) -> float:
    """Return the eps above which all bounds exceed 1."""
    return max(-math.log(fpr), LEAST_EPSILON)


def gaussian_mu(advantage: float) -> float:
    """Return about the mu of the Gaussian mechanism with this advantage."""
    return max(-2 * normal_quantile((1 - min(advantage, _LARGEST_ADVANTAGE)) / 2), 1e-12)


def normal_quantile(probability: float) -> float:
    """Estimate the quantile of the standard normal distribution, as a starting point of searches.

    Source: Abramowitz, Stegun 1964, 26.2.23, absolute error 5e-4. Linear next to 1/2.
    """
    tail = min(probability, 1 - probability)
    if tail > 0.4:
        return (probability - 0.5) * math.sqrt(2 * math.pi)
    t = math.sqrt(-2 * math.log(max(tail, 1e-300)))
    top = 2.515517 + t * (0.802853 + t * 0.010328)
    x = t - top / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)))
    return math.copysign(x, probability - 0.5)
