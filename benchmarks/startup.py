"""Cold starts: `dpacct.calibrate` and the command line, against `import numpy`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import command, median_seconds, python, table
from dpacct import Budget, Ledger, Poisson, Round

REPEATS, BLOCKS = 15, 3
BASE = 'python -c "import numpy"'
DPACCT = str(Path(sys.executable).parent / "dpacct")
# The package alone imports next to nothing. Its functions are imported on first use.
IMPORT, HELP = 'python -c "import dpacct; dpacct.calibrate"', "dpacct --help"
CALIBRATE = "dpacct calibrate --eps 8 --rounds 300 --q 0.1"
EPSILON = "dpacct epsilon --noise 1.36 --rounds 300 --q 0.1"
SHOW = "dpacct ledger show FILE"
GOALS = {IMPORT: 1.3, HELP: 2.0, CALIBRATE: 2.0, EPSILON: 2.0, SHOW: 2.0}


def calls(ledger: Path) -> dict[str, Callable[[], object]]:
    """Return the measured calls, by command line.

    Args:
        ledger: a file that exists.
    """
    typed: dict[str, Sequence[str]] = {
        name: name.split()[1:] for name in (HELP, CALIBRATE, EPSILON)
    }
    typed[SHOW] = ["ledger", "show", str(ledger)]
    return {
        'python -c "pass"': python("-c", "pass"),
        BASE: python("-c", "import numpy"),
        IMPORT: python("-c", "import dpacct; dpacct.calibrate"),
        **{name: command(DPACCT, *words) for name, words in typed.items()},
    }


def ratios(blocks: list[dict[str, float]]) -> dict[str, float]:
    """Return for each call its least ratio of medians to numpy's over some blocks of runs."""
    return {name: min(block[name] / block[BASE] for block in blocks) for name in blocks[0]}


def main() -> None:
    """Measure and print."""
    # Installed packages have bytecode files. The first runs, which do not count, write them.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "census.ledger")
        with Ledger.open(file, Budget(8, 1e-5)) as ledger:
            run = ledger.start_run("training")
            for _ in range(20):
                run.reserve(Round(1.3, Poisson(0.1))).commit()
        blocks = [median_seconds(calls(file), REPEATS) for _ in range(BLOCKS)]
    found = ratios(blocks)
    rows = [
        [
            name,
            f"{1000 * min(block[name] for block in blocks):.0f} ms",
            f"{found[name]:.2f}x",
            f"at most {GOALS[name]:.1f}x" if name in GOALS else "",
        ]
        for name in found
    ]
    title = f"cold start, one process each (interleaved; least of {BLOCKS} medians of {REPEATS})"
    print(table(title, ["", "time", "of import numpy", "goal"], rows))


if __name__ == "__main__":
    main()
