"""Medians of wall-clock times, of runs that alternate: a busy machine slows all of them alike."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence


def median_seconds(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median time of each call, after one that does not count (imports, caches)."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def processor_seconds(call: Callable[[], float], repeats: int) -> tuple[float, float]:
    """Return a call's answer, and its least processor time, all threads together.

    Other programs on the machine do not count. The first of several calls is not measured.
    """
    found, times = 0.0, list[float]()
    for turn in range(repeats):
        start = time.process_time()
        found = call()
        if turn or repeats == 1:
            times.append(time.process_time() - start)
    return found, min(times)


def peak_memory() -> float:
    """Return the most MiB that this process has used so far, or NaN on Windows."""
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:
        return math.nan
    # Bytes on macOS, KiB elsewhere.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def python(*arguments: str) -> Callable[[], object]:
    """Return a call that runs a fresh interpreter of this environment."""
    return command(sys.executable, *arguments)


def command(*words: str) -> Callable[[], object]:
    """Return a call that runs a program to its end. Its failure raises."""
    return lambda: subprocess.run(words, check=True, capture_output=True)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return columns under a title: the first flush left, the others flush right."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [title]
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        text.append("  ".join(["", line[0].ljust(widths[0]), *cells]))
    return "\n".join(text)
