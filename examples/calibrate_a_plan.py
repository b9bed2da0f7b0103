"""Read a plan from a file, scale its noise to a budget, and write the plan that may be run.

python examples/calibrate_a_plan.py examples/plan.toml --eps 4 --delta 1e-6 -o calibrated.toml
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import dpacct
from dpacct import DpacctError, risk
from dpacct.schedules import dump_schedule, load_schedule


def main() -> None:
    """Calibrate, and say what that means for one person."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--eps", type=float, required=True)
    parser.add_argument("--delta", type=float, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    asked = parser.parse_args()
    if asked.output.exists():
        sys.exit(f"{asked.output} exists; name another file with -o")
    try:
        shape = load_schedule(asked.plan)
        found = dpacct.calibrate(schedule=shape, epsilon=asked.eps, delta=asked.delta)
        accused = risk.true_positive_rate(found.schedule, fpr=0.01)
    except DpacctError as error:
        sys.exit(str(error))
    dump_schedule(found.schedule, asked.output)
    for phase in found.schedule.phases:
        print(f"{phase.rounds:5} rounds at noise multiplier {phase.round.noise_multiplier:.4f}")
    print(f"epsilon {found.epsilon.upper:.4f} proven at delta {asked.delta:g}, {shape.adjacency}")
    print(f"an attack that accuses 1 in 100 wrongly accuses at most {accused.upper:.1%} rightly")


if __name__ == "__main__":
    main()
