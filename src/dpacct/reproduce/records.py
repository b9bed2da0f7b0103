"""Finished runs in a file that only grows, one JSON object a line. No run is repeated."""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from dpacct import validate
from dpacct.errors import InvalidParameter

Setting = Mapping[str, Any]
LARGEST = 1e100  # Of a figure, so that squares and sums of figures are finite


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
    lines = validate.file_text("runs", path, "a file of finished runs").splitlines()
    # A run that was stopped while it wrote leaves half a line at the end.
    return tuple(_record(path, n, line, last=n == len(lines)) for n, line in enumerate(lines, 1))


def _record(path: Path, number: int, line: str, *, last: bool) -> Record:
    try:
        row: Any = json.loads(line)
        setting, result = row["setting"], row["result"]
        if (
            isinstance(setting, dict)
            and isinstance(result, dict)
            and _is_result(cast("Any", result))
        ):
            return Record(cast("Any", setting), cast("Any", result), row.get("made", {}))
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    rule = f"line {number} is no finished run" + (", remove the half line" if last else "")
    raise InvalidParameter("runs", str(path), rule)


def is_figure(value: object) -> bool:
    """Return True for a number that tables compute with, whoever wrote it."""
    return type(value) in (int, float) and -LARGEST <= cast("float", value) <= LARGEST


def is_history(rows: object) -> bool:
    """Return True for a list of evaluations: rows of figures, null for those that are infinite."""
    return isinstance(rows, list) and all(
        isinstance(row, dict)
        and is_figure(row.get("round"))
        and all(value is None or is_figure(value) for value in row.values())
        for row in cast("list[dict[str, Any]]", rows)
    )


def _is_result(result: Mapping[str, Any]) -> bool:
    figures = [result.get(n) for n in ("accuracy", "train_accuracy", "epsilon", "cohort")]
    known = all(value is None or is_figure(value) for value in figures)
    return known and is_history(result.get("history", []))


@dataclass(frozen=True)
class Records:
    """The finished runs of a file, which several processes may share."""

    path: Path

    def __iter__(self) -> Iterator[Record]:
        if self.path.exists():
            yield from _read(self.path, self.path.stat().st_size)

    def of(self, setting: Setting) -> Record | None:
        """Return the run with exactly this setting, None before it is finished."""
        return next((record for record in self if record.setting == setting), None)

    def need(
        self,
        settings: Sequence[Setting],
        play: Callable[[Setting], dict[str, Any]],
        alone: Callable[[Setting], AbstractContextManager[Any]] = lambda _: nullcontext(),
    ) -> None:
        """Play every setting that the file does not hold.

        ``alone`` keeps other processes from a run until its line is written.
        """
        for setting in settings:
            if self.of(setting) is None:
                with alone(setting):
                    if self.of(setting) is None:
                        self._play(setting, play)

    def _play(self, setting: Setting, play: Callable[[Setting], dict[str, Any]]) -> None:
        began = time.perf_counter()
        result = play(setting)
        made = provenance() | {"seconds": round(time.perf_counter() - began, 1)}
        row = {"setting": dict(setting), "result": _finite(result), "made": made}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def values(self, name: str, **wanted: Any) -> list[float]:
        """Return one figure of the result of all runs with these settings."""
        return [record.result[name] for record in self if record.matches(**wanted)]


def _finite(value: Any) -> Any:
    """Return a result for JSON, which has no infinity: null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_finite(item) for item in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def provenance() -> dict[str, Any]:
    """Return the versions of this package and of the packages that it uses."""
    packages = {name: metadata.version(name) for name in ("numpy", "scipy", "torch")}
    return {"dpacct": metadata.version("dpacct"), "packages": packages}


def spread(values: Sequence[float], shown: Callable[[float], str] = "{:.2f}".format) -> str:
    """Return mean and standard deviation, the mean alone of one value, a dash for none."""
    if not values:
        return "-"
    mean = shown(statistics.mean(values))
    return mean if len(values) == 1 else f"{mean} ±{statistics.stdev(values):.2f}"
