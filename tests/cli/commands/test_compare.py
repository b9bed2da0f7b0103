"""`dpacct compare`: accountants side by side, refusals with their reasons."""

from __future__ import annotations

import time
from typing import Any

import pytest

import dpacct as library
from dpacct.accountant import ACCOUNTANTS
from dpacct.epochs import Epoch, ShuffledEpoch
from dpacct.rounds import Poisson, Round, Schedule, Uniform
from dpacct_cli.commands.compare import read_entries

WORDS = "compare --noise 1.36 --rounds 300 --q 0.1"


def by_name(data: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry for entry in data["results"]}


def test_json_holds_all_accountants(dpacct: Any) -> None:
    data = dpacct(WORDS, "--json").json
    rounds = {"rounds", "sampling", "sampling_rate", "adjacency", "noise_multiplier", "phases"}
    assert set(data) == {"results", "delta"} | rounds
    entries = by_name(data)
    assert list(entries) == list(ACCOUNTANTS)
    for entry in data["results"]:
        assert set(entry) == {"name", "epsilon", "seconds", "note"}
    expected = library.epsilon(noise_multiplier=1.36, rounds=300, sampling_rate=0.1, delta=1e-5)
    assert entries["tight"]["epsilon"] == {"lower": expected.lower, "upper": expected.upper}
    assert entries["tight"]["seconds"] > 0
    assert entries["tight"]["epsilon"]["upper"] < entries["rdp"]["epsilon"]["upper"]
    # A refusal has its reason, which is about the rounds that were asked for.
    assert entries["gdp"]["epsilon"] is None
    assert "full participation" in entries["gdp"]["note"]


def test_imports_are_not_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ACCOUNTANTS["rdp"]

    class SlowStart:
        name = "rdp"

        def epsilon(self, schedule: Schedule, delta: float) -> Any:
            if schedule.rounds == 1:
                time.sleep(0.3)
            return there.epsilon(schedule, delta)

    monkeypatch.setitem(ACCOUNTANTS, "rdp", SlowStart())
    plan = 300 * Round(1.36, Poisson(0.1))
    (entry,) = (one for one in read_entries(plan, 1e-5) if one.name == "rdp")
    assert entry.epsilon == there.epsilon(plan, 1e-5)
    assert entry.seconds < 0.3


def test_pages_and_the_number_alone(dpacct: Any) -> None:
    text = dpacct(WORDS).text
    first = next(line for line in text.splitlines() if line.strip())
    assert first.split()[-5:] == ["by", "tight,", "at", "delta", "1e-05"]
    for name in ["tight", "rdp"]:
        assert f"\n  {name}  " in text
    # The reason is a sentence, without the rounds as Python prints them.
    assert "\n  gdp: it covers full participation only\n" in text
    assert "Round(" not in text
    ours = library.epsilon(noise_multiplier=1.36, rounds=300, sampling_rate=0.1, delta=1e-5)
    assert float(dpacct(WORDS, "-q").text) <= ours.upper


def test_other_rounds(dpacct: Any, schedule_file: str) -> None:
    words = "compare --noise 5 --rounds 10 --sampling full"
    entries = by_name(dpacct(words, "--json").json)
    refused = dpacct("compare --noise 0.5 --rounds 3 --q 0.5").text
    assert "gdp: it covers full participation only" in refused
    assert "Poisson(" not in refused
    tight, gdp, rdp = (entries[name]["epsilon"]["upper"] for name in ("tight", "gdp", "rdp"))
    assert tight == pytest.approx(gdp, rel=1e-11)
    assert tight < 0.99 * rdp
    assert "by rdp" not in dpacct(words).text
    data = dpacct("compare", "--schedule", schedule_file, "--json").json
    assert (data["rounds"], len(data["phases"])) == (300, 2)


JOB = "compare --examples 200 --batch 20 --epochs 3 --noise 2 --delta 1e-5"


def test_a_training_job_is_shown_by_each_sampling(dpacct: Any) -> None:
    data = dpacct(JOB, "--json").json
    found = {row["sampling"]: row["epsilon"] for row in data["samplings"]}
    assert list(found) == ["poisson", "allocation", "uniform", "shuffle"]
    assert {row["adjacency"] for row in data["samplings"]} == {"zero-out"}
    wanted = {
        "poisson": 30 * Round(2.0, Poisson(0.1), "zero-out"),
        "allocation": 3 * Epoch(2.0, 10),
        "uniform": 30 * Round(2.0, Uniform(20, 200), "zero-out"),
        "shuffle": 3 * ShuffledEpoch(2.0, 10),
    }
    for name, schedule in wanted.items():
        spent = library.epsilon(schedule, delta=1e-5)
        assert found[name]["upper"] == pytest.approx(spent.upper, rel=1e-9)
        assert found[name]["lower"] == pytest.approx(spent.lower, rel=1e-9)
    assert found["allocation"]["upper"] < found["uniform"]["lower"] < found["shuffle"]["upper"]
    text = dpacct(JOB).text
    assert "each example in one random step of an epoch (3 x 10 steps)" in text
    # Steps that do not divide are rounded up, and said.
    text = dpacct("compare --examples 205 --batch 20 --epochs 2.5 --noise 2").text
    assert "(3 x 11 steps)" in text


@pytest.mark.parametrize("more", [" --sampling uniform", " --sampling poisson", ""])
def test_other_settings_have_no_such_table(dpacct: Any, more: str) -> None:
    job = JOB + more if more else "compare --noise 2 --rounds 3 --q 0.1"
    assert "samplings" not in dpacct(job, "--json").json
