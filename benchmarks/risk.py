"""The noise for a limit of attack risk: the results of dpacct and riskcal, and their times.

riskcal is not a dependency. If it is not installed, DPACCT_RISKCAL may name the Python of an
environment that has it, which is then called. Its time is taken without its imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import dpacct
from benchmarks.measure import median_seconds, table

ROUNDS, RATE = 300, 0.1
REPEATS = 5
GRID_STEP = 1e-4

_THEIRS = """
import json, time
from riskcal.calibration import dpsgd
start = time.perf_counter()
noise = dpsgd.{call}
print(json.dumps([noise, time.perf_counter() - start]))
"""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of risk, for both libraries."""

    title: str
    ours: Callable[[], float]
    theirs: str


def _noise(
    *, advantage: float | None = None, tpr: float | None = None, fpr: float | None = None
) -> float:
    found = dpacct.calibrate(
        rounds=ROUNDS,
        sampling_rate=RATE,
        accountant="tight",
        advantage=advantage,
        tpr=tpr,
        fpr=fpr,
    )
    return found.noise_multiplier


SETTING = f"sample_rate={RATE}, num_steps={ROUNDS}, grid_step={GRID_STEP}"
LIMITS = (
    Limit(
        "advantage 0.1",
        lambda: _noise(advantage=0.1),
        f"find_noise_multiplier_for_advantage(0.1, {SETTING})",
    ),
    Limit(
        "TPR 0.1 at FPR 0.01",
        lambda: _noise(tpr=0.1, fpr=0.01),
        f"find_noise_multiplier_for_err_rates(0.01, 0.9, {SETTING})",
    ),
)


def _python() -> str | None:
    """Return a Python that has riskcal."""
    return sys.executable if find_spec("riskcal") else os.environ.get("DPACCT_RISKCAL")


def _ask(python: str, call: str) -> tuple[float, float]:
    """Return the peer's noise multiplier, and its seconds."""
    done = subprocess.run(
        [python, "-c", _THEIRS.format(call=call)], check=True, capture_output=True, text=True
    )
    noise, seconds = json.loads(done.stdout.splitlines()[-1])
    return float(noise), float(seconds)


def main() -> None:
    """Measure and print."""
    python = _python()
    rows: list[list[str]] = []
    for limit in LIMITS:
        mine = median_seconds({limit.title: limit.ours}, REPEATS)[limit.title]
        rows.append(
            [f"dpacct, {limit.title}", f"{limit.ours():.6f}", f"{1000 * mine:.1f} ms", "1x"]
        )
        if python is not None:
            noise, theirs = _ask(python, limit.theirs)
            ratio = f"{theirs / mine:.0f}x"
            rows.append([f"riskcal, {limit.title}", f"{noise:.6f}", f"{theirs:.1f} s", ratio])
    print(
        table(
            f"calibrate to attack risk: {ROUNDS} rounds, q {RATE:g}, Poisson, add-remove",
            ["", "noise multiplier", "time", "theirs / ours"],
            rows,
        )
    )
    if python is None:
        print("  pip install riskcal brings a peer to compare with")
