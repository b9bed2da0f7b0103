"""A cold start imports what it needs and no more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dpacct import Budget, Ledger, Poisson, Round
from dpacct_cli.__main__ import main

SLOW = [
    "pydantic", "argparse", "scipy.stats", "scipy.optimize", "torch",
    "dp_accounting", "opacus", "flwr", "matplotlib", "fpdf", "mpmath",
    "importlib.metadata", "tomllib", "tempfile",
    "dpacct.tight.game.theorem", "dpacct.tight.sizes",
    "dpacct.risk.attacks", "dpacct.report", "dpacct.ledger.report.compose", "dpacct.pictures",
]  # fmt: skip
CALIBRATE = ["calibrate", "--eps", "8", "--rounds", "300", "--q", "0.1"]


@pytest.mark.parametrize(
    "words", [["--help"], CALIBRATE, ["ledger", "--help"], ["ledger", "show", "FILE"]]
)
def test_nothing_slow_is_imported(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "census.ledger"
    with Ledger.open(file, Budget(8, 1e-5)) as ledger:
        ledger.charge("elsewhere", 50 * Round(1.3, Poisson(0.1)))
    slow = SLOW if "show" in words else [*SLOW, "sqlite3"]
    words = [str(file) if word == "FILE" else word for word in words]
    code = (
        "import sys\n"
        "from dpacct_cli.app import app\n"
        "try:\n    app(sys.argv[1:])\n"
        f"except SystemExit: print([m for m in {slow!r} if m in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    assert ran.stderr.splitlines()[-1] == "[]"


def test_garbage_is_collected_while_a_command_runs() -> None:
    code = (
        "import gc, sys, dpacct\n"
        "exact = dpacct.calibrate\n"
        "def watched(**given):\n"
        "    print(gc.isenabled(), file=sys.stderr)\n"
        "    return exact(**given)\n"
        "dpacct.calibrate = watched\n"
        "from dpacct_cli.__main__ import main\n"
        "main()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *CALIBRATE], capture_output=True, text=True, check=True
    )
    assert set(ran.stderr.split()) == {"True"}


@pytest.mark.parametrize(
    ("name", "said", "held"),
    [
        ("OMP_WAIT_POLICY", None, "PASSIVE"),
        ("OMP_WAIT_POLICY", "ACTIVE", "ACTIVE"),
        ("OPENBLAS_NUM_THREADS", None, "1"),
        ("OPENBLAS_NUM_THREADS", "4", "4"),
    ],
)
def test_threads_do_not_spin_unless_told_otherwise(
    name: str, said: str | None, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, said or "")
    if said is None:
        del os.environ[name]
    monkeypatch.setattr("sys.argv", ["dpacct", "--version"])
    monkeypatch.setattr("dpacct_cli.__main__.prepare", lambda: None)
    monkeypatch.setattr("gc.disable", lambda: None)
    monkeypatch.setattr("gc.freeze", lambda: None)
    with pytest.raises(SystemExit):
        main()
    assert os.environ[name] == held


@pytest.mark.slow
def test_threads_of_torch_follow_that_policy(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = ["train", "dp-fedavg", "--rounds", "1", "--clients", "10"]
    ran = subprocess.run(
        [sys.executable, "-m", "dpacct_cli", *words],
        cwd=tmp_path,
        env=os.environ | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    counts = {int(count) for count in re.findall(r"GOMP_SPINCOUNT = '(\d+)'", ran.stderr)}
    if not counts:
        pytest.skip("threads of another kind than GNU's")
    assert counts == {0}
