"""What the page computes, from its fields as the browser sends them: texts that may be anything.

Rule: fields are read as options of the command line, so that page, commands and library agree. The
browser sends those that apply.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import dpacct
from dpacct import BudgetExceeded, DpacctError, InvalidParameter, Ledger, Spent, validate
from dpacct.accountant import spend
from dpacct.display import line, up
from dpacct.outputs import noise_multiplier
from dpacct.rounds import Schedule
from dpacct_cli.commands import calibrate, compare
from dpacct_cli.options import MechanismOptions, number
from dpacct_cli.render import plain

Fields = Mapping[str, Any]
# The labels of the fields. A field has the name of the parameter.
LABELS = {
    "noise_multiplier": "Noise multiplier", "num_clients": "Examples", "cohort_size": "Batch size",
    "sampling_rate": "Sampling rate", "epochs": "Epochs", "num_epochs": "Epochs",
    "rounds": "Rounds", "epsilon": "Epsilon budget", "delta": "Delta", "adjacency": "Neighbors",
}  # fmt: skip
OPTIONS = ("noise_multiplier", "num_clients", "cohort_size", "sampling_rate", "epochs", "rounds")


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


def read_options(fields: Fields) -> MechanismOptions:
    """Return the fields as options of the command line."""
    names = [name for name in (*OPTIONS, "sampling", "adjacency") if name in fields]
    return MechanismOptions(**{name: text(fields, name) for name in names})


def read_budget(fields: Fields) -> float:
    """Return the epsilon that the user allows."""
    return validate.target_epsilon(number(text(fields, "epsilon")))


class Job(NamedTuple):
    """A training job with one unknown, solved."""

    options: MechanismOptions  # Without the unknown
    solve: str  # "epsilon", "noise" or "rounds"
    budget: float
    delta: float
    asked: Schedule  # With any noise or one round if that is the unknown
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
        examples, batch = map(self.options.value, ("num_clients", "cohort_size"))
        return self.plan.rounds * batch / examples if batch else 0.0

    def ways(self) -> Sequence[compare.Way]:
        """Return the job with its batches drawn in four ways, empty if an epoch is not known."""
        whole = math.floor(self.epochs + 1e-9)
        size = {name: self.options[name] for name in ("num_clients", "cohort_size") if whole}
        noise = repr(noise_multiplier(self.plan))
        job = MechanismOptions(noise_multiplier=noise, epochs=f"{whole}", **size)
        return compare.read_ways(job) if whole else []

    def commands(self) -> tuple[str, str]:
        """Return a command line, and Python code, which print the solution."""
        eps, delta = plain(self.budget), plain(self.delta)
        known, found = f"{self.options.retyped()} --delta {delta}", f"epsilon={eps}, delta={delta}"
        command, call = {
            "epsilon": ("epsilon", f"epsilon(plan, delta={delta}).upper"),
            "noise": (f"calibrate --eps {eps}", f"calibrate({found}, schedule=plan).noise_scale"),
            "rounds": (
                f"calibrate --eps {eps} --solve rounds",
                f'calibrate({found}, schedule=plan, solve="rounds").rounds',
            ),
        }[self.solve]
        plan = repr(self.asked)
        names = sorted({*re.findall(r"\b[A-Z]\w+(?=\()", plan), call.partition("(")[0]})
        code = f"from dpacct import {', '.join(names)}\n\nplan = {plan}\nprint({call})"
        return f"dpacct {command} {known}", code


def read_job(fields: Fields) -> Job:
    """Return the job that the fields describe, solved."""
    solve = validate.one_of("solve", fields.get("solve"), "it", ("epsilon", "noise", "rounds"))
    options, budget = read_options(fields), read_budget(fields)
    delta = validate.delta(number(text(fields, "delta")))
    if solve == "epsilon":
        plan = options.read_schedule()
        return Job(options, solve, budget, delta, plan, plan, spend(plan, delta))
    asked = calibrate.what_runs(options, solve)["schedule"]
    solved = dpacct.calibrate(
        epsilon=budget, delta=delta, solve="noise" if solve == "noise" else "rounds", schedule=asked
    )
    return Job(options, solve, budget, delta, asked, solved.schedule, solved.spent)


def is_quick(fields: Fields) -> bool:
    """Return True if the solution takes a fraction of a second."""
    sampling = fields.get("sampling")
    return sampling == "poisson" or (sampling != "uniform" and fields.get("solve") == "epsilon")


def may_run(ledger: Ledger, fields: Fields) -> tuple[bool, str]:
    """Return whether rounds fit into a ledger, and the figures. Nothing is written."""
    plan = read_options(fields).read_schedule(ledger.adjacency)
    most = f"At most {ledger.remaining(plan.phases[0].round):,} such rounds fit in one plan."
    try:
        after = ledger.would_read(plan)
    except BudgetExceeded as error:
        return False, f"No. {most} {error}"
    now, budget = up(ledger.upper_epsilon(), 4), plain(ledger.budget.epsilon)
    reading = f"The ledger would read epsilon {up(after.upper, 4)} of {budget}"
    return True, f"Yes. {reading}, and reads {now} now. {most}"
