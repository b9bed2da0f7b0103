"""The odometer's reading, against the inequality it rests on, and against what it must bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpacct
from dpacct.budget import Budget
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import FUNCTION_ERROR
from dpacct.renyi.odometer import (
    SCALE,
    UNBOUNDED,
    Mixture,
    Odometer,
    Order,
    add,
    as_float,
    design_mixture,
    fixed_point,
    subtract,
    times,
)
from dpacct.rounds import Full, Poisson, Round, Schedule, Uniform
from tests.strategies import FEWER, log_uniform

BUDGETS = st.builds(Budget, log_uniform(0.05, 30.0), log_uniform(1e-12, 1e-2))


def of_orders(budget: Budget) -> Mixture:
    """The orders alone: no totals beside those of the orders."""
    return replace(design_mixture(budget), adds_up=False)


def excess(mixture: Mixture, totals: tuple[int, ...], delta: float, epsilon: float) -> mpmath.mpf:
    """Largest (1 - e^(eps - L))_+ - delta sum w_i e^(b_i (L - S_i)) over L, with 30 digits."""
    with mpmath.workdps(30):
        parts = [
            (mpmath.mpf(order) - 1, mpmath.mpf(weight), mpmath.mpf(total) / SCALE)
            for order, weight, total in zip(mixture.orders, mixture.weights, totals, strict=True)
        ]

        def gap(x: mpmath.mpf) -> mpmath.mpf:
            moments = sum(w * mpmath.exp(b * (epsilon + x - s)) for b, w, s in parts)
            return -mpmath.expm1(-x) - delta * moments

        # Concave in x: ternary search over the logarithm of x finds the maximum.
        low, high = mpmath.mpf(-40), mpmath.mpf(8)
        for _ in range(70):
            left, right = low + (high - low) / 3, high - (high - low) / 3
            if gap(mpmath.exp(left)) < gap(mpmath.exp(right)):
                low = left
            else:
                high = right
        return gap(mpmath.exp((low + high) / 2))


@settings(max_examples=4)
@given(BUDGETS, st.lists(log_uniform(1e-6, 50.0), min_size=11, max_size=11))
def test_the_reading_is_the_smallest_epsilon_of_the_inequality(budget, renyi):
    mixture = of_orders(budget)
    totals = tuple(map(fixed_point, sorted(renyi)))
    epsilon = mixture.epsilon(totals, budget.delta)
    assert excess(mixture, totals, budget.delta, epsilon) <= 0
    if epsilon > 1e-6:
        assert excess(mixture, totals, budget.delta, epsilon * (1 - 1e-6)) > 0


@given(BUDGETS)
def test_orders_and_weights_are_a_mixture(budget):
    mixture = design_mixture(budget)
    assert sum(map(Fraction, mixture.weights)) == 1
    assert all(1 < order <= 1e7 for order in mixture.orders)
    assert list(mixture.orders) == sorted(mixture.orders)


@given(st.floats(min_value=0, max_value=1e15))
def test_fixed_point_rounds_up_by_less_than_one_unit(value):
    unit = fixed_point(value)
    assert 0 <= Fraction(unit, SCALE) - Fraction(value) < Fraction(1, SCALE)
    assert Fraction(as_float(unit)) >= Fraction(unit, SCALE)
    for no_cost in (math.inf, math.nan, -1.0):
        assert fixed_point(no_cost) == UNBOUNDED


def test_an_unbounded_order_is_left_out_and_all_of_them_bound_nothing():
    mixture = design_mixture(Budget(8, 1e-5))
    cost = mixture.cost(Round(3.0))
    dead = (*cost[:9], UNBOUNDED, UNBOUNDED, *cost[11:])
    assert math.isfinite(mixture.epsilon(dead, 1e-5))
    assert mixture.epsilon(dead, 1e-5) >= mixture.epsilon(cost, 1e-5)
    assert mixture.epsilon((*[UNBOUNDED] * 11, *cost[11:]), 1e-5) == math.inf
    assert mixture.epsilon(cost, 0.0) == math.inf
    assert subtract(add(dead, cost), cost) == dead
    odometer = Odometer(Budget(1, 1e-6))
    assert (odometer.rounds, odometer.epsilon) == (0, 0.0)


def test_sums_are_exact_in_any_order():
    mixture = design_mixture(Budget(8, 1e-5))
    one, other = mixture.cost(Round(1.1, Poisson(0.1))), mixture.cost(Round(0.7, Poisson(0.01)))
    total = mixture.zero()
    for _ in range(1000):
        total = add(total, one)
        total = add(total, other)
    assert total == add(times(1000, other), times(1000, one))


@pytest.mark.parametrize(
    ("budget", "round_", "rounds"),
    [
        (Budget(8, 0.1), Round(1.4, Poisson(0.5)), 32),
        (Budget(2, 1e-3), Round(5.4, Poisson(0.5)), 13),
    ],
)
def test_a_share_of_an_order_that_underflows_is_no_share(budget, round_, rounds):
    """Such readings once ended in a domain error."""
    odometer = Odometer(budget)
    odometer.add(round_, rounds)
    assert 0 <= odometer.epsilon < budget.epsilon


def exact_reading(orders: Sequence[Order], delta: float) -> mpmath.mpf:
    """The minimum of (D) over p with 50 digits, by halving the interval of its loss y."""
    with mpmath.workdps(50):
        parts = [(mpmath.mpf(o.gap), mpmath.exp(o.log_weight), mpmath.mpf(o.total)) for o in orders]
        cost = -mpmath.log(mpmath.mpf(delta))

        def at(loss: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
            logs = [mpmath.log(w) + b * (loss - s) for b, w, s in parts]
            top = max(logs)
            raw = [mpmath.exp(value - top) for value in logs]
            log_norm = top + mpmath.log(sum(raw))
            p = [r / sum(raw) for r in raw]
            mean = sum(share * b for share, (b, _, _) in zip(p, parts, strict=True))
            # KL(p || w) + sum p b S is b y minus the logarithm of the sum.
            value = mean * loss - log_norm + cost
            value += mean * mpmath.log(mean) - (1 + mean) * mpmath.log1p(mean)
            return log_norm + mpmath.log1p(mean) - cost, value / mean

        low, high = mpmath.mpf(-(10**9)), max(s for _, _, s in parts) + 10**9
        for _ in range(250):
            middle = (low + high) / 2
            low, high = (middle, high) if at(middle)[0] < 0 else (low, middle)
        return max(mpmath.mpf(0), at(high)[1])


EXTREME_BUDGETS = st.builds(
    Budget,
    st.one_of(log_uniform(1e-3, 100.0), log_uniform(1e-300, 1e300)),
    st.one_of(
        log_uniform(1e-12, 0.5),
        log_uniform(1e-300, 0.5),
        log_uniform(2.0**-53, 0.5).map(lambda gap: 1 - gap),
    ),
)
# A total in units of 2^-64: nothing, hardly anything, anything, and more than is finite.
TOTALS = st.one_of(
    st.sampled_from([0, 1, UNBOUNDED, 7 * UNBOUNDED]), log_uniform(1e-18, 1e25).map(fixed_point)
)


@pytest.mark.slow
@given(EXTREME_BUDGETS, st.lists(TOTALS, min_size=11, max_size=11), st.data())
def test_any_totals_have_a_reading_and_it_is_the_minimum(budget, drawn, data):
    mixture = of_orders(budget)
    totals = tuple(sorted(drawn)) if data.draw(st.booleans()) else tuple(drawn)
    epsilon = mixture.epsilon(totals, budget.delta)
    live = [
        Order(order - 1, math.log(weight), as_float(total))
        for order, weight, total in zip(mixture.orders, mixture.weights, totals, strict=True)
        if total < UNBOUNDED
    ]
    if not any(totals) or not live:
        assert epsilon == (math.inf if any(totals) else 0.0)
        return
    exact = exact_reading(live, budget.delta)
    # Rounding is charged relative to the parts of (D), which grow with b, over the mean of b.
    parts = max(
        (30 - math.log(budget.delta) + 2 * (1 + order.gap) * math.log1p(order.gap)) / order.gap
        for order in live
    )
    slack = 64 * FUNCTION_ERROR * parts
    assert exact <= epsilon <= exact * (1 + 1e-9) + slack


@FEWER
@given(EXTREME_BUDGETS, st.lists(TOTALS, min_size=11, max_size=11), st.data())
def test_a_reading_grows_with_each_total_and_with_less_delta(budget, drawn, data):
    mixture, totals = of_orders(budget), tuple(sorted(drawn))
    epsilon = mixture.epsilon(totals, budget.delta)
    which = data.draw(st.integers(0, 10))
    more = data.draw(st.one_of(st.integers(1, 1000), log_uniform(1e-15, 1e25).map(fixed_point)))
    dearer = tuple(total + more * (i == which) for i, total in enumerate(totals))
    slack = 1e-11 * (20 - math.log(budget.delta)) / (mixture.orders[0] - 1)
    assert mixture.epsilon(dearer, budget.delta) >= epsilon * (1 - 1e-11) - slack
    less = budget.delta * (1 - data.draw(log_uniform(1e-15, 0.9)))
    assert mixture.epsilon(totals, less) >= epsilon * (1 - 1e-11) - slack


@pytest.mark.parametrize("sampling", [Poisson(0.1), Poisson(1e-9), Full(), Uniform(3, 100)])
@pytest.mark.parametrize("noise", [1e-3, 1.0, 1e10])
def test_a_trillion_rounds_have_a_reading(sampling, noise):
    odometer = Odometer(Budget(8, 1e-5))
    odometer.add(Round(noise, sampling, "replace-one"), 10**12)
    odometer.add(Round(noise, sampling, "replace-one"), 10**12)
    assert 0 < odometer.epsilon < math.inf


SAMPLED = st.builds(Round, log_uniform(0.6, 30.0), st.builds(Poisson, log_uniform(1e-3, 1.0)))


@FEWER
@given(st.lists(st.tuples(SAMPLED, st.integers(1, 200)), min_size=1, max_size=3), BUDGETS)
def test_never_below_the_tight_epsilon_of_the_rounds_that_ran(ran, budget):
    odometer = Odometer(budget)
    schedule = Schedule()
    for round_, count in ran:
        odometer.add(round_, count)
        schedule += count * round_
    tight = dpacct.epsilon(schedule, delta=budget.delta, accountant="tight")
    assert odometer.epsilon >= tight.lower
    renyi = dpacct.epsilon(schedule, delta=budget.delta, accountant="rdp")
    # One order, chosen afterwards: what the mixture pays something for.
    assert odometer.epsilon >= renyi.upper * (1 - 1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("round_", "rounds", "most"),
    [
        (Round(1.286, Poisson(0.1)), 260, 1.17),
        (Round(5.0), 10, 1.15),
        (Round(1.0, Poisson(0.01)), 3000, 1.18),
        (Round(10.0, Poisson(0.1)), 20000, 1.15),
        (Round(4.0, Uniform(100, 2000)), 200, 1.45),
    ],
)
def test_how_far_above_tight_it_is_where_a_budget_is_spent(round_, rounds, most):
    tight = dpacct.epsilon(rounds * round_, delta=1e-5, accountant="tight").upper
    odometer = Odometer(Budget(tight, 1e-5), typical=round_)
    odometer.add(round_, rounds)
    assert tight <= odometer.epsilon <= most * tight


@FEWER
@given(BUDGETS, SAMPLED, st.integers(0, 50))
def test_remaining_is_the_last_number_that_fits(budget, round_, ran):
    odometer = Odometer(budget)
    if ran:
        odometer.add(round_, ran)
    more = odometer.remaining(round_)
    if more:
        odometer.add(round_, more)
        assert odometer.epsilon <= budget.epsilon
    odometer.add(round_)
    assert odometer.epsilon > budget.epsilon


@pytest.mark.parametrize("wrong", ["a round", None, 3, [Round(1.0)], 2 * Round(1.0)])
def test_what_is_no_release_is_rejected_by_name(wrong):
    odometer = Odometer(Budget(1, 1e-6))
    for ask in (odometer.add, odometer.remaining):
        with pytest.raises(InvalidParameter, match="a release is a Round or a mechanism"):
            ask(wrong)
    assert (odometer.rounds, odometer.epsilon) == (0, 0.0)


def test_a_typical_round_tightens_what_is_not_typical_otherwise():
    budget, round_ = Budget(1.5, 1e-5), Round(0.8, Poisson(0.001))
    assert Odometer(budget, typical=round_).remaining(round_) > Odometer(budget).remaining(round_)
    assert Odometer(budget, typical=7 * round_).mixture == Odometer(budget, typical=round_).mixture


def gaussian_tail(x: float) -> float:
    return 0.5 * math.erfc(x / math.sqrt(2))


def hockey_stick(y: float, mu: float) -> float:
    """E[(1 - e^(y - L))_+] for L of a Gaussian round with mu = 1/z: L ~ N(mu^2/2, mu^2)."""
    if mu == 0.0:
        return max(0.0, -math.expm1(y)) if y < 0 else 0.0
    a = y / mu - mu / 2
    return gaussian_tail(a) - math.exp(min(y, 700.0)) * gaussian_tail(a + mu)


@pytest.mark.parametrize("first", [1.0, 2.0])
@pytest.mark.parametrize("shape", ["greedy above", "greedy below", "stop above", "alternate"])
def test_an_adversary_who_looks_at_the_first_result_gains_nothing(first, shape):
    """E_P[(1 - e^(eps_tau - L))_+] <= delta, integrated, for a second round that sees the first."""
    delta = 1e-3
    odometer = Odometer(Budget(6, delta))
    mixture = odometer.mixture

    def second(loss: float) -> float | None:
        """Noise multiplier of the second round; None stops."""
        high = loss > 1.2
        match shape:
            case "greedy above":
                return 0.7 if high else 4.0
            case "greedy below":
                return 4.0 if high else 0.7
            case "stop above":
                return None if high else 0.9
            case _:
                return (0.8, 1.5, 3.0)[int(abs(loss) * 2) % 3]

    readings: dict[float | None, float] = {}
    mu = 1 / first
    total, step = 0.0, 0.002
    for k in range(-5000, 5001):
        x = k * step
        loss = mu * mu / 2 + mu * x
        z = second(loss)
        if z not in readings:
            cost = mixture.cost(Round(first))
            readings[z] = mixture.epsilon(
                cost if z is None else add(cost, mixture.cost(Round(z))), delta
            )
        weight = math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * step
        total += weight * hockey_stick(readings[z] - loss, 0.0 if z is None else 1 / z)
    assert 0 < total <= delta


def test_full_participation_is_the_plain_gaussian_renyi_total():
    mixture = design_mixture(Budget(4, 1e-6))
    for order, cost in zip(mixture.orders, mixture.cost(Round(2.5, Full())), strict=False):
        exact = order / (2 * 2.5**2)
        assert exact <= cost / SCALE <= exact * (1 + 1e-9)
