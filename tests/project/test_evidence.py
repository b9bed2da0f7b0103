"""The pages of evidence show what the recorded runs say, and the runs can be played again."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import dpacct
from dpacct import Full, Poisson, Round, Schedule, Uniform
from dpacct.reproduce import Record, Records
from dpacct_cli.commands.reproduce import settings_of
from evidence.longer_training.tables import CLAIMS
from evidence.natural_clients.tables import difference
from evidence.pages import EVIDENCE, markdown, put_tables, tables_of
from evidence.replay import PAGES, more_names, played, words_of

TRAINED = PAGES[:6]


def records_of(name: str) -> Records:
    return Records(EVIDENCE / name / "runs.jsonl")


@pytest.mark.parametrize("name", PAGES)
def test_tables_of_the_page_are_those_of_the_runs(name):
    module = import_module(f"evidence.{name}.tables")
    shown, made = tables_of(EVIDENCE / name / "README.md"), module.tables(records_of(name))
    assert shown == made


@pytest.mark.parametrize("name", PAGES)
def test_no_recorded_run_spent_more_than_its_target(name):
    records = list(records_of(name))
    assert records
    for record in records:
        if record.setting.get("epsilon") is not None and "epsilon" in record.result:
            assert record.result["epsilon"] <= record.setting["epsilon"]


@pytest.mark.parametrize("name", TRAINED)
def test_every_recorded_run_has_the_words_of_train_and_what_they_cost(name):
    known: dict[tuple[Any, ...], float] = {}
    for record in records_of(name):
        words = words_of(record)
        if words is None:
            continue
        with more_names():
            settings = settings_of(words)
        assert (
            settings.number("rounds") >= record.result["history"][-1]["round"]
            if ("history" in record.result)
            else True
        )
        if "noise" in words:
            assert words["noise"] == pytest.approx(record.result["noise_multiplier"], rel=1e-3)
        key = tuple(sorted((k, str(v)) for k, v in words.items() if k != "public_seed"))
        known.setdefault(key, record.result["noise_multiplier"])
    assert known


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_one_run_of_each_page_repeats_within_five_points(name, tmp_path):
    folder = os.environ.get("DPACCT_DATA")
    if folder is None:
        pytest.skip("DPACCT_DATA names the folder with the data sets")
    cheap: dict[str, dict[str, Any]] = {
        "normec_beta": {"data": "mnist", "clients": 20, "noise": "epsilon 8"},
        "longer_training": {"claim": "sam", "method": "rho 0"},
    }
    record = next(one for one in records_of(name) if one.matches(**cheap.get(name, {})))
    again = played(words_of(record), tmp_path, folder)
    # Bounds on fixed cohorts have improved since.
    assert 0.9 < again["epsilon"] / record.result["epsilon"] < 1.001
    assert again["accuracy"] == pytest.approx(record.result["accuracy"], abs=5)


def plan_of(name: str, record: Record) -> tuple[Schedule, float] | None:
    """The rounds of a recorded run, and their delta. None if it says too little."""
    own, result = record.setting, record.result
    noise = result.get("noise_multiplier", own.get("noise_multiplier"))
    # Runs without noise have an epsilon of some thousand, which takes long.
    if not noise or result.get("epsilon", 1e9) > 1e3:
        return None
    if name == "mnist_smoothing":
        # What is known of a noise is a record of its own.
        if own.get("quantity") != "cost":
            return None
        uniform = own["sampling"] == "uniform"
        sampling = Uniform(50, 1000) if uniform else Poisson(0.05)
        return 30 * Round(noise, sampling), (1000 if uniform else 500) ** -1.1
    if name == "longer_training":
        claim = CLAIMS[own["claim"]]
        return claim.rounds * Round(noise, Uniform(claim.cohort, claim.population)), claim.delta
    clients = {"femnist": 105, "shakespeare": 1134}.get(own.get("data"), 1)
    rounds, rate, delta = {
        "cifar_methods": (own.get("rounds"), 0.1, 1 / 500),
        "natural_clients": (own.get("rounds"), own.get("sampling_rate"), clients**-1.1),
        "normec_beta": (result.get("rounds", 300), own.get("sampling_rate"), 1e-5),
    }.get(name, (None, None, None))
    if rounds is None or rate is None or delta is None:
        return None
    return rounds * Round(noise, Full() if rate == 1 else Poisson(rate)), delta


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["cifar_methods", "longer_training", "mnist_smoothing", "natural_clients", "normec_beta"],
)
def test_recorded_epsilons_are_those_of_today(name):
    shown: dict[tuple[Schedule, float], set[float]] = {}
    for record in records_of(name):
        if (plan := plan_of(name, record)) is not None:
            shown.setdefault(plan, set()).add(record.result["epsilon"])
    assert shown
    for (schedule, delta), found in shown.items():
        spent = dpacct.epsilon(schedule, delta=delta)
        for epsilon in found:
            assert epsilon == pytest.approx(spent.upper, rel=2e-5)


def test_runs_that_share_nothing_are_not_paired():
    one, other = {0: 1.0, 1: 3.0}, {0: 0.0, 1: 2.0}
    assert difference(one, other, paired=True) == "+1.00 (0.00)"
    assert difference(one, other, paired=False) == "+1.00 (1.41)"
    assert difference({0: 1.0}, other, paired=False) == "+1.00"
    assert difference({}, other, paired=False) == "-"


def test_tables_are_replaced_between_their_comments(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- table: a -->\nold\n<!-- end -->\n"
        "<!-- table: b -->\n<!-- end -->\n<!-- table: kept -->\nas is\n<!-- end -->\nafter\n"
    )
    table = markdown(["x", "y"], [["1", "2"]])
    put_tables(page, {"a": table, "b": r"\1"})
    shown = "| x | y |\n| --- | --- |\n| 1 | 2 |"
    assert tables_of(page) == {"a": shown, "b": r"\1", "kept": "as is"}
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")
    with pytest.raises(SystemExit, match="no place"):
        put_tables(page, {"c": table})
