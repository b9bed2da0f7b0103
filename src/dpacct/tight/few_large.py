"""delta(eps) if few rounds with a large loss decide: contours of the sums of those rounds.

Three parts: outcomes in which some loss is so large that it alone is enough (their masses are
counted), outcomes with at least one large loss and none of that kind (a contour of the measure nu
of `split`), and outcomes with small losses alone (next to nothing by Chernoff's bound, or a contour
of their own).

Derivation: docs/derivations/few-large-losses.md.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import cached_property

import numpy as np

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.fourier import MAX_FREQUENCIES
from dpacct.numerics.rounding import UNIT, Array
from dpacct.numerics.search import bracket_root
from dpacct.pairs.dominating import Direction, ReplacementPair
from dpacct.pairs.moments import log_moment
from dpacct.pairs.one_round import gaussian_epsilon
from dpacct.pairs.panels import LossFunction
from dpacct.tight.composition import Composition, Cumulants
from dpacct.tight.contour import (
    Bounding,
    Complement,
    Contour,
    cheapest_tilt,
    crossing,
    lies_below,
    log_chernoff_factor,
    log_delta_estimate,
    tilt_at_epsilon,
)
from dpacct.tight.large_losses import Cut, faded_delta, faded_mass
from dpacct.tight.laws import TruncatedLosses, lost_mass
from dpacct.tight.split import (
    MARGIN,
    SmallComposition,
    SplitComposition,
    check_reach,
    sharpness,
    split_at,
    split_cumulants,
)

# Looking further below zero than this multiple of epsilon gains nothing.
_MOST_EPSILONS = 3000.0
# Below this share of epsilon the least possible sum will do, and no moment is needed.
_LITTLE = 0.2
# Nothing that matters lies further out in the exponent.
_SURE = 28.0
# Losses far below zero may compensate faded losses for e to this of delta. The farthest place that
# is tried, in units of epsilon. The share of it that one loss or several losses may fill.
_HARDLY_MADE_UP, _FARTHEST_ROOM, _WITHIN = -17.0, 300.0, 0.7


class Others:
    """The sum of all losses under Q, in the remove direction or of replaced clients.

    Args:
        composition: sampled pairs, and rounds of full participation.
        epsilon, log_delta: estimates of the epsilon that delta is computed for, and of its
            logarithm. They influence the cost and the choice only.
    """

    def __init__(self, composition: Composition, epsilon: float, log_delta: float) -> None:
        self._composition, self._epsilon = composition, epsilon
        self._log_delta = log_delta
        self._shares: dict[float, float] = {}
        self._replaced = [
            (LossFunction(pair), pair, count)
            for pair, count in composition.sampled_pairs()
            if isinstance(pair, ReplacementPair)
        ]
        self.floor = math.inf if self._replaced else composition_floor(composition)

    def rest(self) -> float:
        """Return depth below zero that the sum hardly ever reaches. A choice, without proof.

        Raises:
            NotConverged: that is so far that nothing is won.
        """
        if self._replaced:
            return self._rest_of_replaced()
        if self.floor <= _LITTLE * self._epsilon:
            return self.floor
        tilts, growth = self._growth
        found = min(float(np.min((growth + _SURE) / tilts)), self.floor)
        if not found <= _MOST_EPSILONS * self._epsilon:
            raise NotConverged("all other rounds may make up for one large loss")
        return found

    def _rest_of_replaced(self) -> float:
        """Return depth for replaced clients: losses under Q mirror the losses under P.

        Faded losses have next to no delta there, or losses below zero hardly compensate them.
        """
        for room in (self._epsilon * np.geomspace(0.1, _FARTHEST_ROOM, 24)).tolist():
            faded = math.log(self._mass_above(room + self._epsilon)) - room
            allowed = math.exp(min(self._log_delta + _HARDLY_MADE_UP - faded, 0.0))
            # One loss alone is looked at first, as that takes no integral.
            if self._mean_above(room) <= allowed and self.share_below(room) <= allowed:
                return room
        raise NotConverged("a large loss below zero may make up for one above")

    def _mass_above(self, loss: float) -> float:
        """Return upper bound of the sum of P(L > loss), which is that of Q(L < -loss)."""
        return sum(
            count * lost_mass(pair.sampling_rate, pair.noise_std, law.inverse(loss) - 1e-9)
            for law, pair, count in self._replaced
        )

    def _mean_above(self, loss: float) -> float:
        """Return upper bound of the sum of E_P[min(1, L), L > loss], at most about twice that."""
        mean, low = 0.0, 0.0
        while low < 1.0:
            high = min(1.0, 2 * loss)
            mean += (high - low) * self._mass_above(loss)
            low, loss = high, 2 * loss
        return mean * (1 + 1e-9)

    def share_below(self, room: float) -> float:
        """Return upper bound of E_Q[min(1, (-room - R)_+)], R the sum of all losses but one."""
        if room >= self.floor:
            return 0.0
        if not room > 0.0:
            return 1.0
        if self._replaced:
            # It falls with the room: that of one that is a little less serves many.
            less = math.exp2(math.floor(16 * math.log2(room)) / 16)
            if less not in self._shares:
                self._shares[less] = self._share_of_replaced(less)
            return self._shares[less]
        tilts, growth = self._growth
        return math.exp(min(float(np.min(growth - tilts * room)) + 1e-9, 0.0))

    def _share_of_replaced(self, room: float) -> float:
        """Bound the compensated share: a loss is below -T, or all are above (Chernoff's bound).

        By the mirror image Q(L < -T) is P(L > T), and E_Q[e^{-bL}, L >= -T] is E_P[e^{bL}, L <= T].
        """
        some, within = self._composition, _WITHIN * room
        # Given one loss below -T, only the mean below zero is known of all other losses.
        usual = 1e-3 * room * some.sampled_rounds + self._mean_above(1e-3 * room)
        usual += 0.5 * some.precision + 0.4 * math.sqrt(some.precision)
        usual -= float(np.log1p(-some.rates) @ some.counts)
        beyond = self._mass_above(within)
        beyond = min(beyond, self._mean_above(within) + beyond * usual * (1 + 1e-9))
        least = 0.0
        for tilt in (np.geomspace(3.0, 1000.0, 8) / room).tolist():
            # y_+ is at most e^{b y} / (b e).
            exponent = some.precision * tilt * (1 + tilt) / 2 - tilt * room
            exponent -= max(1 + math.log(tilt), 0.0)
            try:
                plain = log_moment(-tilt, some.rates, some.noise).upper
                exponent += float(np.maximum(plain, 0.0) @ some.counts)
                for law, pair, count in self._replaced:
                    kept = TruncatedLosses(pair, 1.0, tilt, 0.0, law.inverse(within)).log_moment
                    # A factor below one may belong to the faded losses.
                    exponent += count * max(float(kept.upper), 0.0)
            except NotConverged:
                continue
            exponent += 1e-9 * (1 + abs(exponent))
            if exponent > least < 0.0:
                # Convex in the tilt.
                break
            least = min(least, exponent)
        return min(math.exp(least) + beyond, 1.0)

    @cached_property
    def _growth(self) -> tuple[Array, Array]:
        """Return tilts b, and log of E_Q e^{-b L}, rounded up. Both have shape (k,)."""
        some = self._composition
        tilts = np.geomspace(4.0, 1000.0, 8) / self._epsilon
        rates, noise = some.rates[:, None], some.noise[:, None]
        try:
            growth = some.counts @ log_moment(-tilts[None, :], rates, noise).upper
        except NotConverged:
            growth = np.full_like(tilts, math.inf)
        growth = growth + some.precision * tilts * (1 + tilts) / 2
        return tilts, growth * (1 + 1e-9)


def composition_floor(composition: Composition) -> float:
    """Return minus the least loss of a composition of the remove direction, rounded up."""
    if composition.precision:
        return math.inf
    return float(-np.log1p(-composition.rates) @ composition.counts) * (1 + 1e-9)


# The share of epsilon where small losses end, and the least epsilon.
_USUAL, _LEAST = 0.4, 1e-12
# If other losses are below zero by more than this share of epsilon, a single loss has to be larger.
# The number of their standard deviations that count.
_MUCH, _SPREADS = 0.1, 1.0
# The exponential of a larger epsilon overflows.
_FARTHEST = 600.0
# The longest step, in the logarithm of epsilon.
_LONGEST_STEP = 2.0


def about_epsilon(composition: Composition, log_delta: float, tolerance: float) -> float:
    """Estimate eps(delta), rather too large than too small, without proof."""
    most = math.exp(max(log_delta, -700.0))
    alone = max(
        _alone(pair.sampling_rate, pair.noise_std, most / n)
        for pair, n in composition.sampled_pairs()
    )
    start = math.log(max(alone, _LEAST))

    def excess(log_epsilon: float) -> float:
        return about_log_delta(composition, math.exp(log_epsilon), log_delta)[0] - log_delta

    found = bracket_root(excess, start + 0.02, (start - 2.0, start + 5.0), tolerance, 0.1)
    return math.exp(found[1] + 0.5 * tolerance)


def _alone(rate: float, noise: float, delta: float) -> float:
    """Return eps of one round."""
    if delta >= rate:
        return 0.0
    return math.log1p(
        rate * math.expm1(min(gaussian_epsilon(delta / rate, 1 / noise).upper, 600.0))
    )


def epsilon_near(composition: Composition, log_delta: float, epsilon: float) -> float:
    """Estimate eps(delta) where it is next to an epsilon: one step of Newton's iteration.

    Raises:
        NotConverged: losses are too large for any split there.
    """
    check_reach(composition, MARGIN * epsilon, log_delta)
    found, slope = about_log_delta(composition, epsilon, log_delta)
    if not slope < 0.0:
        return epsilon * math.exp(-_LONGEST_STEP)
    step = (log_delta - found) / (slope * epsilon)
    return epsilon * math.exp(min(max(step, -_LONGEST_STEP), _LONGEST_STEP))


def about_log_delta(
    composition: Composition, epsilon: float, log_delta: float
) -> tuple[float, float]:
    """Return log of the delta of large losses, few of them, and all small ones, and its derivative.

    Never NaN.
    """
    try:
        center = min(_USUAL * epsilon, of_a_client(composition))
        split = split_at(composition, center, MARGIN * epsilon, log_delta)
        rest = _usual_rest(split)
        if rest > _MUCH * epsilon:
            split = split_at(composition, center, MARGIN * epsilon + rest, log_delta)
        parts = [_of_some(split, epsilon), _of_some(SmallComposition.of(split), epsilon)]
    except NotConverged:
        return -math.inf, 0.0
    try:
        masses = [faded_mass(cut) for cut in split.cuts]
    except NotConverged:
        # One such loss suffices, so this is not rare.
        return 0.0, -parts[0][1]
    faded, falling = 1e-300, 0.0
    if epsilon < _FARTHEST:
        counts = np.array([cut.count for cut in split.cuts])
        found = faded_delta(epsilon, counts, masses)[1]
        # If losses beyond the end do not suffice, they are no part of delta.
        if found > faded:
            # The derivative of the faded part is minus e^eps times the mass under Q.
            rows = zip(counts.tolist(), masses, strict=True)
            falling = math.exp(epsilon) * sum(n * mass.most for n, mass in rows)
            faded = found
    several = sum(part for part, _ in parts)
    falling += sum(part * saddle for part, saddle in parts)
    return math.log(faded + several), -falling / (faded + several)


def _of_some(some: SplitComposition | SmallComposition, epsilon: float) -> tuple[float, float]:
    """Return the saddle-point estimate of their part of delta, and its tilt."""
    saddle, at = tilt_at_epsilon(some, epsilon)
    return math.exp(min(log_delta_estimate(saddle, at, epsilon), 0.0)), saddle


def _usual_rest(split: SplitComposition) -> float:
    """Return the usual depth below zero of the sum of small losses."""
    small = [(cut.count, split_cumulants(cut, 0.0)[0]) for cut in split.cuts]
    mean = sum(count * part.mean for count, part in small)
    spread = math.sqrt(sum(count * part.variance for count, part in small))
    return max(0.0, _SPREADS * spread - mean)


def of_a_client(composition: Composition) -> float:
    """Return half the usual loss of a round with the client, or infinity if that is small.

    Several such losses may add up to epsilon, and each of them is large.
    """
    usual = max(
        0.5 / pair.noise_std**2 + math.log(pair.sampling_rate)
        for pair, _ in composition.sampled_pairs()
    )
    return 0.5 * usual if usual > 1.0 else math.inf


_MAX_KINDS = 40
# The share of delta that hardly counts.
_HARDLY = 1e-8
# Where small losses end, in units of epsilon: the first that is small enough is taken.
_SHARES = (0.6, 0.42, 0.3, 0.2, 0.13, 0.08, 0.05, 0.03)
# Below this one steps are so narrow that a contour of small losses alone is cheaper.
_NARROW = 0.15
_FEW_NODES, _MOST_NODES = 4000, MAX_FREQUENCIES // 2
# The contour was made for another epsilon if it is this much too large or too small.
_BADLY_GUESSED, _ATTEMPTS = 0.03, 4
_WIDE = 1e-6
# Limits to the rise of the logarithm of Chernoff's bound by a cheaper tilt, and above delta.
_LOOSEST, _LOOSE_IN_ALL = 4.0, 12.5
# Beyond this multiple of it nothing is asked for.
_TOO_FAR = 3.0
# Guesses of log delta for the cut if delta is unknown, and the margin of delta below a guess.
_LEAST_LOG_DELTAS, _SPARE, _MOST = (-100.0, -300.0, -600.0), 20.0, 680.0
# Accuracy of the estimate that a contour begins with.
_NEAR = 0.02


class HardlyAny(Bounding):
    """Small or large losses where they have next to nothing, by Chernoff's bound."""

    def __init__(self, some: SmallComposition | SplitComposition, tilt: float) -> None:
        self._tilt = tilt = (1 + tilt) - 1
        self._log_some = float(some.log_moment(tilt).upper) + log_chernoff_factor(tilt)

    def delta_and_slope(self, epsilon: float) -> tuple[Interval, float]:
        """Return the bound of delta and its slope. See `Bounding`."""
        exponent = self._log_some - self._tilt * epsilon
        slack = 16 * UNIT * (abs(self._log_some) + self._tilt * epsilon + 8)
        upper = math.exp(min(max(exponent + slack, -700.0), 0.0))
        return Interval(0.0, upper), -self._tilt


# A split of the losses, and the bounds of the small and of the large losses.
Parts = tuple[SplitComposition, Bounding, Bounding]


class FewLarge(Bounding):
    """Bounds of delta near one epsilon.

    Args:
        composition: sampled pairs of the remove direction, see `applies`.
        epsilon, log_delta: about where delta will be asked for, and its logarithm there.
    Raises:
        NotConverged: small losses matter, or the contour would be too large.
    """

    def __init__(self, composition: Composition, epsilon: float, log_delta: float) -> None:
        self._epsilon = epsilon
        self._others = Others(composition, epsilon, log_delta)
        enough = MARGIN * epsilon + self._others.rest()
        self._split, self._small, self._contour = _parts(composition, epsilon, enough, log_delta)
        self._masses = [faded_mass(cut) for cut in self._split.cuts]
        self._counts = np.array([cut.count for cut in self._split.cuts])
        self._least = [_least_loss(cut) for cut in self._split.cuts]

    @classmethod
    def applies(cls, composition: Composition) -> bool:
        """Return True for few kinds of rounds, of rates <= 1/2, that may have large losses.

        These are sampled rounds in the remove direction, or of replaced clients. Rounds of full
        participation may be among them.
        """
        pairs = [pair for pair, _ in composition.sampled_pairs()]
        added = composition.rates.size and composition.direction is not Direction.REMOVE
        if composition.symmetrized or composition.general or added:
            return False
        return 0 < len(pairs) <= _MAX_KINDS and max(pair.sampling_rate for pair in pairs) <= 0.5

    def delta_and_slope(self, epsilon: float) -> tuple[Interval, float]:
        """See `Bounding`."""
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
        """Bound the delta of outcomes with a faded loss: at least 0, at most P(A)."""
        most = self._faded(epsilon, more=True)
        if epsilon > _FARTHEST:
            return 0.0, most
        lower, upper = faded_delta(epsilon, self._counts, self._masses)
        return max(lower, 0.0), min(upper + self._not_enough(epsilon), most)

    def _faded(self, epsilon: float, *, more: bool = False) -> float:
        """Return e^eps times an upper bound of Q(A), or one of P(A)."""
        counts = self._counts.tolist()
        if more:
            rows = zip(counts, self._masses, strict=True)
            return sum(n * (mass.most + mass.most_more) for n, mass in rows) * (1 + 1e-9)
        mass = sum(n * mass.most for n, mass in zip(counts, self._masses, strict=True))
        return math.exp(epsilon) * mass

    def _not_enough(self, epsilon: float) -> float:
        """Return an upper bound of e^eps Q(A, L < eps): outcomes with too small a faded loss.

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
    """Return lower bound of the losses of a round that are faded out, or lie beyond the end."""
    first = min(cut.fading, cut.end)
    loss = float(LossFunction(cut.pair)(np.array([first]))[0][0])
    return loss - 1e-12 * (1 + loss) * min(1.0, 2 * loss)


def _of_large(split: SplitComposition, epsilon: float, log_delta: float, most: int) -> Bounding:
    """Bound the delta of outcomes with a large loss."""
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
    """Return the cheapest valid split, and bounds of the small and of the large losses."""
    # If all other losses compensate much of one loss, a small loss is one below that amount.
    centers = [share * enough for share in _SHARES if share * enough > 2 * epsilon]
    centers += [share * epsilon for share in _SHARES]
    wide = [center for center in centers if center > _NARROW * epsilon]
    # Where many take part every one of them is large.
    client = of_a_client(composition)
    narrow = [*([client] if client < wide[-1] else []), *centers[len(wide) :]]
    for some, most in ((wide, _FEW_NODES), (narrow, _MOST_NODES), (wide, _MOST_NODES)):
        with suppress(NotConverged):
            return _first_parts(composition, some, epsilon, enough, log_delta, most)
    raise NotConverged("the sum of many small losses reaches epsilon")


def _first_parts(
    composition: Composition,
    centers: list[float],
    epsilon: float,
    enough: float,
    log_delta: float,
    most: int,
) -> Parts:
    """Return the first place with hardly any small losses, or with a contour of them."""
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
    """Return eps(delta) of one direction of a composition.

    Error: inside the interval, relative width typically 1e-8 and less.
    Raises:
        NotConverged: see `FewLarge`.
    """
    if not FewLarge.applies(composition):
        raise NotConverged("losses of such rounds are not split")
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
        near = abs(best.upper / guess - 1) < _BADLY_GUESSED
        if near or not best.upper > 0.0 or best.width <= _WIDE * best.upper:
            break
        guess = best.upper
    if math.isinf(best.upper):
        raise NotConverged("epsilon was not found where it was expected")
    return best


def few_large_delta(composition: Composition, epsilon: float) -> Interval:
    """Return delta(eps) of one direction of a composition, eps > 0. See `few_large_epsilon`."""
    if not epsilon > 0.0:
        raise NotConverged("every loss above zero is large")
    if not FewLarge.applies(composition):
        raise NotConverged("losses of such rounds are not split")
    log_delta = -math.inf
    for least in _LEAST_LOG_DELTAS:
        log_delta = about_log_delta(composition, epsilon, least)[0]
        # Far less is cut off then.
        if log_delta > least - _SPARE:
            break
    if not log_delta > -_MOST:
        raise NotConverged("nothing is known of delta")
    return FewLarge(composition, epsilon, min(log_delta, 0.0)).delta(epsilon)
