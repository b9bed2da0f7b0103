from __future__ import annotations

import dataclasses
import math
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct.errors import InvalidParameter
from dpacct.rounds import (
    MAX_CLIENTS,
    MAX_PHASES,
    Adjacency,
    Full,
    Phase,
    Poisson,
    Round,
    Schedule,
    Uniform,
    first_rounds,
)
from tests.strategies import log_uniform, rounds, sampling_rates, schedules, uniform_schemes

COUNTS = st.integers(1, 50)
POISSON = Round(1.0, Poisson(0.1))
FULL = Round(2.0, Full())


def expand(schedule: Schedule) -> list[Round]:
    return [phase.round for phase in schedule for _ in range(phase.rounds)]


# Composition.


@given(rounds(), COUNTS)
def test_n_times_a_round_is_the_round_added_n_times(round_, n):
    total = Schedule()
    for _ in range(n):
        total += round_
    assert n * round_ == round_ * n == total
    assert total.phases == (Phase(round_, n),)


@given(rounds(), COUNTS, COUNTS)
def test_splitting_a_phase_changes_nothing(round_, first, second):
    whole = (first + second) * round_
    assert first * round_ + second * round_ == whole
    assert hash(first * round_ + second * round_) == hash(whole)
    assert Schedule([Phase(round_, first), Phase(round_, second)]) == whole


@given(
    schedules(Adjacency.ADD_REMOVE),
    schedules(Adjacency.ADD_REMOVE),
    schedules(Adjacency.ADD_REMOVE),
)
def test_addition_is_associative_and_keeps_the_order_of_rounds(a, b, c):
    assert (a + b) + c == a + (b + c)
    assert (a + b).rounds == a.rounds + b.rounds
    assert (a + b).distinct() == (b + a).distinct()


@given(st.lists(rounds(Adjacency.ADD_REMOVE), max_size=8))
def test_run_length_encoding_loses_nothing(sequence):
    schedule = Schedule(Phase(round_, 1) for round_ in sequence)
    assert expand(schedule) == sequence
    assert schedule.rounds == len(schedule) == len(sequence)
    assert all(a.round != b.round for a, b in pairwise(schedule.phases))


@given(schedules(), st.integers(1, 5))
def test_repetition_is_repeated_addition(schedule, times):
    total = Schedule()
    for _ in range(times):
        total += schedule
    assert times * schedule == schedule * times == total


@given(schedules())
def test_the_empty_schedule_is_neutral(schedule):
    empty = Schedule()
    assert empty + schedule == schedule == schedule + empty
    assert (len(empty), empty.distinct(), 3 * empty) == (0, {}, empty)


@given(schedules())
def test_distinct_rounds_count_every_round(schedule):
    counts = schedule.distinct()
    assert sum(counts.values()) == schedule.rounds
    assert set(counts) == {phase.round for phase in schedule}


def test_order_is_part_of_a_schedule_but_not_of_what_it_costs():
    there, back = POISSON + 1 * FULL, FULL + 1 * POISSON
    assert there != back
    assert there.distinct() == back.distinct()


@given(schedules())
def test_equal_schedules_are_equal_keys(schedule):
    copy = Schedule(
        Phase(Round(r.noise_multiplier, r.sampling, r.adjacency), n) for r, n in schedule
    )
    assert copy == schedule
    assert {schedule: 1}[copy] == 1


def test_a_million_rounds_are_one_phase():
    schedule = 10**6 * POISSON
    assert len(schedule.phases) == 1
    assert schedule.rounds == 10**6
    more = schedule
    for _ in range(1000):
        more += schedule
    assert more.phases == (Phase(POISSON, 1001 * 10**6),)
    assert sys.getsizeof(more.phases) < 100


def test_mixed_adjacency_is_refused():
    other = Round(1.0, Uniform(10, 100))
    assert (POISSON.adjacency, other.adjacency) == (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE)
    for build in (
        lambda: POISSON + other,
        lambda: 3 * POISSON + 2 * other,
        lambda: Schedule([Phase(other, 1), Phase(POISSON, 1)]),
    ):
        with pytest.raises(InvalidParameter, match="share one adjacency"):
            build()


def test_one_adjacency_may_span_different_schemes():
    mixed = POISSON + FULL + Round(1.0, Uniform(10, 100), "add-remove")
    assert mixed.adjacency is Adjacency.ADD_REMOVE
    assert mixed.rounds == 3


@pytest.mark.parametrize("count", [0, -1, 2.5, math.nan, True, "3", 10**12 + 1, None])
def test_a_count_is_a_whole_number_of_at_least_one(count):
    with pytest.raises(InvalidParameter):
        count * POISSON
    with pytest.raises(InvalidParameter):
        Schedule([Phase(POISSON, count)])
    with pytest.raises(InvalidParameter):
        count * (POISSON + FULL)


def test_the_total_number_of_rounds_is_limited():
    with pytest.raises(InvalidParameter):
        10**12 * POISSON + POISSON


def test_a_repeated_schedule_is_one_part_and_its_phases_are_written_out_on_demand():
    step = 2 * POISSON + FULL
    plan = 500 * step
    assert (len(plan.parts), plan.rounds, len(plan.phases)) == (1, 1500, 1000)
    assert plan.distinct() == {POISSON: 1000, FULL: 500}
    assert repr(plan) == f"500 * ({step!r})"
    assert plan == Schedule(step.phases * 500)
    assert hash(plan) == hash(Schedule(step.phases * 500))
    assert (3 * plan).parts == (1500 * step).parts
    assert plan != 499 * step + FULL + 2 * POISSON
    assert (plan + plan).phases == (1000 * step).phases
    assert plan.scale_noise(2.0) == 500 * step.scale_noise(2.0)
    # Equal neighbors at a seam are one phase, and first rounds may end inside a repetition.
    assert (2 * (POISSON + FULL + POISSON)).phases[2] == (POISSON, 2)
    assert first_rounds(plan, 7) == 2 * step + POISSON
    assert first_rounds(1 * step, 3) == 1 * step


def test_too_many_phases_are_refused_before_they_are_built():
    plan = MAX_PHASES * (POISSON + FULL)
    assert plan.rounds == 2 * MAX_PHASES
    assert plan != (MAX_PHASES - 1) * (POISSON + FULL)
    with pytest.raises(InvalidParameter, match="phases"):
        _ = plan.phases


@pytest.mark.parametrize("other", [3, "round", None, 1.5])
def test_adding_what_is_no_round_is_a_type_error(other):
    with pytest.raises(TypeError):
        POISSON + other
    with pytest.raises(TypeError):
        3 * POISSON + other


def test_noise_is_scaled_in_every_round():
    scaled = (2 * POISSON + 3 * FULL).scale_noise(1.5)
    assert scaled == 2 * Round(1.5, Poisson(0.1)) + 3 * Round(3.0, Full())


# Rounds.


@pytest.mark.parametrize(
    ("sampling", "adjacency"),
    [
        (Poisson(0.1), Adjacency.ADD_REMOVE),
        (Full(), Adjacency.ADD_REMOVE),
        (Uniform(1, 10), Adjacency.REPLACE_ONE),
        (None, Adjacency.ADD_REMOVE),
    ],
)
def test_the_adjacency_follows_from_the_scheme_unless_it_is_said(sampling, adjacency):
    assert Round(1.0, sampling).adjacency is adjacency
    for relation in Adjacency:
        assert Round(1.0, sampling, relation).adjacency is relation
        assert Round(1.0, sampling, relation.value).adjacency is relation


@pytest.mark.parametrize("value", ["", "add_remove", "ADD-REMOVE", 3, True])
def test_an_unknown_adjacency_is_refused(value):
    with pytest.raises(InvalidParameter, match="add-remove, replace-one, zero-out"):
        Round(1.0, Full(), value)


@pytest.mark.parametrize("value", [0.1, "poisson", Poisson])
def test_what_is_no_scheme_is_refused(value):
    with pytest.raises(InvalidParameter, match="sampling scheme"):
        Round(1.0, value)


@pytest.mark.parametrize("phase", [("a", 1), Round(1.0), (Round(1.0),), 3])
def test_what_is_no_phase_is_refused(phase):
    with pytest.raises(InvalidParameter, match="a phase is a Round or another release"):
        Schedule([phase])


@given(schedules())
def test_a_representation_can_be_pasted_back(schedule):
    names = {c.__name__: c for c in (Schedule, Phase, Round, Poisson, Uniform, Full, Adjacency)}
    round_ = schedule.phases[0].round
    assert eval(repr(round_), names) == round_  # noqa: S307 - the text is our own
    assert eval(repr(schedule), names) == schedule  # noqa: S307 - the text is our own


def test_rounds_and_schemes_are_frozen():
    for value, name in (
        (POISSON, "noise_multiplier"),
        (Poisson(0.1), "sampling_rate"),
        (Uniform(1, 2), "num_clients"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, 1)


# Schemes.


@given(sampling_rates())
def test_poisson_and_full_rates(rate):
    assert Round(1.0, Poisson(rate)).sampling_rate == rate
    assert Round(1.0, Full()).sampling_rate == 1.0


@pytest.mark.parametrize(
    ("cohort", "clients", "name"),
    [
        (0, 10, "cohort_size"),
        (11, 10, "cohort_size"),
        (2.5, 10, "cohort_size"),
        (True, 10, "cohort_size"),
        (1, 0, "num_clients"),
        (1, math.nan, "num_clients"),
        (1, MAX_CLIENTS + 1, "num_clients"),
        ("1", 10, "cohort_size"),
    ],
)
def test_a_cohort_fits_into_its_population(cohort, clients, name):
    with pytest.raises(InvalidParameter) as caught:
        Uniform(cohort, clients)
    assert caught.value.name == name


@given(uniform_schemes())
def test_a_uniform_rate_is_the_rounded_quotient(scheme):
    assert scheme.sampling_rate == scheme.cohort_size / scheme.num_clients
    assert 0 < scheme.sampling_rate <= 1


@given(sampling_rates(1e-12))
def test_a_ratio_gives_back_its_rate_exactly(rate):
    assert Uniform.at_rate(rate).sampling_rate == rate


@given(st.one_of(st.floats(1e-150, 1.0), log_uniform(1e-40, 1e-10)))
def test_a_ratio_is_never_below_its_rate(rate):
    assert Uniform.at_rate(rate).sampling_rate >= rate


def test_a_ratio_is_its_smallest_cohort():
    assert Uniform.at_rate(0.05) == Uniform(1, 20)
    assert Uniform.at_rate(0.375) == Uniform(3, 8)
    assert Uniform.at_rate(1) == Uniform(1, 1)
