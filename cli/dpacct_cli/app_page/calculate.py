"""What the page computes, from its fields as the browser sends them: texts that may be anything.

Rule: fields are read as options of the command line, so that page, commands and library agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import dpacct
from dpacct import BudgetExceeded, DpacctError, InvalidParameter, Ledger, Spent, validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, spend
from dpacct.display import line, up
from dpacct.outputs import noise_multiplier
from dpacct.rounds import Schedule
from dpacct_cli.commands import calibrate, compare, explore
from dpacct_cli.errors import OptionConflict
from dpacct_cli.options import EPOCHS, MechanismOptions, number
from dpacct_cli.render import plain

Fields = Mapping[str, Any]
# The labels of the fields. A field has the name of the parameter.
LABELS = {
    "noise_multiplier": "Noise multiplier", "num_clients": "Examples", "cohort_size": "Batch size",
    "sampling_rate": "Sampling rate", "epochs": "Epochs", "num_epochs": "Epochs",
    "rounds": "Rounds", "epsilon": "Epsilon budget", "delta": "Delta", "adjacency": "Neighbors",
}  # fmt: skip
SIZES = {"batch": ("num_clients", "cohort_size"), "rate": ("sampling_rate",)}
MOST_CELLS = 400


def sentence(error: DpacctError) -> str:
    """Return what is wrong, with the label of the field."""
    if not isinstance(error, InvalidParameter):
        return str(error)
    label = LABELS.get(error.name, error.name)
    return f"{label} is empty." if error.value is None else error.describe(label)


def text(fields: Fields, name: str) -> str:
    """Return a field as it was typed. Raise InvalidParameter if it is empty."""
    typed = line(str(fields.get(name) or "").strip())
    if not typed:
        raise InvalidParameter(name, None, "it is needed")
    return typed


def read_options(fields: Fields, solve: str = "epsilon") -> MechanismOptions:
    """Return the fields as options of the command line, without the one to solve for."""
    whole = fields.get("sampling") in EPOCHS  # These have no rate, and no rounds
    size = validate.one_of("size", "batch" if whole else fields.get("size"), "it", SIZES)
    names = ["noise_multiplier"] if solve != "noise" else []
    if solve != "rounds":
        long = "epochs" if whole else fields.get("length")
        names.append(validate.one_of("length", long, "it", ("epochs", "rounds")))
    names += [*SIZES[size], "sampling", "adjacency"]
    return MechanismOptions(**{name: text(fields, name) for name in names})


class Job(NamedTuple):
    """A training job with one unknown, solved."""

    options: MechanismOptions  # Without the unknown
    solve: str  # "epsilon", "noise" or "rounds"
    budget: float
    delta: float
    plan: Schedule
    spent: Spent

    @property
    def number(self) -> float:
        """The solution: epsilon, proven, the noise multiplier, or the rounds (epochs)."""
        if self.solve == "epsilon":
            return self.spent.upper
        return (noise_multiplier(self.plan) or 0.0) if self.solve == "noise" else self.plan.rounds

    @property
    def epochs(self) -> float:
        """The epochs of the plan, 0 if the size of a batch is not known."""
        if self.options.by_epochs:
            return self.plan.rounds
        examples, batch = map(self.options.value, SIZES["batch"])
        return self.plan.rounds * batch / examples if batch else 0.0

    def ways(self) -> Sequence[compare.Way]:
        """Return the job with its batches drawn in four ways, empty if an epoch is not known."""
        whole, noise = math.floor(self.epochs + 1e-9), repr(noise_multiplier(self.plan))
        if not whole:
            return []
        size = {name: self.options[name] for name in SIZES["batch"]}
        return compare.read_ways(
            MechanismOptions(noise_multiplier=noise, epochs=f"{whole}", **size)
        )

    def commands(self) -> tuple[str, str]:
        """Return a command line, and Python code, which print the solution."""
        eps, delta = plain(self.budget), plain(self.delta)
        known = f"{self.options.retyped()} --delta {delta}"
        if self.solve == "epsilon":
            head, plan, call = "epsilon", self.plan, f"epsilon(plan, delta={delta}).upper"
        else:
            plan = calibrate.what_runs(self.options, self.solve)["schedule"]
            head, more, wanted = f"calibrate --eps {eps}", "", "noise_scale"
            if self.solve == "rounds":
                head, more, wanted = f"{head} --solve rounds", ', solve="rounds"', "rounds"
            call = f"calibrate(epsilon={eps}, delta={delta}, schedule=plan{more}).{wanted}"
        names = sorted({*re.findall(r"\b[A-Z]\w+(?=\()", repr(plan)), call.partition("(")[0]})
        code = f"from dpacct import {', '.join(names)}\n\nplan = {plan!r}\nprint({call})"
        return f"dpacct {head} {known}", code


def read_job(fields: Fields) -> Job:
    """Return the job that the fields describe, solved."""
    solve = validate.one_of("solve", fields.get("solve"), "it", ("epsilon", "noise", "rounds"))
    options = read_options(fields, solve)
    budget = validate.target_epsilon(number(text(fields, "epsilon")))
    delta = validate.delta(number(text(fields, "delta")))
    if solve == "epsilon":
        plan = options.read_schedule()
        return Job(options, solve, budget, delta, plan, spend(plan, delta))
    asked = calibrate.what_runs(options, solve)
    solved = dpacct.calibrate(
        epsilon=budget, delta=delta, solve="noise" if solve == "noise" else "rounds", **asked
    )
    return Job(options, solve, budget, delta, solved.schedule, solved.spent)


def is_quick(fields: Fields) -> bool:
    """Return True if the solution takes a fraction of a second."""
    sampling = fields.get("sampling")
    return sampling == "poisson" or (sampling != "uniform" and fields.get("solve") == "epsilon")


class Sweep(NamedTuple):
    """A table over the values of at most two settings."""

    settings: explore.Sweep
    down: str  # The option with the rows
    across: str  # The option with the columns
    command: str

    def row(self, place: int) -> dict[str, Any]:
        """Return a row as `dpacct explore` computes it."""
        return explore.compute(*self.settings[place], DEFAULT_ACCOUNTANT)


def read_sweep(fields: Fields) -> Sweep:
    """Return the settings of a sweep. Any field may be a list or a range."""
    options, delta = read_options(fields), text(fields, "delta")
    settings = explore.read_settings(options, delta)
    varied = [key for key in options.fields() if len({row[key] for row, _ in settings}) > 1]
    if len(varied) > 2 or len({at for _, at in settings}) > 1:
        raise OptionConflict("A map has two sides. Let two settings vary, and give one delta.")
    if len(settings) > MOST_CELLS:
        rule = f"the page computes at most {MOST_CELLS}. The command line has no such limit"
        raise OptionConflict(f"These are {len(settings):,} cells, and {rule}.")
    down, across = [*dict.fromkeys([*varied, "noise_multiplier", "epochs"])][:2]
    command = f"dpacct explore {options.retyped()} --delta {delta} -o sweep.csv"
    return Sweep(settings, down, across, command)


def may_run(ledger: Ledger, fields: Fields) -> tuple[bool, str]:
    """Return whether rounds fit into a ledger, and the figures. Nothing is written."""
    names = ("noise_multiplier", "sampling_rate", "rounds")
    options = MechanismOptions(**{name: text(fields, name) for name in names})
    plan = options.read_schedule(ledger.adjacency)
    most = f"At most {ledger.remaining(plan.phases[0].round):,} such rounds fit in one plan."
    try:
        after = ledger.would_read(plan)
    except BudgetExceeded as error:
        return False, f"No. {most} {error}"
    now, budget = up(ledger.upper_epsilon(), 4), plain(ledger.budget.epsilon)
    reading = f"The ledger would read epsilon {up(after.upper, 4)} of {budget}"
    return True, f"Yes. {reading}, and reads {now} now. {most}"
