"""`--best-of`: every command that takes it charges for it, or refuses it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import dpacct as library
from dpacct import Round, best_of, risk
from dpacct_cli.app import ENTRIES, load

BEST = "--best-of poisson:10"
RUNS = "--rounds 5 --sampling full"
SHORT = f"--noise 3 {RUNS}"
PLAN = 1 * best_of(5 * Round(3.0), "poisson:10")
# A drawing of it has no rounds.
REFUSING = ("plot schedule", "plot samplings")
# Each command that takes --best-of, with options that make its answer short.
TAKING = {
    "calibrate": f"--eps 2 {RUNS} -q",
    "epsilon": f"{SHORT} -q",
    "delta": f"{SHORT} --eps 2 -q",
    "rdp": f"{SHORT} -q",
    "compare": f"{SHORT} -q",
    "risk": f"{SHORT} -q",
    "report": f"{SHORT} --json",
    "explore": f"{SHORT} --json",
    "ledger remaining": "FILE --noise 3 --rounds 5 --sampling full -q",
    "ledger charge": f"FILE {SHORT} -q",
    "plot eps": SHORT,
    "plot delta": SHORT,
    "plot rdp": SHORT,
    "plot tradeoff": SHORT,
    "plot schedule": SHORT,
    "plot compare": SHORT,
    "plot samplings": "--examples 100 --batch 10 --epochs 2 --noise 3",
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.csv").write_text("rounds,noise_multiplier\n5,3\n", encoding="utf-8")


def test_these_are_all_commands_that_take_it() -> None:
    taking: set[str] = set()
    for name, entry in ENTRIES.items():
        command = load(name, entry)
        for below, each in getattr(command, "commands", {"": command}).items():
            if any("--best-of" in param.opts for param in each.params):
                taking.add(f"{name} {below}".strip())
    # `certify` needs a package of its own, and has tests of its own.
    assert taking == {*TAKING, "certify"}


@pytest.mark.needs("plotext")
@pytest.mark.parametrize("command", TAKING)
def test_no_command_ignores_it(dpacct: Any, command: str) -> None:
    answers: list[str] = []
    for more, file in (("", "one.ledger"), (BEST, "two.ledger")):
        dpacct(f"ledger init {file} --eps 8")
        ran = dpacct(f"{command} {TAKING[command]} {more}".replace("FILE", file))
        assert ran.code == (2 if command in REFUSING and more else 0), ran.err
        answers.append(ran.out)
    assert answers[0] != answers[1]


@pytest.mark.parametrize("words", [SHORT, "--schedule plan.csv"])
def test_answers_are_those_of_the_library(dpacct: Any, words: str) -> None:
    spent = library.epsilon(PLAN, delta=1e-5)
    data = dpacct(f"epsilon {words} {BEST} --json").json
    assert data["epsilon"] == {"lower": spent.lower, "upper": spent.upper}
    assert data["noise_multiplier"] == 3
    assert "the best of a random number of such runs" in dpacct(f"epsilon {words} {BEST}").text
    advantage = dpacct(f"risk {words} {BEST} --json").json["advantage"]["upper"]
    assert advantage == pytest.approx(risk.advantage(PLAN).upper, rel=1e-9)


@pytest.mark.parametrize("words", [RUNS, "--schedule plan.csv"])
def test_calibration_pays_for_all_runs(dpacct: Any, words: str) -> None:
    found = library.calibrate(schedule=PLAN, epsilon=2, delta=1e-5)
    for line in (f"calibrate --eps 2 {words} {BEST} --json", f"risk --eps 2 {RUNS} {BEST} --json"):
        noise = dpacct(line).json["noise_multiplier"]
        assert noise == pytest.approx(3 * found.noise_scale, rel=1e-6)
        spent = library.epsilon(1 * best_of(5 * Round(noise), "poisson:10"), delta=1e-5)
        assert spent.upper <= 2
    solved = dpacct(f"calibrate --eps 2 {SHORT} {BEST} --solve delta -q").text
    assert math.isclose(float(solved), library.delta(PLAN, epsilon=2).upper, rel_tol=1e-6)
