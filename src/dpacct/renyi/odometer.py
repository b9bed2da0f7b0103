"""The running total of rounds that are chosen as results come in: a Renyi odometer and filter.

For fixed orders alpha_i = 1 + b_i and weights w_i > 0 with sum at most 1, both chosen before the
first round, let S_i be the sum of the Renyi divergences of the rounds at order alpha_i. Then for
every probability vector p, however it was found, with b = sum p_i b_i,

    epsilon = (sum p_i b_i S_i + KL(p || w) + log(1/delta) + b log b - (1 + b) log(1 + b)) / b

holds at delta, for any rule by which rounds were chosen and the process stopped.
With one order this is the Renyi filter of Feldman and Zrnic 2021 (arXiv:2008.11193). The mixture
lets the best order be picked afterwards. Theorem, conditions, proof: docs/derivations/adaptive.md.

Sums are exact: costs are rounded up to multiples of 2^-64 and added as whole numbers.

A promise of (epsilon, delta)-DP may have an infinite loss of mass delta. A part D of the budget's
delta is set aside for all such masses, before the first round. The formula then holds at delta - D,
with the divergences of finite losses alone, while the masses add up to at most D.

Pure releases add up: the largest losses are one more total, the divergence of order infinity. While
all releases have one, epsilon is the sum if that is less, and no delta is spent on it.

A total holds, in this order: a divergence for each order, the masses, the sum of largest losses,
the number of rounds without a largest loss, and these two again for rounds beside the initial plans
of a ledger. Divergences are in units of 2^-64. Masses and losses are decimals in units of 1e-40, so
that ten times 0.1 is 1. In ledgers of version 0.3 nothing is added up. The last four numbers are
missing there, and masses are like divergences, or missing if D = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dpacct import validate
from dpacct.budget import Budget
from dpacct.errors import BudgetExceeded, InvalidParameter
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, above, decimal, decimal_above
from dpacct.numerics.search import bracket_root, largest_count
from dpacct.pairs.dominating import (
    Direction,
    GeneralPair,
    has_renyi,
    infinite_mass,
    loss_bound,
    proven_pairs,
)
from dpacct.renyi.curve import RenyiCurve, best_order
from dpacct.rounds import Release, Schedule, as_schedule

Totals = tuple[int, ...]

SCALE = 1 << 64
_DECIMALS = 10**40
# A divergence without a finite bound. A sum that contains it stays above it.
UNBOUNDED = 1 << 200
# Distance of each order from 1 relative to the design order's, and its weight in 256ths. The
# weights add up to exactly one. The design order serves a budget that is spent to the end, larger
# orders the first rounds, smaller orders rounds with little noise.
_PATTERN: tuple[tuple[float, int], ...] = (
    (0.125, 4), (0.25, 8), (0.5, 24), (0.7, 40), (1.0, 76), (1.4, 40),
    (2.0, 24), (4.0, 16), (8.0, 12), (16.0, 8), (32.0, 4),
)  # fmt: skip
# Masses of a ledger of version 0.3 are no decimals. There more than what is promised is set aside,
# so that ten promises of 1e-7 fit into 1e-6.
_SLACK = 1e-11
_LOG_RANGE = (-11.0, 15.0)
_GRID = [_LOG_RANGE[0] + 0.25 * k for k in range(105)]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Renyi orders and their weights, fixed before the first round.

    Attributes:
        orders: above 1.
        weights: positive, adding up to at most 1.
        promised_delta: the part of delta that is set aside for infinite losses, at least 0.
        adds_up: whether largest losses are added up. False for ledgers of version 0.3.
    """

    orders: tuple[float, ...]
    weights: tuple[float, ...]
    promised_delta: float = 0.0
    adds_up: bool = True

    def cost(self, round_: Release) -> Totals:
        """Return the proven cost of a round, rounded up, as the module's head lists it."""
        if not isinstance(round_, Release):
            rule = "a release is a Round or a mechanism that knows its pairs"
            raise InvalidParameter("round_", round_, rule)
        return _cost(self.orders, round_, self._has_masses, self.adds_up)

    @property
    def _has_masses(self) -> bool:
        return self.adds_up or self.promised_delta > 0.0

    def zero(self) -> Totals:
        """Return the total of no rounds."""
        return (0,) * (len(self.orders) + self._has_masses + 4 * self.adds_up)

    def within_plans(self, cost: Totals) -> Totals:
        """Return the cost of rounds of an initial plan, which are not beside the plans."""
        return (*cost[:-2], 0, 0) if self.adds_up else cost

    def with_promises(self, totals: Totals) -> Mixture:
        """Return the mixture that sets enough of delta aside for the masses of these totals."""
        if not self.adds_up or self.promises_left(totals) >= 0.0:
            return self
        mass = decimal_above(Fraction(totals[len(self.orders)], _DECIMALS))
        return replace(self, promised_delta=mass)

    def without_promises(self, delta: float) -> float:
        """Return the part of a delta that is not set aside, rounded down."""
        if not self.promised_delta:
            return delta
        aside = self.promised_delta * (1 if self.adds_up else 1 + 2 * _SLACK)
        return max(0.0, math.nextafter(delta - aside, 0.0)) if delta > aside else 0.0

    def promises_left(self, totals: Totals) -> float:
        """Return the rest of `promised_delta`, negative if promises exceed it."""
        if not self._has_masses:
            return 0.0
        mass = totals[len(self.orders)]
        if self.adds_up:
            return float(decimal(self.promised_delta) - Fraction(mass, _DECIMALS))
        return self.promised_delta * (1 + _SLACK) - as_float(mass)

    def check_promises(self, totals: Totals, schedule: Schedule) -> None:
        """Check that infinite losses of releases fit into the part of delta that is set aside.

        Raises:
            BudgetExceeded: they do not.
        """
        # The rounding of an epoch's law may leave an infinite loss, which its divergences cover.
        asked = [phase for phase in schedule if not has_renyi(phase.round)]
        costs = [times(count, self.cost(round_)) for round_, count in asked]
        if not costs or (self._has_masses and self.promises_left(add(totals, *costs)) >= 0.0):
            return
        left, promised = max(0.0, self.promises_left(totals)), self.promised_delta
        aside = f"only {left:.4g} of {promised:.4g} is left" if promised else "none is"
        raise BudgetExceeded(
            f"the release does not fit: its loss may be infinite with probability "
            f"{infinite_mass(Schedule(asked)):.4g}. Such probabilities add up, in the part of "
            f"delta that is set aside for them before anything runs, and {aside}. Set it aside "
            f"with promised_delta= (--promised-delta of dpacct ledger init)."
        )

    def largest_loss(self, totals: Totals, *, beside_plans: bool = False) -> Fraction | None:
        """Return the exact sum of largest losses, or None if some loss has no bound.

        Args:
            beside_plans: of releases beside the initial plans of a ledger alone.
        """
        if not self.adds_up:
            return None
        loss, without = totals[-2:] if beside_plans else totals[-4:-2]
        return None if without else Fraction(loss, _DECIMALS)

    def epsilon(self, totals: Totals, delta: float) -> float:
        """Return the epsilon that holds at ``delta`` for rounds with these totals.

        Args:
            delta: at least `promised_delta`.
        Error: never below the formula of the module's head for the vector p of the search, or the
            sum of largest losses. Relative rounding error about 1e-13.
        """
        if not any(totals):
            return 0.0
        if self.promises_left(totals) < 0.0:
            return math.inf
        if not any(totals[: len(self.orders)]):
            return 0.0
        loss, delta = self.largest_loss(totals), self.without_promises(delta)
        live = [
            Order(order - 1.0, math.log(weight), as_float(total))
            for order, weight, total in zip(self.orders, self.weights, totals, strict=False)
            if total < UNBOUNDED
        ]
        epsilon = _least_epsilon(live, -math.log(delta)) if live and delta > 0.0 else math.inf
        return epsilon if loss is None else min(epsilon, decimal_above(loss))


class Order(NamedTuple):
    """One order of a mixture: b = alpha - 1, log w, and the total S of the rounds so far."""

    gap: float
    log_weight: float
    total: float


def fixed_point(value: float) -> int:
    """Return ``value`` in units of 2^-64, rounded up, and `UNBOUNDED` unless it is in [0, inf)."""
    if not 0.0 <= value < math.inf:
        return UNBOUNDED
    numerator, denominator = value.as_integer_ratio()
    return -(-numerator * SCALE // denominator)


def as_float(total: int) -> float:
    """Return a total as a float, rounded up."""
    return math.nextafter(total / SCALE, math.inf) if total else 0.0


def add(*parts: Sequence[int]) -> Totals:
    """Return the exact sum of totals."""
    if len(parts) == 2:
        # Most sums have two parts, and a ledger that is verified has a million of them.
        return tuple([a + b for a, b in zip(*parts, strict=True)])
    return tuple(map(sum, zip(*parts, strict=True)))


def subtract(whole: Sequence[int], part: Sequence[int]) -> Totals:
    """Return the exact difference of totals."""
    return tuple([a - b for a, b in zip(whole, part, strict=True)])


def times(count: int, part: Sequence[int]) -> Totals:
    """Return the exact multiple of totals."""
    return tuple([count * a for a in part]) if count != 1 else tuple(part)


@lru_cache(maxsize=4096)
def _cost(
    orders: tuple[float, ...],
    round_: Release,
    masses: bool,  # noqa: FBT001 - a key
    adds_up: bool,  # noqa: FBT001 - a key
) -> Totals:
    totals: list[int]
    if has_renyi(round_):
        curve, mass = RenyiCurve(1 * round_), 0.0
        totals = [fixed_point(max(0.0, curve.upper(order))) for order in orders]
    elif not masses:
        return (UNBOUNDED,) * len(orders)
    else:
        mass = infinite_mass(1 * round_)
        totals = [fixed_point(_finite_divergence(order, round_)) for order in orders]
    if not adds_up:
        return (*totals, *[fixed_point(mass)] * masses)
    bound = loss_bound(round_)
    totals.append(_in_decimals(bound.delta if bound else Fraction(mass)))
    largest = (_in_decimals(bound.epsilon), 0) if bound else (0, 1)
    return (*totals, *largest, *largest)


def _in_decimals(value: Fraction) -> int:
    """Return a loss or a mass in units of 1e-40, rounded up."""
    return math.ceil(value * _DECIMALS)


def _finite_divergence(order: float, release: Release) -> float:
    """Return log E_P[e^{(order - 1) L}; L finite] / (order - 1) of a release, rounded up."""
    worst = 0.0
    for direction in Direction:
        total = 0.0
        for pair, count in proven_pairs(release, direction).items():
            if not isinstance(pair, GeneralPair):
                return math.inf
            total += count * float(pair.log_moment(np.array([order - 1])).upper[0])
        worst = max(worst, above(total, total) / (order - 1) * (1 + 4 * UNIT))
    return worst


def _least_epsilon(live: Sequence[Order], log_cost: float) -> float:
    """Return the minimum over p.

    The best p at a loss y is proportional to w_i e^{b_i (y - S_i)}. With its mean b(y) the bound
    touches where log sum w_i e^{b_i (y - S_i)} + log(1 + b(y)) = log(1/delta). The left side
    increases in y. The p at any y, root or not, gives a valid bound.
    """
    gaps, log_weights, totals = (np.array(column) for column in zip(*live, strict=True))

    def shares(loss: float) -> tuple[Array, float]:
        """Return log p, since p may underflow to 0, and the logarithm of the sum above."""
        logs = log_weights + gaps * (loss - totals)
        top = float(logs.max())
        log_norm = math.log(float(np.exp(logs - top).sum()))
        return logs - top - log_norm, top + log_norm

    def short_of_touching(loss: float) -> float:
        log_p, log_sum = shares(loss)
        return log_cost - log_sum - math.log1p(float(np.exp(log_p) @ gaps))

    def epsilon(p: Array, log_p: Array) -> float:
        """Return epsilon for one vector p, rounded up and at least 0.

        Error: p adds up to one and b is exact up to 2^-48 relative, and so is every term. The
            slack is ten times that of the sum of absolute values.
        """
        mean, renyi = float(p @ gaps), float(p @ (gaps * totals))
        low, high = mean * math.log(mean), (1 + mean) * math.log1p(mean)
        value = renyi + float(p @ (log_p - log_weights)) + log_cost + low - high
        size = renyi + float(p @ (np.abs(log_p) + np.abs(log_weights)))
        size += abs(log_cost) + abs(low) + high + 1.0
        epsilon_there = (value + 64 * FUNCTION_ERROR * size) / mean
        return (
            math.inf
            if math.isnan(epsilon_there)
            else max(0.0, epsilon_there * (1 + 4 * FUNCTION_ERROR))
        )

    # For y <= low the left side is at most log(1/delta), and for y >= high one of its terms alone
    # reaches that.
    low = float((totals + (log_cost - math.log1p(float(gaps.max()))) / gaps).min())
    high = float((totals + (log_cost - log_weights - np.log1p(gaps)) / gaps).min())
    step = max((high - low) / 8, 4 * math.ulp(high))
    root, _ = bracket_root(short_of_touching, high, (low - step, high + step), 0.0, step)
    log_p, _ = shares(root)
    alone = (epsilon(one, np.zeros_like(gaps)) for one in np.eye(len(gaps)))
    return min(epsilon(np.exp(log_p), log_p), *alone)


def design_mixture(
    budget: Budget, typical: Release | Schedule | None = None, promised_delta: float = 0.0
) -> Mixture:
    """Return a pattern of orders and weights around the order at which most typical rounds fit.

    Args:
        budget: the target.
        typical: a round, or a schedule, like those that will run. Only tightness depends on it.
            Default: rounds whose Renyi curve is a line, as with full participation.
        promised_delta: the part of delta that is set aside for infinite losses. All of it allows
            releases with a largest loss alone, and promises.
    Raises:
        InvalidParameter: more than delta is set aside.
    """
    promised = validate.real("promised_delta", promised_delta, "a part of delta is a number")
    if not 0.0 <= promised <= budget.delta:
        rule = f"a part of the budget's delta lies in [0, {budget.delta!r}]"
        raise InvalidParameter("promised_delta", promised_delta, rule)
    # With all of delta set aside, largest losses alone are added up, and orders do not matter.
    budget = Budget(budget.epsilon, budget.delta - promised or budget.delta)
    gap = _best_gap(budget, lambda order: order)
    if typical is not None:
        curve = RenyiCurve(as_schedule(typical))
        gap = _best_gap(budget, curve.upper, [math.log(gap)])
    gaps = [min(max(gap * factor, 1e-5), validate.MAX_ORDER - 1) for factor, _ in _PATTERN]
    return Mixture(
        tuple(float(f"{1 + value:.8g}") for value in gaps),
        tuple(weight / 256 for _, weight in _PATTERN),
        promised,
    )


def _best_gap(
    budget: Budget, renyi: Callable[[float], float], starts: Sequence[float] = _GRID
) -> float:
    """Return the distance from 1 of the order at which a curve fits into the budget most often."""

    def share(order: float) -> float:
        # The divergence at which the improved conversion gives the budget's epsilon.
        b, log_order = order - 1, math.log(order)
        allowed = (
            budget.epsilon - math.log(b) + log_order + (math.log(budget.delta) + log_order) / b
        )
        return renyi(order) / allowed if allowed > 0 else math.inf

    begin = min((1 + math.exp(start) for start in starts), key=share)
    return best_order(share, begin, _LOG_RANGE, 1e-3) - 1


class Odometer:
    """The running total of a process in memory. A `Ledger` keeps one on disk.

    Args:
        budget: the target.
        typical, promised_delta: as for `design_mixture`.
    """

    def __init__(
        self,
        budget: Budget,
        typical: Release | Schedule | None = None,
        promised_delta: float = 0.0,
    ) -> None:
        self.budget = budget
        self.mixture = design_mixture(budget, typical, promised_delta)
        self.rounds = 0
        self._totals = self.mixture.zero()

    def add(self, round_: Release, rounds: int = 1) -> None:
        """Charge a round, or several like it, even beyond the budget.

        Raises:
            InvalidParameter: it is no release, or the count is not a whole number of at least one.
            BudgetExceeded: an infinite loss does not fit into ``promised_delta``, so that no
                epsilon would hold. Nothing is charged.
        """
        count = validate.rounds(rounds)
        cost = times(count, self.mixture.cost(round_))
        self.mixture.check_promises(self._totals, count * round_)
        self._totals = add(self._totals, cost)
        self.rounds += count

    @property
    def epsilon(self) -> float:
        """The epsilon so far at the budget's delta: proven, for rounds chosen in any way."""
        return self.mixture.epsilon(self._totals, self.budget.delta)

    def remaining(self, round_: Release) -> int:
        """Return how many more such rounds fit into the budget."""
        epsilon, delta = self.budget.epsilon, self.budget.delta
        return count_fitting(
            lambda totals: self.mixture.epsilon(totals, delta) <= epsilon,
            self._totals,
            self.mixture.cost(round_),
        )


def count_fitting(
    fits: Callable[[Totals], bool], totals: Totals, cost: Totals, most: int = validate.MAX_ROUNDS
) -> int:
    """Return how many rounds of a cost fit on top of totals, at most ``most``."""
    return largest_count(lambda count: fits(add(totals, times(count, cost))), 0, most)
