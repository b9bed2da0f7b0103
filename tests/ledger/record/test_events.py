"""Events: joint releases, what a plan covers, and their form as JSON."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpacct
from dpacct.errors import InvalidParameter
from dpacct.items import read_alone, release_entry
from dpacct.ledger import Event, NoisySum, joint_noise_multiplier
from dpacct.ledger.record.events import (
    covers,
    schedule_from_json,
    schedule_to_json,
)
from dpacct.rounds import Full, Poisson, Round, Schedule, Uniform
from strategies import log_uniform, rounds, schedules


@given(st.lists(log_uniform(0.01, 1e6), min_size=1, max_size=6))
def test_joint_noise_is_just_below_the_exact_value(noises: list[float]) -> None:
    joint = joint_noise_multiplier(noises)
    exact = sum(1 / Fraction(z) ** 2 for z in noises)
    assert exact <= 1 / Fraction(joint) ** 2 <= exact * (1 + Fraction(1, 10**13))
    assert joint <= min(noises)
    # Without sampling it costs what the releases cost one by one.
    together = dpacct.rdp(Round(joint), orders=[3.0])[0].upper
    apart = sum(dpacct.rdp(Round(z), orders=[3.0])[0].lower for z in noises)
    assert apart * (1 - 1e-12) <= together <= apart * (1 + 1e-9)


def nested(depth: int) -> dict[str, object]:
    return {} if depth == 1 else {"x": nested(depth - 1)}


def test_the_charge_never_exceeds_the_noise_of_the_round_or_of_the_releases() -> None:
    assert joint_noise_multiplier([1.1]) == 1.1
    assert Event(Round(1.1), (NoisySum("update", 1.1),)).charged == Round(1.1)
    releases = (NoisySum("update", 1.0), NoisySum("quantile", 10.0))
    joint = joint_noise_multiplier([1.0, 10.0])
    assert joint == pytest.approx(1 / math.sqrt(1.01))
    for noise in (1.0, joint):
        assert Event(Round(noise, Poisson(0.1)), releases).charged == Round(joint, Poisson(0.1))
    assert Event(Round(0.5), releases).charged == Event(Round(0.5)).charged == Round(0.5)
    # The main sum may have another name, and more noise than the round.
    releases = (NoisySum("gradient", 2.0), NoisySum("count", 9.0))
    event = Event(Round(1.3), releases, nested(50), main="gradient")
    assert event.charged == Round(1.3)
    joint = joint_noise_multiplier([2.0, 9.0])
    assert Event(Round(2.0), releases, main="gradient").charged == Round(joint)
    details = {"lr": [1]}
    event = Event(Round(1.0), details=details)
    details["lr"].append(2)
    assert event.details == {"lr": [1]}


@pytest.mark.parametrize(
    "make",
    [
        lambda: joint_noise_multiplier([]),
        lambda: joint_noise_multiplier([1.0, 0.0]),
        lambda: joint_noise_multiplier([1.0, math.nan]),
        *(lambda name=name: NoisySum(name, 1.0) for name in ("", "\ud800", "x" * 201, "a\nb")),
        lambda: NoisySum("update", -1.0),
        lambda: NoisySum("update", 1.0, 0.0),
        lambda: NoisySum("update", 1.0, math.inf),
        lambda: Event(Round(1.0), (NoisySum("a", 1.0), NoisySum("a", 2.0))),
        lambda: Event(Round(1.0), ("update",)),  # type: ignore[arg-type]
        # The main sum is not among them, or has less noise than the round claims.
        lambda: Event(Round(1.3), (NoisySum("count", 1.3),)),
        lambda: Event(Round(1.3), (NoisySum("count", 1.3), NoisySum("quantile", 9.0))),
        lambda: Event(Round(1.3), (NoisySum("update", 1.3),), main="sum"),
        lambda: Event(Round(5.0), (NoisySum("update", 1.0), NoisySum("count", 10.0))),
        lambda: Event(3 * Round(1.0)),  # type: ignore[arg-type]
        *(
            lambda value=value: Event(Round(1.0), details={"x": value})
            for value in ("\ud800", 10**5000, math.nan, object(), "y" * 200_000, nested(50))
        ),
    ],
)
def test_what_is_no_event_is_rejected(make: object) -> None:
    with pytest.raises(InvalidParameter):
        make()  # type: ignore[operator]


@given(rounds(), rounds())
def test_a_covered_round_costs_at_most_as_much(planned: Round, actual: Round) -> None:
    if covers(planned, actual):
        for order in (1.5, 4.0, 40.0):
            dear = dpacct.rdp(planned, orders=[order])[0].upper
            assert dpacct.rdp(actual, orders=[order])[0].lower <= dear * (1 + 1e-9)


@given(log_uniform(0.5, 20), log_uniform(0.5, 20), log_uniform(1e-3, 1), log_uniform(1e-3, 1))
def test_more_noise_and_less_sampling_is_covered_and_nothing_else(
    planned_noise: float, noise: float, planned_rate: float, rate: float
) -> None:
    expected = noise >= planned_noise and rate <= planned_rate
    planned, actual = Round(planned_noise, Poisson(planned_rate)), Round(noise, Poisson(rate))
    assert covers(planned, actual) is expected
    if expected:
        loose = dpacct.epsilon(actual, delta=1e-5, accountant="tight").lower
        assert loose <= dpacct.epsilon(planned, delta=1e-5, accountant="tight").upper + 1e-9


def test_other_schemes_are_covered_by_their_own() -> None:
    for planned, actual, expected in (
        (Round(1, Uniform(10, 100)), Round(1, Uniform(9, 100)), True),
        (Round(1, Uniform(10, 100)), Round(1, Uniform(11, 100)), False),
        (Round(1, Uniform(10, 100)), Round(1, Uniform(1, 200)), False),
        (Round(1, Full()), Round(2, Full()), True),
        (Round(1, Full()), Round(1, Poisson(0.1)), False),
        (Round(1, Poisson(0.1)), Round(1, Poisson(0.1), "zero-out"), False),
    ):
        assert covers(planned, actual) is expected


@given(schedules())
def test_rounds_survive_json_to_the_last_bit(schedule: Schedule) -> None:
    assert schedule_from_json(json.loads(json.dumps(schedule_to_json(schedule)))) == schedule
    for round_, _ in schedule:
        assert read_alone(json.loads(json.dumps(release_entry(round_, alone=True)))) == round_


def test_damaged_rounds_are_rejected() -> None:
    good = {"noise_multiplier": 1.0, "sampling": "full", "adjacency": "add-remove"}
    for change in (
        {"sampling": "other"}, {"sampling": "poisson"}, {"noise_multiplier": -1.0},
        {"adjacency": "other"}, {"extra": 1},
    ):  # fmt: skip
        with pytest.raises((InvalidParameter, KeyError)):
            read_alone(good | change)
        with pytest.raises((InvalidParameter, KeyError)):
            schedule_from_json([{"rounds": 3} | good | change])
    with pytest.raises((InvalidParameter, KeyError)):
        read_alone({})
