"""What canaries show of each method at two budgets, beside what is charged, and what it costs.

Usage: python -m benchmarks.audits [CANARIES]

Each run is that of `dpacct train METHOD --rounds 20` on the embedded data; its audit trains it
again, with canaries. The last column is the time of the audit over that of the run.
"""

from __future__ import annotations

import sys
import time

from benchmarks.measure import table
from dpacct import fl
from dpacct.fl.clients import Population
from dpacct_cli.train.job import build_job
from dpacct_cli.train.options import METHODS
from dpacct_cli.train.run import federation
from dpacct_cli.train.settings import combine

BUDGETS = ("2", "8")
ROUNDS = "20"
CANARIES = 200
HEADER = ("method", "proven", "achieved", "shown", "if Gaussian", "noise at most", "faults", "time")


def audited(method: str, eps: str, canaries: int) -> list[str]:
    """One row: a run, and its audit."""
    typed = {"eps": eps, "rounds": ROUNDS, "delta": "1e-5", "device": "cpu"}

    def build(people: Population) -> fl.Federation:
        return federation(build_job(combine(method, typed)), people)

    clients = build_job(combine(method, typed)).clients
    began = time.perf_counter()
    with build(clients) as run:
        run.run()
    plain = time.perf_counter() - began
    began = time.perf_counter()
    found = fl.audit_run(build, clients, canaries=canaries)
    ratio = (time.perf_counter() - began) / plain
    shown = found.shown
    return [
        method,
        f"{found.charged.upper:.4f}",
        f"{found.charged.lower:.4f}",
        f"{shown.epsilon:.3f}",
        f"{found.gaussian_epsilon:.3f}",
        f"{shown.noise_factor:.3f} x",
        ", ".join(shown.faults) or "none",
        f"{ratio:.1f} x",
    ]


def main(canaries: int = CANARIES) -> None:
    """Print the table."""
    title = f"Audits with {canaries} canaries, {ROUNDS} rounds, 95 % sure"
    rows = [audited(method, eps, canaries) for eps in BUDGETS for method in METHODS]
    print(table(title, HEADER, rows))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
