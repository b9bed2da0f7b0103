"""The C_q pair by contour inversion, against brute force and known figures."""

import pytest

import dpacct
from dpacct import Poisson, Round, Uniform
from dpacct.dominating import Direction, SymmetrizedPair
from dpacct.errors import NotConverged
from dpacct.inversion import Composition, inversion_delta, inversion_epsilon
from oracles.symmetrized_composition import delta_bounds


def composition(rate: float, noise_std: float, rounds: int) -> Composition:
    return Composition.of({SymmetrizedPair(rate, noise_std): rounds}, Direction.REMOVE)


@pytest.mark.parametrize(
    ("epsilon", "rate", "noise_std", "rounds"),
    [(3.0583, 0.05, 1.2, 200), (1.0, 0.05, 1.2, 200), (20.0, 0.2, 0.7, 100), (0.5, 0.3, 5.0, 50)],
)
def test_delta_lies_between_losses_rounded_down_and_up(
    epsilon: float, rate: float, noise_std: float, rounds: int
) -> None:
    lower, upper = delta_bounds(
        epsilon, rate, noise_std, rounds, step=2e-4, span=14.0, total_span=100.0
    )
    found = inversion_delta(composition(rate, noise_std, rounds), epsilon)
    assert 0 < lower <= found.upper
    assert found.lower <= upper
    assert found.width <= 1e-6 * found.upper
    # The truth is in both brackets, and rounding by 2e-4 a round is not far from it.
    assert upper < 1.2 * lower


# Upper ends of the replace-one sandwich for published settings, from an independent composition.
SANDWICH = [
    (200, 2.4, Uniform(100, 2000), 2000**-1.1, 3.06),
    (200, 1.8, Uniform(100, 2000), 2000**-1.1, 5.36),
    (100, 1.4, Uniform(195, 975), 975**-1.1, 25.5),
    (100, 0.8, Uniform(195, 975), 975**-1.1, 85.4),
    (300, 0.95, Uniform(50, 500), 1 / 500, 57.8),
]


@pytest.mark.parametrize(("rounds", "noise", "sampling", "delta", "upper"), SANDWICH)
def test_known_upper_ends(
    rounds: int, noise: float, sampling: Uniform, delta: float, upper: float
) -> None:
    pair = SymmetrizedPair(sampling.sampling_rate, noise / 2)
    found = inversion_epsilon(Composition.of({pair: rounds}, Direction.REMOVE), delta)
    assert found.upper == pytest.approx(upper, rel=2e-3)
    assert found.width <= 1e-6 * found.upper


def test_it_is_part_of_the_accountant_tight() -> None:
    plan = 200 * Round(2.4, Uniform(100, 2000))
    found = dpacct.epsilon(plan, delta=2000**-1.1, accountant="tight")
    assert found.upper == pytest.approx(3.0583, abs=1e-4)
    assert found.lower == pytest.approx(2.6259, abs=1e-4)
    renyi = dpacct.epsilon(plan, delta=2000**-1.1, accountant="rdp")
    assert found.upper < renyi.upper


def test_rounds_of_several_kinds_cost_more_than_either() -> None:
    first, second = 100 * Round(3.0, Uniform(1, 20)), 50 * Round(4.0, Poisson(0.1), "replace-one")
    whole = dpacct.epsilon(first + second, delta=1e-5, accountant="tight")
    for part in (first, second):
        assert dpacct.epsilon(part, delta=1e-5, accountant="tight").lower < whole.upper
    renyi = dpacct.epsilon(first + second, delta=1e-5, accountant="rdp")
    assert whole.upper < renyi.upper


def test_a_loss_that_is_nearly_an_atom_is_refused() -> None:
    with pytest.raises(NotConverged, match="atom"):
        inversion_epsilon(composition(0.001, 1.0, 10), 1e-5)
