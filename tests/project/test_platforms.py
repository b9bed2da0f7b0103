"""The core on Windows, simulated: `tests/without_posix` takes fork, flock and modes away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dpacct import Budget, Ledger, Poisson, Round

ROOT = Path(__file__).resolve().parents[2]
WINDOWS = os.environ | {"PYTHONPATH": str(ROOT / "tests" / "without_posix")}
COMMANDS = """
import os, sys
assert not hasattr(os, "fork") and sys.modules["fcntl"] is None
from dpacct_cli.app import app
for words in (
    "calibrate --eps 8 --rounds 300 --q 0.1",
    "epsilon --noise 1.3 --rounds 300 --q 0.1 --json",
    "risk --noise 1.3 --rounds 30 --q 0.1",
    "ledger init a.ledger --eps 3",
    "ledger charge a.ledger --noise 9 --rounds 3 --q 1",
    "ledger show a.ledger",
    "ledger verify a.ledger",
    "ledger report a.ledger -o page.md",
    "ledger export a.ledger -o copy.jsonl",
):
    try:
        app(words.split())
    except SystemExit as end:
        assert not end.code, words
"""
# Writes until the budget is spent, and prints the number of its rounds.
WRITER = """
from dpacct import BudgetExceeded, Ledger, Poisson, Round
done = 0
with Ledger.open("shared.ledger") as ledger:
    run = ledger.start_run("writer")
    try:
        while True:
            run.reserve(Round(2.0, Poisson(0.05))).commit()
            done += 1
    except BudgetExceeded:
        print(done)
"""


def start(code: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder, env=WINDOWS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_commands_and_ledgers_work_without_fork_flock_and_modes(tmp_path: Path) -> None:
    running = start(COMMANDS, tmp_path)
    out, err = running.communicate(timeout=3600)
    assert running.returncode == 0, out + err
    assert "1.28601" in out
    with Ledger.open(tmp_path / "a.ledger") as ledger:
        assert ledger.rounds == 3
    assert {"page.md", "copy.jsonl"} <= {file.name for file in tmp_path.iterdir()}


def test_writers_without_flock_never_exceed_the_budget_together(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "shared.ledger", Budget(1, 1e-5)) as ledger:
        fitting = ledger.remaining_one_by_one(Round(2.0, Poisson(0.05)))
    writers = [start(WRITER, tmp_path) for _ in range(2)]
    answers = [writer.communicate(timeout=3600) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], answers
    assert sum(int(out) for out, _ in answers) == fitting > 6
    with Ledger.open(tmp_path / "shared.ledger") as ledger:
        assert ledger.rounds == fitting
        assert ledger.verify().sound
