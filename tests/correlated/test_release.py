"""Runs with correlated noise as releases of a schedule."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

import dpacct
from dpacct import Full, Poisson, Round, Schedule, risk
from dpacct.correlated import Correlated, Strategy, banded, independent, square_root, toeplitz
from dpacct.pairs.dominating import Direction

ROOT = square_root(2000, 100)


def unit(strategy: Strategy) -> Strategy:
    """The strategy with columns of norm 1."""
    matrix = strategy.matrix()
    return banded(matrix / np.linalg.norm(matrix, axis=0))


@pytest.mark.parametrize(
    ("strategy", "sensitivity", "noise", "error"),
    [
        (independent(2000), 4.472136, 2.684307, 84.91),
        (ROOT, 7.115268, 4.270792, 13.32),
        (square_root(2000), 17.190575, 10.318286, 18.36),
    ],
)
def test_calibration_of_the_table(strategy, sensitivity, noise, error):
    """Separation 100, 20 participations, epsilon 8 at delta 1e-5."""
    most = strategy.sensitivity(100, 20)
    assert most.upper == pytest.approx(sensitivity, abs=1e-6)
    assert most.width < 1e-11
    plan = 1 * Correlated(1.0, strategy, min_separation=100, participations=20)
    found = dpacct.calibrate(schedule=plan, epsilon=8, delta=1e-5)
    release = found.schedule.phases[0].round
    assert isinstance(release, Correlated)
    assert release.noise_multiplier == pytest.approx(noise, abs=2e-6)
    assert release.prefix_error() == pytest.approx(error, abs=0.005)
    assert found.epsilon.upper <= 8.0
    assert found.epsilon.width < 1e-9 * found.epsilon.upper


@pytest.mark.parametrize(
    ("groups", "epsilon", "noise", "error"),
    [
        (1, 8, 0.560330, 17.72),
        (8, 8, 0.795430, 10.55),
        (64, 8, 1.467100, 8.494),
        (1, 1, None, 38.07),
        (2, 1, None, 36.86),
        (64, 1, None, 45.75),
    ],
)
def test_calibration_of_the_amplified_table(groups, epsilon, noise, error):
    """100,000 clients, batches of 500, 2,000 rounds, delta 1e-6, columns of norm 1."""
    # The error of the table is that of the Toeplitz matrix, whose last columns are shorter.
    strategy = square_root(2000, groups)
    strategy = toeplitz(strategy.diagonals / np.linalg.norm(strategy.diagonals), 2000)
    sampling = Poisson(500 * groups / 1e5)
    plan = 1 * Correlated(1.0, unit(strategy), min_separation=groups, sampling=sampling)
    found = dpacct.calibrate(schedule=plan, epsilon=epsilon, delta=1e-6)
    release = found.schedule.phases[0].round
    assert isinstance(release, Correlated)
    if noise is not None:
        assert release.noise_multiplier == pytest.approx(noise, abs=2e-6)
    assert strategy.prefix_error(release.noise_multiplier) == pytest.approx(error, abs=0.005)
    # Short columns are not charged as long ones.
    shorter = Correlated(
        release.noise_multiplier, strategy, min_separation=groups, sampling=sampling
    )
    assert dpacct.epsilon(shorter, delta=1e-6).upper <= found.epsilon.upper * (1 + 1e-9)


def test_without_sampling_it_is_one_gaussian():
    release = Correlated(4.0, ROOT, min_separation=100, participations=20)
    mu = ROOT.sensitivity(100, 20).upper / 4.0
    for epsilon in (0.0, 1.0, 6.0):
        # delta of a Gaussian by its two tails, from scipy.
        a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        truth = norm.sf(a) - np.exp(epsilon) * norm.sf(b)
        found = dpacct.delta(release, epsilon=epsilon)
        assert found.lower <= truth * (1 + 1e-9)
        assert truth <= found.upper * (1 + 1e-9)
        assert found.width < 1e-8 * truth
    assert dpacct.rdp(release, orders=[2.0])[0].upper == pytest.approx(mu**2, rel=1e-12)
    tight = dpacct.epsilon(release, delta=1e-5)
    assert dpacct.epsilon(release, delta=1e-5, accountant="gdp").upper == pytest.approx(tight.upper)
    assert dpacct.epsilon(release, delta=1e-5, accountant="rdp").upper >= tight.upper


def test_independent_noise_is_full_participation():
    release = Correlated(3.0, independent(2000), min_separation=100, participations=20)
    rounds = 20 * Round(3.0, Full())
    ours, plain = (dpacct.epsilon(plan, delta=1e-5) for plan in (release, rounds))
    assert ours.lower <= plain.upper
    assert plain.lower <= ours.upper
    assert ours.upper == pytest.approx(plain.upper, rel=1e-12)


def test_with_sampling_it_is_rounds_of_one_group():
    strategy = unit(square_root(100, 7))
    release = Correlated(0.9, strategy, min_separation=8, sampling=Poisson(0.05))
    rounds = 13 * Round(0.9, Poisson(0.05))
    ours, plain = (dpacct.epsilon(plan, delta=1e-6) for plan in (release, rounds))
    assert ours.upper == pytest.approx(plain.upper, rel=1e-9)
    assert ours.lower == pytest.approx(plain.lower, rel=1e-9)
    # Norms that are rounded away from one keep both ends on their sides.
    assert ours.lower < plain.upper < ours.upper * (1 + 1e-12)


def test_columns_of_different_norm_are_charged_each():
    """The last column of a Toeplitz matrix is shorter, and its round is cheaper."""
    strategy = toeplitz([1.0, 0.5, 0.5], 7)
    release = Correlated(1.0, strategy, min_separation=3, sampling=Poisson(0.1))
    pairs = release.proven_pairs(Direction.REMOVE)
    (long, twice), (short, once) = sorted((pair.noise_std, n) for pair, n in pairs.items())
    assert (long, short) == pytest.approx((1 / 1.5**0.5, 1.0), rel=1e-11)
    assert (twice, once) == (2, 1)
    # Norms are rounded up, so that the noise is never more than it is.
    assert short < 1.0


def test_the_worst_group_is_achieved_and_the_worst_turns_are_proven():
    matrix = np.diag([1.0, 2.0, 3.0, 1.0])
    release = Correlated(1.0, banded(matrix), min_separation=2, sampling=Poisson(0.1))
    proven = release.proven_pairs(Direction.ADD)
    achieved = release.achieved_pairs(Direction.ADD)
    # Turns: max(1, 2), max(3, 1). Groups: (1, 3) and (2, 1).
    assert sorted(1 / p.noise_std for p in proven) == pytest.approx([2.0, 3.0], rel=1e-11)
    assert sorted(1 / p.noise_std for p in achieved) == pytest.approx([1.0, 3.0], rel=1e-11)
    found = dpacct.epsilon(release, delta=1e-5)
    assert found.lower < found.upper


def test_sampled_rounds_against_the_law_of_the_whole_output():
    """Two groups, three turns: the law of C x + noise in all six rounds, by Monte Carlo."""
    strategy, q, z, epsilon = toeplitz([1.0, 0.6], 6), 0.4, 1.1, 0.7
    columns = strategy.matrix()[:, ::2]
    rng = np.random.default_rng(5)
    taken = rng.random((400_000, 3)) < q
    outputs = taken @ columns.T + z * rng.normal(size=(len(taken), 6))
    # The density with the client is a mixture over all eight sets of participations.
    subsets = np.array(np.meshgrid(*[[0, 1]] * 3)).reshape(3, 8).T
    centers = subsets @ columns.T
    weights = (q**subsets * (1 - q) ** (1 - subsets)).prod(axis=1)
    exponents = (outputs @ centers.T - (centers**2).sum(axis=1) / 2) / z**2
    losses = np.log(np.exp(exponents) @ weights)
    samples = np.maximum(0.0, 1 - np.exp(epsilon - losses))
    error = samples.std() / len(samples) ** 0.5
    release = Correlated(z, strategy, min_separation=2, sampling=Poisson(q))
    found = dpacct.delta(release, epsilon=epsilon)
    assert abs(found.upper - samples.mean()) < 5 * error
    assert found.width < error


@pytest.mark.parametrize("sampling", [None, Poisson(0.2)])
def test_replacing_doubles_the_sensitivity(sampling):
    strategy = square_root(60, 5)
    single = Correlated(2.0, strategy, min_separation=6, sampling=sampling)
    double = Correlated(4.0, strategy, min_separation=6, sampling=sampling, adjacency="replace-one")
    assert double.sensitivity.upper == 2 * single.sensitivity.upper
    ours, half = (dpacct.epsilon(plan, delta=1e-5) for plan in (double, single))
    if sampling is None:
        assert ours.upper == pytest.approx(half.upper, rel=1e-12)
    else:
        rounds = 10 * Round(
            4.0 / float(np.linalg.norm(strategy.diagonals)), sampling, "replace-one"
        )
        assert ours.upper == pytest.approx(dpacct.epsilon(rounds, delta=1e-5).upper, rel=1e-6)


def test_signs_leave_a_bracket():
    """A pattern with signs that contradict each other: no x reaches the sum of |M_ij|."""
    strategy = toeplitz([1.0, 0.8, -0.8, 0.7, 0.6], 12)
    release = Correlated(2.0, strategy, min_separation=1, participations=4)
    assert release.sensitivity.lower < 0.999 * release.sensitivity.upper
    found = dpacct.epsilon(release, delta=1e-5)
    assert found.lower < found.upper


def test_it_adds_up_with_rounds():
    release = Correlated(4.0, ROOT, min_separation=100, participations=20)
    plan = release + 10 * Round(5.0)
    assert isinstance(plan, Schedule)
    mu = (float(release.sensitivity) ** 2 / 16 + 10 / 25) ** 0.5
    assert dpacct.rdp(plan, orders=[3.0])[0].upper == pytest.approx(1.5 * mu**2, rel=1e-9)
    louder = plan.scale_noise(2.0).phases[0].round
    assert louder == Correlated(8.0, ROOT, min_separation=100, participations=20)
    assert "min_separation=100" in repr(louder)


def test_risks_of_a_run():
    release = Correlated(4.0, ROOT, min_separation=100, participations=20)
    advantage = risk.advantage(release)
    mu = float(release.sensitivity) / 4.0
    assert advantage.upper == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-6)
