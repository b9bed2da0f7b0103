"""What --json and --quiet print: keys that never change, numbers to the last digit."""

from __future__ import annotations

from typing import Any

import pytest

import dpacct as library
from dpacct.rounds import Full, Poisson, Round, Uniform

MECHANISM = {"rounds", "sampling", "sampling_rate", "adjacency", "noise_multiplier", "phases"}
CALIBRATE = "calibrate --eps 8 --rounds 300 --q 0.1"
EPSILON = "epsilon --noise 1.36 --rounds 300 --q 0.1"
DELTA = "delta --noise 1.36 --rounds 300 --q 0.1 --eps 8"
PLAN = 300 * Round(1.36, Poisson(0.1))


def both(found: library.Interval) -> dict[str, float]:
    return {"lower": found.lower, "upper": found.upper}


def test_each_command_has_its_keys_and_the_numbers_of_the_library(dpacct: Any) -> None:
    data = dpacct(CALIBRATE, "--json").json
    assert set(data) == MECHANISM | {"solved_for", "accountant", "delta", "epsilon"}
    found = library.calibrate(epsilon=8, delta=1e-5, rounds=300, sampling_rate=0.1)
    assert data["noise_multiplier"] == found.noise_multiplier
    # At 1.2860094 exact composition costs 7.9999999.
    assert 1.286009 < data["noise_multiplier"] <= 1.28601
    assert data["epsilon"] == both(found.epsilon) | {"target": 8}
    assert data["epsilon"]["upper"] <= 8
    assert (data["rounds"], data["sampling"], data["sampling_rate"]) == (300, "poisson", 0.1)
    assert (data["adjacency"], data["accountant"], data["delta"]) == ("add-remove", "tight", 1e-5)
    assert data["solved_for"] == found.solved_for

    data = dpacct(EPSILON, "--json").json
    assert set(data) == MECHANISM | {"epsilon", "delta", "accountant"}
    assert data["epsilon"] == both(library.epsilon(PLAN, delta=1e-5))
    assert data["noise_multiplier"] == 1.36
    data = dpacct(DELTA, "--json").json
    assert set(data) == MECHANISM | {"delta", "epsilon", "accountant"}
    assert data["delta"] == both(library.delta(PLAN, epsilon=8))
    assert data["epsilon"] == 8

    data = dpacct("rdp --noise 1.0 --q 0.1 --orders 1.1,1.2,32 --json").json
    assert set(data) == MECHANISM | {"orders", "rdp"}
    assert (data["orders"], data["rounds"]) == ([1.1, 1.2, 32], 1)
    curve = library.rdp(Round(1.0, Poisson(0.1)), orders=[1.1, 1.2, 32])
    for shown, value in zip(data["rdp"], curve, strict=True):
        assert set(shown) == {"order", "lower", "upper", "routes"}
        assert (shown["lower"], shown["upper"]) == (value.lower, value.upper)
        assert shown["routes"] == dict(value.routes)
    words = "rdp --noise 1 --q 0.05 --sampling uniform --orders 1e7 --json"
    [value] = dpacct(words).json["rdp"]
    assert value["routes"]["Wang et al. 2019"] is None
    assert value["upper"] == pytest.approx(value["routes"]["C_q pair"], rel=1e-12)


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (CALIBRATE, ("noise_multiplier",)),
        (EPSILON, ("epsilon", "upper")),
        (DELTA, ("delta", "upper")),
        ("rdp --noise 1 --q 0.1 --orders 2", ("rdp", 0, "upper")),
        ("calibrate --eps 8 --noise 1.36 --q 0.1 --solve rounds", ("rounds",)),
        ("calibrate --eps 8 --noise 1.286 --rounds 300 --solve q", ("sampling_rate",)),
        ("calibrate --eps 8 --noise 1 --rounds 300 --q 0.1 --solve delta", ("delta",)),
    ],
)
def test_quiet_prints_the_number_that_json_holds(
    dpacct: Any, words: str, keys: tuple[Any, ...]
) -> None:
    number = dpacct(words, "--json").json
    for key in keys:
        number = number[key]
    assert dpacct(words, "-q").text == dpacct(words, "--quiet").text == f"{number!r}\n"


@pytest.mark.parametrize(
    ("words", "sampling"),
    [
        ("--q 0.1", Poisson(0.1)),
        ("--cohort 100 --clients 1000", Poisson(0.1)),
        ("--sampling poisson --q 1", Poisson(1)),
        ("--sampling full", Full()),
        ("--sampling uniform --cohort 3 --clients 5", Uniform(3, 5)),
        ("--sampling uniform --q 0.5 --clients 4", Uniform(2, 4)),
        ("--sampling uniform --q 0.5", Uniform(1, 2)),
        ("--sampling full --adjacency replace-one", Full()),
    ],
)
def test_ways_to_say_who_takes_part(dpacct: Any, words: str, sampling: Any) -> None:
    data = dpacct("epsilon --noise 9 --rounds 2 --delta 1e-4", words, "--json").json
    replaced = isinstance(sampling, Uniform) or "replace-one" in words
    relation = "replace-one" if replaced else "add-remove"
    plan = 2 * Round(9, sampling, library.Adjacency.parse(relation))
    assert data["epsilon"] == both(library.epsilon(plan, delta=1e-4))
    assert (data["sampling"], data["sampling_rate"]) == (sampling.name, sampling.sampling_rate)
    assert data["adjacency"] == relation


@pytest.mark.parametrize(
    ("words", "rounds"),
    [
        ("--examples 100 --batch 10 --epochs 3", 30),
        ("--examples 100 --batch 30 --epochs 1", 4),
        ("--examples 100 --batch 30 --epochs 0.5", 2),
        ("--q 0.3 --epochs 3", 10),
        ("--sampling full --epochs 3", 3),
        ("--sampling uniform --examples 10 --batch 5 --epochs 2", 4),
        # In binary 0.07 is a little more than in decimals, and 7 / 0.07 a little less than 100.
        ("--q 0.07 --epochs 7", 100),
        ("--q 0.1 --epochs 0.3", 3),
    ],
)
def test_an_epoch_takes_one_over_the_rate_rounded_up(dpacct: Any, words: str, rounds: int) -> None:
    assert dpacct("epsilon --noise 9", words, "--json").json["rounds"] == rounds


def test_solving_ends_at_the_last_value_that_fits(dpacct: Any) -> None:
    data = dpacct("calibrate --eps 8 --noise 1.36 --q 0.1 --solve rounds --json").json
    assert data["epsilon"]["upper"] <= 8
    more = (data["rounds"] + 1) * Round(1.36, Poisson(0.1))
    assert library.epsilon(more, delta=1e-5).upper > 8
    data = dpacct("calibrate --eps 8 --noise 1.2860094 --rounds 300 --solve q --json").json
    assert (data["noise_multiplier"], data["rounds"]) == (1.2860094, 300)
    assert data["sampling_rate"] == pytest.approx(0.1, rel=1e-6)
    assert data["epsilon"]["upper"] <= 8
    words = "calibrate --eps 8 --noise 1 --rounds 300 --q 0.1 --solve delta"
    data = dpacct(words, "--json").json
    proven = library.delta(300 * Round(1, Poisson(0.1)), epsilon=8).upper
    assert (data["solved_for"], data["delta"], data["epsilon"]["upper"]) == ("delta", proven, 8)
    assert "the least proven at epsilon 8" in dpacct(words).text
    refused = dpacct(words, "--delta 1e-5")
    assert "--delta 1e-5 contradicts --solve delta" in refused.err


@pytest.mark.slow
def test_solve_for_a_cohort(dpacct: Any) -> None:
    words = "calibrate --eps 8 --noise 2 --rounds 300 --solve q --sampling uniform --clients 2000"
    data = dpacct(words, "--json").json
    cohort = round(2000 * data["sampling_rate"])
    assert data["sampling_rate"] == cohort / 2000
    assert data["epsilon"]["upper"] <= 8
    more = library.epsilon(300 * Round(2, Uniform(cohort + 1, 2000)), delta=data["delta"])
    assert more.upper > 8


def test_the_noise_of_a_schedule_is_scaled(dpacct: Any, schedule_file: str, tmp_path: Any) -> None:
    from_file = f"--schedule {schedule_file} --json"
    data = dpacct("calibrate --eps 2", from_file).json
    assert data["noise_multiplier"] is None
    noise = [phase["noise_multiplier"] for phase in data["phases"]]
    assert noise == pytest.approx([data["noise_scale"], 0.8 * data["noise_scale"]])
    assert data["epsilon"]["upper"] <= 2
    quiet = dpacct("calibrate --eps 2 -q --schedule", schedule_file).text
    assert quiet == f"{data['noise_scale']!r}\n"
    one = tmp_path / "one.csv"
    one.write_text("rounds,noise_multiplier,sampling_rate\n300,1.36,0.1\n", encoding="utf-8")
    assert dpacct(f"epsilon --schedule {one} --json").json == dpacct(EPSILON, "--json").json
