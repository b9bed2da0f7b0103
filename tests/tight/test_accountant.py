"""The accountant `tight`: published figures, order among accountants, fallback."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpacct.accountant import find_accountant
from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.rounds import Adjacency, Phase, Poisson, Round, Schedule, Uniform
from dpacct.tight.accountant import TightAccountant
from dpacct.tight.engines import NEXT_TO_NOTHING
from dpacct.tight.game import bounds
from dpacct.validate import MIN_PROBABILITY
from tests.strategies import log_uniform, schedules

TIGHT = TightAccountant()
RENYI = find_accountant("rdp")
SVHN, SHAKESPEARE = 2000**-1.1, 975**-1.1


def poisson(rate: float, noise: float, rounds: int) -> Schedule:
    return Schedule([Phase(Round(noise, Poisson(rate)), rounds)])


def per_budget(rate: float) -> float:
    """The noise that one paper gives for epsilon 8: p sqrt(T log(1/delta)) / eps."""
    return rate * math.sqrt(300 * math.log(1e5)) / 8


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "delta", "published"),
    [
        (0.05, 2.4, 200, SVHN, "0.94"),
        (0.05, 2.2, 200, SVHN, "1.06"),
        (0.05, 2.0, 200, SVHN, "1.20"),
        (0.05, 1.8, 200, SVHN, "1.39"),
        (0.2, 1.4, 100, SHAKESPEARE, "6.38"),
        (0.2, 1.2, 100, SHAKESPEARE, "8.19"),
        (0.2, 1.0, 100, SHAKESPEARE, "11.22"),
        (0.2, 0.8, 100, SHAKESPEARE, "17.08"),
        (0.1, 0.8, 300, 1 / 500, "13.46"),
        (0.1, 0.8, 100, 1 / 500, "6.96"),
        (0.1, 0.95, 300, 1 / 500, "9.37"),
        (0.1, 0.95, 200, 1 / 500, "7.30"),
        (1.0, per_budget(1.0), 300, 1e-5, "12.27"),
        (0.5, per_budget(0.5), 300, 1e-5, "12.58"),
        (0.25, per_budget(0.25), 300, 1e-5, "13.70"),
    ],
)
def test_tight_values_computed_elsewhere(rate, noise, rounds, delta, published):
    found = TIGHT.epsilon(poisson(rate, noise, rounds), delta)
    assert f"{found.upper:.2f}" == published
    assert found.upper - found.lower < 1e-7


def test_published_grid_values(published_numbers):
    """Pessimistic values of another accountant, to four digits: never far below ours."""
    compared = 0
    for entry in published_numbers["entries"]:
        values = entry.get("poisson_add_remove")
        if not isinstance(values, dict) or not values.get("pld") or not entry.get("rounds"):
            continue
        schedule = poisson(entry["sampling_rate"], entry["noise_multiplier"], int(entry["rounds"]))
        found = TIGHT.epsilon(schedule, entry["delta"])
        assert found.lower <= values["pld"] + 2e-4
        if found.upper - found.lower < 1e-6:
            assert found.upper == pytest.approx(values["pld"], abs=2e-3, rel=2e-4)
            compared += 1
    assert compared > 5


def test_golden():
    found = TIGHT.epsilon(poisson(0.1, 1.2860094, 300), 1e-5)
    assert found.upper == pytest.approx(7.99999947, abs=1e-8)
    assert found.upper - found.lower < 1e-8


def test_cohorts_of_fixed_size():
    """The cohort stays full, so an added client displaces one: 48.4 where sampling gives 9.37."""
    schedule = Schedule([Phase(Round(0.95, Uniform(50, 501), Adjacency.ADD_REMOVE), 300)])
    assert f"{TIGHT.epsilon(schedule, 1 / 500).upper:.1f}" == "48.4"
    schedule = Schedule([Phase(Round(2.4, Uniform(100, 2000)), 200)])
    found = TIGHT.of_pairs.epsilon(schedule, SVHN)
    assert f"{found.lower:.3f}" == "2.626"
    # The pair of C_q by another program.
    assert found.upper == pytest.approx(3.0597, abs=2e-3)
    played = TIGHT.epsilon(schedule, SVHN)
    assert played.lower == pytest.approx(2.6421, rel=4e-4)
    assert 2.6421 < played.upper < 2.6613
    assert TIGHT.game_or_why(schedule, SVHN) == "an adaptive game"
    assert TIGHT.game_or_why(200 * schedule, SVHN).startswith("one fixed pair a round: the game")
    assert TIGHT.of_pairs.game_or_why(schedule, SVHN) == ""


def test_rare_rounds_in_large_numbers():
    """The grid of another accountant answers 0.1885 here."""
    found = TIGHT.epsilon(poisson(1e-4, 5.0, 10**6), 1e-8)
    assert f"{found.upper:.4f}" == "0.0925"
    assert found.upper - found.lower < 1e-7


def test_the_empty_schedule_is_free():
    assert TIGHT.epsilon(Schedule(), 1e-5) == Interval(0.0, 0.0)
    assert TIGHT.delta(Schedule(), 0.0) == Interval(0.0, 0.0)


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "delta", "adjacency"),
    [
        (0.1, 1.0, 100, 1e-5, "add-remove"),
        (0.01, 0.8, 1000, 1e-6, "add-remove"),
        (0.5, 4.0, 50, 1e-4, "add-remove"),
        (0.5, 11.6, 300, 1e-5, "replace-one"),
        (0.01, 1.0, 196, 1e-5, "replace-one"),
        (0.9, 3.0, 50, 1e-5, "replace-one"),
    ],
)
def test_grids_of_another_accountant_enclose_ours(rate, noise, rounds, delta, adjacency):
    loss = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    relations = pytest.importorskip("dp_accounting").NeighboringRelation
    replaced = adjacency == "replace-one"
    found = TIGHT.epsilon(rounds * Round(noise, Poisson(rate), adjacency), delta)
    assert found.width <= 1e-7 * found.upper

    def grid(*, pessimistic: bool) -> float:
        one = loss.from_gaussian_mechanism(
            noise,
            sampling_prob=rate,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=1e-3,
            use_connect_dots=pessimistic,
            neighboring_relation=relations.REPLACE_ONE if replaced else relations.ADD_OR_REMOVE_ONE,
        )
        return one.self_compose(rounds).get_epsilon_for_delta(delta)

    above = grid(pessimistic=True)
    assert above >= found.lower * (1 - 1e-9)
    assert above == pytest.approx(found.upper, rel=2e-4 if replaced else 1e-3)
    if not replaced:
        assert grid(pessimistic=False) <= found.upper * (1 + 1e-9)


@settings(max_examples=max(3, settings.default.max_examples // 3))
@given(schedule=schedules(), delta=log_uniform(1e-12, 0.1))
@example(poisson(0.1, 0.5, 20), 1e-5)
@example(poisson(1e-7, 1.0, 1), 1e-5)
@example(poisson(0.5, 0.1, 3), 1e-5)
@example(1 * Round(4.85e8, Uniform(1, 2), "zero-out"), 7.5e-10)
def test_never_above_renyi(schedule, delta):
    found, renyi = TIGHT.epsilon(schedule, delta), RENYI.epsilon(schedule, delta)
    assert found.lower <= found.upper <= renyi.upper * (1 + 1e-9)
    # A bracket that is narrow needs no other lower end.
    assert found.lower >= min(renyi.lower * (1 - 1e-9), found.upper * (1 - 1e-6))


@settings(max_examples=8)
@given(
    rate=log_uniform(1e-4, 1.0),
    noise=log_uniform(0.5, 50.0),
    rounds=log_uniform(10, 1e6).map(int),
    delta=log_uniform(1e-12, 0.05),
    factor=st.floats(1.01, 2.0),
)
def test_monotone_in_everything(rate, noise, rounds, delta, factor):
    """Brackets of ordered numbers: the lower end of the cheaper is below the dearer's upper end."""
    here = TIGHT.epsilon(poisson(rate, noise, rounds), delta)
    cheaper = [
        TIGHT.epsilon(poisson(rate, noise * factor, rounds), delta),
        TIGHT.epsilon(poisson(rate / factor, noise, rounds), delta),
        TIGHT.epsilon(poisson(rate, noise, max(1, int(rounds / factor))), delta),
        TIGHT.epsilon(poisson(rate, noise, rounds), delta * factor),
    ]
    for other in cheaper:
        assert other.lower <= here.upper
        # Where both are exact, so are their upper ends; only a fallback may be out of order.
        if here.upper - here.lower < 1e-7 and other.upper - other.lower < 1e-7:
            assert other.upper <= here.upper * (1 + 1e-9)


@settings(max_examples=8)
@given(
    rate=log_uniform(1e-4, 1.0),
    noise=log_uniform(0.5, 50.0),
    rounds=log_uniform(1, 1e5).map(int),
    epsilon=log_uniform(1e-3, 100.0),
)
def test_delta_and_epsilon_agree(rate, noise, rounds, epsilon):
    schedule = poisson(rate, noise, rounds)
    found = TIGHT.delta(schedule, epsilon)
    # Next to nothing is found by searches that end elsewhere.
    most = max(RENYI.delta(schedule, epsilon).upper * (1 + 1e-9), NEXT_TO_NOTHING)
    assert 0 <= found.lower <= found.upper <= most
    if MIN_PROBABILITY < found.upper < 1:
        assert TIGHT.epsilon(schedule, found.upper).lower <= epsilon * (1 + 1e-9)
    if MIN_PROBABILITY < found.lower < 1:
        assert TIGHT.epsilon(schedule, found.lower).upper >= epsilon * (1 - 1e-9)


@pytest.mark.parametrize("delta", [1e-299, pytest.param(1e-304, marks=pytest.mark.slow)])
def test_a_delta_below_what_a_truncation_can_lose_still_has_an_answer(delta):
    spent = TightAccountant().epsilon(10 * Round(1.0, Poisson(1e-4)), delta)
    # Less delta costs more.
    assert TightAccountant().epsilon(10 * Round(1.0, Poisson(1e-4)), 1e-250).lower < spent.lower
    assert spent.lower <= spent.upper < 50.0


def test_what_is_said_of_a_game_is_what_was_played(monkeypatch):
    """A pass that fails, whatever for, is no adaptive game, and neither is one that proves less."""

    def fails(*_: object) -> Interval:
        raise NotConverged("epsilon lies beyond the losses that were looked at")

    schedule = 7 * Round(2.4, Uniform(100, 2000))
    monkeypatch.setattr(bounds, "game_epsilon", fails)
    said = TIGHT.game_or_why(schedule, 3.1e-4)
    assert said == "one fixed pair a round: epsilon lies beyond the losses that were looked at"
    assert TIGHT.epsilon(schedule, 3.1e-4) == TIGHT.of_pairs.epsilon(schedule, 3.1e-4)
    monkeypatch.setattr(bounds, "game_epsilon", lambda *_: Interval(0.0, 99.0))
    assert TIGHT.game_or_why(schedule, 3.2e-4) == "one fixed pair a round: a game proves no less"
