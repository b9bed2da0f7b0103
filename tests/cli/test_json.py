"""What --json and --quiet print: keys that never change, numbers to the last digit."""

from __future__ import annotations

from typing import Any

import pytest

import dpacct as library
from dpacct.rounds import Full, Poisson, Round, Schedule, Uniform
from dpacct.schedules.files import load_schedule

MECHANISM = {"rounds", "sampling", "sampling_rate", "adjacency", "noise_multiplier"}
CALIBRATE = "calibrate --eps 8 --rounds 300 --q 0.1"
EPSILON = "epsilon --noise 1.36 --rounds 300 --q 0.1"
DELTA = "delta --noise 1.36 --rounds 300 --q 0.1 --eps 8"


def test_calibrate(dpacct: Any) -> None:
    data = dpacct(CALIBRATE, "--json").json
    assert set(data) == MECHANISM | {"solved_for", "accountant", "delta", "epsilon"}
    found = library.calibrate(epsilon=8, delta=1e-5, rounds=300, sampling_rate=0.1)
    assert data["solved_for"] == found.solved_for
    assert data["noise_multiplier"] == found.noise_multiplier
    # At 1.2860094 exact composition costs 7.9999993.
    assert 1.286009 < data["noise_multiplier"] <= 1.28601
    assert data["epsilon"] == {
        "lower": found.epsilon.lower,
        "upper": found.epsilon.upper,
        "target": 8,
    }
    assert data["epsilon"]["upper"] <= 8
    assert (data["rounds"], data["sampling"], data["sampling_rate"]) == (300, "poisson", 0.1)
    assert (data["adjacency"], data["accountant"], data["delta"]) == ("add-remove", "tight", 1e-5)


def test_epsilon(dpacct: Any) -> None:
    data = dpacct(EPSILON, "--json").json
    assert set(data) == MECHANISM | {"epsilon", "delta", "accountant"}
    spent = library.epsilon(noise_multiplier=1.36, rounds=300, sampling_rate=0.1, delta=1e-5)
    assert data["epsilon"] == {"lower": spent.lower, "upper": spent.upper}
    assert data["noise_multiplier"] == 1.36


def test_delta(dpacct: Any) -> None:
    data = dpacct(DELTA, "--json").json
    assert set(data) == MECHANISM | {"delta", "epsilon", "accountant"}
    spent = library.delta(noise_multiplier=1.36, rounds=300, sampling_rate=0.1, epsilon=8)
    assert data["delta"] == {"lower": spent.lower, "upper": spent.upper}
    assert data["epsilon"] == 8


def test_rdp(dpacct: Any) -> None:
    data = dpacct("rdp --noise 1.0 --q 0.1 --orders 1.1,1.2,32 --json").json
    assert set(data) == MECHANISM | {"orders", "rdp"}
    assert data["orders"] == [1.1, 1.2, 32]
    assert data["rounds"] == 1
    curve = library.rdp(Round(1.0, Poisson(0.1)), orders=[1.1, 1.2, 32])
    for shown, value in zip(data["rdp"], curve, strict=True):
        assert set(shown) == {"order", "lower", "upper", "routes"}
        assert (shown["lower"], shown["upper"]) == (value.lower, value.upper)
        assert shown["routes"] == dict(value.routes)


def test_a_route_without_a_bound_is_null(dpacct: Any) -> None:
    words = "rdp --noise 1 --q 0.05 --sampling uniform --orders 1e7"
    value = dpacct(words, "--json").json["rdp"][0]
    assert value["routes"]["Wang et al. 2019"] is None
    assert value["upper"] == pytest.approx(value["routes"]["C_q pair"], rel=1e-12)
    assert dpacct(words).text.splitlines()[4].split()[-1] == "-"


def test_quiet_prints_the_number_that_json_holds(dpacct: Any) -> None:
    for words, pick in [
        (CALIBRATE, lambda data: data["noise_multiplier"]),
        (EPSILON, lambda data: data["epsilon"]["upper"]),
        (DELTA, lambda data: data["delta"]["upper"]),
        (
            "rdp --noise 1 --q 0.1 --orders 2",
            lambda data: data["rdp"][0]["upper"],
        ),
    ]:
        number = pick(dpacct(words, "--json").json)
        for option in ("-q", "--quiet"):
            assert dpacct(words, option).text == f"{number!r}\n"


def test_calibrated_noise_can_be_pasted_back(dpacct: Any) -> None:
    noise = dpacct(CALIBRATE, "-q").text.strip()
    spent = float(dpacct(f"epsilon --noise {noise} --rounds 300 --q 0.1 -q").text)
    assert 7.999 < spent <= 8


@pytest.mark.parametrize(
    ("words", "sampling"),
    [
        ("--q 0.1", Poisson(0.1)),
        ("--cohort 100 --clients 1000", Poisson(0.1)),
        ("--sampling poisson --q 1", Poisson(1)),
        ("--sampling full", Full()),
        ("--sampling full --q 1", Full()),
        ("--sampling full --cohort 9 --clients 9", Full()),
        ("--sampling uniform --cohort 100 --clients 2000", Uniform(100, 2000)),
        ("--sampling uniform --q 0.05 --clients 2000", Uniform(100, 2000)),
        ("--sampling uniform --q 0.05", Uniform(1, 20)),
    ],
)
def test_ways_to_say_who_takes_part(dpacct: Any, words: str, sampling: Any) -> None:
    data = dpacct(
        "epsilon", "--noise", "2.4", "--rounds", "20", "--delta", "1e-4", words, "--json"
    ).json
    expected = library.epsilon(Schedule([*(20 * Round(2.4, sampling))]), delta=1e-4)
    assert data["epsilon"]["upper"] == expected.upper
    assert data["sampling"] == sampling.name
    assert data["sampling_rate"] == sampling.sampling_rate
    assert data["adjacency"] == ("replace-one" if isinstance(sampling, Uniform) else "add-remove")


def test_adjacency_is_passed_on(dpacct: Any) -> None:
    words = "epsilon --noise 2 --rounds 5 --sampling full"
    one = dpacct(words, "--json").json
    other = dpacct(words, "--adjacency", "replace-one", "--json").json
    assert (one["adjacency"], other["adjacency"]) == ("add-remove", "replace-one")
    assert other["epsilon"]["upper"] > one["epsilon"]["upper"]


@pytest.mark.parametrize(
    ("words", "delta"),
    [("", 1e-5), ("--clients 2000", 1e-5), ("--clients 2000 --delta 1e-7", 1e-7)],
)
def test_default_delta(dpacct: Any, words: str, delta: float) -> None:
    assert dpacct(EPSILON, words, "--json").json["delta"] == delta


@pytest.mark.parametrize("accountant", ["tight", "rdp", "closed-form", "gdp"])
def test_accountant_is_passed_on(dpacct: Any, accountant: str) -> None:
    words = "epsilon --noise 20 --rounds 5 --sampling full"
    data = dpacct(words, "--accountant", accountant, "--json").json
    expected = library.epsilon(noise_multiplier=20, rounds=5, delta=1e-5, accountant=accountant)
    assert data["accountant"] == accountant
    assert data["epsilon"]["upper"] == expected.upper


def test_solve_for_rounds(dpacct: Any) -> None:
    words = "calibrate --eps 8 --noise 1.36 --q 0.1 --solve rounds"
    data = dpacct(words, "--json").json
    assert data["noise_multiplier"] == 1.36
    assert data["epsilon"]["upper"] <= 8
    more = library.epsilon(
        noise_multiplier=1.36, rounds=data["rounds"] + 1, sampling_rate=0.1, delta=1e-5
    )
    assert more.upper > 8
    assert dpacct(words, "-q").text == f"{data['rounds']}\n"


def test_solve_for_the_rate(dpacct: Any) -> None:
    words = "calibrate --eps 8 --noise 1.2860094 --rounds 300 --solve q"
    data = dpacct(words, "--json").json
    assert (data["noise_multiplier"], data["rounds"]) == (1.2860094, 300)
    assert data["sampling_rate"] == pytest.approx(0.1, rel=1e-6)
    assert data["epsilon"]["upper"] <= 8
    assert dpacct(words, "-q").text == f"{data['sampling_rate']!r}\n"


@pytest.mark.slow
def test_solve_for_a_cohort(dpacct: Any) -> None:
    words = "calibrate --eps 8 --noise 2 --rounds 300 --solve q --sampling uniform --clients 2000"
    data = dpacct(words, "--json").json
    cohort = round(2000 * data["sampling_rate"])
    assert data["sampling_rate"] == cohort / 2000
    assert data["epsilon"]["upper"] <= 8
    more = library.epsilon(300 * Round(2, Uniform(cohort + 1, 2000)), delta=data["delta"])
    assert more.upper > 8


def test_schedule_with_several_phases(dpacct: Any, schedule_file: str) -> None:
    data = dpacct("epsilon", "--schedule", schedule_file, "--json").json
    assert data["noise_multiplier"] is None
    assert data["sampling_rate"] is None
    assert data["rounds"] == 300
    assert data["phases"] == [
        {"rounds": 100, "noise_multiplier": 1.0, "sampling": "poisson", "sampling_rate": 0.1},
        {"rounds": 200, "noise_multiplier": 0.8, "sampling": "poisson", "sampling_rate": 0.05},
    ]
    expected = library.epsilon(load_schedule(schedule_file), delta=1e-5)
    assert data["epsilon"]["upper"] == expected.upper


def test_schedule_with_one_phase_is_an_ordinary_setting(dpacct: Any, tmp_path: Any) -> None:
    file = tmp_path / "one.csv"
    file.write_text("rounds,noise_multiplier,sampling_rate\n300,1.36,0.1\n", encoding="utf-8")
    assert (
        dpacct("epsilon", "--schedule", str(file), "--json").json == dpacct(EPSILON, "--json").json
    )


def test_calibrate_scales_a_schedule(dpacct: Any, schedule_file: str) -> None:
    words = f"calibrate --eps 2 --schedule {schedule_file}"
    data = dpacct(words, "--json").json
    assert data["noise_multiplier"] is None
    noise = [phase["noise_multiplier"] for phase in data["phases"]]
    assert noise == pytest.approx([data["noise_scale"], 0.8 * data["noise_scale"]])
    assert data["epsilon"]["upper"] <= 2
    assert dpacct(words, "-q").text == f"{data['noise_scale']!r}\n"


def test_schedule_serves_delta_and_rdp_too(dpacct: Any, schedule_file: str) -> None:
    plan = load_schedule(schedule_file)
    shown = dpacct("delta", "--schedule", schedule_file, "--eps", "6", "--json").json
    assert shown["delta"]["upper"] == library.delta(plan, epsilon=6).upper
    curve = dpacct("rdp", "--schedule", schedule_file, "--orders", "4", "--json").json
    assert curve["rdp"][0]["upper"] == library.rdp(plan, orders=[4])[0].upper


def test_the_clip_norm_that_was_asked_for(dpacct: Any) -> None:
    plain = dpacct(CALIBRATE, "--json").json
    clipped = dpacct(CALIBRATE, "--clip 0.5 --json").json
    assert set(clipped) - set(plain) == {"clip_norm", "noise_std"}
    assert clipped["noise_std"] == pytest.approx(0.5 * plain["noise_multiplier"], rel=1e-15)
    counted = "calibrate --eps 8 --rounds 300 --cohort 100 --clients 1000 --clip 0.5 --json"
    found = dpacct(counted).json
    assert found["noise_std_mean"] == pytest.approx(found["noise_std"] / 100, rel=1e-15)


def test_delta_is_solved_for(dpacct: Any) -> None:
    words = "calibrate --eps 8 --noise 1 --rounds 300 --q 0.1 --solve delta"
    proven = library.delta(noise_multiplier=1, rounds=300, sampling_rate=0.1, epsilon=8).upper
    data = dpacct(words, "--json").json
    assert (data["solved_for"], data["delta"]) == ("delta", proven)
    assert data["epsilon"]["upper"] == 8
    assert float(dpacct(words, "-q").text) == proven
    assert "the least proven at epsilon 8" in dpacct(words).text
    refused = dpacct(words, "--delta 1e-5")
    assert "--delta 1e-5 contradicts --solve delta" in refused.err
