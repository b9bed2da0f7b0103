"""Scores of clients, and likelihood ratios: no information in, none out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from dpacct.empirical.roc import auc, by_client, by_example, likelihood_ratio, null_deviation, roc
from dpacct.errors import InvalidParameter


def people(generator, sizes, mean=0.0):
    return [generator.normal(mean, 1, size) for size in sizes]


def test_examples_stand_in_one_row():
    found = by_example([np.array([1.0, 2.0]), np.empty(0), np.array([3.0])])
    assert found.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(InvalidParameter):
        by_example([np.empty(0)])


def test_clients_are_compared_by_as_many_examples():
    members = [np.full(9, 1.0), np.full(5, 2.0), np.empty(0)]
    inside, outside, size = by_client(members, [np.full(7, 3.0)] * 2)
    assert (inside.tolist(), outside.tolist(), size) == ([1.0, 2.0], [3.0, 3.0], 5)


def test_sizes_alone_tell_nothing():
    """Members with many examples, others with few: means of all of them would spread less."""
    generator = np.random.default_rng(0)
    found = []
    for _ in range(60):
        members, others = people(generator, [90] * 60), people(generator, [4] * 60)
        inside, outside, size = by_client(members, others)
        assert size == 4
        found.append(roc(inside, outside, fpr=[0.05]).rates[0].tpr.value)
    assert np.mean(found) > 0.03
    plain = [
        roc([x.mean() for x in people(generator, [90] * 60)],
            [x.mean() for x in people(generator, [4] * 60)], fpr=[0.05]).rates[0].tpr.value
        for _ in range(60)
    ]  # fmt: skip
    assert np.mean(plain) < 0.01


def test_a_clients_mean_is_stronger_than_its_examples():
    generator = np.random.default_rng(1)
    members, others = people(generator, [25] * 400, mean=0.2), people(generator, [25] * 400)
    inside, outside, _ = by_client(members, others)
    assert auc(inside, outside) == pytest.approx(float(ndtr(1 / 2**0.5)), abs=0.05)
    assert auc(by_example(members), by_example(others)) == pytest.approx(
        float(ndtr(0.2 / 2**0.5)), abs=0.02
    )


def test_the_likelihood_ratio_is_that_of_a_gaussian_with_known_moments():
    generator = np.random.default_rng(2)
    means = generator.normal(0, 5, 40)
    shadows = means + generator.normal(0, 1, (20_000, 40))
    own = means + 1.5
    scores = likelihood_ratio(own, shadows)
    assert scores == pytest.approx(np.full(40, -np.log(ndtr(-1.5))), rel=0.05)
    assert (likelihood_ratio(own + 1, shadows) > scores).all()


@pytest.mark.parametrize("shadows", [2, 8])
def test_nobody_stands_out_of_a_model_that_saw_nobody(shadows):
    """Hard and easy examples on both sides, few shadow models: still one half."""
    generator = np.random.default_rng(3)
    found = []
    for _ in range(40):
        means = generator.normal(0, 5, 400)
        out = means + generator.normal(0, 2, (shadows, 400))
        scores = likelihood_ratio(means + generator.normal(0, 2, 400), out)
        found.append(auc(scores[:200], scores[200:]))
    assert abs(np.mean(found) - 0.5) < 5 * null_deviation(200, 200) / 40**0.5


def test_difficulty_is_taken_out():
    """Examples that differ more than membership does: the loss is blind, the ratio is not."""
    generator = np.random.default_rng(4)
    means = generator.normal(0, 10, 2000)
    out = means + generator.normal(0, 1, (16, 2000))
    own = means + generator.normal(0, 1, 2000)
    own[:1000] += 2.0
    assert auc(own[:1000], own[1000:]) < 0.62
    scores = likelihood_ratio(own, out)
    assert auc(scores[:1000], scores[1000:]) > 0.85


def test_scores_of_shadows_that_all_agree_are_finite():
    assert np.isfinite(likelihood_ratio([1.0, 2.0], np.ones((3, 2)))).all()


@pytest.mark.parametrize(
    ("own", "out"),
    [
        ([1.0], [[1.0]]),
        ([1.0, 2.0], [[1.0], [2.0]]),
        ([np.nan], [[1.0], [2.0]]),
        ([np.inf], [[1.0], [2.0]]),
    ],
)
def test_margins_that_make_no_sense_are_refused(own, out):
    with pytest.raises(InvalidParameter):
        likelihood_ratio(own, np.array(out))
