"""The best of a random number of runs, as one release: tuning that is paid for.

A base mechanism runs K times, each run with hyper-parameters drawn afresh from a fixed
distribution, and only the run of the best score is released. The score is a function of a run's
output. K is drawn in secret, with the generating function f(x) = E[x^K]. If better outcomes have
the mass u under P and v under Q, the density of the released outcome is f'(1 - u) P against
f'(1 - v) Q. "No run" has the mass f(0) in both.

Proven: the better outcomes are an event, so u >= low(v), the least mass under P of an event with
the mass v under Q. With L = dP/dQ,

    delta(eps) <= E_Q[D(L)] + E[K] P(L = infinity),
    D(l) = max over v of (f'(1 - low(v)) l - e^eps f'(1 - v))_+.

Achieved: outcomes up to a ratio c are ordered by L, the least best, and an outcome of ratio l > c
has its place where the mass under Q of better ones among them is the v of D(l). The event that the
ratio of the released outcome exceeds c is a sum of differences of f.

Both ends take finitely many losses (`tight.profiles`). Proofs: docs/derivations/tuning.md.

Renyi divergences have another bound: Papernot, Steinke 2022 (arXiv:2110.03620), theorems 2 and 6,
here with the mass f(0) of no run. At order a,

    E_Q[(P/Q)^a] <= f(0) + e^{(a-1) R(a)} sup f'(q)^a f'(q')^{1-a},

with R the Renyi divergence of one run. The supremum is at most

    mu e^{(a-1) mu delta}                           K Poisson with mean mu, delta that of one
                                                    run at e^eps = a / (a - 1),
    E[K] e^{(a-1) (1+s) ((1-1/b) R(b) + log(1/g) / b)}
                                                    K truncated negative binomial with shape s and
                                                    parameter g, for every order b > 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from dpacct import validate
from dpacct.budget import Interval
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import FUNCTION_ERROR, Array, Bounds
from dpacct.numerics.search import bisect
from dpacct.pairs.atoms import AtomicPair, HullPair, lower_hull, profile_of_knots
from dpacct.pairs.dominating import (
    Direction,
    DominatingPair,
    GeneralPair,
    achieved_pairs,
    has_renyi,
    pairs_of,
    proven_pairs,
)
from dpacct.renyi.curve import RenyiCurve, best_order
from dpacct.rounds import Release, Schedule, as_schedule
from dpacct.tight.profiles import ReleaseOfSchedule, finite_pairs

MOST_RUNS = 1e6
# Losses of the composed pair, and its delta at the last one, of each expected run.
_POINTS, _LAST_DELTA, _MOST = 600, 1e-30, 1e4
# Places v: steps of log f', and their range. And steps of log v from here on.
_STEP, _RANGE, _LEAST_PLACE, _PLACES = 0.01, 40.0, 1e-12, 1000
# Above all rounding of masses, of places and of sums of some thousand positive terms.
_ROUNDING = 1e-10
# A shape below is taken as 0, which changes masses by less than rounding does.
_LEAST_SHAPE = 1e-14
# Above what a mass lacks that underflows.
_LEAST = 1e-300
# From here on only a constant score is looked at: e^eps is near the end of doubles.
_LARGEST = 700.0


@dataclass(frozen=True, slots=True)
class Runs:
    """The distribution of the number of runs: "poisson", or "negative-binomial" (at least one).

    Args:
        kind: one of these names. ``Runs.parse`` also knows "geometric" (shape 1) and "logarithmic"
            (shape 0).
        mean: the mean number of runs, up to 1e6. At least 1 for "negative-binomial".
        shape: s >= 0 of "negative-binomial".
    Raises:
        InvalidParameter: a value out of range.
    """

    kind: str
    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("poisson", "negative-binomial"):
            rule = "it is poisson:MEAN, geometric:MEAN, logarithmic:MEAN, or "
            raise InvalidParameter("best_of", self.kind, f"{rule}negative-binomial:MEAN,SHAPE")
        least = 1e-6 if self.kind == "poisson" else 1.0 + 1e-9
        noun = "the mean number of runs"
        mean = validate.within("best_of", self.mean, noun, (least, MOST_RUNS))
        object.__setattr__(self, "mean", mean)
        shape = validate.within(
            "best_of", self.shape, "the shape of the distribution", (0.0, 100.0)
        )
        object.__setattr__(self, "shape", shape)

    @classmethod
    def parse(cls, text: Runs | str) -> Runs:
        """Return the distribution that is called "poisson:10", "geometric:10" and the like."""
        if isinstance(text, Runs):
            return text
        kind, _, rest = str(text).partition(":")
        shapes = {"geometric": 1.0, "logarithmic": 0.0}
        try:
            numbers = [float(part) for part in rest.split(",")]
        except ValueError:
            numbers = []
        if kind in shapes and len(numbers) == 1:
            return cls("negative-binomial", numbers[0], shapes[kind])
        if len(numbers) != (2 if kind == "negative-binomial" else 1):
            rule = (
                "the number of runs is a distribution and its mean, as poisson:10 or geometric:10"
            )
            raise InvalidParameter("best_of", text, rule)
        return cls(kind, *numbers)

    @property
    def none(self) -> float:
        """f(0), the probability of no run."""
        return math.exp(-self.mean) if self.kind == "poisson" else 0.0

    @property
    def parameter(self) -> float:
        """The parameter g in (0, 1) of the negative binomial distribution, by which K is drawn."""
        if self.kind == "poisson":
            raise InvalidParameter("best_of", self.kind, "only a negative binomial has one")

        # The mean falls in g = e^-t.
        def is_below(t: float) -> bool:
            return math.expm1(t) / float(self._growth(t)) < self.mean

        return math.exp(-bisect(is_below, 1.0, 1e-14)[0])

    def _growth(self, x: float | Array) -> float | Array:
        """Return (1 - e^{-s x}) / s, or x for s next to 0."""
        return x if self.shape < _LEAST_SHAPE else -np.expm1(-self.shape * x) / self.shape

    def mass(self, inside: Array, better: Array) -> Array:
        """Return the probability that the best run lies in an interval of one run's outcomes.

        Args:
            inside, better: masses of one run in the interval, and above it.
        Error: relative, a few units more than that of ``inside``.
        """
        if self.kind == "poisson":
            # f(1 - better) - f(1 - better - inside), f(x) = e^{mu (x - 1)}.
            return np.exp(-self.mean * better) * -np.expm1(-self.mean * inside)
        g, s = self.parameter, self.shape
        after = g + (1 - g) * better
        # (1 - (1 - g) x)^-s is (g / after)^s g^-s at x = 1 - better.
        rise = np.log1p((1 - g) * inside / after)
        return (g / after) ** s * self._growth(rise) / self._growth(-math.log(g))

    def density(self, better: Array) -> tuple[Array, Array]:
        """Return f'(1 - better) and f''(1 - better), for the mass of better outcomes.

        Error: relative, a few units times the exponent.
        """
        if self.kind == "poisson":
            value = self.mean * np.exp(-self.mean * better)
            return value, self.mean * value
        g, s = self.parameter, self.shape
        after = g + (1 - g) * better
        value = self.mean * (g / after) ** (s + 1)
        return value, (s + 1) * (1 - g) / after * value

    def places(self) -> Array:
        """Return masses of better outcomes between 0 and 1, at which log f' has small steps."""
        steps = np.arange(0.0, _RANGE, _STEP)
        if self.kind == "poisson":
            places = steps / self.mean
        else:
            g, s = self.parameter, self.shape
            places = g * np.expm1(steps / (s + 1)) / (1 - g)
        return places[places < 1.0]

    def __repr__(self) -> str:
        shape = f",{self.shape:g}" if self.kind != "poisson" else ""
        return f"{self.kind}:{self.mean:g}{shape}"


@dataclass(frozen=True, init=False, repr=False)
class BestOf(ReleaseOfSchedule):
    """The best of a random number of runs of a schedule. `best_of` makes it.

    Attributes:
        schedule: one run.
        runs: the distribution of the number of runs.
    """

    schedule: Schedule
    runs: Runs

    def __init__(self, schedule: Schedule | Release, runs: Runs | str) -> None:
        base = as_schedule(schedule)
        if not base.rounds:
            raise InvalidParameter("schedule", base, "a run has at least one round")
        if any(isinstance(kind, BestOf) for kind in base.distinct()):
            raise InvalidParameter("schedule", base, "a run is no tuning of its own")
        object.__setattr__(self, "schedule", base)
        object.__setattr__(self, "runs", Runs.parse(runs))

    def of(self, schedule: Schedule) -> BestOf:
        """See `ReleaseOfSchedule`."""
        return BestOf(schedule, self.runs)

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the pair of the proven bound of the module's head, at every epsilon."""
        return {_proven_pair(self, direction): 1}

    def achieved_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the pair of the best of K losses: the score is the loss of the remove direction.

        It is empty if no data sets are known for one run.
        """
        if not _has_achieved(self):
            return {}
        pair = _largest_loss(self)
        return {pair if direction is Direction.REMOVE else pair.swapped(): 1}

    def alone_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the achieved bound of the module's head, which has an order for each epsilon."""
        if not _has_achieved(self):
            return {}
        return {_AchievedOrders(self, direction): 1}

    def __repr__(self) -> str:
        return f"BestOf({self.schedule!r}, {str(self.runs)!r})"


def best_of(schedule: Schedule | Release, runs: Runs | str) -> BestOf:
    """Return the release of the best of several runs, for schedules, ledgers and calibration.

    The score that ranks runs comes from public data or from a run's private output. Every run
    counts, failed ones too, and none is stopped because of its results: K decides alone.

    Args:
        schedule: one run. Where hyper-parameters change the cost, the most expensive choice.
        runs: the distribution of the number of runs by its mean: "poisson:10", "geometric:10", or
            "negative-binomial:10,0.5" with a shape. The number is drawn in secret, once, before the
            first run.
    Returns:
        A release with proven upper bounds. Its lower bound is achieved by two data sets and an
        order of outcomes, and 0 if one run has no lower bound.
    Error: often 1e-4 of epsilon between both ends, for a release alone. Beside other releases the
        profile is the convex hull of `_POINTS` proven points.
    Raises:
        InvalidParameter: the distribution is unknown, or its mean is out of range.
    Source: docs/derivations/tuning.md.
    """
    return BestOf(schedule, runs)


class _BestRenyi:
    """The Renyi bound of the module's head."""

    def __init__(self, release: BestOf) -> None:
        self._base, self._runs = release.schedule, release.runs
        self._curve = RenyiCurve(self._base)
        self._known: dict[float, float] = {}

    @cached_property
    def _negative_binomial(self) -> float:
        """(1 + s) min over b of (1 - 1/b) R(b) + log(1/g) / b, rounded up."""
        log_g, shape = -math.log(self._runs.parameter), self._runs.shape

        def cost(order: float) -> float:
            return (1 - 1 / order) * self._curve.upper(order) + log_g / order

        return (1 + shape) * cost(best_order(cost, 2.0)) * (1 + 16 * FUNCTION_ERROR)

    def log_moment(self, order: float) -> float:
        """Return log E_Q[(P/Q)^order], order > 1, rounded up."""
        if order not in self._known:
            mean, b = self._runs.mean, order - 1
            exponent = b * self._curve.upper(order)
            if self._runs.kind == "poisson":
                epsilon = math.log1p(1 / b) * (1 - 4 * FUNCTION_ERROR)
                pairs = finite_pairs(self._base, proven_pairs).values()
                exponent += b * mean * max(above.delta(epsilon).upper for above, _ in pairs)
            else:
                exponent += b * self._negative_binomial
                # Where the search for g ended, the mean is at most this.
                mean *= 1 + 1e-9
            exponent += math.log(mean)
            value = float(np.logaddexp(exponent, math.log(max(self._runs.none, 1e-320))))
            self._known[order] = value + 16 * FUNCTION_ERROR * (1 + abs(value) + abs(exponent))
        return self._known[order]


class _Places:
    """The places v of outcomes of one pair, and the best one for each ratio.

    The pair has finitely many losses. `low` is linear between their masses.

    Attributes:
        losses, p, q: of the pair, from the least on, with masses under P and Q.
        place, low: v and low(v) of the places that are best for some ratio, from v = 1 to 0.
        gain, cost: f'(1 - low(v)) and f'(1 - v) there. D(l) / e^eps is the largest gain x - cost,
            with x = l e^-eps.

    ``above``: a bound for all v between the places. Where `low` is linear the gain is convex in v,
    below its chord. The cost is convex, above its tangent in the middle. So the maximum over v in
    between is at most that at an end, with the cost of the tangent there.
    """

    def __init__(self, pair: AtomicPair, runs: Runs, *, above: bool) -> None:
        order = np.argsort(pair.losses)
        self.losses, self.p = pair.losses[order], pair.masses[order]
        self.q = self.p * np.exp(-self.losses)
        # What Q lacks has a ratio of 0, and is the least of all.
        ends = max(0.0, 1 - float(self.q.sum())) + np.append(0.0, np.cumsum(self.q))
        least, fine = np.append(0.0, np.cumsum(self.p)), np.geomspace(_LEAST_PLACE, 1, _PLACES)
        v = np.unique(np.concatenate([[0.0], runs.places(), fine, np.minimum(ends, 1.0)]))
        low = np.interp(v, ends, least)
        gain = runs.density(low * (1 - _ROUNDING) if above else low)[0]
        cost = runs.density(v)[0]
        if above:
            middle = (v[1:] + v[:-1]) / 2
            value, slope = runs.density(middle)
            half = slope * np.diff(v) / 2
            cost = np.minimum(np.append(value + half, cost[-1]), np.append(cost[0], value - half))
            gain, cost = gain * (1 + _ROUNDING), cost * (1 - _ROUNDING)
        # The upper envelope of lines with these slopes.
        rising = np.flatnonzero(np.diff(gain[::-1], prepend=-1.0) > 0)
        best = rising[lower_hull(gain[::-1][rising], cost[::-1][rising])]
        self.place, self.low, self.gain, self.cost = (
            part[::-1][best] for part in (v, low, gain, cost)
        )
        self._turns = np.diff(self.cost) / np.diff(self.gain)

    def best(self, epsilon: float) -> NDArray[np.int64]:
        """Return the number of the best place for each loss."""
        return np.searchsorted(self._turns, np.exp(self.losses - epsilon))


class _TunedPair(HullPair):
    """The proven bound of the module's head, in one direction.

    Args:
        release: of which this is the pair.
        bounds: the bound of this direction as a function of epsilon, and that of the other one.
    """

    from_moments = True

    def __init__(self, release: BestOf, *bounds: Callable[[float], Interval]) -> None:
        self._release, self._bounds = release, bounds
        self.delta = bounds[0]  # type: ignore[method-assign]
        self.largest_loss = self._ends[0]
        self.infinite_mass = bounds[0](self.largest_loss).upper

    @cached_property
    def _ends(self) -> list[float]:
        """Losses next to the largest ones, of both directions."""
        least = [2 * max(_LAST_DELTA, at(_MOST).upper) for at in self._bounds]
        ends = zip(self._bounds, least, strict=True)
        return [bisect(lambda e, at=at, to=to: at(e).upper > to, 1.0, 1e-3)[1] for at, to in ends]

    @cached_property
    def hull(self) -> AtomicPair:
        """The pair of the convex hull of some points of the bound, for compositions."""
        shares = np.arange(_POINTS, dtype=np.float64) / (_POINTS - 1)
        points: list[Array] = []
        for at, end in zip(self._bounds, self._ends, strict=True):
            points += [end * shares, np.array([at(e).upper for e in (end * shares).tolist()])]
        return AtomicPair(*profile_of_knots(*points))

    def renyi_moment(self, order: float) -> Bounds:
        """Return the Renyi bound of the module's head. No order up to 1 has more than 1."""
        if order <= 1.0:
            return Bounds(np.array(-math.inf), np.array(0.0))
        finite = all(has_renyi(kind) for kind in self._release.schedule.distinct())
        most = _renyi(self._release).log_moment(order) if finite else math.inf
        return Bounds(np.array(0.0), np.array(most))


def proven_bound(pair: AtomicPair, runs: Runs) -> Callable[[float], Interval]:
    """Return the proven bound as a function of epsilon >= 0, for a pair that dominates one run."""
    places = _Places(pair, runs, above=True)

    def at(epsilon: float) -> Interval:
        best = places.best(epsilon)
        gain = places.p * places.gain[best]
        # A cost that is cut off is above any gain, or next to nothing.
        growth = np.exp(np.minimum(epsilon - places.losses, 700.0))
        cost = places.p * places.cost[best] * growth
        total = float(np.maximum(gain - cost, 0.0).sum()) + runs.mean * pair.infinite_mass
        slack = _ROUNDING * (total + float(gain[gain > cost].sum())) + _LEAST
        return Interval(min(1.0, max(0.0, total - slack)), min(1.0, total + slack))

    return at


@lru_cache(maxsize=64)
def _proven_pair(release: BestOf, direction: Direction) -> _TunedPair:
    pairs = finite_pairs(release.schedule, proven_pairs)
    remove, add = pairs[Direction.REMOVE][0], pairs[Direction.ADD][0]
    if direction is Direction.ADD and add is remove:
        return _proven_pair(release, Direction.REMOVE)
    first = proven_bound(remove, release.runs)
    bounds = (first, first if add is remove else proven_bound(add, release.runs))
    return _TunedPair(release, *(bounds if direction is Direction.REMOVE else bounds[::-1]))


def achieved_bound(pair: AtomicPair, runs: Runs) -> Callable[[float], Interval]:
    """Return the achieved bound as a function of epsilon >= 0, for a pair of one run.

    It is the better of the order of the module's head and a constant score, which releases one run.
    """
    places = _Places(pair, runs, above=False)
    p, q = places.p, places.q
    # Above each loss, rounded up and down. P may have infinite losses.
    over_p = pair.infinite_mass + np.append(np.cumsum(p[::-1])[::-1][1:], 0.0)
    over_q = np.append(np.cumsum(q[::-1])[::-1][1:], 0.0)
    # Places are among the smaller losses, up to rounding (line 10 of the proof).
    room = (1 - over_q - q) * (1 - _ROUNDING)

    def at(epsilon: float) -> Interval:
        one = pair.delta(epsilon).lower * (1 - runs.none)
        if epsilon > _LARGEST:
            return Interval(one, 1.0)
        best = places.best(epsilon)
        place, low = np.minimum(places.place[best], room), places.low[best]
        gain = runs.mass(p, (low + over_p) * (1 + _ROUNDING))
        cost = runs.mass(q, (place + over_q) * (1 - _ROUNDING)) + _LEAST
        cost *= math.exp(epsilon)
        inside = np.cumsum(gain[::-1])[::-1] * (1 - _ROUNDING)
        inside -= np.cumsum(cost[::-1])[::-1] * (1 + _ROUNDING)
        return Interval(max(one, float(inside.max())), 1.0)

    return at


class _AchievedOrders(GeneralPair):
    """The achieved bound of the module's head. It has an order for each epsilon, and no moments."""

    def __init__(self, release: BestOf, direction: Direction) -> None:
        pair = finite_pairs(release.schedule, achieved_pairs)[direction][1]
        self.delta = achieved_bound(pair, release.runs)  # type: ignore[method-assign]


def _has_achieved(release: BestOf) -> bool:
    """Return True if some data sets are known for one run."""
    kinds = release.schedule.distinct()
    return bool(pairs_of(kinds, achieved_pairs, Direction.REMOVE))


@lru_cache(maxsize=64)
def _largest_loss(release: BestOf) -> AtomicPair:
    """Return the distribution of the largest of K losses, which is the best, in intervals."""
    pair = finite_pairs(release.schedule, achieved_pairs)[Direction.REMOVE][1]
    order = np.argsort(pair.losses)[::-1]
    p = pair.masses[order]
    q = p * np.exp(-pair.losses[order])
    first, second = (release.runs.mass(w, np.append(0.0, np.cumsum(w)[:-1])) for w in (p, q))
    kept = (first > 1e-250) & (second > 1e-250)
    losses, weights = np.log(first[kept] / second[kept]), first[kept]
    if release.runs.none > 0.0:
        losses, weights = np.append(losses, 0.0), np.append(weights, release.runs.none)
    return AtomicPair(losses, weights, 0.0, _ROUNDING, _ROUNDING)


@lru_cache(maxsize=64)
def _renyi(release: BestOf) -> _BestRenyi:
    return _BestRenyi(release)
