"""Models that are trained centrally: examples, batches and epochs instead of clients and rounds."""

from __future__ import annotations

import re
from typing import Any

import pytest

TYPED = "--examples 50000 --batch 256 --epochs 20"
SAME = "--clients 50000 --cohort 256 --rounds 3907"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "calibrate --eps 3",
        "epsilon --noise 0.8 --delta 1e-5",
        "delta --noise 0.8 --eps 3",
        "risk --noise 0.8",
        "rdp --noise 0.8",
    ],
)
def test_epochs_are_rounds(dpacct: Any, command: str) -> None:
    assert dpacct(command, TYPED, "--json").json == dpacct(command, SAME, "--json").json


def test_epochs_are_rounds_of_a_comparison_too(
    dpacct: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpacct.interop.installed_peers", lambda: ())
    found = dpacct("compare --noise 1 --examples 100 --batch 5 --epochs 3", "--json").json
    assert (found["rounds"], found["sampling_rate"]) == (60, 0.05)


def test_a_ledger_is_charged_by_epochs(dpacct: Any, tmp_path: Any) -> None:
    file = tmp_path / "l.ledger"
    assert dpacct(f"ledger init {file} --eps 8 --delta 1e-5").code == 0
    words = f"ledger charge {file} --noise 1 --examples 100 --batch 5 --epochs 3 --json"
    assert dpacct(words).json["charged"] == 60
    left = f"ledger remaining {file} --noise 1 -q"
    assert dpacct(left, "--examples 100 --batch 5").text == dpacct(left, "--q 0.05").text


@pytest.mark.parametrize(
    ("words", "rounds"),
    [
        ("--examples 100 --batch 10 --epochs 3", 30),
        ("--examples 100 --batch 30 --epochs 1", 4),
        ("--examples 100 --batch 30 --epochs 0.5", 2),
        ("--q 0.1 --epochs 3", 30),
        ("--q 0.3 --epochs 3", 10),
        ("--sampling full --epochs 3", 3),
        ("--sampling uniform --examples 100 --batch 30 --epochs 3", 10),
        # In binary 0.07 is a little more than in decimals, and 7 / 0.07 a little less than 100.
        ("--q 0.07 --epochs 7", 100),
        ("--q 0.1 --epochs 0.3", 3),
    ],
)
def test_an_epoch_takes_one_over_the_rate_rounded_up(dpacct: Any, words: str, rounds: int) -> None:
    assert dpacct("epsilon --noise 5", words, "--json").json["rounds"] == rounds


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (f"{TYPED} --rounds 3", "--epochs 20 contradicts --rounds 3 (both say how long)"),
        ("--batch 256 --epochs 20", "--batch 256 needs --examples, the population"),
        ("--examples 50000 --epochs 20", "Give it, or --batch with --examples"),
        ("--examples 50000 --batch 0 --epochs 20", "--batch is 0; the cohort size is a whole"),
        ("--examples 10 --batch 20 --epochs 20", "as many members as there are examples (10)"),
        ("--examples x --batch 20 --epochs 20", "--examples is 'x', which is not a number"),
        ("--examples 50 --batch 5 --epochs 0", "--epochs is 0; the number of epochs is a finite"),
        ("--examples 50 --batch 5 --epochs -1", "--epochs is -1; the number of epochs is a"),
        ("--examples 50 --batch 5 --epochs inf", "--epochs is inf; the number of epochs is a"),
        ("--examples 50 --batch 5 --epochs 1e12", "is 10000000000000; the number of rounds is"),
        (f"{TYPED} --q 0.1", "--q 0.1 contradicts --batch 256 (both set the rate)"),
        (f"{TYPED} --clients 7", "--clients 7 contradicts --examples 50000"),
        (f"{TYPED} --cohort 7", "--cohort 7 contradicts --batch 256"),
        (f"{TYPED} --sampling full", "--batch 256 contradicts --sampling full"),
    ],
)
def test_errors_name_what_was_typed(dpacct: Any, words: str, line: str) -> None:
    ran = dpacct("epsilon --noise 1", words)
    assert (ran.code, ran.out) == (2, "")
    assert line in ran.err


@pytest.mark.parametrize(
    ("solve", "words"),
    [
        ("rounds", "--epochs 20 contradicts --solve rounds (it is what is solved for)"),
        ("q", "--epochs 20 contradicts --solve q (how many rounds they take depends on the rate)"),
    ],
)
def test_epochs_are_no_answer_to_themselves(dpacct: Any, solve: str, words: str) -> None:
    ran = dpacct(f"calibrate --eps 3 --noise 1 --epochs 20 --solve {solve}")
    assert ran.code == 2
    assert words in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["calibrate --eps 3", "epsilon --noise 1", "risk --noise 1"])
def test_pages_speak_of_examples_and_say_what_can_be_pasted(dpacct: Any, command: str) -> None:
    page = dpacct(command, TYPED).text
    assert "client" not in page
    assert "add-remove an example" in page
    assert "clients" in dpacct(command, SAME).text or command.startswith("risk")
    for again in re.findall(r"dpacct compare (.*) shows", page):
        assert "--examples 50000" in again
        assert "--batch 256" in again
        assert "--epochs 20" in again
