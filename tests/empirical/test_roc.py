"""ROC and AUC: beside the count of all pairs, under all that must leave them as they are."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from dpacct.empirical.confidence import mean_in_unit_interval
from dpacct.empirical.roc import auc, needed_nonmembers, null_deviation, roc
from dpacct.errors import InvalidParameter

# Few distinct values, so that there are ties, and infinite ones.
SCORES = st.lists(st.sampled_from([-np.inf, -2.0, -1.0, 0.0, 0.5, 3.0, np.inf]), min_size=1)


def pairs(members, nonmembers) -> float:
    """The share of pairs won, one by one."""
    won = sum((a > b) + 0.5 * (a == b) for a in members for b in nonmembers)
    return won / (len(members) * len(nonmembers))


def by_mid_ranks(members, nonmembers) -> float:
    """The formula with the ranks of members among all losses, for as many of both."""
    n = len(members)
    losses = -np.concatenate([members, nonmembers])
    ranks = np.array([(losses < x).sum() + ((losses == x).sum() + 1) / 2 for x in losses])
    return float((n * (2 * n + 1) - n * (n + 1) / 2 - ranks[:n].sum()) / n**2)


@given(SCORES, SCORES)
def test_the_auc_is_that_of_all_pairs(members, nonmembers):
    assert auc(members, nonmembers) == pytest.approx(pairs(members, nonmembers), abs=1e-15)
    assert auc(nonmembers, members) == pytest.approx(1 - auc(members, nonmembers), abs=1e-15)


@given(st.integers(1, 40), st.integers(0, 2**32))
def test_the_auc_is_that_of_mid_ranks(n, seed):
    generator = np.random.default_rng(seed)
    members, nonmembers = generator.integers(0, 9, n), generator.integers(0, 9, n)
    assert auc(members, nonmembers) == pytest.approx(by_mid_ranks(members, nonmembers), abs=1e-12)


@given(st.integers(0, 2**32))
def test_increasing_transforms_change_nothing(seed):
    generator = np.random.default_rng(seed)
    members, nonmembers = generator.normal(size=50), generator.normal(size=70)
    one = roc(members, nonmembers)
    two = roc(np.exp(members), np.exp(nonmembers))
    assert (one.auc, one.advantage, one.rates) == (two.auc, two.advantage, two.rates)
    assert np.array_equal(one.fpr, two.fpr)
    assert np.array_equal(one.tpr, two.tpr)


def test_extremes():
    apart = roc([3.0, 4.0], [1.0, 2.0])
    assert (apart.auc.value, apart.advantage.value) == (1.0, 1.0)
    assert roc([1.0, 2.0], [3.0, 4.0]).auc.value == 0.0
    equal = roc([5.0] * 7, [5.0] * 3)
    assert (equal.auc.value, equal.advantage.value) == (0.5, 0.0)
    assert equal.rates[0].tpr.value == 0.0


@given(SCORES, SCORES)
def test_the_curve_has_the_area_and_the_advantage(members, nonmembers):
    found = roc(members, nonmembers)
    assert (found.fpr[0], found.tpr[0], found.fpr[-1], found.tpr[-1]) == (0, 0, 1, 1)
    area = float(np.sum(np.diff(found.fpr) * (found.tpr[1:] + found.tpr[:-1]) / 2))
    assert area == pytest.approx(found.auc.value, abs=1e-12)
    best = max(
        np.mean(np.asarray(members) >= t) - np.mean(np.asarray(nonmembers) >= t)
        for t in [*members, *nonmembers]
    )
    assert found.advantage.value == pytest.approx(max(best, 0.0), abs=1e-12)


@given(SCORES, SCORES, st.floats(0.01, 0.99))
def test_a_tpr_is_the_best_one_at_an_observed_fpr_that_is_allowed(members, nonmembers, rate):
    [at] = roc(members, nonmembers, fpr=[rate]).rates
    assert at.fpr <= rate
    assert at.fpr <= at.fpr_upper
    attacks = [
        (np.mean(np.asarray(nonmembers) > t), np.mean(np.asarray(members) > t))
        for t in [*members, *nonmembers]
    ]
    assert at.tpr.value == max([tpr for fpr, tpr in attacks if fpr <= rate], default=0.0)


def test_gaussian_losses_have_the_auc_of_theory():
    generator = np.random.default_rng(3)
    for mu in (0.3, 1.0, 2.0):
        found = roc(generator.normal(mu, 1, 20_000), generator.normal(0, 1, 20_000))
        truth = float(ndtr(mu / 2**0.5))
        assert truth in found.auc
        assert found.auc.value == pytest.approx(truth, abs=4 * null_deviation(20_000, 20_000))
        assert float(2 * ndtr(mu / 2) - 1) in found.advantage
        for at in found.rates:
            assert float(ndtr(mu + ndtri(at.asked))) == pytest.approx(at.tpr.value, abs=0.02)


def test_scores_without_information_stay_near_one_half():
    generator = np.random.default_rng(4)
    n, trials = 200, 2000
    found = np.array(
        [auc(generator.normal(size=n), generator.normal(size=n)) for _ in range(trials)]
    )
    deviation = null_deviation(n, n)
    assert deviation == pytest.approx(((2 * n + 1) / (12 * n**2)) ** 0.5)
    assert abs(found.mean() - 0.5) < 6 * deviation / trials**0.5
    assert abs(found.std() / deviation - 1) < 6 / (2 * trials) ** 0.5
    assert np.mean(np.abs(found - 0.5) > 3 * deviation) < 0.012


@pytest.mark.parametrize("mu", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("sizes", [(40, 25), (8, 300)])
@pytest.mark.parametrize("rounded", [False, True])
def test_intervals_hold_as_often_as_they_claim(mu, sizes, rounded):
    generator = np.random.default_rng(11)
    trials, sure = 300, 0.8
    held = {"auc": 0, "advantage": 0, "fpr": 0}
    for _ in range(trials):
        inside, outside = generator.normal(mu, 1, sizes[0]), generator.normal(0, 1, sizes[1])
        if rounded:
            inside, outside = inside.round(), outside.round()
        found = roc(inside, outside, confidence=sure, fpr=[0.1])
        held["auc"] += true_auc(mu, rounded=rounded) in found.auc
        held["advantage"] += true_advantage(mu, rounded=rounded) in found.advantage
        # The threshold that was taken, and how often nonmembers are above it in truth.
        allowed = int(0.1 * sizes[1])
        threshold = np.sort(outside)[sizes[1] - 1 - allowed]
        above = float(ndtr(-(threshold + 0.5 if rounded else threshold)))
        held["fpr"] += above <= found.rates[0].fpr_upper
    least = sure * trials - 5 * (trials * sure * (1 - sure)) ** 0.5
    assert all(count >= least for count in held.values()), held


def masses(mu: float) -> np.ndarray:
    """Probabilities of the rounded normal variate around mu."""
    edges = np.arange(-9, 13) + 0.5
    return np.diff(ndtr(edges - mu))


def true_auc(mu: float, *, rounded: bool) -> float:
    if not rounded:
        return float(ndtr(mu / 2**0.5))
    p, q = masses(mu), masses(0.0)
    below = np.cumsum(q) - q
    return float((p * (below + q / 2)).sum())


def test_the_interval_of_an_advantage_is_rounded_outward():
    # Equal scores: what is observed is 0, and the upper end is the reach alone.
    for inside, outside in itertools.product(range(900, 960), range(900, 960, 7)):
        found = roc(np.zeros(inside), np.zeros(outside)).advantage
        with mpmath.workdps(40):
            tail = 4 / (1 - mpmath.mpf(0.95))
            reach = sum(mpmath.sqrt(mpmath.log(tail) / (2 * n)) for n in (inside, outside))
            assert found.upper >= reach


def true_advantage(mu: float, *, rounded: bool) -> float:
    if not rounded:
        return float(2 * ndtr(mu / 2) - 1)
    return float(np.abs(masses(mu) - masses(0.0)).sum() / 2)


def test_all_members_of_a_model_are_a_sample_without_replacement():
    """The interval is about the members there are: it holds for a part of them drawn at random."""
    generator = np.random.default_rng(5)
    members = generator.normal(0.8, 2, 60)
    truth = float(ndtr(members).mean())
    held = 0
    for _ in range(1000):
        part = generator.choice(members, 45, replace=False)
        value = auc(part, generator.normal(size=45))
        held += truth in mean_in_unit_interval(value, 45, confidence=0.8)
    assert held >= 0.8 * 1000 - 5 * (1000 * 0.16) ** 0.5


def test_how_many_nonmembers_a_small_rate_takes():
    assert needed_nonmembers(0.01) == 368
    assert needed_nonmembers(0.001) == 3688
    [at] = roc([1.0], np.zeros(3688), fpr=[1e-9]).rates
    assert at.fpr_upper <= 0.001


def test_a_million_scores_take_a_moment():
    generator = np.random.default_rng(6)
    found = roc(generator.normal(size=10**6), generator.normal(size=10**6))
    assert found.auc.value == pytest.approx(0.5, abs=6 * null_deviation(10**6, 10**6))


@pytest.mark.parametrize(
    ("members", "nonmembers", "options"),
    [
        ([], [1.0], {}),
        ([1.0], [], {}),
        ([np.nan], [1.0], {}),
        ([[1.0]], [1.0], {}),
        (["a"], [1.0], {}),
        ([1.0], [1.0], {"confidence": 1}),
        ([1.0], [1.0], {"fpr": [0.0]}),
        ([1.0], [1.0], {"fpr": [1.0]}),
        ([1.0], [1.0], {"fpr": 0.5}),
    ],
)
def test_what_makes_no_sense_is_refused(members, nonmembers, options):
    with pytest.raises(InvalidParameter):
        roc(members, nonmembers, **options)
