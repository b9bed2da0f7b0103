"""Finished runs in a file, one JSON object a line. Recorded runs are not repeated."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dpacct
from dpacct import fl

Setting = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True)
class Record:
    """One finished run: its settings, its result, and the software that made it.

    ``made`` is empty for runs that were recorded before it was kept.
    """

    setting: dict[str, Any]
    result: dict[str, Any]
    made: dict[str, Any] = field(default_factory=dict[str, Any])

    def matches(self, **wanted: Any) -> bool:
        """Return True if the setting holds all these values."""
        return all(self.setting.get(name) == value for name, value in wanted.items())


@lru_cache(maxsize=4)
def _read(path: Path, size: int) -> tuple[Record, ...]:
    """Return all runs of a file that only grows, so that its size shows any change."""
    del size
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return tuple(Record(row["setting"], row["result"], row.get("made", {})) for row in rows)


@dataclass(frozen=True)
class Records:
    """The runs of one page, in a file that only grows.

    Several processes may share the file: with ``part`` (i, n) this one runs every n-th setting.
    """

    path: Path
    part: tuple[int, int] = (0, 1)

    def __iter__(self) -> Iterator[Record]:
        if self.path.exists():
            yield from _read(self.path, self.path.stat().st_size)

    def need(self, settings: Sequence[Setting], play: Callable[[Setting], dict[str, Any]]) -> None:
        """Play every setting of this process's part that the file does not hold."""
        mine = settings[self.part[0] :: self.part[1]]
        done = [record.setting for record in self]
        for setting in mine:
            if dict(setting) in done:
                continue
            began = time.perf_counter()
            result = play(setting)
            made = provenance() | {"seconds": round(time.perf_counter() - began, 1)}
            line = json.dumps({"setting": dict(setting), "result": result, "made": made}) + "\n"
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            print(line[:160].rstrip(), flush=True)

    def values(self, name: str, **wanted: Any) -> list[float]:
        """Return one figure of the result of all runs with these settings."""
        return [record.result[name] for record in self if record.matches(**wanted)]


@cache
def provenance() -> dict[str, Any]:
    """Return version and commit of this package, and the versions of the packages it uses.

    The commit is null outside a clone, and ends in "+" if files differ from it.
    """
    packages = {name: version(name) for name in ("numpy", "scipy", "torch")}
    return {"dpacct": dpacct.__version__, "commit": _commit(), "packages": packages}


def _commit() -> str | None:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words],  # noqa: S607 - whichever git made the clone
            cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def trained(
    run: fl.Federation,
    accuracy: Callable[[], float],
    *,
    every: int,
    lost: Callable[[Sequence[Mapping[str, float]]], bool] = lambda _: False,
) -> dict[str, Any]:
    """Train to the end. Return accuracy in percent every few rounds, norms, epsilon and time.

    Seconds are those of the processor (all threads), without the evaluations, so that other
    programs do not count. A run with a ``lost`` history ends there, and ``rounds`` in its result is
    the number of its rounds. The epsilon is that of the rounds that ran.
    """
    history: list[dict[str, float]] = []
    seconds = 0.0
    began = time.process_time()
    for report in run:
        seconds += time.process_time() - began
        if report.round % every == 0 or report.round == run.rounds:
            seen = report.diagnostics
            history.append(
                {
                    "round": report.round,
                    "epsilon": report.epsilon.upper,
                    "accuracy": accuracy(),
                    "norm_median": seen.norm_median,
                    "clipped": seen.clipped_fraction,
                    "signal_to_noise": seen.signal_to_noise,
                }
            )
            if report.round < run.rounds and lost(history):
                break
        began = time.process_time()
    ran = int(history[-1]["round"])
    result = {
        "accuracy": history[-1]["accuracy"],
        "epsilon": run.epsilon.upper,
        "epsilon_achieved": run.epsilon.lower,
        "noise_multiplier": run.noise_multiplier,
        "seconds_per_round": seconds / ran,
        "history": history,
    }
    return result if ran == run.rounds else {**result, "rounds": ran}


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation, the mean alone of one value, a dash for none."""
    if not values:
        return "-"
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ±{statistics.stdev(values):.2f}"
