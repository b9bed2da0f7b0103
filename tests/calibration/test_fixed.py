"""A fixed part beside what is solved for, and steps of several releases."""

from __future__ import annotations

import pytest

import dpacct
from dpacct import Laplace, Poisson, Round, Schedule, Uniform
from dpacct.errors import InvalidParameter, NotConverged

HISTORY = 75 * Round(5.0, Poisson(0.1))
TRAINING = 2198 * Round(1.0, Poisson(4096 / 60000))


def test_the_noise_of_the_rest_is_that_of_a_bisection_by_hand() -> None:
    found = dpacct.calibrate(epsilon=10, delta=1e-5, schedule=TRAINING, fixed=HISTORY)
    assert (found.fixed, found.rest) == (HISTORY, TRAINING.scale_noise(found.noise_scale))
    assert found.schedule == HISTORY + found.rest
    # A search by dpacct.epsilon alone ends at 1.76564, where one factor for both gives 1.7618.
    assert found.noise_multiplier == pytest.approx(1.76564, abs=5e-6)
    assert found.epsilon == dpacct.epsilon(found.schedule, delta=1e-5)
    assert found.epsilon.upper <= 10
    louder = HISTORY + TRAINING.scale_noise(found.noise_scale * (1 - 2e-6))
    assert dpacct.epsilon(louder, delta=1e-5).upper > 10
    parts = dpacct.calibrate(
        epsilon=10, delta=1e-5, rounds=2198, sampling_rate=4096 / 60000, fixed=HISTORY
    )
    assert parts.noise_multiplier == found.noise_multiplier
    assert (parts.rounds, parts.noise_scale) == (2198, 1.0)


def test_rounds_rate_delta_and_risk_count_the_fixed_part() -> None:
    def spent(plan: Schedule) -> float:
        return dpacct.epsilon(plan, delta=1e-5).upper

    found = dpacct.calibrate(
        epsilon=3, delta=1e-5, noise_multiplier=2.0, sampling_rate=0.1, solve="rounds",
        fixed=HISTORY,
    )  # fmt: skip
    one = Round(2.0, Poisson(0.1))
    assert found.schedule == HISTORY + found.rounds * one
    assert spent(found.schedule) <= 3 < spent(HISTORY + (found.rounds + 1) * one)
    rate = dpacct.calibrate(
        epsilon=3, delta=1e-5, noise_multiplier=2.0, rounds=20, solve="sampling_rate",
        fixed=HISTORY,
    )  # fmt: skip
    assert spent(rate.schedule) <= 3
    alone = dpacct.calibrate(
        epsilon=3, delta=1e-5, noise_multiplier=2.0, rounds=20, solve="sampling_rate"
    )
    assert rate.sampling_rate < alone.sampling_rate
    for solve, at in (("delta", {"epsilon": 3}), ("epsilon", {"delta": 1e-5})):
        both = dpacct.calibrate(schedule=20 * one, solve=solve, fixed=HISTORY, **at)
        assert both.schedule == HISTORY + 20 * one
    risk = dpacct.calibrate(advantage=0.2, rounds=20, sampling_rate=0.1, fixed=3 * Round(30.0))
    assert dpacct.risk.advantage(risk.schedule).upper <= 0.2


def test_a_fixed_part_that_costs_too_much_is_refused_before_any_search() -> None:
    with pytest.raises(NotConverged, match=r"the fixed part alone costs epsilon .*more than 0.5"):
        dpacct.calibrate(epsilon=0.5, delta=1e-5, rounds=9, sampling_rate=0.1, fixed=HISTORY)
    with pytest.raises(InvalidParameter, match="all rounds of a schedule share one adjacency"):
        dpacct.calibrate(epsilon=9, delta=1e-5, rounds=9, sampling=Uniform(5, 50), fixed=HISTORY)
    with pytest.raises(InvalidParameter, match="a schedule is a Schedule or a Round"):
        dpacct.calibrate(epsilon=9, delta=1e-5, rounds=9, fixed=3)  # type: ignore[arg-type]


def test_a_step_of_several_releases_is_repeated_as_a_whole() -> None:
    step = 10 * Round(1.0, Poisson(0.01)) + Laplace(epsilon=0.05)
    found = dpacct.calibrate(epsilon=3, delta=1e-5, schedule=step, solve="rounds")
    (part,) = found.schedule.parts
    assert found.schedule == part[1] * step
    assert dpacct.epsilon((part[1] + 1) * step, delta=1e-5).upper > 3 >= found.epsilon.upper
    with pytest.raises(NotConverged, match="one step alone costs epsilon"):
        dpacct.calibrate(epsilon=0.01, delta=1e-5, schedule=step, solve="rounds")
    with pytest.raises(InvalidParameter, match="a schedule fixes the rate"):
        dpacct.calibrate(epsilon=3, delta=1e-5, schedule=step, solve="sampling_rate")


def test_the_rate_of_special_sampling_is_solved_for() -> None:
    for scheme in (Poisson(0.5, records=3), Poisson(0.5, max_cohort=2, num_clients=4)):
        found = dpacct.calibrate(
            epsilon=2, delta=1e-5, noise_multiplier=2, rounds=3, sampling=scheme,
            solve="sampling_rate",
        )  # fmt: skip
        (round_,) = found.schedule.only_rounds()
        assert isinstance(round_.sampling, Poisson)
        assert (round_.sampling.records, round_.sampling.max_cohort) == (
            scheme.records, scheme.max_cohort,
        )  # fmt: skip
        assert 1.9999 < found.epsilon.upper <= 2
