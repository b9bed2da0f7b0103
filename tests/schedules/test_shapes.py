from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct.errors import InvalidParameter
from dpacct.rounds import MAX_PHASES, Adjacency, Full, Phase, Poisson, Round, Schedule, Uniform
from dpacct.schedules.shapes import constant, geometric, linear, steps, warm_up
from tests.strategies import noise_multipliers, samplings

Q = Poisson(0.1)


def noises(schedule: Schedule) -> list[float]:
    return [phase.round.noise_multiplier for phase in schedule for _ in range(phase.rounds)]


def test_constant_is_one_phase():
    assert constant(300, 1.2, Q) == 300 * Round(1.2, Q)
    assert constant(10**9, 1.2, Q, "zero-out").adjacency is Adjacency.ZERO_OUT


def test_steps_are_phases():
    built = steps([(100, 1.0, Q), (200, 0.8, Poisson(0.05)), (5, 2.0)])
    assert built == 100 * Round(1.0, Q) + 200 * Round(0.8, Poisson(0.05)) + 5 * Round(2.0, Full())
    assert steps([]) == Schedule()
    assert steps([(1, 1.0, Q), (2, 1.0, Q)]) == constant(3, 1.0, Q)


@pytest.mark.parametrize(
    "step", [(1,), (1, 1.0, Q, 3), ("many", 1.0), (2.5, 1.0), (1, 0.0), (1, 1.0, 0.1)]
)
def test_a_step_that_is_none_is_refused(step):
    with pytest.raises(InvalidParameter):
        steps([step])


def test_steps_of_different_default_adjacency_need_one_that_is_said():
    phases = [(1, 1.0, Q), (1, 1.0, Uniform(1, 10))]
    with pytest.raises(InvalidParameter, match="share one adjacency"):
        steps(phases)
    assert steps(phases, "replace-one").adjacency is Adjacency.REPLACE_ONE


@pytest.mark.parametrize("shape", [linear, geometric])
@given(
    rounds=st.integers(1, 40),
    start=noise_multipliers(1e-3, 1e10),
    end=noise_multipliers(1e-3, 1e10),
    sampling=samplings(),
)
def test_trajectories_keep_their_ends_and_run_monotonically(shape, rounds, start, end, sampling):
    schedule = shape(rounds, start, end, sampling)
    values = noises(schedule)
    assert len(values) == schedule.rounds == rounds
    assert values[0] == start
    assert rounds == 1 or values[-1] == end
    assert values == sorted(values, reverse=end < start)
    assert {phase.round.sampling for phase in schedule} == {sampling}


def test_linear_and_geometric_points():
    assert noises(linear(5, 1.0, 3.0, Q)) == pytest.approx([1.0, 1.5, 2.0, 2.5, 3.0], rel=1e-15)
    assert noises(geometric(5, 16.0, 1.0, Q)) == pytest.approx([16, 8, 4, 2, 1], rel=1e-15)


@pytest.mark.parametrize("shape", [linear, geometric])
def test_a_flat_trajectory_is_constant(shape):
    assert shape(10**9, 1.1, 1.1, Q) == constant(10**9, 1.1, Q)


def test_warm_up_rises_and_stays():
    schedule = warm_up(10, 4, 3.0, 1.0, Q)
    assert noises(schedule) == [3.0, 2.5, 2.0, 1.5] + 6 * [1.0]
    assert schedule.phases[-1] == Phase(Round(1.0, Q), 6)
    assert noises(warm_up(2, 2, 1.0, 2.0, Q)) == [1.0, 1.5]
    assert warm_up(10**9, 1, 2.0, 1.0, Q).phases[-1].rounds == 10**9 - 1


@given(
    ramp=st.integers(1, 20),
    rest=st.integers(0, 20),
    start=noise_multipliers(),
    final=noise_multipliers(),
)
def test_warm_up_is_monotone_between_its_ends(ramp, rest, start, final):
    values = noises(warm_up(ramp + rest, ramp, start, final, Q))
    assert values == sorted(values, reverse=final < start)
    assert values[0] == start
    assert values[ramp:] == rest * [final]


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: constant(0, 1.0, Q), "rounds"),
        (lambda: constant(3, 1.0, Q, "none"), "adjacency"),
        (lambda: linear(3, 0.0, 2.0, Q), "start"),
        (lambda: geometric(3, 1.0, -1.0, Q), "end"),
        (lambda: linear(MAX_PHASES + 1, 1.0, 2.0, Q), "rounds"),
        (lambda: warm_up(3, 4, 1.0, 2.0, Q), "warm_up_rounds"),
        (lambda: warm_up(10**12, 10**11, 1.0, 2.0, Q), "warm_up_rounds"),
        (lambda: warm_up(3, 2, 1.0, True, Q), "noise_multiplier"),
    ],
)
def test_a_shape_names_the_parameter_that_is_wrong(build, name):
    with pytest.raises(InvalidParameter) as caught:
        build()
    assert caught.value.name == name
