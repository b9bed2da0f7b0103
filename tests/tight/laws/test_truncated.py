"""Tilted losses up to a sharp end, against integrals in 30-digit arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from mpmath import mp, mpc, mpf

from dpacct.errors import NotConverged
from dpacct.pairs.dominating import Direction
from dpacct.tight.laws import decay_table
from dpacct.tight.panel_laws import TruncatedLosses, end_for, lost_mass
from tests.oracles.answers import known
from tests.strategies import log_uniform
from tests.tight.compositions import ADD, REMOVE, REPLACE, check_waves, pair_of

# (rate, noise, tilt, end): the end beyond, near and before the tilted peak; tiny and large rates.
CASES = [
    (0.1, 1.3, 5.0, 12.0),
    (0.1, 1.3, 5.0, 3.0),
    (1e-6, 1.0, 3.0, 6.0),
    (1e-6, 1.0, 40.0, 6.0),
    (0.5, 0.6, 2.0, 5.0),
    (0.3, 20.0, 30.0, 0.2),
    (1e-3, 0.3, 0.5, 40.0),
    (0.02, 3.0, 200.0, 2.0),
    (0.4, 0.9, 1e-4, 0.01),
]
# Tiny losses, which need huge tilts.
RARE = [(4e-7, 90.0, 1.4e7, 0.13), (7e-7, 350.0, 1e9, 0.03), (2e-5, 3.0, 4e4, 1.6)]


def losses(
    q: float, s: float, tilt: float, frequency: float, end: float, kind: str = REMOVE
) -> TruncatedLosses:
    return TruncatedLosses(pair_of(q, s, kind), 1.0, tilt, frequency, end)


def truth(
    q: float, s: float, tilt: float, end: float, times: list[float], kind: str = REMOVE
) -> tuple[mpf, list[mpc]]:
    """M(c), and E[e^{(c + it) L}] / M(c), of a pair restricted to u <= end."""
    with mp.workdps(30):
        sign = -1 if kind == ADD else 1
        rate, std, a = mpf(q), mpf(s), 1 + mpf(tilt) if sign > 0 else -mpf(tilt)
        last = std**2 * mpf(end) + mpf(1) / 2
        first = -12 * std - (0 if sign > 0 else tilt * q)
        many = math.ceil(float((last - first) / std) / 2) + math.ceil(
            float(last - first) / s**2 / 2
        )
        cuts = [first + (last - first) * k / many for k in range(many + 1)]

        def ratio(x: mpf) -> mpf:
            return 1 + rate * mp.expm1((2 * x - 1) / (2 * std**2))

        def integral(power: mpc) -> mpc:
            def density(x: mpf) -> mpc:
                if kind != REPLACE:
                    return mp.npdf(x, 0, std) * mp.power(ratio(x), power)
                return mp.npdf(x, 0, std) * ratio(-x) * mp.power(ratio(x) / ratio(-x), power)

            return mp.quad(density, cuts, maxdegree=5)

        moment = integral(a)
        return moment, [integral(mpc(a, sign * t)) / moment for t in times]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("case", "direction"),
    [
        *((case, REMOVE) for case in [*CASES, *RARE]),
        *((case, ADD) for case in [*CASES[::3], *RARE]),
        *((case, REPLACE) for case in [*CASES[:8:2], *RARE]),
    ],
)
def test_moment_and_characteristic_function_hold_the_truth(case, direction):
    q, s, tilt, end = case
    step, number = 0.4 / (1 + tilt) ** 0.5, 12
    chosen = [1, 3, number - 1]
    if (q, s, tilt, end) in RARE:
        step = 1 / tilt
    law = losses(q, s, tilt, step * number, end, direction)
    moment, waves = known(truth, q, s, tilt, end, [k * step for k in chosen], direction)
    assert law.log_moment.lower <= mp.log(moment) <= law.log_moment.upper
    assert law.log_moment.upper - law.log_moment.lower <= 1e-10
    value, error = law.log_characteristic(step, number)
    check_waves(value, error, dict(zip(chosen, waves, strict=True)))
    assert max(error[chosen]) < 1e-9


@pytest.mark.sampled(12)
@pytest.mark.parametrize("direction", [REMOVE, ADD, REPLACE])
@pytest.mark.parametrize("case", [*CASES, *RARE])
def test_decay_bounds_the_characteristic_function(case, direction):
    q, s, tilt, end = case
    first, number = (0.3 * tilt if case in RARE else 0.5), 24
    law = losses(q, s, tilt, 8.0, end, direction)
    bound = law.log_decay(first, number)
    assert np.all(bound <= 0)
    assert np.all(np.diff(bound) <= 0)
    table = decay_table(first, number)
    fine = np.geomspace(table[0], table[-1], 200)
    step = float(fine[-1]) / 3000
    dense = losses(q, s, tilt, float(fine[-1]) + step, end, direction)
    value, error = dense.log_characteristic(step, 3001)
    times, checked = step * np.arange(3001), 0
    for t, most in zip(table, bound, strict=True):
        # Where a value might vanish its error is 1.1, and nothing is known.
        beyond = (times >= t) & (error < 1.0)
        known = value.real[beyond] - error[beyond]
        assert np.max(known, initial=-math.inf) <= most + 1e-9
        checked += bool(beyond.any())
    assert checked >= 8


@pytest.mark.parametrize("direction", Direction)
def test_an_analytic_density_decays_faster_than_its_variation_says(direction):
    q, s, tilt, end = RARE[1]
    law = losses(q, s, tilt, 1e10, end, direction)
    width = q / s
    # The loss is nearly Gaussian: e^{-18} at six standard deviations.
    assert -19 < law.log_decay(6 / width, 1)[0] < -14


@pytest.mark.parametrize("tilt", [2.0, 50.0, 400.0])
def test_decay_sees_the_jump_at_a_sharp_end(tilt):
    """A density cut off far below its peak jumps there, and |phi| t tends to the jump."""
    q, s, end = 0.3, 2.0, 0.3
    law = losses(q, s, tilt, 1.0, end)
    with mp.workdps(30):
        moment, _ = truth(q, s, tilt, end, [])
        p = 1 / (1 + (1 - mpf(q)) / mpf(q) * mp.exp(-mpf(end)))
        x = mpf(s) ** 2 * mpf(end) + mpf(1) / 2
        ratio = 1 + mpf(q) * mp.expm1(mpf(end))
        density = mp.npdf(x, 0, mpf(s)) * ratio ** (1 + mpf(tilt)) / moment * mpf(s) ** 2 / p
    far = 1e6
    assert float(law.log_decay(far, 1)[0]) >= math.log(float(density) / far) - 1e-6


@pytest.mark.sampled(8)
@pytest.mark.parametrize("x", [-1.0, 0.0, 0.7, 3.0, 9.0, 30.0])
@pytest.mark.parametrize(("q", "s"), [(0.1, 1.0), (1e-7, 0.2), (0.5, 40.0), (1e-3, 3.0)])
def test_the_lost_mass_is_rounded_up(x, q, s):
    end = (x * s + 0.5) / s**2
    with mp.workdps(40):
        at = mpf(s) ** 2 * mpf(end) + mpf(1) / 2
        tails = [mp.erfc((at - shift) / (mpf(s) * mp.sqrt(2))) / 2 for shift in (0, 1)]
        exact = (1 - mpf(q)) * tails[0] + mpf(q) * tails[1]
        found = lost_mass(q, s, end)
        assert exact <= found <= exact * (1 + mpf(10) ** -10) + mpf(10) ** -299


@given(q=log_uniform(1e-9, 0.5), s=log_uniform(0.05, 1000.0), mass=log_uniform(1e-120, 1e-3))
def test_the_end_loses_what_it_should(q, s, mass):
    end = end_for(q, s, mass)
    assert end > 0
    assert lost_mass(q, s, end) <= mass or end < 1e-6
    # Ends are not below 0, beyond which the largest masses asked for do not lie.
    assert lost_mass(q, s, end * (1 - 1e-6) - 1e-9) >= min(mass, lost_mass(q, s, 0.0)) * 0.99


@given(
    q=log_uniform(1e-7, 0.5),
    s=log_uniform(0.15, 300.0),
    tilt=log_uniform(1e-3, 1e3),
    mass=log_uniform(1e-25, 1e-3),
)
def test_it_is_a_part_of_the_whole(q, s, tilt, mass):
    """M'(c) rises with the end, and at c -> 0 only the lost mass is missing."""
    near, far = end_for(q, s, mass), end_for(q, s, mass * 1e-3)
    try:
        less = losses(q, s, tilt, 0.0, near).log_moment
        more = losses(q, s, tilt, 0.0, far).log_moment
        plain = losses(q, s, 1e-9, 0.0, near).log_moment
    except NotConverged:
        return
    assert less.lower <= more.upper
    # e^{cL} >= r_end^c on what lies between.
    if near > 1.0:
        gained = tilt * math.log1p(q * math.expm1(near)) + math.log(mass * 0.5)
        assert more.upper >= gained
    assert plain.upper >= math.log1p(-1.1 * mass) - 1e-12
    assert plain.lower <= math.log1p(-0.9 * lost_mass(q, s, near)) + 1e-7


def test_what_does_not_fit_is_refused():
    with pytest.raises(NotConverged):
        losses(0.1, 0.02, 1.0, 0.0, 2000.0)
    with pytest.raises(NotConverged, match="panels"):
        losses(0.1, 1.0, 1.0, 1e9, 10.0)
