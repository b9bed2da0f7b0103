"""Each script of examples/ runs, and does what it is an example of."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import dpacct
from dpacct import Ledger
from dpacct.schedules import load_schedule

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs a script in a folder of its own; what it and its children print."""

    def runner(name: str, *words: str) -> str:
        script = str(EXAMPLES / name)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [script, *words])
        with suppress(SystemExit):
            runpy.run_path(script, run_name="__main__")
        return capfd.readouterr().out

    return runner


def test_every_script_is_listed_and_tested():
    scripts = {file.name for file in EXAMPLES.glob("*.py")} - {"__init__.py"}
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\[(\w+\.py)\]\(\1\)", listed)) == scripts
    here = Path(__file__).read_text(encoding="utf-8")
    assert {name for name in scripts if f'"{name}"' not in here} == set()


def test_a_plan_is_calibrated_from_file_to_file(tmp_path, run):
    words = [str(EXAMPLES / "plan.toml"), "--eps", "4", "--delta", "1e-6", "-o", "new.toml"]
    said = run("calibrate_a_plan.py", *words)
    shape, plan = load_schedule(EXAMPLES / "plan.toml"), load_schedule(tmp_path / "new.toml")
    spent = dpacct.epsilon(plan, delta=1e-6)
    assert 3.999 < spent.upper <= 4
    first, second = (
        new.round.noise_multiplier / old.round.noise_multiplier
        for new, old in zip(plan.phases, shape.phases, strict=True)
    )
    assert first == pytest.approx(second, rel=1e-12)
    assert f"epsilon {spent.upper:.4f} proven at delta 1e-06, add-remove" in said
    before = (tmp_path / "new.toml").read_bytes()
    assert run("calibrate_a_plan.py", *words) == ""
    assert (tmp_path / "new.toml").read_bytes() == before


def test_two_programs_share_one_budget(tmp_path, run):
    said = run("shared_ledger.py", "shared.ledger")
    with Ledger.open(tmp_path / "shared.ledger") as ledger:
        # On a busy machine one of them may be done before the other one begins.
        assert len(ledger.runs) == 2
        assert sum(record.committed for record in ledger.runs) == ledger.rounds
        assert 1.9 < ledger.epsilon().upper <= 2
    assert said.endswith("one more such round: does not fit\n")


def test_a_loop_of_ones_own_is_charged(tmp_path, run):
    pytest.importorskip("torch")
    said = run("loop_of_your_own.py", "--rounds", "4")
    assert said.startswith("4 rounds, epsilon ")
    with Ledger.open(tmp_path / "own-loop.ledger") as ledger:
        assert ledger.epsilon().upper <= 6
        assert [record.committed for record in ledger.runs] == [4]


@pytest.mark.slow
def test_a_loop_of_ones_own_learns(run):
    pytest.importorskip("torch")
    said = run("loop_of_your_own.py")
    assert float(said.split()[-1]) > 0.9


def held_out(run: Callable[..., str], folder: Path, rounds: int) -> float:
    """The last accuracy on clients who never took part."""
    pytest.importorskip("sklearn")
    name = "federated_with_held_out_clients.py"
    said = run(name, "--rounds", str(rounds))
    with Ledger.open(folder / "held-out.ledger") as ledger:
        assert ledger.rounds == rounds
        assert ledger.epsilon().upper <= 8
    return float(said.split()[-1])


def test_training_with_held_out_clients(tmp_path, run):
    assert 0 <= held_out(run, tmp_path, 2) <= 1


@pytest.mark.slow
def test_training_with_held_out_clients_learns(tmp_path, run):
    assert held_out(run, tmp_path, 30) > 0.8
