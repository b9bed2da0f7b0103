"""Runs on several processes: the model of one process, and failures that end all of them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dpacct.errors import InvalidParameter
from tests.fl.engine.ranked import SETTINGS, audit_of, seeded, weights

ROOT = Path(__file__).resolve().parents[3]


def played(folder: Path, size: int, *cases: str) -> list[int]:
    """Exit codes of all ranks; what they print is shown where one fails."""
    command = [sys.executable, "-m", "tests.fl.engine.ranked", f"file://{folder}/meet", str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(size), *cases], cwd=ROOT) for rank in range(size)
    ]
    return [rank.wait(timeout=300) for rank in ranks]


@pytest.mark.slow
def test_several_processes_train_the_model_of_one(tmp_path: Path) -> None:
    cases = ("identity", "resumed", "charged", "refusals")
    assert played(tmp_path, 2, *cases) == [0, 0]
    ours, theirs = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for name in SETTINGS:
        alone = seeded(name)
        alone.run()
        for found in (ours, theirs):
            assert all(map(torch.equal, weights(alone), found[name])), name
    for name in ("charged", "controls"):
        both = [torch.load(tmp_path / f"{name}{rank}.pt") for rank in range(2)]
        assert all(map(torch.equal, *both))
    assert all(map(torch.equal, both[0], ours["controls"]))
    # What no rank above 0 was told, it hears.
    budgets = [(tmp_path / f"budgets{rank}.json").read_text() for rank in range(2)]
    assert budgets[0] == budgets[1]
    assert "Budget(" in budgets[0]


@pytest.mark.slow
def test_an_audit_of_two_processes_is_that_of_one(tmp_path: Path) -> None:
    assert played(tmp_path, 2, "audited") == [0, 0]
    alone = repr([audit_of(name) for name in ("plain", "memories")])
    for rank in range(2):
        assert (tmp_path / f"audits{rank}.txt").read_text() == alone


@pytest.mark.slow
def test_three_processes_train_the_model_of_one(tmp_path: Path) -> None:
    assert played(tmp_path, 3, "identity") == [0, 0, 0]
    found = torch.load(tmp_path / "2.pt")
    for name in SETTINGS:
        alone = seeded(name)
        alone.run()
        assert all(map(torch.equal, weights(alone), found[name])), name


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_leaves_the_round_spent(tmp_path: Path) -> None:
    assert played(tmp_path, 2, "killed") == [0, -signal.SIGKILL]


def test_ranks_need_processes_that_have_met() -> None:
    with pytest.raises(InvalidParameter, match="init_process_group"):
        seeded("plain", distributed=True)
