"""Trade-off functions: the truth inside the bracket, from tests in x space and from duality."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mpf

from dpacct.accountant import find_accountant
from dpacct.budget import Interval
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.numerics.search import least_convex_value
from dpacct.pairs.dominating import Direction, proven_pairs
from dpacct.risk.attacks import Attack, Attacks, PrivacyProfile
from dpacct.risk.measures import default_rates, tradeoff
from dpacct.rounds import Adjacency, Full, Poisson, Round, Schedule, Uniform
from dpacct.tight.composition import Composition
from dpacct.tight.engines import Made, composed_delta, inversion_delta
from tests.oracles import contour, neyman_pearson
from tests.oracles.answers import known
from tests.strategies import FEWER, log_uniform
from tests.truth import check

TIGHT = find_accountant("tight")
# Documented for schedules that `tight` composes exactly, where the rounds are not almost atoms.
WIDTH = 1e-7
LONG = 300 * Round(1.0, Poisson(0.1))

fprs = st.one_of(log_uniform(1e-9, 0.5), log_uniform(1e-9, 0.5).map(lambda gap: 1 - gap))


def attack(plan: Schedule, direction: Direction) -> Attack:
    """Accuses of presence (remove) or of absence (add)."""
    return Attack(Attacks(plan, TIGHT).profile.proven, direction)


# Against tests in x space.


@pytest.mark.parametrize("fpr", [1e-12, 1e-6, 0.001, 0.1, 0.5, 0.9, 1 - 1e-6])
@pytest.mark.parametrize(
    ("noise", "rounds", "adjacency", "mu"),
    [
        (2.0, 9, "add-remove", 1.5),
        (50.0, 1, "add-remove", 0.02),
        (2.0, 4, "replace-one", 2.0),
        (1.0, 36, "zero-out", 6.0),
        (1e6, 1, "add-remove", 1e-6),
    ],
)
def test_everybody_every_round(fpr, noise, rounds, adjacency, mu):
    curve = tradeoff(noise_multiplier=noise, rounds=rounds, adjacency=adjacency, fpr=[fpr])
    check(curve.tpr[0], neyman_pearson.gaussian_tpr(fpr, mu), WIDTH)
    assert curve.adjacency is Adjacency(adjacency)


@FEWER
@given(
    q=st.one_of(log_uniform(1e-4, 0.5), st.floats(0.5, 0.999)),
    s=log_uniform(0.3, 20.0),
    edge=st.floats(-3.0, 4.0),
    presence=st.booleans(),
)
@example(q=0.36787944117144233, s=0.36787944117144233, edge=-1.0, presence=False)
@example(q=0.78, s=0.316, edge=-2.836, presence=False)
@example(q=0.08479508526555633, s=0.5309077727117234, edge=-2.9474669589660363, presence=False)
def test_one_round(q, s, edge, *, presence):
    rates = neyman_pearson.one_round(s * edge, q, s, accuse_presence=presence)
    direction = Direction.REMOVE if presence else Direction.ADD
    fpr = float(rates.fpr)
    if not 1e-12 < fpr < 1 - 1e-12:
        return
    # The FPR of the oracle is rounded; the slope of the curve says what that matters.
    slack = mpf(2) ** -52 * (1 + rates.tpr / rates.fpr)
    found = attack(1 * Round(s, Poisson(q)), direction).tpr(fpr)
    assert found.lower - slack <= rates.tpr <= found.upper + slack
    # Little noise makes atoms of the losses, at the largest one.
    assert found.width <= (WIDTH if s >= 0.5 else 1e-5) * found.upper
    worse = tradeoff(Round(s, Poisson(q)), fpr=[fpr]).tpr[0]
    assert worse.upper >= rates.tpr - slack


@pytest.mark.slow
@pytest.mark.parametrize("presence", [True, False], ids=["presence", "absence"])
@pytest.mark.parametrize("level", [-0.3, 0.1, 1.5])
def test_two_rounds_that_differ(level, *, presence):
    first, second = (0.3, 1.5), (0.5, 2.0)
    rates = neyman_pearson.two_rounds(level, first, second, accuse_presence=presence)
    plan = Round(first[1], Poisson(first[0])) + Round(second[1], Poisson(second[0]))
    direction = Direction.REMOVE if presence else Direction.ADD
    check(attack(plan, direction).tpr(float(rates.fpr)), rates.tpr, 1e-5)


def test_the_oracle_of_two_rounds_agrees_with_the_gaussian():
    rates = neyman_pearson.two_rounds(0.4, (1.0, 2.0), (1.0, 1.5), accuse_presence=True)
    mu = math.hypot(1 / 2.0, 1 / 1.5)
    truth = neyman_pearson.gaussian_tpr(float(rates.fpr), mu)
    assert abs(truth - rates.tpr) < 1e-14


@pytest.mark.sampled(1)
@pytest.mark.parametrize("remove", [True, False], ids=["presence", "absence"])
@pytest.mark.parametrize("rounds", [[(0.1, 1.0, 300)], [(0.02, 0.9, 400), (0.3, 4.0, 50)]])
def test_many_rounds_by_duality(rounds, *, remove):
    """At the FPR of a secant the best TPR is its bound, up to the square of its length."""
    near, far = 1.0, 1.0 + 2e-4
    deltas = known(contour.deltas, [near, far], rounds, remove=remove)
    x = [math.exp(near), math.exp(far)]
    fpr = float((deltas[0] - deltas[1]) / (mpf(x[1]) - mpf(x[0])))
    bound = min(mpf(a) * fpr + delta for a, delta in zip(x, deltas, strict=True))
    plan = Schedule()
    for q, s, count in rounds:
        plan += count * Round(s, Poisson(q))
    direction = Direction.REMOVE if remove else Direction.ADD
    found = attack(plan, direction).tpr(fpr)
    assert found.lower <= bound
    assert found.upper >= bound * (1 - mpf(1e-8))
    assert found.width <= WIDTH * found.upper


@pytest.mark.slow
def test_dp_accounting_is_a_neighbor_above():
    """Its bounds of delta are proven too, so its best line may not be below what is achieved."""
    pytest.importorskip("dp_accounting")
    from dp_accounting.pld import privacy_loss_distribution as pld

    composed = pld.from_gaussian_mechanism(
        1.0, sampling_prob=0.1, value_discretization_interval=1e-3
    ).self_compose(300)
    for fpr in (1e-4, 0.01, 0.3):
        epsilons = np.linspace(0.0, 12.0, 1201)
        deltas = np.asarray(composed.get_delta_for_epsilon(epsilons))
        lines = [np.exp(epsilons) * fpr + deltas, 1 - np.exp(-epsilons) * (1 - fpr - deltas)]
        theirs = min(float(line.min()) for line in lines)
        ours = tradeoff(LONG, fpr=[fpr]).tpr[0]
        assert ours.upper <= theirs * (1 + 1e-9)
        assert theirs <= ours.upper * (1 + 2e-3)


# Fixed-size cohorts, where proven and achieved differ.


@pytest.mark.slow
def test_uniform_brackets_what_its_achieved_pair_reaches():
    curve = tradeoff(50 * Round(2.4, Uniform(100, 2000)), fpr=[0.001, 0.01, 0.3, 0.9])
    reached = tradeoff(50 * Round(1.2, Poisson(0.05)), fpr=curve.fpr)
    for ours, pair in zip(curve.tpr, reached.tpr, strict=True):
        assert ours.lower <= ours.upper
        assert ours.lower == pytest.approx(pair.lower, rel=1e-7)
        assert ours.upper > pair.upper


@pytest.mark.sampled(1)
@pytest.mark.parametrize("accountant", ["rdp", "closed-form"])
def test_other_accountants_prove_less(accountant):
    plan = 500 * Round(4.0, Poisson(0.02))
    for fpr in (0.001, 0.2):
        loose = tradeoff(plan, fpr=[fpr], accountant=accountant).tpr[0]
        sharp = tradeoff(plan, fpr=[fpr]).tpr[0]
        assert loose.upper > sharp.upper
        assert loose.lower == pytest.approx(sharp.lower, rel=1e-6)


def test_gdp_is_exact_where_it_applies_and_says_so_elsewhere():
    found = tradeoff(4 * Round(2.0), fpr=[0.01], accountant="gdp").tpr[0]
    check(found, neyman_pearson.gaussian_tpr(0.01, 1.0), WIDTH)
    with pytest.raises(Unsupported, match="full participation only"):
        tradeoff(4 * Round(2.0, Poisson(0.1)), fpr=[0.01], accountant="gdp")


# The shape of the curve.


settings_of_rounds = st.tuples(
    log_uniform(0.05, 0.6), log_uniform(0.8, 4.0), log_uniform(100, 1e4).map(int)
)


@pytest.mark.slow
@FEWER
@given(settings_of_rounds, st.sampled_from(Direction), st.tuples(fprs, fprs, st.floats(0.0, 1.0)))
def test_the_curve_rises_and_is_concave(setting, direction, ends):
    q, s, rounds = setting
    one = attack(rounds * Round(s, Poisson(q)), direction)
    left, right = sorted(ends[:2])
    share = ends[2]
    middle = min(max((1 - share) * left + share * right, left), right)
    low, mid, high = (one.tpr(fpr) for fpr in (left, middle, right))
    for fpr, tpr in ((left, low), (middle, mid), (right, high)):
        assert fpr <= tpr.lower <= tpr.upper <= 1
    assert low.lower <= mid.upper
    assert mid.lower <= high.upper
    assert mid.upper >= ((1 - share) * low.lower + share * high.lower) * (1 - 1e-12)


@pytest.mark.slow
@FEWER
@given(settings_of_rounds, fprs)
def test_more_noise_or_fewer_rounds_help(setting, fpr):
    q, s, rounds = setting
    base = tradeoff(rounds * Round(s, Poisson(q)), fpr=[fpr]).tpr[0]
    calmer = tradeoff(rounds * Round(1.2 * s, Poisson(q)), fpr=[fpr]).tpr[0]
    shorter = tradeoff((rounds // 2) * Round(s, Poisson(q)), fpr=[fpr]).tpr[0]
    assert calmer.lower <= base.upper
    assert shorter.lower <= base.upper
    assert calmer.upper <= base.upper * (1 + WIDTH)


@pytest.mark.slow
@FEWER
@given(settings_of_rounds, fprs)
def test_accusing_of_presence_and_of_absence_mirror_each_other(setting, fpr):
    """The attack with FPR a, TPR b on one question has FPR 1 - b, TPR 1 - a on the other."""
    q, s, rounds = setting
    plan = rounds * Round(s, Poisson(q))
    there = attack(plan, Direction.REMOVE).tpr(fpr)
    mirrored = 1 - there.lower
    if not 1e-9 < mirrored < 1:
        return
    back = attack(plan, Direction.ADD).tpr(mirrored)
    # An attack that errs more often, with FPR 1 - lower >= 1 - truth, reaches at least 1 - fpr.
    assert back.upper >= (1 - fpr) * (1 - 1e-12)


def test_the_worse_of_both_directions_is_told():
    both = Attacks(LONG, TIGHT)
    there, gone = (attack(LONG, d) for d in (Direction.REMOVE, Direction.ADD))
    for fpr in (1e-4, 0.2, 0.9):
        worse = max(there.tpr(fpr).upper, gone.tpr(fpr).upper)
        assert both.tpr(fpr).upper == pytest.approx(worse, rel=1e-8)
        assert both.upper_tpr(fpr) == both.tpr(fpr).upper
    # Rare accusations are surer of presence, frequent ones of absence.
    assert there.tpr(1e-4).lower > gone.tpr(1e-4).upper
    assert gone.tpr(0.5).lower > there.tpr(0.5).upper


def test_the_ends_of_the_curve():
    curve = tradeoff(LONG, fpr=[1, 0, 0.5, 0.5])
    assert curve.fpr == (0.0, 0.5, 1.0)
    assert curve.tpr[0] == Interval(0.0, 0.0)
    assert curve.tpr[-1] == Interval(1.0, 1.0)
    assert curve.fnr[1] == Interval(1 - curve.tpr[1].upper, 1 - curve.tpr[1].lower)


def test_the_empty_schedule_teaches_nothing():
    curve = tradeoff(Schedule(), fpr=[1e-6, 0.3])
    for fpr, tpr in zip(curve.fpr, curve.tpr, strict=True):
        assert tpr.lower <= fpr <= tpr.upper <= fpr * (1 + 1e-9)


def test_overwhelming_attacks():
    tpr = tradeoff(10_000 * Round(0.1), fpr=[1e-9]).tpr[0]
    assert tpr.lower > 1 - 1e-11
    assert tpr.upper <= 1


def test_the_default_rates():
    rates = default_rates()
    assert rates == sorted(set(rates))
    assert (rates[0], rates[-1]) == (0.0, 1.0)
    assert rates[1] == pytest.approx(1e-5, rel=1e-4)
    assert 1 - rates[-2] == pytest.approx(1e-5, rel=0.2)
    assert tradeoff(Round(1.0, Full())).fpr == tuple(rates)


@pytest.mark.parametrize("fpr", [-0.1, 1.1, math.nan, math.inf, True, "0.1"])
def test_rates_out_of_range(fpr):
    with pytest.raises(InvalidParameter, match="fpr is"):
        tradeoff(LONG, fpr=[fpr])  # type: ignore[list-item]


# The least value of a convex function, from bounds at a few points.


@given(
    st.lists(st.tuples(st.floats(-3.0, 3.0), st.floats(0.0, 1.0)), min_size=1, max_size=6),
    st.lists(st.floats(-20.0, 1.5), min_size=1, max_size=8, unique=True),
    log_uniform(1e-13, 1e-2),
)
@example([], [0.0, 2.2e-308], 1e-5)
@example([], [0.0, 5e-324], 1e-13)
def test_the_least_value_is_never_above_the_truth(lines, epsilons, spread):
    """F is the largest of some lines, known up to a spread that covers this test's rounding."""
    top = 2.0

    def value(x: float) -> float:
        return max(1 - x / 2, x * math.exp(-top), *(b + a * x for a, b in lines))

    crossings = [0.0, math.exp(top)]
    every = [(-0.5, 1.0), (math.exp(-top), 0.0), *lines]
    for a, b in every:
        crossings += [(d - b) / (a - c) for c, d in every if a != c]
    truth = min(value(x) for x in crossings if 0 <= x <= math.exp(top))
    points = [(-math.inf, Interval(value(0.0), value(0.0)))]
    points += [
        (e, Interval(value(math.exp(e)) - spread, value(math.exp(e)) + spread))
        for e in sorted(epsilons)
    ]
    points.append((top, Interval(value(math.exp(top)), value(math.exp(top)))))
    assert least_convex_value(points) <= truth + 1e-12


@pytest.mark.parametrize("order", range(3))
def test_the_gap_shrinks_with_the_square_of_the_distance(order):
    def gap(step: float) -> float:
        epsilons = [k * step + 0.3 * step for k in range(-4, 4)]
        values = [(math.exp(e) - 1) ** 2 + 0.5 for e in epsilons]
        points = [(-math.inf, Interval(1.5, 1.5))]
        points += [(e, Interval(v, v)) for e, v in zip(epsilons, values, strict=True)]
        points.append((2.0, Interval(1.0, 100.0)))
        return 0.5 - least_convex_value(points)

    step = 0.02 * 4.0**-order
    assert 0 <= gap(step) <= step**2
    assert gap(step / 4) == pytest.approx(gap(step) / 16, rel=0.15)


@pytest.mark.parametrize(
    "plan",
    [300 * Round(1.0, Poisson(0.1)), 100 * Round(1.5, Poisson(0.02)), 20 * Round(4.0, Full())],
    ids=repr,
)
def test_a_curve_is_as_sharp_as_a_chart_and_never_below_the_best_attack(plan):
    rates = [1e-4 ** (1 - k / 32) for k in range(32)]
    attacks = Attacks(plan, TIGHT)
    curve = Attacks(plan, TIGHT).curve(rates)
    for fpr, found in [*zip(rates, curve, strict=True)][::5]:
        exact = attacks.tpr(fpr)
        # The exact lower bound is achieved, so no proven upper bound lies below it.
        assert exact.lower <= found.upper <= 1.03 * exact.upper
        assert 0.8 * exact.lower <= found.lower <= exact.upper


def test_contours_of_few_rounds_serve_their_neighborhood():
    schedule, remove = 2 * Round(1.0, Uniform(3, 40)), Direction.REMOVE
    profile = PrivacyProfile(schedule, find_accountant("pairs"))
    composition = Composition.of_schedule(schedule, proven_pairs, remove)
    for epsilon in (1.0, 1.001, 0.98):
        shared, alone = profile.proven(remove, epsilon), composed_delta(composition, epsilon)
        assert shared.lower <= alone.upper
        assert alone.lower <= shared.upper
        assert shared.width <= 1e-5 * shared.upper


def test_what_a_contour_has_lost_is_added():
    composition = Composition.of_schedule(
        2 * Round(1.0, Uniform(20, 1000)), proven_pairs, Direction.REMOVE
    )
    made: list[Made] = []
    inversion_delta(composition, 1.0, made)
    least = made[-1].contour.delta(1.0)
    assert Made(made[-1].contour, 1e-3).delta(1.0).upper > least.upper + 1e-3
    assert Made(made[-1].contour, 1e-3).delta(1.0).lower == least.lower
