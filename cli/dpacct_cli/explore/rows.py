"""One row of a sweep: what a setting spends, or why nobody can say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.errors import DpacctError
from dpacct.rounds import Uniform
from dpacct_cli import errors
from dpacct_cli.explore.grid import Fixed, Setting
from dpacct_cli.options import number

COLUMNS: tuple[str, ...] = (
    "noise_multiplier",
    "rounds",
    "sampling",
    "sampling_rate",
    "cohort_size",
    "num_clients",
    "adjacency",
    "delta",
    "accountant",
    "epsilon_lower",
    "epsilon_upper",
    "error",
)


@dataclass(frozen=True, slots=True)
class Task:
    """What a process gets to compute."""

    index: int
    fixed: Fixed
    setting: Setting


@dataclass(frozen=True, slots=True)
class Done:
    """A row that was computed, or its reason; ``row`` has the keys of `COLUMNS`."""

    index: int
    row: dict[str, Any]


def compute(task: Task) -> Done:
    """The row of one setting; what it cannot be computed for is in ``error``."""
    row = blank(task)
    try:
        plan = task.fixed.mechanism(task.setting).read_schedule()
        sampling = plan.phases[0].round.sampling
        row["sampling_rate"] = sampling.sampling_rate
        row["adjacency"] = str(plan.adjacency)
        if isinstance(sampling, Uniform) and task.fixed.clients is not None:
            row["cohort_size"] = sampling.cohort_size
        found = find_accountant(task.fixed.accountant).epsilon(plan, row["delta"])
        row["epsilon_lower"] = found.lower
        row["epsilon_upper"] = found.upper if math.isfinite(found.upper) else None
        if row["epsilon_upper"] is None:
            row["error"] = "no epsilon is proven at this delta"
    except DpacctError as error:
        row["error"] = errors.line(error)
    except MemoryError:
        row["error"] = "there is not enough memory for that"
    return Done(task.index, row)


def blank(task: Task, error: str | None = None) -> dict[str, Any]:
    """The row with what was asked alone."""
    setting, fixed = task.setting, task.fixed
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row["noise_multiplier"] = validate.noise_multiplier(number(setting.noise))
    row["rounds"] = validate.rounds(number(setting.rounds))
    row["sampling"] = fixed.sampling
    row["sampling_rate"] = None if setting.rate is None else float(setting.rate)
    row["cohort_size"] = None if setting.cohort is None else int(setting.cohort)
    row["num_clients"] = None if fixed.clients is None else int(fixed.clients)
    row["adjacency"] = fixed.adjacency
    row["delta"] = validate.delta(number(setting.delta))
    row["accountant"] = fixed.accountant
    row["error"] = error
    return row
