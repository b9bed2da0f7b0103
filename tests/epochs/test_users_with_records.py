"""Users with many rows, truncated cohorts and shuffled batches: figures, integrals, bounds."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

import dpacct
from dpacct import InvalidParameter, Poisson, Round, ShuffledEpoch, Unsupported
from dpacct.items import read_alone, release_entry
from dpacct.ledger.record.events import covers
from dpacct.pairs.dominating import Direction, achieved_pairs
from dpacct.pairs.records import ChoicePair, RecordsPair
from dpacct.schedules import dump_schedule, load_schedule
from dpacct.tight.composition import Composition
from dpacct.tight.engines import composed_epsilon
from dpacct.tight.many_records import FiniteRecords


def _log_densities(x: np.ndarray, q: float, z: float, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithms of the densities of P and Q of the remove pair, term by term.

    Of the densities themselves those below 1e-300 are lost, which a tilt may make the largest.
    """
    j = np.arange(k + 1)
    terms = binom.logpmf(j, k, q)[:, None] + norm.logpdf(x[None, :], j[:, None], z)
    return np.logaddexp.reduce(terms, axis=0), norm.logpdf(x, 0.0, z)


@pytest.mark.parametrize(
    ("records", "remove", "add"),
    [(2, 3.979086, 3.030638), (4, 8.899188, 6.607213), (8, 20.895299, 14.862606)],
)
def test_published_figures(records, remove, add):
    for direction, figure in ((Direction.REMOVE, remove), (Direction.ADD, add)):
        pair = RecordsPair(0.01, 1.0, records, direction)
        found = composed_epsilon(Composition.of({pair: 1000}, direction), 1e-5)
        assert found.lower - 6e-7 <= figure <= found.upper + 6e-7
        assert found.width < 1e-6 * found.upper
    alone = dpacct.epsilon(1000 * Round(1.0, Poisson(0.01)), delta=1e-5)
    whole = dpacct.epsilon(1000 * Round(1.0, Poisson(0.01, records=records)), delta=1e-5)
    # Who multiplies the epsilon of one record promises too much.
    assert whole.lower > records * alone.upper


def test_one_record_is_a_client_and_a_thousand_take_no_time():
    pair = RecordsPair(0.02, 1.3, 1, Direction.REMOVE)
    found = composed_epsilon(Composition.of({pair: 300}, Direction.REMOVE), 1e-6)
    plain = dpacct.epsilon(300 * Round(1.3, Poisson(0.02)), delta=1e-6)
    assert found.upper == pytest.approx(plain.upper, rel=1e-6)
    assert found.lower <= plain.upper
    assert plain.lower <= found.upper
    many = dpacct.epsilon(1000 * Round(10.0, Poisson(1e-3, records=1000)), delta=1e-5)
    assert many.width < 1e-6 * many.upper
    full = dpacct.epsilon(10 * Round(6.0, Poisson(1.0, records=3)), delta=1e-5)
    assert full.upper == pytest.approx(dpacct.epsilon(10 * Round(2.0), delta=1e-5).upper)


def test_many_records_compose_by_finite_pairs_where_contours_decay_too_slowly():
    """9.756280 by an independent program: a grid of losses, rounded both ways."""
    rare = dpacct.epsilon(5000 * Round(4.0, Poisson(1e-4, records=1000)), delta=1e-6)
    assert rare.lower <= 9.756280 <= rare.upper <= rare.lower * 1.0002
    plan = 5000 * Round(4.0, Poisson(1e-4, records=1000))
    assert dpacct.delta(plan, epsilon=rare.upper).upper <= 1e-6 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("rate", "noise", "records"), [(1e-4, 4.0, 1000), (0.02, 1.0, 3), (0.5, 9.0, 40)]
)
@pytest.mark.parametrize("direction", Direction)
def test_finite_pairs_lie_on_either_side(rate, noise, records, direction):
    round_ = Round(noise, Poisson(rate, records=records))
    above, below = (
        next(iter(FiniteRecords(proven)(round_, direction))).hull for proven in (True, False)
    )
    one = RecordsPair(rate, noise, records, direction)
    for epsilon in (0.0, 1e-6, 1e-3, 0.017, 0.3, 1.9, 7.0):
        exact = one.delta(epsilon)
        assert exact.lower <= above.delta(epsilon).upper <= exact.upper * 1.002 + 1e-9
        assert exact.lower * 0.998 - 1e-9 <= below.delta(epsilon).lower <= exact.upper


def _delta_next_to_the_largest_loss(q: float, z: float, k: int, epsilon: float) -> mpmath.mpf:
    """Return delta of the add pair, from its definition, in fifty digits.

    The root is that of the sum without its first term, so that nothing cancels.
    """
    with mpmath.workdps(50):
        q, z, epsilon = mpmath.mpf(q), mpmath.mpf(z), mpmath.mpf(epsilon)
        weights = [mpmath.binomial(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]
        rest = mpmath.expm1(-k * mpmath.log1p(-q) - epsilon)
        if rest <= 0:
            return mpmath.mpf(0)
        low, high = mpmath.mpf(-400), mpmath.mpf(400)
        for _ in range(180):
            x = (low + high) / 2
            powers = (mpmath.exp((2 * j * x - j * j) / (2 * z * z)) for j in range(1, k + 1))
            terms = (w / weights[0] * power for w, power in zip(weights[1:], powers, strict=True))
            low, high = (x, high) if mpmath.fsum(terms) < rest else (low, x)
        mixture = mpmath.fsum(w * mpmath.ncdf((low - j) / z) for j, w in enumerate(weights))
        return mpmath.ncdf(low / z) - mpmath.exp(epsilon) * mixture


@pytest.mark.parametrize(("records", "noise"), [(2, 0.05), (3, 0.2), (30, 0.05)])
def test_losses_next_to_the_largest_one_are_not_lost(records, noise):
    """There the ratio is flat: a root that is off in its last digit leaves out most of the mass."""
    for rate in np.random.default_rng(records).uniform(0.05, 0.95, 8).tolist():
        epsilon = float(-records * mpmath.log1p(-rate))
        pair = RecordsPair(rate, noise, records, Direction.ADD)
        for _ in range(2):
            delta = _delta_next_to_the_largest_loss(rate, noise, records, epsilon)
            bounds = pair.delta(epsilon)
            assert bounds.lower <= delta <= bounds.upper
            epsilon = math.nextafter(epsilon, 0.0)


def test_finite_pairs_end_at_the_largest_loss():
    side = RecordsPair(0.3, 0.05, 3, Direction.ADD).side()
    assert side.epsilons[-1] >= -3 * mpmath.log1p(-0.3)
    assert side.upper[-1] == 0.0


@settings(max_examples=12)
@example(q=0.5, z=0.5, k=6, gain=1.0, tilt=2.0)
@given(
    q=st.floats(1e-3, 0.9),
    z=st.floats(0.5, 5.0),
    k=st.integers(1, 12),
    gain=st.floats(0.05, 3.0),
    tilt=st.floats(0.05, 4.0),
)
def test_delta_moments_and_waves_agree_with_integrals(q, z, k, gain, tilt):
    x = np.linspace(-12 * z - (1 + tilt) * k, (2 + tilt) * k + 12 * z, 60_001)
    width = x[1] - x[0]
    p, plain = _log_densities(x, q, z, k)
    for direction in Direction:
        first, second = (p, plain) if direction is Direction.REMOVE else (plain, p)
        pair = RecordsPair(q, z, k, direction)
        truth = float(np.maximum(np.exp(first) - np.exp(gain + second), 0.0).sum()) * width
        found = pair.delta(gain)
        assert found.lower <= truth * (1 + 1e-5) + 1e-12
        assert found.upper >= truth * (1 - 1e-5) - 1e-12
        loss = first - second
        exponent = first + tilt * loss
        top = float(exponent.max())
        weights = np.exp(exponent - top)
        log_moment = top + math.log(float(weights.sum()) * width)
        bounds = pair.log_moment(np.array([tilt]))
        assert bounds.lower[0] - 1e-8 <= log_moment <= bounds.upper[0] + 1e-8
        assert bounds.upper[0] - bounds.lower[0] < 1e-9 * (1 + abs(log_moment))
        weights /= weights.sum()
        frequencies = np.linspace(0.0, 12.0 / math.sqrt(pair.cumulants(tilt)[2]), 7)
        wave = np.array([weights @ np.exp(1j * t * loss) for t in frequencies])
        shift, error = pair.characteristic(tilt, frequencies)
        assert np.all(np.abs(1 + shift - wave) <= error + 1e-8)
        assert error.max() < 1e-8
        assert np.all(np.abs(wave) <= pair.decay(tilt, frequencies) + 1e-8)


def test_a_published_choice_is_the_mean_of_its_pairs():
    parts = tuple(RecordsPair(0.1, z, 1, Direction.REMOVE) for z in (1.0, 0.5))
    choice = ChoicePair(parts, (0.75, 0.25))
    for epsilon in (0.0, 0.5, 3.0):
        truth = 0.75 * parts[0].delta(epsilon).upper + 0.25 * parts[1].delta(epsilon).upper
        assert truth == pytest.approx(choice.delta(epsilon).upper)
    tilts = np.array([0.3, 2.0])
    moments = [np.exp(part.log_moment(tilts).upper) for part in parts]
    truth = np.log(0.75 * moments[0] + 0.25 * moments[1])
    assert np.allclose(choice.log_moment(tilts).upper, truth)
    frequencies = np.linspace(0.0, 3.0, 9)
    waves = [1 + part.characteristic(0.3, frequencies)[0] for part in parts]
    first = [moments[0][0], moments[1][0]]
    whole = (0.75 * first[0] * waves[0] + 0.25 * first[1] * waves[1]) / math.exp(truth[0])
    assert np.allclose(1 + choice.characteristic(0.3, frequencies)[0], whole)
    assert np.all(np.abs(whole) <= choice.decay(0.3, frequencies) + 1e-12)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("cohort", "peer"), [(550, 4.83575), (600, 1.83802), (650, 1.82824)])
def test_truncated_cohorts_cost_no_more_than_the_peer_says(cohort, peer):
    sampling = Poisson(0.01, max_cohort=cohort, num_clients=50_000)
    found = dpacct.epsilon(1000 * Round(1.0, sampling), delta=1e-5)
    # Peers round up.
    assert found.upper <= peer * (1 + 3e-4)
    assert found.upper >= dpacct.epsilon(1000 * Round(1.0, Poisson(0.01)), delta=1e-5).lower
    assert 1.82 < found.lower < 1.83


@pytest.mark.parametrize(
    ("rounds", "noise", "rate", "cohort", "clients"),
    [
        (30, 6.0, 0.9, 34, 190),
        # This ended in a math domain error.
        pytest.param(300, 3.0, 0.036, 341, 18950, marks=pytest.mark.slow),
    ],
)
def test_a_cohort_that_is_always_full_costs_what_half_the_noise_does(
    rounds, noise, rate, cohort, clients
):
    """The client always displaces another one."""
    cut = Round(noise, Poisson(rate, max_cohort=cohort, num_clients=clients))
    found = dpacct.epsilon(rounds * cut, delta=1e-5)
    half = dpacct.epsilon(rounds * Round(noise / 2, Poisson(rate)), delta=1e-5)
    usual = dpacct.epsilon(rounds * Round(noise, Poisson(rate)), delta=1e-5)
    # Sizes at which it is always full keep the client less often.
    assert 0.85 * half.lower <= found.upper <= half.upper
    # A smaller data set whose cohorts are nearly always full costs more than one without any.
    assert 1.5 * usual.upper <= found.lower <= found.upper


@pytest.mark.parametrize(
    ("arguments", "adjacency", "words"),
    [
        ({"records": 2}, "replace-one", "add-remove"),
        ({"max_cohort": 5, "num_clients": 50}, "zero-out", "add-remove"),
        ({"max_cohort": 5, "num_clients": 50}, "replace-one", "add-remove"),
        ({"records": 0}, None, "."),
        ({"records": 1.5}, None, "."),
        ({"records": True}, None, "."),
        ({"max_cohort": 5}, None, "."),
        ({"num_clients": 50}, None, "."),
        ({"max_cohort": 51, "num_clients": 50}, None, "."),
        ({"records": 2, "max_cohort": 5, "num_clients": 50}, None, "."),
    ],
)
def test_bad_schemes_and_relations_without_a_bound_are_refused(arguments, adjacency, words):
    with pytest.raises(InvalidParameter, match=words):
        Round(1.0, Poisson(0.1, **arguments), adjacency)


def test_special_poisson_rounds_survive_files_and_ledgers_and_are_not_taken_for_plain_ones(
    tmp_path,
):
    several = Round(1.0, Poisson(0.1, records=3))
    cut = Round(1.0, Poisson(0.1, max_cohort=20, num_clients=100))
    plan = 3 * several + 2 * cut + Round(1.0, Poisson(0.1))
    for suffix in ("toml", "csv", "json"):
        path = f"{tmp_path}/plan.{suffix}"
        dump_schedule(plan, path)
        assert load_schedule(path) == plan
    for round_ in (several, cut):
        assert read_alone(release_entry(round_, alone=True)) == round_
        assert not covers(Round(1.0, Poisson(0.1)), round_)
        assert covers(round_, round_)
        with pytest.raises(Unsupported):
            dpacct.epsilon(100 * round_, delta=1e-5, accountant="closed-form")


@pytest.mark.parametrize(
    ("noise", "steps", "epochs"), [(0.8, 1000, 20), (1.0, 235, 1), (2.0, 4, 3)]
)
def test_shuffled_batches_lie_between_an_event_and_one_participation(noise, steps, epochs):
    schedule = epochs * ShuffledEpoch(noise, steps)
    found = dpacct.epsilon(schedule, delta=1e-5)
    once = dpacct.epsilon(epochs * Round(noise, adjacency="zero-out"), delta=1e-5)
    assert found.upper == pytest.approx(once.upper)
    assert found.lower <= found.upper
    if epochs == 1:
        # The event of Chua et al.: some entry exceeds a threshold.
        level = np.linspace(0.0, 12.0, 4001)
        p = -np.expm1(norm.logcdf((level - 2) / noise) + (steps - 1) * norm.logcdf(level / noise))
        q = -np.expm1(norm.logcdf((level - 1) / noise) + (steps - 1) * norm.logcdf(level / noise))
        event = float(np.max(np.log((p - 1e-5)[p > 1e-5] / q[p > 1e-5])))
        assert found.lower >= event - 1e-3


def test_shuffled_batches_have_one_relation():
    with pytest.raises(InvalidParameter, match="zero-out"):
        ShuffledEpoch(1.0, 10, "add-remove")
    (pair,) = achieved_pairs(ShuffledEpoch(1.0, 50), Direction.REMOVE)
    law = pair.law  # pyright: ignore[reportAttributeAccessIssue]
    assert law.p.sum() == pytest.approx(1.0, abs=1e-9)
    assert law.q.sum() == pytest.approx(1.0, abs=1e-9)
