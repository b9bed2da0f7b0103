"""ROC, AUC and scores: beside the count of all pairs, and without information none."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from dpacct.empirical.confidence import mean_in_unit_interval
from dpacct.empirical.roc import (
    auc,
    by_client,
    by_example,
    likelihood_ratio,
    needed_nonmembers,
    null_deviation,
    roc,
)
from dpacct.errors import InvalidParameter

# Few distinct values, so that there are ties, and infinite ones.
SCORES = st.lists(st.sampled_from([-np.inf, -2.0, -1.0, 0.0, 0.5, 3.0, np.inf]), min_size=1)
SEEDS = st.integers(0, 2**32)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(SCORES, SCORES, st.floats(0.01, 0.99))
def test_figures_are_those_of_all_pairs_and_thresholds(members, nonmembers, rate):
    won = sum((a > b) + 0.5 * (a == b) for a in members for b in nonmembers)
    pairs = won / (len(members) * len(nonmembers))
    assert auc(members, nonmembers) == pytest.approx(pairs, abs=1e-15)
    assert auc(nonmembers, members) == pytest.approx(1 - pairs, abs=1e-15)
    found = roc(members, nonmembers, fpr=[rate])
    assert (found.fpr[0], found.tpr[0], found.fpr[-1], found.tpr[-1]) == (0, 0, 1, 1)
    area = float(np.sum(np.diff(found.fpr) * (found.tpr[1:] + found.tpr[:-1]) / 2))
    assert area == pytest.approx(found.auc.value, abs=1e-12)
    inside, outside = np.asarray(members), np.asarray(nonmembers)
    best = max(np.mean(inside >= t) - np.mean(outside >= t) for t in [*members, *nonmembers])
    assert found.advantage.value == pytest.approx(max(best, 0.0), abs=1e-12)
    [at] = found.rates
    assert at.fpr <= min(rate, at.fpr_upper)
    attacks = [(np.mean(outside > t), np.mean(inside > t)) for t in [*members, *nonmembers]]
    assert at.tpr.value == max([tpr for fpr, tpr in attacks if fpr <= rate], default=0.0)


@given(st.integers(1, 40), SEEDS)
def test_the_auc_is_that_of_mid_ranks(n, seed):
    members, nonmembers = (rng(seed + k).integers(0, 9, n) for k in range(2))
    losses = -np.concatenate([members, nonmembers])
    ranks = np.array([(losses < x).sum() + ((losses == x).sum() + 1) / 2 for x in losses])
    truth = float((n * (2 * n + 1) - n * (n + 1) / 2 - ranks[:n].sum()) / n**2)
    assert auc(members, nonmembers) == pytest.approx(truth, abs=1e-12)


@given(SEEDS)
def test_increasing_transforms_change_nothing(seed):
    members, nonmembers = rng(seed).normal(size=50), rng(seed + 1).normal(size=70)
    one, two = roc(members, nonmembers), roc(np.exp(members), np.exp(nonmembers))
    assert (one.auc, one.advantage, one.rates) == (two.auc, two.advantage, two.rates)
    assert np.array_equal(one.fpr, two.fpr)
    assert np.array_equal(one.tpr, two.tpr)


def test_extremes():
    apart = roc([3.0, 4.0], [1.0, 2.0])
    assert (apart.auc.value, apart.advantage.value) == (1.0, 1.0)
    assert roc([1.0, 2.0], [3.0, 4.0]).auc.value == 0.0
    equal = roc([5.0] * 7, [5.0] * 3)
    assert (equal.auc.value, equal.advantage.value, equal.rates[0].tpr.value) == (0.5, 0.0, 0.0)
    assert (needed_nonmembers(0.01), needed_nonmembers(0.001)) == (368, 3688)
    [at] = roc([1.0], np.zeros(3688), fpr=[1e-9]).rates
    assert at.fpr_upper <= 0.001


def test_gaussian_losses_have_the_auc_of_theory():
    random = rng(3)
    for mu in (0.3, 1.0, 2.0):
        found = roc(random.normal(mu, 1, 20_000), random.normal(0, 1, 20_000))
        truth = float(ndtr(mu / 2**0.5))
        assert truth in found.auc
        assert found.auc.value == pytest.approx(truth, abs=4 * null_deviation(20_000, 20_000))
        assert float(2 * ndtr(mu / 2) - 1) in found.advantage
        for at in found.rates:
            assert float(ndtr(mu + ndtri(at.asked))) == pytest.approx(at.tpr.value, abs=0.02)


def test_scores_without_information_stay_near_one_half():
    random, n, trials = rng(4), 200, 1000
    found = np.array([auc(random.normal(size=n), random.normal(size=n)) for _ in range(trials)])
    deviation = null_deviation(n, n)
    assert deviation == pytest.approx(((2 * n + 1) / (12 * n**2)) ** 0.5)
    assert abs(found.mean() - 0.5) < 6 * deviation / trials**0.5
    assert abs(found.std() / deviation - 1) < 6 / (2 * trials) ** 0.5
    assert np.mean(np.abs(found - 0.5) > 3 * deviation) < 0.014


def truths(mu: float, *, rounded: bool) -> tuple[float, float]:
    """AUC and advantage of normal scores around mu and 0, also if they are rounded."""
    if not rounded:
        return float(ndtr(mu / 2**0.5)), float(2 * ndtr(mu / 2) - 1)
    edges = np.arange(-9, 13) + 0.5
    p, q = np.diff(ndtr(edges - mu)), np.diff(ndtr(edges))
    below = np.cumsum(q) - q
    return float((p * (below + q / 2)).sum()), float(np.abs(p - q).sum() / 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mu", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("sizes", [(40, 25), (8, 300)])
@pytest.mark.parametrize("rounded", [False, True])
def test_intervals_hold_as_often_as_they_claim(mu, sizes, rounded):
    random, trials, sure = rng(11), 300, 0.8
    held = {"auc": 0, "advantage": 0, "fpr": 0}
    area, most = truths(mu, rounded=rounded)
    for _ in range(trials):
        inside, outside = random.normal(mu, 1, sizes[0]), random.normal(0, 1, sizes[1])
        if rounded:
            inside, outside = inside.round(), outside.round()
        found = roc(inside, outside, confidence=sure, fpr=[0.1])
        held["auc"] += area in found.auc
        held["advantage"] += most in found.advantage
        # The threshold that was taken, and how often nonmembers are above it in truth.
        threshold = np.sort(outside)[sizes[1] - 1 - int(0.1 * sizes[1])]
        above = float(ndtr(-(threshold + 0.5 if rounded else threshold)))
        held["fpr"] += above <= found.rates[0].fpr_upper
    least = sure * trials - 5 * (trials * sure * (1 - sure)) ** 0.5
    assert all(count >= least for count in held.values()), held


def test_the_interval_of_an_advantage_is_rounded_outward():
    # Equal scores: what is observed is 0, and the upper end is the reach alone.
    for inside, outside in itertools.product(range(900, 960, 3), range(900, 960, 15)):
        found = roc(np.zeros(inside), np.zeros(outside)).advantage
        with mpmath.workdps(40):
            tail = 4 / (1 - mpmath.mpf(0.95))
            reach = sum(mpmath.sqrt(mpmath.log(tail) / (2 * n)) for n in (inside, outside))
            assert found.upper >= reach


def test_all_members_of_a_model_are_a_sample_without_replacement():
    """The interval is about the members there are: it holds for a part of them drawn at random."""
    random, trials, held = rng(5), 400, 0
    members = random.normal(0.8, 2, 60)
    truth = float(ndtr(members).mean())
    for _ in range(trials):
        value = auc(random.choice(members, 45, replace=False), random.normal(size=45))
        held += truth in mean_in_unit_interval(value, 45, confidence=0.8)
    assert held >= 0.8 * trials - 5 * (trials * 0.16) ** 0.5


@pytest.mark.slow
def test_a_million_scores_take_a_moment():
    found = roc(rng(6).normal(size=10**6), rng(7).normal(size=10**6))
    assert found.auc.value == pytest.approx(0.5, abs=6 * null_deviation(10**6, 10**6))


# Scores of clients, and likelihood ratios.


def people(random, sizes, mean=0.0):
    return [random.normal(mean, 1, size) for size in sizes]


def test_clients_are_compared_by_as_many_examples():
    assert by_example([np.array([1.0, 2.0]), np.empty(0), np.array([3.0])]).tolist() == [1, 2, 3]
    members = [np.full(9, 1.0), np.full(5, 2.0), np.empty(0)]
    inside, outside, size = by_client(members, [np.full(7, 3.0)] * 2)
    assert (inside.tolist(), outside.tolist(), size) == ([1.0, 2.0], [3.0, 3.0], 5)


def test_sizes_alone_tell_nothing():
    """Members with many examples, others with few: means of all of them would spread less."""
    random, found, plain = rng(0), [], []
    for _ in range(40):
        members, others = people(random, [90] * 60), people(random, [4] * 60)
        inside, outside, size = by_client(members, others)
        assert size == 4
        found.append(roc(inside, outside, fpr=[0.05]).rates[0].tpr.value)
        means = [[x.mean() for x in side] for side in (members, others)]
        plain.append(roc(*means, fpr=[0.05]).rates[0].tpr.value)
    assert np.mean(found) > 0.03
    assert np.mean(plain) < 0.01


def test_a_clients_mean_is_stronger_than_its_examples():
    random = rng(1)
    members, others = people(random, [25] * 400, mean=0.2), people(random, [25] * 400)
    inside, outside, _ = by_client(members, others)
    assert auc(inside, outside) == pytest.approx(float(ndtr(1 / 2**0.5)), abs=0.05)
    each = auc(by_example(members), by_example(others))
    assert each == pytest.approx(float(ndtr(0.2 / 2**0.5)), abs=0.02)


def test_the_likelihood_ratio_is_that_of_a_gaussian_with_known_moments():
    random = rng(2)
    means = random.normal(0, 5, 40)
    shadows = means + random.normal(0, 1, (20_000, 40))
    scores = likelihood_ratio(means + 1.5, shadows)
    assert scores == pytest.approx(np.full(40, -np.log(ndtr(-1.5))), rel=0.05)
    assert (likelihood_ratio(means + 2.5, shadows) > scores).all()
    assert np.isfinite(likelihood_ratio([1.0, 2.0], np.ones((3, 2)))).all()


@pytest.mark.parametrize("shadows", [2, 8])
def test_nobody_stands_out_of_a_model_that_saw_nobody(shadows):
    """Hard and easy examples on both sides, few shadow models: still one half."""
    random, found = rng(3), []
    for _ in range(40):
        means = random.normal(0, 5, 400)
        out = means + random.normal(0, 2, (shadows, 400))
        scores = likelihood_ratio(means + random.normal(0, 2, 400), out)
        found.append(auc(scores[:200], scores[200:]))
    assert abs(np.mean(found) - 0.5) < 5 * null_deviation(200, 200) / 40**0.5


def test_difficulty_is_taken_out():
    """Examples that differ more than membership does: the loss is blind, the ratio is not."""
    random = rng(4)
    means = random.normal(0, 10, 2000)
    out = means + random.normal(0, 1, (16, 2000))
    own = means + random.normal(0, 1, 2000)
    own[:1000] += 2.0
    assert auc(own[:1000], own[1000:]) < 0.62
    scores = likelihood_ratio(own, out)
    assert auc(scores[:1000], scores[1000:]) > 0.85


@pytest.mark.parametrize(
    "call",
    [
        lambda: roc([], [1.0]),
        lambda: roc([1.0], []),
        lambda: roc([np.nan], [1.0]),
        lambda: roc([[1.0]], [1.0]),
        lambda: roc(["a"], [1.0]),
        lambda: roc([1.0], [1.0], confidence=1),
        lambda: roc([1.0], [1.0], fpr=[0.0]),
        lambda: roc([1.0], [1.0], fpr=[1.0]),
        lambda: roc([1.0], [1.0], fpr=0.5),
        lambda: by_example([np.empty(0)]),
        lambda: likelihood_ratio([1.0], np.array([[1.0]])),
        lambda: likelihood_ratio([1.0, 2.0], np.array([[1.0], [2.0]])),
        lambda: likelihood_ratio([np.nan], np.array([[1.0], [2.0]])),
        lambda: likelihood_ratio([np.inf], np.array([[1.0], [2.0]])),
    ],
)
def test_nonsense_is_refused(call):
    with pytest.raises(InvalidParameter):
        call()
