"""Rounds whose loss is nearly an atom, where neither few large losses nor small ones decide alone.

Against two rounds integrated in x, and against moments inverted in 60-digit arithmetic without any
splitting: neither shares code with the package.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from mpmath import mp, mpf

from dpacct import NotConverged, Poisson, Round, calibrate, delta, epsilon
from dpacct.budget import Interval
from dpacct.pairs.dominating import Direction, SampledGaussianPair
from dpacct.tight import few_large
from dpacct.tight.composition import Composition, TruncatedComposition
from dpacct.tight.contour import Complement, Contour, lies_below, tilt_at_epsilon
from dpacct.tight.engines import NEXT_TO_NOTHING, _AtEpsilon, _refine, far_delta, inversion_delta
from dpacct.tight.few_large import FewLarge, HardlyAny, few_large_delta
from dpacct.tight.split import JointLaw, SmallComposition, sharpness
from tests.oracles import contour
from tests.oracles.sampled_gaussian import log_moment

REMOVE, ADD, SLOW = Direction.REMOVE, Direction.ADD, pytest.mark.slow


def compose(rate: float, noise: float, count: int, direction: Direction = REMOVE) -> Composition:
    return Composition.of({SampledGaussianPair(rate, noise, direction): count}, direction)


@cache
def exact_delta(at: float, *, remove: bool) -> mpf:
    """Of sixty rounds with rate 0.05 and noise 0.9."""
    return contour.deltas([at], [(0.05, 0.9, 60)], remove=remove)[0]


def holds(found: Interval, exact: mpf) -> bool:
    """Whether the truth is inside, up to what the oracle itself rounds."""
    spare = mpf(10) ** -14
    return found.lower <= exact * (1 + spare) and exact * (1 - spare) <= found.upper


# Two rounds each: rate, noise, epsilon, how far the first one is integrated.
PAIRS = [
    # Next to nothing is left: delta is 2.5e-198.
    (1.86e-6, 3.17, 0.02095, 40.0),
    # Both rounds matter, and the characteristic function of small losses nearly vanishes.
    (1.86e-6, 3.17, 2.058e-6, 17.0),
    # epsilon lies below the losses of whoever takes part.
    (0.1, 0.16, 8.0, 17.0),
    # All other rounds may make up for a large loss.
    (0.004, 0.2, 0.001, 17.0),
    # Both take part, and the tilt is large where the losses end.
    (0.003, 0.12, 60.0, 17.0),
]
# Where losses end their density drops, which the tilt must not show.
ENDS = (5.853583507055876e-05, 0.27988, 24.82, 17.0)


@pytest.mark.parametrize(
    ("rate", "noise", "at", "sigmas"),
    [*PAIRS[:1], ENDS, *(pytest.param(*pair, marks=SLOW) for pair in PAIRS[1:])],
)
def test_two_rounds_hold_the_truth(rate: float, noise: float, at: float, sigmas: float) -> None:
    pair = (rate, noise)
    exact = contour.two_rounds(at, pair, pair, remove=True, sigmas=sigmas)
    for found in (
        few_large_delta(compose(*pair, 2), at),
        inversion_delta(compose(*pair, 2), at),
    ):
        assert holds(found, exact)
        assert found.width <= 1e-7 * found.upper


@pytest.mark.parametrize("share", [pytest.param(share, marks=SLOW) for share in (0.6, 0.3)])
def test_small_losses_with_a_contour_hold_the_truth(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = 0.4
    exact = exact_delta(at, remove=True)
    # Whatever small losses have counts, and where they end is up to the search.
    monkeypatch.setattr(few_large, "_HARDLY", 1e-290)
    monkeypatch.setattr(few_large, "_SHARES", (share,))
    composition = compose(0.05, 0.9, 60)
    bounds = FewLarge(composition, at, math.log(float(exact)))
    assert isinstance(bounds._small, Contour)
    assert bounds._small.delta(at).lower > 1e-6 * float(exact)
    found = bounds.delta(at)
    assert holds(found, exact)
    assert found.width <= 1e-7 * float(exact)
    # Whoever guesses delta badly gets a wider bracket, and none that is wrong.
    for wrong in (1e-6, 9.0):
        with_bad_guess = FewLarge(composition, at, math.log(wrong * float(exact)))
        assert holds(with_bad_guess.delta(at), exact)


def test_it_agrees_with_a_blurred_contour() -> None:
    composition, at = compose(0.00111, 1.7, 488), 0.1327
    found = few_large_delta(composition, at)
    rest = TruncatedComposition.losing(composition, 1e-8 * found.upper)
    other = _refine(_AtEpsilon(at), rest, rest.lost, Interval(0.0, 1.0))
    assert max(found.lower, other.lower) <= min(found.upper, other.upper)
    assert found.width <= 1e-3 * other.width


@pytest.mark.sampled(1)
@pytest.mark.parametrize("direction", [REMOVE, pytest.param(ADD, marks=SLOW)])
def test_left_of_zero_the_contour_holds_the_truth(direction: Direction) -> None:
    remove = direction is REMOVE
    at = 0.4
    exact = exact_delta(at, remove=remove)
    composition = compose(0.05, 0.9, 60, direction)
    for guess in (at, 0.5 * at, 2 * at):
        for log_delta in (-12.0, 0.0):
            found = Complement(composition, guess, log_delta).delta(at)
            assert holds(found, exact)
    found = Complement(composition, at, math.log(float(exact))).delta(at)
    assert found.width <= 1e-9 * float(exact)


@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize("tilt", [-1.0, -0.7, -0.25, 0.0])
def test_moments_left_of_zero_are_between_their_bounds(tilt: float, direction: Direction) -> None:
    order = 1 + tilt if direction is REMOVE else -tilt
    composition = Composition.of(
        {
            SampledGaussianPair(0.05, 0.9, direction): 60,
            SampledGaussianPair(1.0, 9.0, direction): 4,
        },
        direction,
    )
    found = composition.log_moment(tilt)
    exact = 60 * log_moment(order, 0.05, 0.9) + mpf(4) / 81 * tilt * (1 + tilt) / 2
    assert float(found.lower) <= exact <= float(found.upper)
    assert float(found.upper - found.lower) < 1e-11


def test_the_slope_left_of_zero_is_that_of_log_delta() -> None:
    bounds = Complement(compose(0.45, 6.0, 3000), 12.0, 0.0)
    assert lies_below(compose(0.45, 6.0, 3000), 1.0)
    (low, _), (middle, slope), (high, _) = (bounds.delta_and_slope(e) for e in (11.99, 12.0, 12.01))
    assert slope == pytest.approx(math.log(high.upper / low.upper) / 0.02, rel=1e-3)
    assert low.lower > middle.upper > middle.lower > high.upper


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "at"),
    [(0.446, 6.53, 110_486, 247.0), (2.85e-6, 0.17, 5_934_512, 0.0339)],
)
def test_delta_below_most_losses_is_narrow(
    rate: float, noise: float, rounds: int, at: float
) -> None:
    found = delta(rounds * Round(noise, Poisson(rate)), epsilon=at)
    assert found.lower > 0.5
    assert found.width <= 1e-7


def test_far_out_nothing_is_left() -> None:
    # One loss is at most 0.006 but for a probability of 1e-297: four of them make no 0.0399.
    four = compose(1.23e-5, 5.95, 4)
    assert 0.0 < far_delta(four, 0.0399) <= NEXT_TO_NOTHING
    assert inversion_delta(four, 0.0399).upper <= NEXT_TO_NOTHING
    # Where something is left, at least that is told.
    rate, noise, at, _ = PAIRS[0]
    assert far_delta(compose(rate, noise, 2), at) > 2.494e-198
    assert far_delta(compose(0.05, 0.9, 60), 0.4) >= exact_delta(0.4, remove=True)
    assert far_delta(four, 0.0) == 1.0
    assert far_delta(compose(0.6, 5.0, 4), 1.0) == 1.0


def test_small_losses_decay_as_bounded() -> None:
    composition = compose(8.163e-7, 1.025, 409_171)
    bounds = FewLarge(composition, 0.0047, math.log(7.4e-17))
    small = SmallComposition.of(bounds._split)
    tilt, _ = tilt_at_epsilon(small, 0.0047)
    (law,) = small.laws(tilt, 3e4)
    step = 50.0
    value, error = law.log_characteristic(step, 512)
    bound = law.log_decay(step, 32)
    for k, frequency in enumerate(step * np.exp2(np.arange(32) / 4)):
        if frequency > 511 * step:
            break
        later = value.real[math.ceil(frequency / step) :]
        assert np.all(later <= bound[k] + error[math.ceil(frequency / step) :])
    # And not for nothing.
    assert bound[-1] < -4


def test_small_losses_have_the_moment_of_an_integral() -> None:
    bounds = FewLarge(compose(0.00111, 1.7, 488), 0.1327, math.log(5.2e-16))
    (cut,) = bounds._split.cuts
    small = SmallComposition((cut,), 0.25, 2)
    found = small.log_moment(300.0)
    with mp.workdps(30):
        rate, noise = mpf(cut.pair.sampling_rate), mpf(cut.pair.noise_std)

        def density(u: mpf) -> mpf:
            loss = mp.log1p(rate * mp.expm1(u))
            share = mpf(1)
            if u >= cut.first:
                share = mp.ncdf((mpf(cut.small.center) - loss) / mpf(cut.small.width))
            gaussian = noise / mp.sqrt(2 * mp.pi) * mp.exp(-((noise * u + 0.5 / noise) ** 2) / 2)
            return share * gaussian * mp.exp(301 * loss)

        places = [-14, -6, -2, 0, 1, 2, 3, *np.linspace(cut.first, cut.sure, 12).tolist()]
        exact = 488 * mp.log(mp.quad(density, sorted(places))) + mpf(0.25) * 300 * 301 / 2
    assert float(found.lower) <= exact <= float(found.upper)
    assert float(found.upper - found.lower) < 1e-9
    with pytest.raises(NotConverged):
        Contour(SmallComposition((cut,), 0.0, 1), 1e-9, 0.1327, -35.0, 0.0, most=64)


def test_powers_may_be_subtracted_or_divided() -> None:
    rate, noise, at, _ = PAIRS[1]
    bounds = FewLarge(compose(rate, noise, 2), at, math.log(1e-8))
    tilt = 1.5e6
    (law,) = bounds._split.laws(tilt, 1e8)
    assert isinstance(law, JointLaw)
    shifts = [(*kind.small.shift(2e5, 500), *kind.large.shift(2e5, 500)) for kind in law._kinds]
    first, first_error = law._by_odds(shifts)
    second, second_error = law._by_difference(shifts)
    known = np.isfinite(first_error)
    assert known.any()
    assert not known.all()
    assert np.all(np.isfinite(second_error))
    gap = np.abs(first - second)[known]
    assert np.all(gap <= (first_error + second_error)[known])
    # Where odds say nothing, the difference does.
    assert np.all(second_error[~known] < 1e-6)


@pytest.mark.parametrize("share", [0.5, 1.0, 3.0])
def test_what_hardly_matters_is_bounded_by_any_tilt(share: float) -> None:
    at = 0.4
    bounds = FewLarge(compose(0.05, 0.9, 60), at, -6.0)
    small = SmallComposition.of(bounds._split)
    for some in (bounds._split, small):
        tilt, spread = share * tilt_at_epsilon(some, at)[0], tilt_at_epsilon(some, at)[1].variance
        exact = Contour(some, tilt / share, at, -6.0, 0.0, spread, 2**16).delta(at)
        found, slope = HardlyAny(some, tilt).delta_and_slope(at)
        assert found.lower == 0.0
        assert found.upper >= exact.lower > 0.0
        assert slope < 0.0


def test_steps_are_narrower_for_tiny_deltas() -> None:
    assert sharpness(-30.0) == 1.0
    assert 0.1 < sharpness(-400.0) < 0.2


# Settings whose brackets were wide, or empty on one side: rate, noise, rounds, delta.
WIDE = [
    (8.163e-7, 1.025, 409_171, 7.4e-17),
    (1.22e-6, 1.24, 100_860, 6.2e-20),
    (0.00111, 1.7, 488, 5.2e-16),
    (7.59e-6, 0.0596, 29, 1e-11),
    # What an end of the losses too near, an estimate too low and many participations had made wide.
    (5.853583507055876e-05, 0.28, 2, 3.8e-19),
    (5.638e-7, 0.33847, 233_150, 0.00287),
    (0.00404, 0.2443, 355, 3.5e-18),
    (0.000105, 0.05606, 52_679, 2.6e-20),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("rate", "noise", "rounds", "most"), WIDE)
def test_what_was_wide_is_narrow(rate: float, noise: float, rounds: int, most: float) -> None:
    plan = rounds * Round(noise, Poisson(rate))
    found = epsilon(plan, delta=most)
    assert found.upper > 0
    assert found.width <= 1e-7 * found.upper
    # delta there is about the one that was asked for, on either side of it.
    back = delta(plan, epsilon=found.upper)
    assert back.lower <= most
    assert back.width <= 1e-6 * back.upper
    assert delta(plan, epsilon=found.lower).upper >= most


# Deltas of which not even the first digit was known: rate, noise, rounds, epsilon.
UNKNOWN = [
    (5.82e-6, 1.37, 32_402, 0.009285),
    (5.37e-5, 3.38, 792, 0.05656),
    (1.06e-5, 0.0563, 136, 1562.0),
    (5.93e-4, 0.15, 6377, 0.0605),
]


@pytest.mark.parametrize(("rate", "noise", "rounds", "at"), UNKNOWN)
def test_what_was_unknown_is_known(rate: float, noise: float, rounds: int, at: float) -> None:
    found = delta(rounds * Round(noise, Poisson(rate)), epsilon=at)
    assert found.lower > 0
    assert found.width <= 1e-6 * found.upper


def test_a_calibration_next_to_it_comes_back() -> None:
    found = calibrate(epsilon=0.0047, delta=7.4e-17, rounds=409_171, sampling_rate=8.163e-7)
    assert 0.99999 * 0.0047 < found.epsilon.lower <= found.epsilon.upper <= 0.0047
