"""Cold starts: `import dpacct` and the command line, against `import numpy`."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.measure import command, median_seconds, python, table

REPEATS = 15
BASE = 'python -c "import numpy"'
DPACCT = str(Path(sys.executable).parent / "dpacct")
CALIBRATE = ("calibrate", "--eps", "8", "--rounds", "300", "--q", "0.1")
CALLS = {
    'python -c "pass"': python("-c", "pass"),
    BASE: python("-c", "import numpy"),
    'python -c "import dpacct"': python("-c", "import dpacct"),
    "dpacct --help": command(DPACCT, "--help"),
    f"dpacct {' '.join(CALIBRATE)}": command(DPACCT, *CALIBRATE),
}
GOALS = {
    'python -c "import dpacct"': "at most 1.3x",
    "dpacct --help": "at most 2.5x",
    f"dpacct {' '.join(CALIBRATE)}": "at most 2.5x",
}


def main() -> None:
    """Measure and print."""
    seconds = median_seconds(CALLS, REPEATS)
    print(
        table(
            f"cold start, one process each (median of {REPEATS}, interleaved)",
            ["", "time", "of import numpy", "goal"],
            [
                [
                    name,
                    f"{1000 * seconds[name]:.0f} ms",
                    f"{seconds[name] / seconds[BASE]:.2f}x",
                    GOALS.get(name, ""),
                ]
                for name in CALLS
            ],
        )
    )
