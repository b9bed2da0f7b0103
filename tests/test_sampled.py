"""Releases on one sample of the clients: against enumeration, other sampling, and stored values."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

import dpacct
from dpacct import (
    ApproximateDP,
    Budget,
    Laplace,
    Ledger,
    Poisson,
    RandomizedResponse,
    Round,
    Sampled,
    Schedule,
    ShuffledEpoch,
    Uniform,
    best_of,
)
from dpacct.errors import InvalidParameter
from dpacct.pairs.dominating import Direction, achieved_pairs, proven_pairs
from dpacct.pairs.one_round import one_round_delta

LAPLACE = Laplace(epsilon=0.5)


# Convex-order grids with Richardson extrapolation, by code that is not here.
@pytest.mark.parametrize(
    ("plan", "delta", "remove"),
    [
        (1 * Sampled(20 * LAPLACE, 0.1), 1e-5, 6.07168),
        (20 * Sampled(LAPLACE, 0.1), 1e-5, 0.774874),
        (1000 * Sampled(Laplace(epsilon=1.0), 0.01), 1e-5, 1.123768),
        (200 * Sampled(RandomizedResponse(1.0), 0.1), 1e-6, 7.823899026736),
    ],
)
def test_values_of_other_code(plan: Schedule, delta: float, remove: float) -> None:
    found = dpacct.epsilon(plan, delta=delta)
    assert found.lower == pytest.approx(remove, rel=2e-6)
    assert found.upper == pytest.approx(remove, rel=2e-6)
    assert found.lower <= found.upper


def test_dp_accounting_agrees_on_fresh_samples_and_refuses_one_sample() -> None:
    peer = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    noise = peer.LaplaceDpEvent(2.0)
    fresh = peer.SelfComposedDpEvent(peer.PoissonSampledDpEvent(0.1, noise), 20)
    theirs = pld.PLDAccountant().compose(fresh).get_epsilon(1e-5)
    ours = dpacct.epsilon(20 * Sampled(LAPLACE, 0.1), delta=1e-5)
    assert ours.lower <= theirs <= ours.upper * (1 + 1e-5)
    one = peer.PoissonSampledDpEvent(0.1, peer.SelfComposedDpEvent(noise, 20))
    with pytest.raises(peer.UnsupportedEventError):
        pld.PLDAccountant().compose(one)


@pytest.mark.parametrize("count", [1, 30])
def test_a_sampled_round_is_a_poisson_round(count: int) -> None:
    ours = dpacct.epsilon(count * Sampled(Round(1.0), 0.1), delta=1e-5)
    known = dpacct.epsilon(count * Round(1.0, Poisson(0.1)), delta=1e-5)
    assert ours.lower <= known.upper
    assert known.lower <= ours.upper
    assert ours.lower == pytest.approx(known.lower, rel=1e-4)
    assert ours.upper == pytest.approx(known.upper, rel=1e-4)


@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 3.0, 590.0, 610.0, 700.0])
def test_delta_of_a_sampled_round_is_that_of_a_poisson_round(epsilon: float) -> None:
    # Also beyond the exponentials that are doubles, and in both directions.
    for noise in (0.028, 1.0):
        (release, known) = Sampled(Round(noise), 0.5), Round(noise, Poisson(0.5))
        for direction in Direction:
            (pair,) = proven_pairs(release, direction)
            (other,) = proven_pairs(known, direction)
            ours, theirs = pair.delta(epsilon), one_round_delta(epsilon, other)  # type: ignore[union-attr, arg-type]
            assert ours.lower <= theirs.upper
            assert theirs.lower <= ours.upper
            assert ours.upper == pytest.approx(theirs.upper, rel=1e-6, abs=1e-12)


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def test_no_mechanism_of_few_clients_exceeds_the_formula() -> None:
    """Random mechanisms of samples of up to 3 clients, by enumeration of all samples."""
    rng = np.random.default_rng(5)
    closest = dict.fromkeys(Direction, 0.0)
    for _ in range(300):
        size, outcomes = int(rng.integers(1, 4)), int(rng.integers(2, 4))
        others = [tuple(c) for n in range(size) for c in itertools.combinations(range(1, size), n)]
        spread = rng.choice([0.3, 1.0, 4.0])
        law = {
            sample: rng.dirichlet(np.full(outcomes, spread))
            for some in others
            for sample in (some, (0, *some))
        }
        q, epsilon = float(rng.choice([0.05, 0.3, 0.8])), float(rng.choice([0.0, 0.02, 0.1, 0.4]))
        p_out = np.zeros(outcomes)
        q_out = np.zeros(outcomes)
        for some in others:
            weight = q ** len(some) * (1 - q) ** (size - 1 - len(some))
            p_out += weight * (q * law[0, *some] + (1 - q) * law[some])
            q_out += weight * law[some]
        k = math.exp(epsilon)
        inner = math.log((k - 1 + q) / q)
        remove = q * max(hockey_stick(law[0, *some], law[some], inner) for some in others)
        share = 1 - k * (1 - q)
        add = 0.0
        if share > 0:
            inner = math.log(q * k / share)
            add = share * max(hockey_stick(law[some], law[0, *some], inner) for some in others)
        for direction, bound, found in (
            (Direction.REMOVE, remove, hockey_stick(p_out, q_out, epsilon)),
            (Direction.ADD, add, hockey_stick(q_out, p_out, epsilon)),
        ):
            assert found <= bound + 1e-12
            if bound > 1e-9:
                closest[direction] = max(closest[direction], found / bound)
    # One client alone attains both.
    assert min(closest.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("inner", [RandomizedResponse(1.0), LAPLACE], ids=["response", "laplace"])
@pytest.mark.parametrize("direction", list(Direction))
def test_the_pair_has_the_profile_of_the_formula(inner: Any, direction: Direction) -> None:
    q, k_ends = 0.2, (1.0, 1.02, 1.1, 1.2)
    release = Sampled(inner, q)
    (own,) = proven_pairs(inner, direction)
    (pair,) = proven_pairs(release, direction)
    (below,) = achieved_pairs(release, direction)
    for k in k_ends:
        epsilon = math.log(k)
        if direction is Direction.REMOVE:
            exact = q * own.delta(math.log((k - 1 + q) / q)).upper  # type: ignore[union-attr]
        else:
            share = 1 - k * (1 - q)
            exact = share * own.delta(math.log(q * k / share)).upper  # type: ignore[union-attr]
        assert pair.delta(epsilon).upper == pytest.approx(exact, rel=1e-9)  # type: ignore[union-attr]
        # Of the atoms for compositions, one pair is above and one below.
        assert pair.hull.delta(epsilon).upper >= exact * (1 - 1e-12)  # type: ignore[union-attr]
        assert below.hull.delta(epsilon).lower <= exact * (1 + 1e-12)  # type: ignore[union-attr]
        assert below.hull.delta(epsilon).lower >= exact * (1 - 1e-3)  # type: ignore[union-attr]


def test_a_size_that_is_released_breaks_it() -> None:
    # Two clients, one sends 1 and the other -1: which one came tells of the first one.
    q, b = 0.1, 2.0
    x, step = np.linspace(-60.0, 60.0, 240_001, retstep=True)

    def noise(center: float) -> np.ndarray:
        return np.exp(-np.abs(x - center) / b) / (2 * b) * step

    p = [(1 - q) ** 2 * noise(0), q * (1 - q) * (noise(1) + noise(-1)), q * q * noise(0)]
    without = [(1 - q) * noise(0), q * noise(-1), 0 * x]
    broken = max(
        sum(hockey_stick(a, c, 0.1) for a, c in zip(*sides, strict=True))
        for sides in ((p, without), (without, p))
    )
    assert broken > 0.01
    assert dpacct.delta(1 * Sampled(LAPLACE, q), epsilon=0.1).upper == 0.0


def test_no_mass_of_a_sampled_promise_is_lost() -> None:
    # Where the release has no mass with the client, the sample has the loss log(1 - q).
    (pair,) = proven_pairs(Sampled(ApproximateDP(0.1, 0.01), 0.2), Direction.REMOVE)
    hull = pair.hull  # type: ignore[union-attr]
    assert hull.infinite_mass == pytest.approx(0.2 * 0.01)
    assert hull.masses.sum() + hull.infinite_mass == pytest.approx(1.0, abs=1e-9)
    assert hull.losses.min() == pytest.approx(math.log(0.8))


@pytest.mark.parametrize("rate", [1e-100, 1e-9, 0.5, 0.999, 1 - 1e-12, 1 - 1e-15])
@pytest.mark.parametrize("direction", list(Direction))
def test_losses_have_their_error_at_any_rate(rate: float, direction: Direction) -> None:
    # 1 - q + q L has no digits left if q is next to 1 and L next to 0.
    inner = RandomizedResponse(5.0) + 3 * RandomizedResponse(40.0)
    (pair,) = proven_pairs(Sampled(inner, rate), direction)
    hull = pair.hull  # type: ignore[union-attr]
    sign = 1 if direction is Direction.REMOVE else -1
    with mpmath.workdps(60):
        ratios = [mpmath.exp(sign * (a + b)) for a in (5, -5) for b in (120, 40, -40, -120)]
        exact = [sign * float(mpmath.log(1 - mpmath.mpf(rate) + rate * r**sign)) for r in ratios]
    for loss in hull.losses:
        assert min(abs(loss - other) for other in exact) <= hull.errors[0]


def test_pure_releases_on_a_sample_are_pure() -> None:
    release = Sampled(3 * RandomizedResponse(0.5), 0.1)
    bound = release.loss_bound
    assert bound is not None
    assert float(bound.epsilon) == pytest.approx(math.log1p(0.1 * math.expm1(1.5)), rel=1e-12)
    assert float(bound.epsilon) >= math.log1p(0.1 * math.expm1(1.5))
    assert dpacct.delta(1 * release, epsilon=float(bound.epsilon)).upper <= 1e-12
    assert dpacct.rdp(1 * release, orders=[2.0])[0].upper <= float(bound.epsilon)


def test_renyi_bounds_cover_the_pair() -> None:
    # One round on a sample is a Poisson round, whose divergences are exact.
    for order in (1.5, 3.0, 12.0):
        (ours,) = dpacct.rdp(1 * Sampled(Round(1.0), 0.1), orders=[order])
        (known,) = dpacct.rdp(1 * Round(1.0, Poisson(0.1)), orders=[order])
        assert ours.upper >= known.upper * (1 - 1e-12)


def test_the_best_of_runs_on_samples_has_both_ends() -> None:
    runs = best_of(Sampled(5 * RandomizedResponse(0.5), 0.1), "geometric:5")
    found = dpacct.epsilon(1 * runs, delta=1e-5)
    one = dpacct.epsilon(1 * Sampled(5 * RandomizedResponse(0.5), 0.1), delta=1e-5)
    assert one.lower * (1 - 1e-3) <= found.lower <= found.upper <= found.lower * 1.3


@pytest.mark.parametrize(
    ("release", "rate", "words"),
    [
        (LAPLACE, 0.0, "rate is 0.0"),
        (LAPLACE, 1.0, "Leave the sample out"),
        (Laplace(epsilon=0.5, adjacency="replace-one"), 0.1, "Choose add-remove or zero-out"),
        (Round(1.0, Uniform(10, 100), "zero-out"), 0.1, "Choose Poisson rounds"),
        (Round(1.0, Poisson(0.1, max_cohort=9, num_clients=50)), 0.1, "Choose Poisson rounds"),
        (ShuffledEpoch(1.0, 10), 0.1, "Choose Poisson rounds"),
        (best_of(Round(1.0, Uniform(9, 50), "zero-out"), "poisson:2"), 0.1, "Choose Poisson"),
        (ApproximateDP(1.0, 1e-6, "zero-out"), 0.1, "Choose add-remove"),
        (best_of(ApproximateDP(1.0, 1e-6, "zero-out"), "poisson:2"), 0.1, "Choose add-remove"),
        (Schedule(), 0.1, "at least one release"),
    ],
)
def test_what_the_theorem_does_not_cover_is_refused(release: Any, rate: float, words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        Sampled(release, rate)


def test_a_ledger_charges_one_sample_as_one_release(tmp_path: Path) -> None:
    release = Sampled(4 * RandomizedResponse(0.5), 0.1)
    with Ledger.open(tmp_path / "x", Budget(2.0, 1e-5), adjacency="zero-out") as ledger:
        ledger.charge(release, name="four means of one sample")
        assert ledger.rounds == 1
        assert ledger.verify().sound
        assert ledger.upper_epsilon() <= float((release.loss_bound or (0, 0))[0]) * (1 + 1e-9)
    with Ledger.open(tmp_path / "x") as ledger:
        kept = next(iter(ledger.runs[0].plan or ())).round
        assert isinstance(kept, Sampled)
        assert kept == Sampled(4 * RandomizedResponse(0.5, "zero-out"), 0.1)


def test_noise_of_a_sample_is_calibrated() -> None:
    found = dpacct.calibrate(schedule=1 * Sampled(20 * Round(4.0), 0.1), epsilon=2.0, delta=1e-5)
    assert found.epsilon.upper <= 2.0
    assert found.epsilon.lower >= 2.0 * (1 - 1e-4)
