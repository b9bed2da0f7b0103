"""The ledger: cost of a round as the ledger grows, and the odometer against the tight accountant.

``python -m benchmarks.ledger 1000000`` goes up to a million rounds. The default is 10,000.
Filling a ledger with a full sync per entry measures the disk. So it is filled without syncs, and at
each size some rounds are timed both ways, on the ledger as it is and opened afresh.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import dpacct
from benchmarks.measure import table
from dpacct import Budget, Ledger, Poisson, Round, Uniform
from dpacct.ledger.run import Run
from dpacct.renyi.odometer import Odometer

SAMPLES = 200
ROUND = Round(60.0, Poisson(0.003))
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
SETTINGS = (
    (Round(1.286, Poisson(0.1)), 300),
    (Round(1.0, Poisson(0.01)), 3_000),
    (Round(2.0, Poisson(0.02)), 10_000),
    (Round(5.0), 10),
    (Round(4.0, Uniform(100, 2000)), 200),
)


def _spend(run: Run, rounds: int) -> None:
    for _ in range(rounds):
        ticket = run.reserve(ROUND)
        ticket.draw()
        ticket.commit()


def _sync(ledger: Ledger, mode: str) -> None:
    # Only here: a ledger that does not sync loses rounds with the power.
    ledger._file.store.connection.execute(f"PRAGMA synchronous={mode}")  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _median_micros(ledger: Ledger, run: Run, mode: str) -> float:
    _sync(ledger, mode)
    times: list[float] = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        _spend(run, 1)
        run.upper_epsilon()
        times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(times)


def throughput(largest: int) -> str:
    """Return time of reserve + commit + current epsilon, at several sizes of the ledger."""
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "grows.ledger"
        Ledger.open(path, Budget(8, 1e-5)).close()
        for size in (size for size in SIZES if size <= largest):
            with Ledger.open(path) as ledger:
                run = ledger.resume_run(1) if ledger.runs else ledger.start_run("grows")
                _sync(ledger, "OFF")
                start = time.perf_counter()
                missing = max(0, size - ledger.rounds)
                _spend(run, missing)
                mean = 1e6 * (time.perf_counter() - start) / max(missing, 1)
                fast = _median_micros(ledger, run, "OFF")
                full = _median_micros(ledger, run, "FULL")
            start = time.perf_counter()
            with Ledger.open(path) as ledger:
                run = ledger.resume_run(1)
                run.upper_epsilon()
                opened = 1e3 * (time.perf_counter() - start)
            print(f"{size:,} rounds: {full:.0f} us", file=sys.stderr, flush=True)
            megabytes = path.stat().st_size / 1e6
            rows.append(
                [
                    f"{size:,}",
                    f"{full:.0f} us",
                    f"{fast:.0f} us",
                    f"{mean:.0f} us",
                    f"{opened:.1f} ms",
                    f"{megabytes:.1f} MB",
                ]
            )
    return table(
        "reserve + draw + commit + current epsilon, per round",
        ["rounds in the ledger", "full sync", "no sync", "mean, no sync", "open + resume", "file"],
        rows,
    )


def tightness() -> list[list[str]]:
    """Return the odometer's reading against the tight and the Renyi epsilon of the same rounds."""
    rows: list[list[str]] = []
    for round_, rounds in SETTINGS:
        tight = dpacct.epsilon(rounds * round_, delta=1e-5, accountant="tight").upper
        renyi = dpacct.epsilon(rounds * round_, delta=1e-5, accountant="rdp").upper
        odometer = Odometer(Budget(tight, 1e-5))
        odometer.add(round_, rounds)
        above = f"{100 * (odometer.epsilon / tight - 1):.1f} %"
        numbers = [f"{value:.4f}" for value in (tight, renyi, odometer.epsilon)]
        rows.append([f"{rounds} * {round_!r}", *numbers, above])
    return rows


def main(largest: int = 10_000) -> None:
    """Measure and print."""
    print(throughput(largest))
    print()
    header = ["rounds", "tight", "Renyi, best order", "odometer", "above tight"]
    print(table("what adaptivity costs, epsilon at delta 1e-05", header, tightness()))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
