"""Runs on several processes: the model of one process, and failures that end all of them."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    return [rank.wait(timeout=3600) for rank in ranks]


@pytest.fixture(scope="module")
def alone() -> dict[str, list[torch.Tensor]]:
    """The weights that each setting has after its run in one process."""
    runs = {name: seeded(name) for name in SETTINGS}
    return {name: (run.run(), weights(run))[1] for name, run in runs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_train_and_audit_as_one(size: int, tmp_path: Path, alone: Any) -> None:
    more = ("resumed", "charged", "refusals", "audited") if size == 2 else ()
    assert played(tmp_path, size, "identity", *more) == [0] * size
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(size)]
    for name, each in itertools.product(SETTINGS, found):
        assert all(map(torch.equal, alone[name], each[name])), name
    if size == 3:
        return
    for name in ("charged", "controls"):
        both = [torch.load(tmp_path / f"{name}{rank}.pt") for rank in range(2)]
        assert all(map(torch.equal, *both))
    assert all(map(torch.equal, both[0], alone["controls"]))
    # What no rank above 0 was told, it hears.
    budgets, audits = (
        [(tmp_path / name.format(rank)).read_text() for rank in range(2)]
        for name in ("budgets{}.json", "audits{}.txt")
    )
    assert budgets[0] == budgets[1]
    assert "Budget(" in budgets[0]
    assert audits == [repr([audit_of(name) for name in ("plain", "memories")])] * 2


@pytest.mark.needs("posix")
@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_leaves_the_round_spent(tmp_path: Path) -> None:
    assert played(tmp_path, 2, "killed") == [0, -signal.SIGKILL]


def test_ranks_need_processes_that_have_met() -> None:
    with pytest.raises(InvalidParameter, match="init_process_group"):
        seeded("plain", distributed=True)
