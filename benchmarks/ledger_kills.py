"""A writer that is killed at random points, again and again: nothing released may be missing.

``python -m benchmarks.ledger_kills`` does 10,000 kills, and ``... 10000 crowd`` as many of crowds.
The tests do a hundred.

A nursery process imports everything once and forks writers, so that a writer lives from its first
system call in milliseconds. A writer resumes the run, and prints the number of every round after
its commit, as if that were its release. The killer sends SIGKILL after a random time. In a crowd
the writer forks two more, which open the ledger themselves. One closes and opens it all the time,
and threads of all of them copy the file. They are killed together.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dpacct import Budget, Ledger, Poisson, Round
from dpacct.errors import BudgetExceeded, LedgerError

KILLS = 10_000
LONGEST_LIFE = 0.08
ROUND = Round(30.0, Poisson(0.01))
OTHER = Round(25.0, Poisson(0.01))
BUDGET = Budget(50, 1e-5)


@dataclass
class Killed:
    """The result of all kills.

    Attributes:
        kills: how many writers were killed.
        printed: how many rounds were released.
        charged: how many the ledger holds.
        uncommitted: how many of them were reserved only.
        creations: how many times a writer was killed while it made a new file.
        half_made: how many of those files existed afterwards.
        problems: everything that went wrong. Should be empty.
    """

    kills: int = 0
    printed: int = 0
    charged: int = 0
    uncommitted: int = 0
    creations: int = 0
    half_made: int = 0
    problems: list[str] = field(default_factory=list[str])


def _say(text: str) -> None:
    # One short write to a pipe arrives whole or not at all.
    os.write(1, f"{text}\n".encode())


def _write_rounds(path: str, most: int = 10**9) -> None:
    with Ledger.open(path) as ledger:
        run = ledger.resume_run(1)
        for turn in range(1, most + 1):
            ticket = run.reserve(ROUND if turn % 3 else OTHER)
            if turn % 7 == 0:
                ticket.abandon("to have some of these too")
                continue
            ticket.draw()
            ticket.commit()
            _say(str(ticket.number))


def _write_in_a_crowd(path: str) -> None:
    if os.fork() == 0:
        while True:
            _write_rounds(path, 2)
    with Ledger.open(path) as ledger:
        inherited = ledger.resume_run(1)
        if os.fork() == 0:
            with suppress(LedgerError):
                _say(str(inherited.reserve(ROUND)))
        threading.Thread(target=_copy_all_the_time, args=(path,), daemon=True).start()
        _write_rounds(path)


def _copy_all_the_time(path: str) -> None:
    while True:
        # Copying opens and closes the file, which drops SQLite's locks in this process.
        shutil.copy(path, f"{path}.copy-{os.getpid()}")
        time.sleep(0.002)


def _create(path: str) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        ledger.start_run("made")
    time.sleep(10)


def _nursery() -> None:
    """Fork a writer for each line ``write PATH`` or ``create PATH``, and wait for its end."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.open(f"{folder}/warm.ledger", BUDGET) as ledger,
    ):
        run = ledger.start_run("warm")
        run.reserve(ROUND).commit()
        run.reserve(OTHER).commit()
    tasks = {"create": _create, "write": _write_rounds, "crowd": _write_in_a_crowd}
    for line in sys.stdin:
        task, path = line.split()
        alive, end = os.pipe()
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            _say(f"pid {os.getpid()}")
            try:
                tasks[task](path)
            except BudgetExceeded:
                _say("budget")
            finally:
                os._exit(1)
        os.close(end)
        _, status = os.waitpid(child, 0)
        # Ends when the last of a crowd has died.
        os.read(alive, 1)
        os.close(alive)
        _say(f"dead {os.waitstatus_to_exitcode(status)}")


def _one_life(nursery: subprocess.Popen[str], task: str, path: Path, life: float) -> list[str]:
    """Start a writer and kill it. Return its output, with the exit code last."""
    if nursery.stdin is None or nursery.stdout is None:
        raise RuntimeError("the nursery has no pipes")
    nursery.stdin.write(f"{task} {path}\n")
    nursery.stdin.flush()
    pid = int(nursery.stdout.readline().split()[1])
    time.sleep(life)
    os.killpg(pid, signal.SIGKILL)
    lines: list[str] = []
    while not lines or not lines[-1].startswith("dead"):
        lines.append(nursery.stdout.readline().strip())
    return lines


def kill_writers(
    folder: Path,
    kills: int,
    seed: int,
    progress: Callable[[int], None] = lambda _: None,
    *,
    crowd: bool = False,
) -> Killed:
    """Kill ``kills`` writers, and check the ledger after each.

    Args:
        folder: an empty one.
        kills: how many.
        seed: of the times at which they die.
        progress: called with the number of kills so far.
        crowd: several writers at once, as above.
    """
    times = random.Random(seed)  # noqa: S311 - not for privacy
    path = folder / "killed.ledger"
    found = Killed()
    with Ledger.open(path, BUDGET) as ledger:
        ledger.start_run("killed")
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    nursery = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.ledger_kills", "nursery"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).resolve().parents[1],
    )
    released: list[int] = []
    with nursery:
        while found.kills < kills:
            if found.kills % 10 == 9:
                _kill_a_creation(nursery, folder, times, found)
            # On a disk so slow that no writer gets to a release, writers live longer.
            longest = LONGEST_LIFE if released or found.kills < 20 else 10 * LONGEST_LIFE
            task, longest = ("crowd", 3 * longest) if crowd else ("write", longest)
            lines = _one_life(nursery, task, path, times.uniform(0.0, longest))
            if lines[-1] != "dead -9":
                found.problems.append(f"a writer ended by itself: {lines}")
                break
            found.kills += 1
            released += [int(line) for line in lines[:-1]]
            with Ledger.open(path, read_only=True) as ledger:
                run = ledger.runs[0]
                if run.rounds < len(released) or run.committed < len(released):
                    found.problems.append(
                        f"after kill {found.kills}: {len(released)} rounds were released, "
                        f"{run.rounds} are charged, {run.committed} are committed"
                    )
                    break
            progress(found.kills)
        if nursery.stdin is not None:
            nursery.stdin.close()
    _compare(path, released, found)
    return found


def _kill_a_creation(
    nursery: subprocess.Popen[str], folder: Path, times: random.Random, found: Killed
) -> None:
    """Check that a new file is complete, or does not exist."""
    path = folder / f"new-{found.creations}.ledger"
    _one_life(nursery, "create", path, times.uniform(0.0, LONGEST_LIFE))
    found.creations += 1
    if path.exists():
        found.half_made += 1
        with Ledger.open(path, BUDGET) as ledger:
            found.problems += ledger.verify().problems
    with Ledger.open(path, BUDGET) as ledger:
        ledger.start_run("goes on").reserve(ROUND).commit()
    for file in folder.glob("*new-*"):
        file.unlink()


def _compare(path: Path, released: list[int], found: Killed) -> None:
    """Check that every released round is committed in the file, and the file is sound."""
    with Ledger.open(path) as ledger:
        found.problems += ledger.verify().problems
        run = ledger.runs[0]
        found.printed, found.charged = len(released), run.rounds
        found.uncommitted = run.rounds - run.committed
        in_file = {e["closes"] for e in ledger.export() if e["kind"] == "commit"}
    if missing := set(released) - in_file:
        found.problems.append(f"released and not in the ledger: {sorted(missing)}")


def main() -> None:
    """Kill 10,000 writers, or as many as the first argument says."""
    if sys.argv[1:] == ["nursery"]:
        _nursery()
        return
    crowd = "crowd" in sys.argv
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else KILLS
    start = time.perf_counter()

    def progress(count: int) -> None:
        if count % 500 == 0:
            print(f"{count} kills, {time.perf_counter() - start:.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        found = kill_writers(Path(folder), kills, 1, progress, crowd=crowd)
    print(json.dumps(found.__dict__, indent=2))
    if found.problems:
        sys.exit(1)


if __name__ == "__main__":
    main()
