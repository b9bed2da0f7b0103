"""Rounds and charges a second in PostgreSQL, beside a file, by one or several writers.

``python -m benchmarks.shared_ledger`` starts a server on the loopback that flushes every commit, as
the file does. A round is reserved and committed by itself, in its plan or outside of any, so that a
planned one costs two transactions. The database checks the theorem for each round outside a plan.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from multiprocessing import get_context
from typing import Any

from benchmarks.measure import table
from benchmarks.postgres_server import MISSING, Server, program
from dpacct import Budget, Ledger, Poisson, Round

SECONDS = 4.0
ROUND = Round(60.0, Poisson(0.003))
BUDGET = Budget(50, 1e-5)
WRITERS = (1, 4, 8)
WORK = ("planned rounds", "other rounds", "charges of 1,000")


def _work(place: str, what: str, begin: float, results: Any) -> None:
    """Spend for some seconds, and tell how often."""
    with Ledger.open(place, BUDGET) as ledger:
        run = ledger.start_run("w", 100_000 * ROUND if what == WORK[0] else None)
        count = 0
        time.sleep(max(0.0, begin - time.time()))
        while time.time() < begin + SECONDS:
            if what == WORK[2]:
                ledger.charge("c", 1_000 * ROUND)
            else:
                run.reserve(ROUND).commit()
            count += 1
    results.put(count)


def a_second(place: str, what: str, writers: int, *, many: bool) -> float:
    """Return the number of rounds or charges a second of all writers together."""
    context = get_context("fork")
    results = context.Queue()
    names = [f"{place}{n if many else 0}" for n in range(writers)]
    # A first round, so that no plan waits for others.
    for name in set(names):
        with Ledger.open(name, BUDGET) as ledger:
            ledger.charge("first", ROUND)
    begin = time.time() + 0.5 + 0.1 * writers
    crowd = [context.Process(target=_work, args=(name, what, begin, results)) for name in names]
    for process in crowd:
        process.start()
    total = sum(results.get() for _ in crowd)
    for process in crowd:
        process.join()
    return total / SECONDS


def main() -> None:
    """Print the table."""
    if program("initdb") is None:
        sys.exit(MISSING)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DPACCT_STATE"] = f"{folder}/state"
        server = Server(fsync=True)
        try:
            places = {"file": f"{folder}/", "PostgreSQL": f"{server.url()}#"}
            for what in WORK:
                for many in (False, True):
                    for kind, place in places.items():
                        key = f"{'m' if many else 'o'}{WORK.index(what)}w"
                        found = [a_second(f"{place}{key}{n}x", what, n, many=many) for n in WRITERS]
                        where = f"{kind}, {'one each' if many else 'one for all'}"
                        rows.append([what, where, *(f"{rate:.0f}" for rate in found)])
        finally:
            server.close()
    header = ["", "ledger", *(f"{n} writers" for n in WRITERS)]
    print(table("Rounds or charges a second, of all writers together", header, rows))


if __name__ == "__main__":
    main()
