"""The contour sum: brackets hold the truth for any tilt, step and blur, however badly chosen."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpacct.errors import NotConverged
from dpacct.pairs.dominating import Direction
from dpacct.tight import contour
from dpacct.tight.composition import Composition, TruncatedComposition
from dpacct.tight.contour import Contour, log_chernoff_factor, log_delta_estimate, tilt_at_epsilon
from dpacct.tight.engines import chernoff_delta, inversion_delta
from tests.oracles import contour as oracle
from tests.oracles.answers import known
from tests.strategies import log_uniform
from tests.tight.compositions import compose

# Rounds as (rate, noise, count), an epsilon, and the direction.
SETTINGS: list[tuple[oracle.Rounds, float, Direction]] = [
    ([(0.1, 1.3, 100)], 5.0, Direction.REMOVE),
    ([(0.1, 1.3, 100)], 5.0, Direction.ADD),
    ([(0.3, 1.0, 40)], 9.0, Direction.REMOVE),
    ([(0.05, 0.9, 100), (0.5, 4.0, 20)], 5.0, Direction.REMOVE),
    ([(0.02, 1.0, 1000), (1.0, 30.0, 2)], 2.0, Direction.ADD),
]


def truth(epsilon: float, rounds: oracle.Rounds, direction: Direction) -> mpf:
    return known(oracle.deltas, [epsilon], rounds, remove=direction is Direction.REMOVE)[0]


def best_line(composition: Composition, epsilon: float) -> tuple[float, float]:
    tilt, at = tilt_at_epsilon(composition, epsilon)
    return tilt, min(0.0, log_delta_estimate(tilt, at, epsilon))


@pytest.mark.sampled(15)
@pytest.mark.parametrize("case", range(len(SETTINGS)))
@pytest.mark.parametrize("factor", [0.02, 0.3, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("step", [0.0, 15.0, 32.0])
def test_a_badly_chosen_line_or_step_is_charged(case, factor, step):
    """A step that lies about delta brings aliases too near to be small."""
    rounds, epsilon, direction = SETTINGS[case]
    composition = compose(rounds, direction)
    tilt, log_delta = best_line(composition, epsilon)
    try:
        line = Contour(composition, tilt * factor, epsilon, min(log_delta + step, 33.0), 0.0)
    except NotConverged:
        assert factor != 1.0
        return
    for at in (epsilon, 0.6 * epsilon, 1.3 * epsilon):
        bracket = line.delta(at)
        exact = truth(at, rounds, direction)
        assert bracket.lower <= exact <= bracket.upper
    if factor == 1.0 and step == 0.0:
        bracket = line.delta(epsilon)
        assert bracket.width <= 1e-8 * bracket.upper


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", range(len(SETTINGS)))
@pytest.mark.parametrize("width", [1e-9, 1e-6, 1e-3, 0.1])
def test_a_blur_is_charged(case, width, monkeypatch):
    monkeypatch.setattr(contour, "_UNBLURRED", 1)
    monkeypatch.setattr(contour, "_FEWER", 0)
    rounds, epsilon, direction = SETTINGS[case]
    composition = compose(rounds, direction)
    line = Contour(composition, *best_line(composition, epsilon)[:1], epsilon, -12.0, width)
    assert line.blur > 0
    exact = truth(epsilon, rounds, direction)
    bracket = line.delta(epsilon)
    assert bracket.lower <= exact <= bracket.upper
    if width <= 1e-6:
        assert bracket.width <= 1e-3 * bracket.upper


def test_a_blur_that_is_not_charged_would_be_noticed(monkeypatch):
    """The blurred sum alone lies above the truth by more than the rest of its bracket."""
    monkeypatch.setattr(contour, "_UNBLURRED", 1)
    monkeypatch.setattr(contour, "_FEWER", 0)
    rounds, epsilon, direction = SETTINGS[0]
    composition = compose(rounds, direction)
    tilt, log_delta = best_line(composition, epsilon)
    line = Contour(composition, tilt, epsilon, log_delta, 1e-3)
    exact = truth(epsilon, rounds, direction)
    bracket = line.delta(epsilon)
    assert bracket.lower <= exact
    assert (bracket.upper - exact) / exact > 1e-5
    # The bound of the gap is not much more than the gap.
    assert bracket.upper - bracket.lower <= 5 * (bracket.upper - exact)


def gap(x: mpf, v: mpf) -> mpf:
    """E[(1 - e^{x - N})_+] - (1 - e^x)_+ for the loss N of a Gaussian with variance v."""
    width = mp.sqrt(v)
    call = mp.ncdf(-x / width + width / 2) - mp.exp(x) * mp.ncdf(-x / width - width / 2)
    return call - max(mpf(0), -mp.expm1(x))


@given(
    x=st.one_of(log_uniform(1e-6, 30.0), log_uniform(1e-6, 30.0).map(lambda t: -t)),
    v=log_uniform(1e-6, 4.0),
)
@example(x=-2.718281828459045, v=0.0024787521766663585)
def test_a_blur_raises_delta_by_at_most_a_density(x, v):
    with mp.workdps(400):
        at, variance = mpf(x), mpf(v)
        density = mp.npdf(at, variance / 2, mp.sqrt(variance))
        # Differences of numbers up to 1, with 400 digits.
        off = mpf(10) ** -398
        assert -off <= gap(at, variance) <= variance * mp.exp(variance / 8) * density + off


def test_the_chernoff_factor_is_the_largest_value():
    for c in (1e-6, 0.01, 1.0, 30.0, 1e6):
        with mp.workdps(30):
            best = mp.log1p(1 / mpf(c))
            exact = mp.log(-mp.expm1(-best)) - mpf(c) * best
            assert abs(log_chernoff_factor(c) - exact) <= 1e-13 * (1 + abs(exact))


def test_a_wide_enough_contour_is_not_blurred():
    rounds, epsilon, direction = SETTINGS[0]
    composition = compose(rounds, direction)
    assert Contour(composition, *best_line(composition, epsilon)[:1], epsilon, -12.0, 1.0).blur == 0


def test_atoms_need_a_blur():
    composition = compose([(1e-6, 1.0, 1)], Direction.REMOVE)
    tilt, log_delta = best_line(composition, 1e-4)
    with pytest.raises(NotConverged, match="slowly"):
        Contour(composition, tilt, 1e-4, log_delta, 0.0)


@pytest.mark.parametrize("epsilon", [1.0, 5.0])
@pytest.mark.parametrize("blurred", [False, True])
def test_without_the_far_tail(epsilon, *, blurred, monkeypatch):
    """delta of what is kept lies below the truth, and by no more than what is lost."""
    if blurred:
        monkeypatch.setattr(contour, "_UNBLURRED", 1)
    monkeypatch.setattr(contour, "_FEWER", 0)
    rounds = [(0.1, 1.3, 100)]
    exact = truth(epsilon, rounds, Direction.REMOVE)
    whole = compose(rounds, Direction.REMOVE)
    for share in (1e-8, 0.01, 0.3):
        rest = TruncatedComposition.losing(whole, share * float(exact))
        tilt, at = tilt_at_epsilon(rest, epsilon)
        line = Contour(rest, tilt, epsilon, log_delta_estimate(tilt, at, epsilon), 1e-6)
        bracket = line.delta(epsilon)
        assert bracket.lower <= exact <= bracket.upper + rest.lost
        assert math.isclose(rest.lost, share * exact, rel_tol=1e-3)
        if share == 0.3:
            # Something is missing, and it is seen.
            assert bracket.upper < exact


@pytest.mark.parametrize("epsilon", [2000.0, 1e4, 1e7])
def test_a_delta_above_zero_is_never_told_as_zero(epsilon):
    """The remove direction has losses of any size; far below 1e-308 the upper bound stays above."""
    composition = compose([(0.1, 1.3, 100)], Direction.REMOVE)
    tilt, log_delta = best_line(composition, 2000.0)
    assert log_delta < -800
    bracket = Contour(composition, tilt, 2000.0, log_delta, 0.0).delta(epsilon)
    assert bracket.lower == 0.0
    assert 0.0 < bracket.upper < 1e-290
    assert chernoff_delta(composition, epsilon) > 0.0
    with contextlib.suppress(NotConverged):
        assert inversion_delta(composition, epsilon).upper > 0.0
