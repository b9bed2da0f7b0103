"""`dpacct audit`: what it says of a sound run and of a leaking one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

# Models this small wait for threads longer than they compute.
pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = "--rounds 2 --sampling full --noise 2 --canaries 60 --device cpu"


def test_a_sound_run_passes(dpacct: Any) -> None:
    ran = dpacct(f"audit dp-fedavg {WORDS}")
    assert ran.code == 0
    assert "nothing contradicts the charge" in ran.text
    assert "FAILED" not in ran.text
    assert "full" in ran.text or "every client" in ran.text


def test_json_has_all_of_it(dpacct: Any) -> None:
    found = json.loads(dpacct(f"audit dp-fed-ls {WORDS} --json").text)
    assert found["passed"] is True
    assert found["faults"] == []
    # One sound run in twenty shows more than it is charged, so that nothing more can be asserted.
    assert min(found["shown"]["epsilon"], found["shown"]["epsilon_if_gaussian"]) >= 0
    assert found["shown"]["confidence"] == 0.95
    assert 0 < found["epsilon"]["lower"] <= found["epsilon"]["upper"]
    assert found["canaries"] == 60
    assert found["adjacency"] == "zero-out"
    assert found["rounds"] == 2


def test_luck_is_called_luck() -> None:
    pytest.importorskip("torch")
    from dpacct_cli.commands.audit import audit_whole_run, page
    from dpacct_cli.train.settings import combine

    typed = {"rounds": "1", "sampling": "full", "noise": "2", "device": "cpu", "clients": "20"}
    settings = combine("dp-fedavg", typed)
    found, job = audit_whole_run(settings, 30)
    lucky = replace(found, gaussian_epsilon=found.charged.upper + 1e-3)
    assert found.passed
    assert any("may err with 5 %" in each for each in page(settings, job, lucky).remarks)
    beside = replace(found, gaussian_epsilon=0.0, shown=replace(found.shown, epsilon=0.0))
    assert not any("may err" in each for each in page(settings, job, beside).remarks)


@pytest.mark.slow
def test_a_fixed_cohort_grows_with_the_canaries(dpacct: Any) -> None:
    words = ("--rounds", "2", "--sampling", "uniform", "--cohort", "50", "--noise", "4")
    ran = dpacct("audit", "dp-fedavg", *words, "--canaries", "60", "--device", "cpu")
    assert ran.code == 0
    assert "80 of 160 clients" in ran.text
    assert "replace one client" in ran.text


@pytest.mark.slow
def test_the_settings_of_a_run_are_audited(dpacct: Any, tmp_path: Path) -> None:
    ledger = tmp_path / "a.ledger"
    words = ("--rounds", "2", "--noise", "2", "--ledger", str(ledger), "--device", "cpu")
    assert dpacct("train", "blur", *words).code == 0
    (settings,) = tmp_path.glob("*.settings.json")
    ran = dpacct("audit", "--run", str(settings), "--canaries", "60", "--json")
    assert json.loads(ran.text)["method"] == "blur"
    assert json.loads(ran.text)["rounds"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "METHOD"),
        (("dp-fedavgg",), "dp-fedavg"),
        (("dp-fedavg", "--canaries", "3"), "at least 23"),
        (("dp-fedavg", "--canaries", "9999"), "room for at most"),
        (("dp-fedavg", "--error", "0"), "--error"),
        (("dp-fedavg", "--confidence", "2"), "--confidence"),
        (("dp-fedavg", "--others", "loud"), "--others"),
        (("dp-fedavg", "--run", "x.json"), "drop one"),
        (("--run", "missing.json"), "missing.json"),
        (("dp-fedavg", "--batch", "9"), "needs --examples"),
        (("dp-fedavg", "--single-round", "9"), "at least 46"),
        (("dp-fedavg", "--single-round", "90", "--canaries", "9"), "no canaries"),
        (("dp-fedavg", "--examples", "--clients", "9"), "every example counts"),
        (("dp-fedavg", "--error", "x"), "--error"),
    ],
)
def test_bad_input_is_named(dpacct: Any, words: tuple[str, ...], said: str) -> None:
    ran = dpacct("audit", *words)
    assert ran.code == 2
    assert said in ran.err


def test_a_single_round_is_repeated(dpacct: Any) -> None:
    words = "--noise 1 --sampling full --device cpu --single-round 50"
    ran = dpacct(f"audit dp-fedavg {words}")
    assert ran.code == 0
    assert "nothing contradicts" in ran.text
    assert "50 + 50" in ran.text


@pytest.mark.slow
def test_a_single_round_of_examples_is_repeated(dpacct: Any) -> None:
    words = "--noise 1 --sampling full --device cpu --single-round 60"
    found = json.loads(dpacct(f"audit --examples {words} --json").text)
    assert (found["passed"], found["repetitions"], found["rounds"]) == (True, 60, 1)
    assert dpacct(f"audit --examples {words} -q").text == "passed\n"


def test_examples_of_a_run_are_audited_and_not_attacked(dpacct: Any, tmp_path: Path) -> None:
    ledger = tmp_path / "a.ledger"
    words = f"--examples --rounds 1 --noise 2 --batch 32 --device cpu --ledger {ledger}"
    assert dpacct(f"train dp-fedavg {words}").code == 0
    (settings,) = tmp_path.glob("*.settings.json")
    found = dpacct(f"audit --run {settings} --canaries 60 --json").json
    assert (found["passed"], found["method"], found["adjacency"]) == (True, "dp-fedavg", "zero-out")
    assert found["examples"] > 1000
    assert "clients" not in found
    (checkpoint,) = tmp_path.glob("*.checkpoint")
    ran = dpacct(f"attack {checkpoint}")
    assert ran.code in (1, 2)
    assert "single examples" in ran.err


def test_examples_hold_out_nobody(dpacct: Any) -> None:
    ran = dpacct("train dp-fedavg --examples --hold-out 0.2 --rounds 2")
    assert ran.code == 2
    assert "--hold-out" in ran.err
