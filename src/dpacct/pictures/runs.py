"""Accuracy over epsilon of training runs, from the reports that they write."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpacct.display import chosen, line
from dpacct.errors import InvalidParameter
from dpacct.pictures.picture import Curve, Panel, Picture


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """Epsilon and accuracy after the rounds in which the test set was looked at."""

    name: str
    epsilon: tuple[float, ...]
    accuracy: tuple[float, ...]
    delta: float


def read_run(path: str | os.PathLike[str]) -> TrainedRun:
    """A report of `dpacct train`, one JSON object a line.

    Raises:
        InvalidParameter: it cannot be read, is none, or holds no accuracy beside a finite epsilon.
    """
    file = Path(path)
    try:
        rows = [json.loads(row) for row in file.read_text(encoding="utf-8").splitlines() if row]
    except OSError as error:
        reason = error.strerror or "unknown reason"
        raise InvalidParameter("report", str(file), f"it cannot be read ({reason})") from None
    except ValueError:
        rule = "a report holds one JSON object a line, as dpacct train writes it"
        raise InvalidParameter("report", str(file), rule) from None
    found = [row for row in rows if _is_looked_at(row)]
    if not found:
        rule = "it holds no test accuracy beside an epsilon that is bounded"
        raise InvalidParameter("report", str(file), rule)
    name = file.name.removesuffix(".jsonl").removesuffix(".report")
    return TrainedRun(
        line(name, 32),
        tuple(float(row["epsilon_upper"]) for row in found),
        tuple(float(row["test_accuracy"]) for row in found),
        float(found[-1]["delta"]),
    )


def _is_looked_at(row: Any) -> bool:
    if not isinstance(row, dict):
        return False
    known = [row.get(key) for key in ("epsilon_upper", "test_accuracy", "delta")]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] parsers return Any
    return all(isinstance(value, int | float) for value in known)  # pyright: ignore[reportUnknownVariableType]


def runs_picture(runs: Sequence[TrainedRun]) -> Picture:
    """Accuracy over the epsilon that was spent until then, a line for each run."""
    best = max(runs, key=lambda run: run.accuracy[-1])
    curves = tuple(
        Curve(
            run.name,
            run.epsilon,
            run.accuracy,
            points=len(run.epsilon) == 1,
        )
        for run in runs
    )
    ends = f"{chosen(best.accuracy[-1], 3, least=True)} at epsilon {chosen(best.epsilon[-1], 4)}"
    title = f"The best at the end is {best.name}: accuracy {ends}"
    deltas = {run.delta for run in runs}
    at = f"at delta {chosen(deltas.pop(), 3)}" if len(deltas) == 1 else "at its own delta each"
    panel = Panel(f"epsilon, proven, {at}", "accuracy on the test set", curves, from_zero=False)
    note = "epsilon if it was settled in advance to stop there; test data are not protected"
    return Picture(title, (panel,), note)
