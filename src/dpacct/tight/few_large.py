"""delta(eps) where few rounds with a large loss decide: contours of what those rounds add up to.

Three parts: outcomes in which some loss is so large that it alone is enough (their masses are
counted), outcomes with at least one large loss and none of that kind (a contour of the measure nu
of `split`), and outcomes with small losses alone (next to nothing, by Chernoff's bound).

Derivation: docs/derivations/few-large-losses.md.
"""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.fourier import MAX_FREQUENCIES
from dpacct.numerics.rounding import UNIT
from dpacct.pairs.dominating import Direction
from dpacct.pairs.panels import LossFunction
from dpacct.tight.complement import Complement, lies_below
from dpacct.tight.composition import Composition
from dpacct.tight.contour import Contour
from dpacct.tight.crossing import Bounding, crossing
from dpacct.tight.few_large_guess import about_epsilon, about_log_delta, of_a_client
from dpacct.tight.laws.cumulants import Cumulants
from dpacct.tight.laws.faded import faded_delta, faded_mass
from dpacct.tight.laws.split import Cut
from dpacct.tight.others import Others
from dpacct.tight.saddle import log_chernoff_factor, tilt_at_epsilon
from dpacct.tight.small import SmallComposition
from dpacct.tight.split import MARGIN, SplitComposition, sharpness, split_at
from dpacct.tight.tilts import cheapest_tilt

_MAX_KINDS = 40
# The share of delta that hardly counts.
_HARDLY = 1e-8
# Where small losses end, in units of epsilon: the first that is small enough is taken.
_SHARES = (0.6, 0.42, 0.3, 0.2, 0.13, 0.08, 0.05, 0.03)
# Below this one steps are so narrow that a contour of small losses alone is cheaper.
_NARROW = 0.15
_FEW_NODES, _MOST_NODES = 4000, MAX_FREQUENCIES // 2
# The contour was made for another epsilon if it is this much too large or too small.
_FAR_OFF, _ATTEMPTS = 0.03, 4
_WIDE = 1e-6
# By what a cheaper tilt may raise the logarithm of Chernoff's bound, and how far above delta.
_LOOSEST, _LOOSE_IN_ALL = 4.0, 12.5
# Beyond this multiple of it nothing is asked for.
_TOO_FAR = 3.0
# Where nothing is known of delta, so little of it is cut off, and what it may be below that.
_LEAST_LOG_DELTAS, _SPARE, _MOST = (-100.0, -300.0, -600.0), 20.0, 680.0
# The exponential of a larger epsilon overflows.
_FARTHEST = 600.0
# Accuracy of the estimate that a contour begins with.
_NEAR = 0.02


class HardlyAny:
    """Small or large losses where they have next to nothing, by Chernoff's bound."""

    blur = 0.0

    def __init__(self, some: SmallComposition | SplitComposition, tilt: float) -> None:
        self._tilt = tilt = (1 + tilt) - 1
        self._log_some = float(some.log_moment(tilt).upper) + log_chernoff_factor(tilt)

    def delta(self, epsilon: float) -> Interval:
        """Bounds of their part of delta."""
        exponent = self._log_some - self._tilt * epsilon
        slack = 16 * UNIT * (abs(self._log_some) + self._tilt * epsilon + 8)
        return Interval(0.0, math.exp(min(max(exponent + slack, -700.0), 0.0)))

    def delta_and_slope(self, epsilon: float) -> tuple[Interval, float]:
        """The same, and the slope of the bound."""
        return self.delta(epsilon), -self._tilt


# Where losses are split, and bounds of what small and large ones have.
Parts = tuple[SplitComposition, Bounding, Bounding]


class FewLarge:
    """Bounds of delta near one epsilon.

    Args:
        composition: sampled pairs of the remove direction, see `applies`.
        epsilon, log_delta: about where delta will be asked for, and its logarithm there.
    Raises:
        NotConverged: small losses matter, or the contour would be too large.
    """

    blur = 0.0

    def __init__(self, composition: Composition, epsilon: float, log_delta: float) -> None:
        self._composition, self._epsilon = composition, epsilon
        self._others = Others(composition, epsilon, log_delta)
        enough = MARGIN * epsilon + self._others.rest()
        self._split, self._small, self._contour = _parts(composition, epsilon, enough, log_delta)
        self._masses = [faded_mass(cut) for cut in self._split.cuts]
        self._counts = np.array([cut.count for cut in self._split.cuts])
        self._least = [_least_loss(cut) for cut in self._split.cuts]

    @classmethod
    def applies(cls, composition: Composition) -> bool:
        """Whether there are a few kinds of rounds, of rates <= 1/2, that may have large losses.

        That is sampled rounds in the remove direction, or of replaced clients; beside them there
        may be rounds of full participation.
        """
        pairs = [pair for pair, _ in composition.sampled_pairs()]
        added = composition.rates.size and composition.direction is not Direction.REMOVE
        if composition.symmetrized or added:
            return False
        return 0 < len(pairs) <= _MAX_KINDS and max(pair.sampling_rate for pair in pairs) <= 0.5

    def delta(self, epsilon: float) -> Interval:
        """Lower and upper bound of delta at one epsilon >= 0."""
        return self.delta_and_slope(epsilon)[0]

    def delta_and_slope(self, epsilon: float) -> tuple[Interval, float]:
        """The same, and about the derivative of log delta; of that nothing is proven."""
        if epsilon > _TOO_FAR * self._epsilon:
            raise NotConverged("epsilon is far above the one that the losses were split for")
        found, slope = self._contour.delta_and_slope(epsilon)
        lower, upper = self._faded_part(epsilon)
        small, small_slope = self._small.delta_and_slope(epsilon)
        total = found.upper + max(upper, 0.0) + small.upper
        falling = slope * found.upper - (self._faded(epsilon) if lower > 0.0 else 0.0)
        falling += small_slope * small.upper
        bounds = Interval.bracket(
            max(0.0, (found.lower + lower + small.lower) * (1 - 8 * UNIT)),
            min(1.0, max(found.upper, total) * (1 + 8 * UNIT)),
        )
        return bounds, falling / total

    def _faded_part(self, epsilon: float) -> tuple[float, float]:
        """Bounds of what outcomes with a faded loss have: at least 0, at most P(A)."""
        most = self._faded(epsilon, more=True)
        if epsilon > _FARTHEST:
            return 0.0, most
        lower, upper = faded_delta(epsilon, self._counts, self._masses)
        return max(lower, 0.0), min(upper + self._not_enough(epsilon), most)

    def _faded(self, epsilon: float, *, more: bool = False) -> float:
        """e^eps times an upper bound of Q(A), or one of P(A)."""
        counts = self._counts.tolist()
        if more:
            rows = zip(counts, self._masses, strict=True)
            return sum(n * (mass.most + mass.most_more) for n, mass in rows) * (1 + 1e-9)
        mass = sum(n * mass.most for n, mass in zip(counts, self._masses, strict=True))
        return math.exp(epsilon) * mass

    def _not_enough(self, epsilon: float) -> float:
        """Upper bound of e^eps Q(A, L < eps): what is faded out, and yet not enough.

        By kinds: where the end of one comes first, its losses are smaller, but next to none.
        """
        rows = zip(self._split.cuts, self._masses, self._least, strict=True)
        parts = [(cut.fading < cut.end, least, cut.count * mass.most) for cut, mass, least in rows]
        found = 0.0
        for faded in (True, False):
            some = [(least, mass) for kind, least, mass in parts if kind is faded]
            if some:
                share = self._others.share_below(min(least for least, _ in some) - epsilon)
                found += share * sum(mass for _, mass in some)
        return math.exp(epsilon) * found * (1 + 1e-9)


def _least_loss(cut: Cut) -> float:
    """Lower bound of the losses of a round that are faded out, or lie beyond the end."""
    first = min(cut.fading, cut.end)
    loss = float(LossFunction(cut.pair)(np.array([first]))[0][0])
    return loss - 1e-12 * (1 + loss) * min(1.0, 2 * loss)


def _of_large(split: SplitComposition, epsilon: float, log_delta: float, most: int) -> Bounding:
    """Bounds of what outcomes with a large loss have."""
    saddle, at = tilt_at_epsilon(split, epsilon)
    if _log_chernoff(at, saddle, epsilon) <= log_delta + math.log(_HARDLY):
        return HardlyAny(split, saddle)
    # Left of zero aliases are dozens apart: that is far where losses are small.
    if saddle < 1.0 and lies_below(split, epsilon):
        with suppress(NotConverged):
            return Complement(split, epsilon, log_delta, most)
    loose = at.log_moment - saddle * epsilon - log_delta
    loosest = min(max(_LOOSE_IN_ALL - loose, 0.0), _LOOSEST)
    tilt = cheapest_tilt(split, saddle, epsilon, log_delta, loosest)
    return Contour(split, tilt, epsilon, log_delta, 0.0, at.variance, most)


def _log_chernoff(at: Cumulants, tilt: float, epsilon: float) -> float:
    return at.log_moment + log_chernoff_factor(tilt) - tilt * epsilon


def _parts(composition: Composition, epsilon: float, enough: float, log_delta: float) -> Parts:
    """Where to split, and bounds of what small and large losses have: the cheapest that does."""
    # Where all others make up for much of a loss, small is what is less than that.
    centers = [share * enough for share in _SHARES if share * enough > 2 * epsilon]
    centers += [share * epsilon for share in _SHARES]
    wide = [center for center in centers if center > _NARROW * epsilon]
    # Where many take part every one of them is large.
    client = of_a_client(composition)
    narrow = [*([client] if client < wide[-1] else []), *centers[len(wide) :]]
    for some, most in ((wide, _FEW_NODES), (narrow, _MOST_NODES), (wide, _MOST_NODES)):
        with suppress(NotConverged):
            return _first_parts(composition, some, epsilon, enough, log_delta, most)
    raise NotConverged("many small losses add up to what is asked for")


def _first_parts(
    composition: Composition,
    centers: list[float],
    epsilon: float,
    enough: float,
    log_delta: float,
    most: int,
) -> Parts:
    """The first of these places that leaves hardly any small losses, or a contour of them."""
    allowed = log_delta + math.log(_HARDLY)
    splits: list[tuple[SplitComposition, SmallComposition]] = []
    for center in centers:
        try:
            found = split_at(composition, center, enough, log_delta)
        except NotConverged:
            # Further down there may be large ones.
            continue
        small = SmallComposition.of(found)
        steepest = 60.0 * epsilon / (center * sharpness(log_delta))
        tilts = np.geomspace(2.0, max(steepest, 60.0), 14) / epsilon
        costs = [_log_chernoff(small.cumulants(b), b, epsilon) for b in tilts.tolist()]
        best = int(np.argmin(costs))
        if costs[best] > allowed:
            splits.append((found, small))
            continue
        hardly = HardlyAny(small, float(tilts[best]))
        with suppress(NotConverged):
            return found, hardly, _of_large(found, epsilon, log_delta, most)
    for found, small in splits:
        saddle, at = tilt_at_epsilon(small, epsilon)
        with suppress(NotConverged):
            contour = Contour(small, saddle, epsilon, log_delta, 0.0, at.variance, most)
            return found, contour, _of_large(found, epsilon, log_delta, most)
    raise NotConverged("no contour of small or of large losses reaches that far")


def few_large_epsilon(composition: Composition, delta: float) -> Interval:
    """eps(delta) of one direction of a composition.

    Error: inside the interval; relative width typically 1e-8 and less.
    Raises:
        NotConverged: see `FewLarge`.
    """
    log_delta = math.log(delta)
    guess = about_epsilon(composition, log_delta, _NEAR)
    best = Interval(0.0, math.inf)
    for _ in range(_ATTEMPTS):
        bounds = FewLarge(composition, guess, log_delta)
        try:
            found = crossing(bounds, guess, log_delta, log_delta)
        except NotConverged:
            # It lies further out than the losses were split for.
            guess *= _TOO_FAR
            continue
        best = Interval.bracket(max(best.lower, found.lower), min(best.upper, found.upper))
        near = abs(best.upper / guess - 1) < _FAR_OFF
        if near or not best.upper > 0.0 or best.width <= _WIDE * best.upper:
            break
        guess = best.upper
    if math.isinf(best.upper):
        raise NotConverged("epsilon was not found where it was expected")
    return best


def few_large_delta(composition: Composition, epsilon: float) -> Interval:
    """delta(eps) of one direction of a composition, eps > 0; see `few_large_epsilon`."""
    if not epsilon > 0.0:
        raise NotConverged("every loss above zero is large")
    log_delta = -math.inf
    for least in _LEAST_LOG_DELTAS:
        log_delta = about_log_delta(composition, epsilon, least)[0]
        # What is cut off then is far less.
        if log_delta > least - _SPARE:
            break
    if not log_delta > -_MOST:
        raise NotConverged("nothing is known of delta")
    return FewLarge(composition, epsilon, min(log_delta, 0.0)).delta(epsilon)
