"""The C_q pair by contour inversion, against brute force and known figures."""

import pytest
from mpmath import mp, mpc, mpf

import dpacct
from dpacct import Round, Uniform
from dpacct.errors import NotConverged
from dpacct.pairs.dominating import Direction, SymmetrizedPair
from dpacct.tight.composition import Composition
from dpacct.tight.engines import inversion_delta, inversion_epsilon
from dpacct.tight.panel_laws import SymmetrizedLosses
from tests.oracles import loss_grid
from tests.oracles.answers import known
from tests.tight.compositions import COHORT, check_waves, compose


def composition(rate: float, noise_std: float, rounds: int) -> Composition:
    return compose([(rate, noise_std, rounds)], COHORT)


@pytest.mark.parametrize(
    ("epsilon", "rate", "noise_std", "rounds"),
    [
        *((3.0583, 0.05, 1.2, 200), (1.0, 0.05, 1.2, 200)),
        *((20.0, 0.2, 0.7, 100), (0.5, 0.3, 5.0, 50)),
        # Losses that are nearly atoms.
        *((0.05, 0.001, 1.0, 10), (1.0, 0.01, 0.6, 3), (4.0, 0.02, 0.4, 30)),
    ],
)
def test_delta_lies_between_losses_rounded_down_and_up(epsilon, rate, noise_std, rounds):
    step, reach, near, width = (5e-5, 20, 1.05, 1e-4) if rounds <= 30 else (2e-4, 14, 1.2, 1e-6)
    lower, upper = known(
        loss_grid.deltas, "cohort", rate, noise_std, rounds, epsilon, step, float(reach)
    )
    found = inversion_delta(composition(rate, noise_std, rounds), epsilon)
    assert 0 < lower <= found.upper
    assert found.lower <= upper
    assert found.width <= width * found.upper
    # The truth is in both brackets, and roundings to the grid are not far from it.
    assert upper < near * lower


# Upper ends of the replace-one sandwich for published settings, from an independent composition.
SANDWICH = [
    (200, 2.4, Uniform(100, 2000), 2000**-1.1, 3.06),
    (200, 1.8, Uniform(100, 2000), 2000**-1.1, 5.36),
    (100, 1.4, Uniform(195, 975), 975**-1.1, 25.5),
    (100, 0.8, Uniform(195, 975), 975**-1.1, 85.4),
    (300, 0.95, Uniform(50, 500), 1 / 500, 57.8),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rounds", "noise", "sampling", "delta", "upper"), SANDWICH)
def test_known_upper_ends(rounds, noise, sampling, delta, upper):
    pair = SymmetrizedPair(sampling.sampling_rate, noise / 2)
    found = inversion_epsilon(Composition.of({pair: rounds}, Direction.REMOVE), delta)
    assert found.upper == pytest.approx(upper, rel=2e-3)
    assert found.width <= 1e-6 * found.upper


def test_it_is_the_accountant_of_pairs():
    plan = 200 * Round(2.4, Uniform(100, 2000))
    found = dpacct.epsilon(plan, delta=2000**-1.1, accountant="pairs")
    assert found.upper == pytest.approx(3.0583, abs=1e-4)
    assert found.lower == pytest.approx(2.6259, abs=1e-4)
    renyi = dpacct.epsilon(plan, delta=2000**-1.1, accountant="rdp")
    assert found.upper < renyi.upper


def test_so_little_noise_is_refused():
    with pytest.raises(NotConverged, match="no contour"):
        inversion_epsilon(composition(0.001, 0.03, 10), 1e-5)


def test_the_contour_of_a_part_is_the_part_of_the_contour():
    """Losses beyond an end, left out on both sides: M, and phi at frequencies of either route."""
    q, sigma, tilt, end = 0.2, 0.8, 1.5, 2.5
    law = SymmetrizedLosses(SymmetrizedPair(q, sigma), 1.0, tilt, 6.0, end)
    with mp.workdps(25):
        rate, std = mpf(q), mpf(sigma)
        half, last = mpf(1) / 2, std**2 * mpf(end) + mpf(1) / 2

        def integral(power: mpc) -> mpc:
            def f(x: mpf) -> mpc:
                loss = mp.log1p(rate * mp.expm1((2 * x - 1) / (2 * std**2)))
                waves = mp.exp((1 + power) * loss) + mp.exp(-power * loss)
                return mp.npdf(x, 0, std) * waves

            edge = mp.ncdf(-half / std)
            above_p = (1 - rate) * edge + rate * mp.ncdf((1 - half) / std)
            pieces = mp.linspace(half, last, 5)
            return mp.quad(f, pieces) + 1 - above_p - edge

        moment = integral(mpc(tilt))
        assert law.log_moment.lower <= mp.log(moment.real) <= law.log_moment.upper
        assert law.log_moment.upper - law.log_moment.lower <= 1e-11
        value, error = law.log_characteristic(0.5, 13)
        check_waves(value, error, {k: integral(mpc(tilt, 0.5 * k)) / moment for k in (1, 4, 12)})
        assert max(error[[1, 4, 12]]) < 1e-9
