"""Lower bounds by canaries for each method at two budgets, with the charge and the cost.

Usage: python -m benchmarks.audits [CANARIES]

The audit for a night: a run is that of `dpacct train METHOD --rounds 20` on the embedded data. Its
audit trains it again, with canaries. Exit code 1 if anything contradicts the charge, which a sound
program does in at most one of ten thousand nights. Times are processor times. The last column is
the audit's time over the run's. `evidence/audits` keeps one such table.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from benchmarks.measure import table
from dpacct import fl
from dpacct.fl.clients import Population
from dpacct_cli.train.job import build_job
from dpacct_cli.train.options import METHODS
from dpacct_cli.train.run import federation
from dpacct_cli.train.settings import combine

BUDGETS = ("2", "8")
SAMPLINGS = ("full", "poisson")
ROUNDS = "20"
CANARIES = 200
DELTA = "1e-5"
# All audits of a night together fail a sound program with at most this probability.
ERROR = 1e-4
HEADER = ("method", "sampling", "proven", "achieved", "shown", "if Gaussian", "noise", "time")


def audited(
    method: str, eps: str, sampling: str, canaries: int = CANARIES, error: float = 1e-6
) -> dict[str, Any]:
    """Return a run and its audit: the charge, the lower bound, and processor seconds."""
    typed = {"eps": eps, "rounds": ROUNDS, "delta": DELTA, "device": "cpu", "sampling": sampling}

    def build(people: Population) -> fl.Federation:
        return federation(build_job(combine(method, typed)), people)

    clients = build_job(combine(method, typed)).clients
    began = time.process_time()
    with build(clients) as run:
        run.run()
    plain = time.process_time() - began
    began = time.process_time()
    found = fl.audit_run(build, clients, canaries=canaries, error=error)
    audit = time.process_time() - began
    shown = found.shown
    return {
        "epsilon": found.charged.upper,
        "epsilon_achieved": found.charged.lower,
        "shown": shown.epsilon,
        "shown_if_gaussian": found.gaussian_epsilon,
        "noise_factor": shown.noise_factor if math.isfinite(shown.noise_factor) else None,
        "faults": list(shown.faults),
        "canaries": canaries,
        "run_seconds": plain,
        "audit_seconds": audit,
    }


def line(method: str, eps: str, sampling: str, found: dict[str, Any]) -> list[str]:
    """Return one line of the table."""
    factor = found["noise_factor"]
    return [
        method,
        sampling,
        f"{found['epsilon']:.4f} of {eps}",
        f"{found['epsilon_achieved']:.4f}",
        f"{found['shown']:.3f}",
        f"{found['shown_if_gaussian']:.3f}",
        ", ".join(found["faults"]) or ("nothing" if factor is None else f"{factor:.3f} x"),
        f"{found['audit_seconds'] / found['run_seconds']:.1f} x",
    ]


def main(canaries: int = CANARIES) -> None:
    """Print the table."""
    settings = [
        (method, eps, sampling) for method in METHODS for sampling in SAMPLINGS for eps in BUDGETS
    ]
    rows: list[list[str]] = []
    faults: list[str] = []
    for method, eps, sampling in settings:
        found = audited(method, eps, sampling, canaries, ERROR / len(settings))
        print(method, eps, sampling, file=sys.stderr)
        rows.append(line(method, eps, sampling, found))
        if found.get("faults"):
            faults.append(f"{method} at epsilon {eps}, {sampling} sampling")
    title = f"Audits with {canaries} canaries, {ROUNDS} rounds, 95 % sure"
    print(table(title, HEADER, rows))
    if faults:
        raise SystemExit(f"contradicts the charge: {'; '.join(faults)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
