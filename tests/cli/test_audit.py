"""`dpacct audit`: what it says of a sound run and of a leaking one."""

from __future__ import annotations

import json
from dataclasses import replace
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
    from dpacct_cli.commands.audit import audit_settings, page
    from dpacct_cli.train.settings import combine

    typed = {"rounds": "1", "sampling": "full", "noise": "2", "device": "cpu", "clients": "20"}
    settings = combine("dp-fedavg", typed)
    found, job = audit_settings(settings, 30)
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


def test_examples_are_audited(dpacct: Any) -> None:
    words = "--examples --rounds 1 --noise 2 --batch 32 --device cpu --canaries 60"
    found = dpacct(f"audit dp-fedavg {words} --json").json
    assert (found["passed"], found["method"], found["adjacency"]) == (True, "dp-fedavg", "zero-out")
    assert found["examples"] > 1000
    assert "clients" not in found
