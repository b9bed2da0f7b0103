"""Small and large losses of one round against integrals in 30-digit arithmetic."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from mpmath import mp, mpc, mpf

from dpacct.pairs.dominating import (
    AchievedPair,
    Direction,
    ReplacementPair,
    SampledGaussianPair,
)
from dpacct.pairs.panels import LossFunction
from dpacct.tight.large_losses import Cut, SplitLosses, Step, faded_delta, faded_mass, tails
from dpacct.tight.laws import log_one_plus

SLOW = pytest.mark.slow


def cut_at(
    rate: float, noise: float, small: float, faded: float, end: float, *, replaced: bool = False
) -> Cut:
    """Steps around two losses, as `few_large` makes them."""
    pair: AchievedPair = SampledGaussianPair(rate, noise, Direction.REMOVE)
    if replaced:
        pair = ReplacementPair(rate, noise)
    at_loss = LossFunction(pair).inverse
    step, fade = Step(small, 0.075 * small), Step(faded, 0.034 * faded)
    losses = (0.25 * small, 1.75 * small, faded - 8.5 * fade.width, end)
    first, sure, fading, last = (at_loss(loss) for loss in losses)
    return Cut(pair, 5.0, step, first, min(sure, last), fade, fading, last)


# (cut, tilt): a round that is nearly an atom, more noise, large losses, an end before the fading.
CASES = [
    (cut_at(1e-6, 0.5, 5e-5, 2.8e-4, 3.9e-4), 3e4),
    (cut_at(2e-5, 1.6, 2e-5, 9e-5, 1.3e-4), 2e5),
    (cut_at(1e-4, 0.3, 3.0, 21.0, 29.0), 1.3),
    (cut_at(1e-3, 2.0, 4e-3, 0.2, 0.03), 300.0),
    # Losses fade out before they are surely large.
    (cut_at(2e-5, 1.6, 5e-5, 1.05e-4, 1.5e-4), 2e5),
    # A client is replaced: rare and usual losses, and losses of a size at which one turns quickly.
    (cut_at(2e-5, 1.0, 1.5e-3, 8e-3, 1.1e-2, replaced=True), 900.0),
    (cut_at(0.2, 0.6, 1.5, 7.0, 9.0, replaced=True), 1.3),
    (cut_at(1e-3, 2.0, 2e-4, 9e-4, 1.3e-3, replaced=True), 3e4),
]


def shares(cut: Cut, u: mpf, loss: mpf) -> tuple[mpf, mpf, mpf]:
    """Of small, large and faded losses at u."""
    faded = mpf(0)
    if u > cut.end:
        faded = mpf(1)
    elif u >= cut.fading:
        faded = mp.ncdf((loss - mpf(cut.faded.center)) / mpf(cut.faded.width))
    large = mpf(0)
    if u >= cut.sure:
        large = mpf(1)
    elif u >= cut.first:
        large = mp.ncdf((loss - mpf(cut.small.center)) / mpf(cut.small.width))
    return (1 - faded) * (1 - large), (1 - faded) * large, faded


def integral(cut: Cut, power: mpc, part: int) -> mpc:
    """Of Q e^{power L} over small (0), large (1) or faded (2) losses."""
    rate, noise, at_loss = (
        cut.pair.sampling_rate,
        cut.pair.noise_std,
        LossFunction(cut.pair).inverse,
    )
    q, s = mpf(rate), mpf(noise)
    places = [cut.first, cut.sure, cut.fading, cut.end]
    for step in (cut.small, cut.faded):
        marks = (-4, -2, -1, 0, 1, 2, 4, 6, 9)
        places += [at_loss(step.center + k * step.width) for k in marks]
    replaced = isinstance(cut.pair, ReplacementPair)
    low, high = -0.5 / noise**2 - 9 / noise, cut.end
    if part == 2:
        low, high = min(cut.fading, cut.end), cut.end + 9 / noise
    if part == 1:
        low = cut.first
    width = min(1.0, 1.5 / noise)
    places += list(np.arange(low, high, width))
    inside = sorted({float(place) for place in places if low < place < high})

    def f(u: mpf) -> mpc:
        r = 1 + q * mp.expm1(u)
        base = 1 + q * mp.expm1(-u - 1 / s**2) if replaced else mpf(1)
        share = shares(cut, u, mp.log(r / base))[part]
        return share * mp.npdf(s * u + 1 / (2 * s)) * s * base * mp.power(r / base, power)

    ends = [low, *inside, high]
    rule = {"method": "gauss-legendre", "maxdegree": 5}
    return mp.fsum(mp.quad(f, [a, b], **rule) for a, b in pairwise(ends))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("cut", "tilt"),
    [CASES[1], CASES[6], *(pytest.param(*CASES[k], marks=SLOW) for k in (0, 2, 3, 4, 5, 7))],
)
def test_both_parts_hold_the_truth(cut: Cut, tilt: float) -> None:
    step, number = 0.4 / cut.small.center, 6
    law = SplitLosses(cut, tilt, step * number)
    for index, part in enumerate((law.small, law.large)):
        with mp.workdps(30):
            moment = integral(cut, mpc(1 + tilt), index).real
            assert part.log_moment.lower <= mp.log(moment) <= part.log_moment.upper
            assert part.log_moment.upper - part.log_moment.lower <= 1e-10
            shift, error = part.shift(step, number)
            for k in (1, number - 1) if index else (1,):
                exact = integral(cut, mpc(1 + tilt, k * step), index) / moment
                assert abs(exact - 1 - mpc(complex(shift[k]))) <= error[k] < 1e-9


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("cut", "tilt"), CASES)
def test_large_losses_decay_as_their_bound_says(cut: Cut, tilt: float) -> None:
    step, number = 0.5 / cut.small.center, 600
    law = SplitLosses(cut, tilt, step * number)
    shift, error = law.large.shift(step, number)
    times = step * np.arange(1.0, number)
    bound = law.large_decay(times)
    assert np.all(np.diff(bound) <= 0)
    size = np.abs(1 + shift)[1:] - error[1:]
    # The bound holds for all later frequencies, too.
    largest = np.maximum.accumulate(size[::-1])[::-1]
    assert np.all(largest <= bound)
    assert bound[-1] < (1e-4 if cut.pair.noise_std > 1.9 else 1e-9)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("cut", "tilt"), CASES)
def test_what_is_faded_out_holds_the_truth(cut: Cut, tilt: float) -> None:
    found = faded_mass(cut)
    with mp.workdps(30):
        base = integral(cut, mpc(0), 2).real
        whole = integral(cut, mpc(1), 2).real
        assert found.least <= base <= found.most <= found.least * (1 + 1e-9) + 1e-290
        assert found.least_more <= whole - base <= found.most_more
        first = np.array([min(cut.fading, cut.end)])
        epsilon = 0.5 * float(LossFunction(cut.pair)(first)[0][0])
        lower, upper = faded_delta(epsilon, np.array([cut.count]), [found])
        some, none = (-mp.expm1(cut.count * mp.log1p(-part)) for part in (whole, base))
        exact = some - mp.exp(mpf(epsilon)) * none
        assert lower <= exact <= upper
    assert tilt > 0


def test_shares_are_tails_of_a_gaussian() -> None:
    step = Step(2.0, 0.5)
    loss = np.array([-1.0, 1.0, 2.0, 3.0, 20.0])
    assert step.above(loss) + step.below(loss) == pytest.approx(np.ones(5), abs=1e-15)
    assert step.above(loss)[2] == step.below(loss)[2] == 0.5
    assert tails(np.array([0.0, 40.0])).tolist() == [0.5, 0.0]


@pytest.mark.parametrize("x", [-3.0, -0.4, 0.0, 1.0, 5.0])
@pytest.mark.parametrize("y", [0.0, 0.7, 2.0])
def test_a_step_off_the_line_is_bounded(x: float, y: float) -> None:
    step = Step(1.0, 0.25)
    low, high = np.array([1 + 0.25 * (x - 0.3)]), np.array([1 + 0.25 * (x + 0.2)])
    angle = np.array([0.25 * y])
    with mp.workdps(30):
        for at in np.linspace(x - 0.3, x + 0.2, 5):
            value = (1 + mp.erf(mpc(at, y) / mp.sqrt(2))) / 2
            assert abs(value) <= step.above_near(low, high, angle)[0]
            assert abs(1 - value) <= step.below_near(low, high, angle)[0]


@pytest.mark.parametrize("z", [1e-12 + 1e-13j, 0.3 - 0.2j, -0.9 + 0.05j, 7 + 3j])
def test_the_logarithm_next_to_one_keeps_its_digits(z: complex) -> None:
    value, error = log_one_plus(np.array([z]), np.array([1e-16 * abs(z)]))
    with mp.workdps(30):
        assert abs(mp.log(1 + mpc(z)) - mpc(complex(value[0]))) <= error[0] <= 1e-13 * abs(z) * 20
    assert math.isinf(log_one_plus(np.array([-1.0 + 0j]), np.array([1e-9]))[1][0])
