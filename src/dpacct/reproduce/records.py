"""Finished runs in a file that only grows, one JSON object a line. No run is repeated."""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from dpacct import validate
from dpacct.errors import InvalidParameter

Setting = Mapping[str, Any]


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
        if isinstance(setting, dict) and isinstance(result, dict):
            return Record(cast("Any", setting), cast("Any", result), row.get("made", {}))
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    rule = f"line {number} is no finished run" + (", remove the half line" if last else "")
    raise InvalidParameter("runs", str(path), rule)


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

    def need(self, settings: Sequence[Setting], play: Callable[[Setting], dict[str, Any]]) -> None:
        """Play every setting that the file does not hold."""
        for setting in settings:
            if self.of(setting) is not None:
                continue
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


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation, the mean alone of one value, a dash for none."""
    if not values:
        return "-"
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ±{statistics.stdev(values):.2f}"
