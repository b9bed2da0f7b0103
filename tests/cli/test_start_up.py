"""A cold start imports what it needs and no more; Typer's conversions stay asleep."""

from __future__ import annotations

import subprocess
import sys

import pytest

SLOW = ["pydantic", "rich", "scipy.stats", "scipy.optimize", "torch", "dp_accounting", "opacus"]
CALIBRATE = ["calibrate", "--eps", "8", "--rounds", "300", "--q", "0.1"]


@pytest.mark.parametrize("words", [["--help"], CALIBRATE, ["calibrate", "--eps", "x"]])
def test_nothing_slow_is_imported(words: list[str]) -> None:
    code = (
        "import sys\n"
        "from dpacct_cli.app import app\n"
        "try:\n    app(sys.argv[1:])\n"
        f"except SystemExit: print([m for m in {SLOW!r} if m in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    assert ran.stderr.splitlines()[-1] == "[]"
