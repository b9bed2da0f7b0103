"""Single examples on several processes: the model of one, whoever stops and on how many threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.fl.engine.ranked_examples import interrupted, run_of, weights

ROOT = Path(__file__).resolve().parents[3]


def played(folder: Path, *cases: str) -> list[int]:
    """Exit codes of two ranks; what they print is shown where one fails."""
    meeting = f"file://{folder}/meet"
    command = [sys.executable, "-m", "tests.fl.engine.ranked_examples", meeting, str(folder)]
    ranks = [subprocess.Popen([*command, str(rank), "2", *cases], cwd=ROOT) for rank in (0, 1)]
    return [rank.wait(timeout=300) for rank in ranks]


@pytest.mark.slow
def test_two_processes_train_the_model_of_one(tmp_path: Path) -> None:
    one = tmp_path / "one.pt"
    begun = run_of(seed=4, checkpoint=one)
    for report in begun:
        if report.round == 3:
            break
    begun.close()
    assert played(tmp_path, "whole", "from_one", "objecting") == [0, 0]
    alone = run_of(seed=4)
    alone.run()
    expected = weights(alone.model)
    assert all(map(torch.equal, interrupted(tmp_path / "alone.pt"), expected))
    for rank in (0, 1):
        for found in torch.load(tmp_path / f"whole{rank}.pt"):
            assert all(map(torch.equal, found, expected))
    ended = run_of(seed=4, checkpoint=one).resume()
    ended.run()
    assert all(map(torch.equal, weights(ended.model), expected))
