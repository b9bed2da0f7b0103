"""Real processes: a SuperNode and the server killed, NaN, another round, a late answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed beside the other test extras")

from dpacct.ledger import Ledger
from tests.fl.flower.processes import play

pytestmark = pytest.mark.needs("posix")

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_faults_cost_contributions_and_nothing_else(tmp_path):
    rounds = play(tmp_path / "run")
    came = [(line["round"], line["came"], line["bad"]) for line in rounds]
    # Client 1 sends NaN, answers to another round, is late; node 2 is killed, and comes back under
    # another id. The round that was open when the server was killed is lost and stays spent.
    assert came[:5] == [(1, 3, 0), (2, 3, 1), (3, 2, 0), (4, 2, 0), (5, 2, 0)]
    assert [number for number, _, _ in came] == [1, 2, 3, 4, 5, 6]
    assert came[-1] == (6, 3, 0)
    with Ledger.open(tmp_path / "run" / "run.pt.ledger", read_only=True) as book:
        [run] = book.runs
        assert (run.rounds, run.committed) == (7, 6)
        assert not book.verify().problems
        spent = run.epsilon().upper
    ended = json.loads((tmp_path / "run" / "ended.json").read_text(encoding="utf-8"))
    assert ended == {"rounds": 6, "epsilon": spent}
    state = torch.load(tmp_path / "run" / "run.pt", weights_only=True)
    assert all(bool(value.isfinite().all()) for value in state["params"].values())


@pytest.mark.slow
def test_the_simulation_runtime_plays_it():
    pytest.importorskip("ray", reason="flwr[simulation] is not installed")
    paths = os.pathsep.join(str(ROOT / part) for part in ("src", "cli", "."))
    done = subprocess.run(
        [sys.executable, "-m", "tests.fl.flower.simulation"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True,
        check=True, timeout=3600,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"round"')]
    assert [(line["round"], line["came"]) for line in lines] == [(n, 7) for n in (1, 2, 3, 4)]
