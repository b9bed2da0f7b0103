"""The best of a random number of runs, as one release: tuning that is paid for.

A base mechanism runs K times, each run with hyper-parameters drawn afresh from a fixed law, and
only the run of the best score is released. The score is a function of a run's output. K is drawn in
secret, with the generating function f(x) = E[x^K]. For an outcome whose worse outcomes have mass q,
the density is p f'(q). So at order a, where p' and q' belong to the neighbor,

    E_Q[(P/Q)^a] <= f(0) + e^{(a-1) R(a)} sup f'(q)^a f'(q')^{1-a},

with R the Renyi divergence of one run. The supremum is at most

    mu e^{(a-1) mu delta}                           K Poisson with mean mu, delta that of one
                                                    run at e^eps = a / (a - 1),
    E[K] e^{(a-1) (1+s) ((1-1/b) R(b) + log(1/g) / b)}
                                                    K truncated negative binomial with shape s and
                                                    parameter g, for every order b > 1.

Source: Papernot, Steinke 2022 (arXiv:2110.03620), theorems 2 and 6, here with the mass f(0) of no
run. Proofs: docs/derivations/tuning.md.

Lower bound, for Gaussian runs: the score is the loss of the worst case, so that the best of K
numbers is released. Its law on an interval of losses has a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from dpacct import validate
from dpacct.accountant import ACCOUNTANTS, DEFAULT_ACCOUNTANT
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds
from dpacct.numerics.search import bisect
from dpacct.numerics.special import ndtr
from dpacct.pairs.atoms import AtomicPair, Atoms, symmetric_profile
from dpacct.pairs.dominating import (
    Direction,
    DominatingPair,
    Mechanism,
    SampledGaussianPair,
    achieved_pairs,
    pairs_of,
)
from dpacct.renyi.curve import RenyiCurve, best_order, improved_deltas
from dpacct.rounds import Adjacency, Release, Schedule, as_schedule

MOST_RUNS = 1e6
# Distances of the Renyi orders of the profile from 1, and its points. The last one has this delta.
_GAPS: Array = np.geomspace(0.02, 2000.0, 50)
# Orders between those that are best for some delta in this range.
_FINER, _ASKED = 30, (1e-20, 0.1)
_POINTS, _LAST_DELTA = 600, 1e-30
# Steps of the losses of the lower bound, in standard deviations, and their range.
_STEP, _RANGE = 0.01, 12.0


@dataclass(frozen=True, slots=True)
class Runs:
    """The law of the number of runs: "poisson", or "negative-binomial" with at least one run.

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
        shape = validate.within("best_of", self.shape, "the shape of the law", (0.0, 100.0))
        object.__setattr__(self, "shape", shape)

    @classmethod
    def parse(cls, text: Runs | str) -> Runs:
        """Return the law called "poisson:10", "geometric:10" or "negative-binomial:10,0.5"."""
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
            rule = "the number of runs has a law and a mean, such as poisson:10 or geometric:10"
            raise InvalidParameter("best_of", text, rule)
        return cls(kind, *numbers)

    @property
    def none(self) -> float:
        """f(0), the probability of no run."""
        return math.exp(-self.mean) if self.kind == "poisson" else 0.0

    @property
    def parameter(self) -> float:
        """The parameter g in (0, 1) of the negative binomial law, by which K is drawn."""
        if self.kind == "poisson":
            raise InvalidParameter("best_of", self.kind, "only negative binomial laws have one")

        def mean(g: float) -> float:
            if g == 1.0:
                return 1.0
            if self.shape == 0.0:
                return (1 / g - 1) / -math.log(g)
            return self.shape * (1 - g) / (g * -math.expm1(self.shape * math.log(g)))

        # The mean falls in g.
        return math.exp(-bisect(lambda t: mean(math.exp(-t)) < self.mean, 1.0, 1e-14)[0])

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
        after, before = g + (1 - g) * better, (1 - g) * inside
        grown = np.log1p(before / after)
        if s == 0.0:
            return grown / -math.log(g)
        return after**-s * -np.expm1(-s * grown) / (g**-s - 1)

    def __repr__(self) -> str:
        shape = f",{self.shape:g}" if self.kind != "poisson" else ""
        return f"{self.kind}:{self.mean:g}{shape}"


@dataclass(frozen=True, init=False, repr=False)
class BestOf(Mechanism):
    """The best of a random number of runs of a schedule. `best_of` makes it.

    Attributes:
        schedule: one run.
        runs: the law of the number of runs.
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

    @property
    def adjacency(self) -> Adjacency:  # type: ignore[override]
        """The neighboring relation of one run."""
        return self.schedule.adjacency

    @property
    def noise_range(self) -> tuple[float, float, float] | None:
        """A factor of 1, and the factors between which all noise of a run is in range."""
        ranges = [kind.noise_range for kind in self.schedule.distinct()]
        ends = [(low / level, high / level) for level, low, high in filter(None, ranges)]
        if not ends:
            return None
        return 1.0, max(low for low, _ in ends), min(high for _, high in ends)

    def scale_noise(self, factor: float) -> BestOf:
        """Return the best of as many runs with ``factor`` times the noise."""
        return BestOf(self.schedule.scale_noise(factor), self.runs)

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the pair of the Renyi bound, the same in both directions."""
        del direction
        return {_best_pair(self): 1}

    def achieved_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the law of the largest of K Gaussian losses. Empty for any other run."""
        pair = _largest_loss(self)
        if pair is not None and direction is Direction.ADD:
            pair = pair.swapped()
        return {} if pair is None else {pair: 1}

    def __repr__(self) -> str:
        return f"BestOf({self.schedule!r}, {str(self.runs)!r})"


def best_of(schedule: Schedule | Release, runs: Runs | str) -> BestOf:
    """Return the release of the best of several runs, for schedules, ledgers and calibration.

    The score that ranks runs comes from public data or from a run's private output. Every run
    counts, failed ones too, and none is stopped because of its results: K decides alone.

    Args:
        schedule: one run. Where hyper-parameters change the cost, the most expensive choice.
        runs: the law of the number of runs by its mean: "poisson:10", "geometric:10", or
            "negative-binomial:10,0.5" with a shape. The number is drawn in secret, once, before the
            first run.
    Returns:
        A release with proven upper bounds. Its lower bound is achieved for runs of full
        participation or other Gaussian rounds, and 0 for any other run.
    Error: the profile is the convex hull of `_POINTS` proven points.
    Raises:
        InvalidParameter: the law is unknown, or its mean is out of range.
        Unsupported: one run has no Renyi divergences.
    Source: Papernot, Steinke 2022 (arXiv:2110.03620); docs/derivations/tuning.md.
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
                delta = ACCOUNTANTS[DEFAULT_ACCOUNTANT].delta(self._base, epsilon).upper
                exponent += b * mean * delta
            else:
                exponent += b * self._negative_binomial
                # Where the search for g ended, the mean is at most this.
                mean *= 1 + 1e-9
            exponent += math.log(mean)
            value = float(np.logaddexp(exponent, math.log(max(self._runs.none, 1e-320))))
            self._known[order] = value + 16 * FUNCTION_ERROR * (1 + abs(value) + abs(exponent))
        return self._known[order]

    def deltas(self, epsilons: Array, orders: Array) -> Array:
        """Return bounds of delta by each order at each epsilon, shape (orders, epsilons)."""
        least = np.ones((len(orders), len(epsilons)))
        for k, order in enumerate(orders.tolist()):
            renyi = self.log_moment(order) / (order - 1) * (1 + 4 * UNIT)
            if math.isfinite(renyi):
                least[k] = improved_deltas(order, renyi, epsilons)
        return least


class BestOfPair(AtomicPair):
    """The pair of the Renyi bound as atoms, which keeps the bound itself as its moments."""

    def __init__(self, atoms: Atoms, renyi: _BestRenyi) -> None:
        super().__init__(*atoms)
        self._renyi = renyi

    def renyi_moment(self, order: float) -> Bounds:
        """See `GeneralPair`. No order up to 1 is bounded by more than 1."""
        if order <= 1.0:
            return Bounds(np.array(-math.inf), np.array(0.0))
        return Bounds(np.array(0.0), np.array(self._renyi.log_moment(order)))


@lru_cache(maxsize=64)
def _best_pair(release: BestOf) -> BestOfPair:
    renyi = _BestRenyi(release)
    orders = 1 + _GAPS
    # The last point: its delta is next to nothing.
    costs = [(renyi.log_moment(a) - math.log(_LAST_DELTA)) / (a - 1) for a in orders.tolist()]
    last = min(cost for cost in costs if not math.isnan(cost))
    if not last < 600.0:
        raise Unsupported(f"the best of {release.runs!r} runs has losses beyond 600: add noise")
    epsilons = last * np.arange(_POINTS, dtype=np.float64) / (_POINTS - 1)
    each = renyi.deltas(epsilons, orders)
    least = each.min(axis=0)
    asked = (least > _ASKED[0]) & (least < _ASKED[1])
    best: Array = _GAPS[each.argmin(axis=0)[asked]] if asked.any() else _GAPS
    ends = float(best.min()) / 1.3, float(best.max()) * 1.3
    finer = 1 + np.exp(np.linspace(math.log(ends[0]), math.log(ends[1]), _FINER))
    least = np.minimum(least, renyi.deltas(epsilons, finer).min(axis=0))
    return BestOfPair(symmetric_profile(epsilons, least), renyi)


@lru_cache(maxsize=64)
def _largest_loss(release: BestOf) -> AtomicPair | None:
    """Return the law of the largest of K losses N(mu, 1) against N(0, 1), in intervals.

    Merging outcomes only hides differences: what the atoms achieve, data sets achieve.
    """
    pairs = pairs_of(release.schedule.distinct(), achieved_pairs, Direction.REMOVE)
    full = [
        (pair, count)
        for pair, count in pairs.items()
        if isinstance(pair, SampledGaussianPair) and pair.sampling_rate == 1.0
    ]
    if len(full) < len(pairs) or not full:
        return None
    mu = math.sqrt(sum(n / pair.noise_std**2 for pair, n in full)) * (1 - 8 * UNIT * len(full))
    inner = np.arange(-_RANGE, _RANGE + mu, _STEP)
    masses: list[Array] = []
    for shift in (mu, 0.0):
        below = np.concatenate([[0.0], ndtr(inner - shift)])
        above = np.concatenate([ndtr(shift - inner), [0.0]])
        # In each half the difference of the smaller ones keeps its digits.
        left = np.diff(np.append(below, 1.0))
        right = -np.diff(np.concatenate([[1.0], above]))
        middle = np.concatenate([inner, [math.inf]]) < shift
        masses.append(release.runs.mass(np.where(middle, left, right), above))
    first, second = masses
    kept = (first > 1e-250) & (second > 1e-250)
    losses, weights = np.log(first[kept] / second[kept]), first[kept]
    if release.runs.none > 0.0:
        losses, weights = np.append(losses, 0.0), np.append(weights, release.runs.none)
    return AtomicPair(losses, weights, 0.0, 1e-10, 1e-10)
