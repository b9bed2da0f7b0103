"""The most successful attacks on a schedule: the best TPR at an FPR, proven and achieved.

An attacker is told that one of two neighboring data sets was used, sees everything that was
released, and accuses one of them. With delta_1(eps) of the accused data set against the other one,
and delta_2 the other way round, for every eps >= 0

    TPR <= e^eps FPR + delta_1(eps),        TPR <= 1 - e^-eps (1 - FPR - delta_2(eps)):

any eps gives a proven bound, and the least of them is the best TPR itself. As a function of
x = e^eps, in the second bound of x = e^-eps, they are one convex function F of x > 0. So its values
at a few points bound the least of *all* of them from below: that is the achieved side.

Source: Dong, Roth, Su 2022 (arXiv:1905.02383), propositions 2.4 and 2.12;
docs/derivations/tradeoff.md.
"""

from __future__ import annotations

import math

from dpacct.accountant import Accountant
from dpacct.budget import Interval
from dpacct.numerics.convexity import least_convex_value
from dpacct.numerics.rounding import above, below
from dpacct.numerics.search import minimize_unimodal
from dpacct.pairs.dominating import Direction
from dpacct.risk.profile import PrivacyProfile, TwoSided
from dpacct.rounds import Schedule

# Below e^-40 = 4e-18 the second bound is within rounding of 1.
LEAST_EPSILON = -40.0
# Accuracy of eps where the bound is least, in units of the width of delta(eps); the bound is off
# by the square.
_TOLERANCE = 1e-4
# First step of the search, and the distance within which a point serves as its start.
_STEP, _NEAR = 0.1, 0.2
_LARGEST_ADVANTAGE = 1 - 1e-9
# An advantage of less than this share of the rates of errors says all, and so does one that lacks
# less to one.
_NEGLIGIBLE, _CERTAIN = 1e-9, 1 - 1e-12


class Attacks:
    """The most successful attacks on one schedule; what is learned at one FPR serves the others.

    Args:
        schedule: what runs.
        accountant: the accountant that proves the upper side.
    """

    def __init__(self, schedule: Schedule, accountant: Accountant) -> None:
        self.profile = PrivacyProfile(schedule, accountant)
        self._proven = [Attack(self.profile.proven, d) for d in Direction]
        self._achieved = self._proven
        if not self.profile.exact:
            self._achieved = [Attack(self.profile.achieved, d) for d in Direction]

    def proven(self, accused: Direction) -> Attack:
        """Attacks that accuse one of the two data sets, with what is proven of them."""
        return next(attack for attack in self._proven if attack.accused is accused)

    def upper_tpr(self, fpr: float) -> float:
        """Proven bound of the TPR at this FPR in [0, 1], for the worse direction."""
        if fpr in (0.0, 1.0):
            return fpr
        plain = self._by_advantage(fpr)
        if plain:
            return plain.upper
        first, second = sorted(self._proven, key=lambda attack: -attack.start(fpr)[1].upper)
        upper, epsilon = first.least(fpr)
        if second.bound(fpr, epsilon).upper <= upper:
            return upper
        return max(upper, second.least(fpr)[0])

    def tpr(self, fpr: float) -> Interval:
        """Achieved and proven TPR at this FPR in [0, 1], for the worse direction."""
        if fpr in (0.0, 1.0):
            # Gaussian noise has no outcome that only one data set could give.
            return Interval(fpr, fpr)
        plain = self._by_advantage(fpr)
        if plain:
            return plain
        first, second = sorted(self._achieved, key=lambda attack: -attack.start(fpr)[1].upper)
        found = first.tpr(fpr)
        lower = found.lower
        if second.bound(fpr, first.least(fpr)[1]).upper > found.upper:
            lower = max(lower, second.tpr(fpr).lower)
        return Interval.bracket(lower, self.upper_tpr(fpr))

    def _by_advantage(self, fpr: float) -> Interval | None:
        """The TPR as far as the advantage alone says it, where that is all there is to say.

        FPR <= TPR <= FPR + advantage. The attack with that advantage has an FPR of at most one
        less it, and the TPR does not fall as the FPR grows.
        """
        whole = self.advantage()
        if whole.upper <= _NEGLIGIBLE * min(fpr, 1 - fpr):
            return Interval(fpr, min(1.0, above(fpr + whole.upper, fpr)))
        if whole.lower >= _CERTAIN and fpr >= 1 - whole.lower:
            return Interval(max(fpr, whole.lower), 1.0)
        return None

    def upper_advantage(self) -> float:
        """Proven bound of TPR - FPR; each direction's delta(0) bounds both."""
        return min(self.profile.proven(d, 0.0).upper for d in Direction)

    def advantage(self) -> Interval:
        """Achieved and proven largest TPR - FPR: delta(0), the same in both directions."""
        lower = max(self.profile.achieved(d, 0.0).lower for d in Direction)
        return Interval.bracket(lower, self.upper_advantage())


class Attack:
    """Attacks that accuse one of the two data sets.

    Args:
        delta: delta(eps) in both directions.
        direction: the direction of which the accused data set is the first argument.

    Attributes:
        accused: that direction.
    """

    def __init__(self, delta: TwoSided, direction: Direction) -> None:
        self._delta, self.accused = delta, direction
        self._other = Direction.ADD if direction is Direction.REMOVE else Direction.REMOVE
        self._seen: dict[float, Interval] = {}
        self._least: dict[float, float] = {}

    def bound(self, fpr: float, epsilon: float) -> Interval:
        """The bound of the TPR by this eps (of the second kind for eps < 0), as known.

        The bound is an exact function of eps; what is returned contains its value.
        """
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
        """An eps where the bound should be small, and the bound there.

        The Gaussian with the same advantage says where; what was seen before may know better.
        """
        self.bound(fpr, 0.0)
        guess = gaussian_epsilon_at(fpr, self._mu())
        guess = min(max(guess, LEAST_EPSILON), _largest_epsilon(fpr))
        if min(abs(guess - seen) for seen in self._seen) > _NEAR * self._scale():
            self.bound(fpr, guess)
        return min(
            ((seen, self.bound(fpr, seen)) for seen in self._seen if seen <= -math.log(fpr)),
            key=lambda point: point[1].upper,
        )

    def least(self, fpr: float) -> tuple[float, float]:
        """The least bound of the TPR at an FPR in (0, 1), and its eps."""
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
        """The best TPR at an FPR in (0, 1): what this pair achieves, and a bound of it."""
        upper, best = self.least(fpr)
        for side in (-1.0, 1.0):
            # The achieved side needs to see the bound rise on both sides, beyond its brackets.
            away = self._tolerance(fpr)
            while LEAST_EPSILON <= best + side * away <= _largest_epsilon(fpr):
                if self.bound(fpr, best + side * away).lower > upper:
                    break
                away *= 3.0
        top = -math.log(fpr)
        points = [(-math.inf, Interval(1.0, 1.0))]
        points += [(e, self.bound(fpr, e)) for e in sorted(self._seen) if e < top]
        # F is at least x FPR, so 1 from here on, up to the rounding of the logarithm.
        points.append((top, Interval(1 - 1e-12, 2.0)))
        lower = max(fpr, least_convex_value(points))
        return Interval.bracket(min(lower, 1.0), upper)

    def _mu(self) -> float:
        return gaussian_mu(self._seen[0.0].upper)

    def _scale(self) -> float:
        """About the range of eps on which delta changes."""
        return min(1.0, self._mu())

    def _tolerance(self, fpr: float) -> float:
        """How close to the best eps is worth going: closer, brackets are wider than differences."""
        epsilon, known = self.start(fpr)
        # Where delta has no lower bound, there is no achieved side to look after.
        noise = known.width / known.upper if self._seen[epsilon].lower > 0.0 else 0.0
        return self._scale() * max(_TOLERANCE, math.sqrt(noise))


def _largest_epsilon(fpr: float) -> float:
    """A larger eps gives bounds above 1 only."""
    return max(-math.log(fpr), LEAST_EPSILON)


def gaussian_mu(advantage: float) -> float:
    """mu of about the Gaussian mechanism with this advantage."""
    return max(-2 * normal_quantile((1 - min(advantage, _LARGEST_ADVANTAGE)) / 2), 1e-12)


def gaussian_epsilon_at(fpr: float, mu: float) -> float:
    """log of the slope of a Gaussian trade-off curve at about this FPR."""
    return -mu * normal_quantile(fpr) - mu * mu / 2


def normal_quantile(probability: float) -> float:
    """About the quantile of the standard normal law: for starting points of searches only.

    Source: Abramowitz, Stegun 1964, 26.2.23, absolute error 5e-4; linear next to 1/2.
    """
    tail = min(probability, 1 - probability)
    if tail > 0.4:
        return (probability - 0.5) * math.sqrt(2 * math.pi)
    t = math.sqrt(-2 * math.log(max(tail, 1e-300)))
    top = 2.515517 + t * (0.802853 + t * 0.010328)
    x = t - top / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)))
    return math.copysign(x, probability - 0.5)
