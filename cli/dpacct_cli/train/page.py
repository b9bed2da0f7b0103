"""What `dpacct train` answers: keys for machines, rows for people, and what is said before it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpacct.ledger.record.plans import Plan
from dpacct.ledger.terms import EXAMPLE
from dpacct.rounds import Schedule
from dpacct_cli import mechanism
from dpacct_cli.render import Page, Row, down, noise, plain, seconds
from dpacct_cli.train.files import RunFiles
from dpacct_cli.train.settings import Settings
from dpacct_cli.words import in_units

if TYPE_CHECKING:
    from dpacct_cli.train.job import Job
    from dpacct_cli.train.run import Outcome


# Rule 4 of `dpacct.fl.data.partitions`.
SIMULATED = (
    "The clients are a simulation: the examples were dealt out to them, and one example less moves "
    "others. Epsilon holds for a simulated client, not for the person behind an example."
)


OWNERS_OF_EXAMPLES = (
    "Epsilon holds for a single example. The data name owners, and an owner of several examples is "
    "protected less: without --examples, each owner is a client."
)


def data(settings: Settings, job: Job, outcome: Outcome, files: RunFiles) -> dict[str, Any]:
    """The keys of --json."""
    spent = outcome.epsilon
    private = outcome.not_private_because is None
    plan = played(outcome)
    return {
        **mechanism.keys(plan),
        "method": settings.method,
        "data": job.dataset.name,
        "model": settings.values["model"],
        "rounds": outcome.rounds,
        "epsilon": {
            # JSON has no infinity: null where nothing is promised.
            "lower": spent.lower if private else None,
            "upper": spent.upper if private else None,
            "target": None if job.budget is None else job.budget.epsilon,
        },
        "delta": spent.delta,
        "clip_norm": outcome.clip_norm,
        "public_size": job.public.size if job.public.stated else None,
        "test_accuracy": outcome.accuracy,
        "test_data": job.dataset.test_data,
        "label_set": job.dataset.label_set,
        "seconds": outcome.seconds,
        "ledger": str(files.ledger),
        "private": private,
        "not_private_because": outcome.not_private_because,
        "stopped_because": outcome.stopped_because,
        f"{job.unit}s": job.public.size,
        "partition": settings.get("partition"),
        "simulated_clients": job.simulated,
        "unit": job.unit,
        "server": settings.get("server"),
        "model_file": str(files.model),
        "report": str(files.report),
        "checkpoint": str(files.checkpoint),
    }


def page(settings: Settings, job: Job, outcome: Outcome, files: RunFiles) -> Page:
    """The rows for people."""
    if outcome.not_private_because is None:
        spent = mechanism.epsilon_row(outcome.epsilon, job.delta.origin)
    else:
        spent = Row("epsilon", "infinite", outcome.not_private_because)
    plan = played(outcome)
    only = mechanism.single_round(plan)
    told = f"std of the noise on the sum / clip norm {plain(outcome.clip_norm)}"
    noises = [] if only is None else [Row("noise multiplier", noise(only.noise_multiplier), told)]
    dealt = settings.get("partition")
    who = f"{'simulated ' if job.simulated else ''}clients ({dealt})" if dealt else "examples"
    said = "declared " if job.public.stated else ""
    rows = [
        Row(
            "test accuracy",
            down(outcome.accuracy, 4),
            on_test_data(len(job.tested), job.dataset.test_data),
        ),
        spent,
        *mechanism.rows(plan),
        *noises,
        *([Row("method", settings.method)] if ":" in settings.method else []),
        *([] if job.server is None else [Row("server", repr(job.server))]),
        Row("training", f"{settings.values['model']} on {job.dataset.name}, {job.public.size:,} "
            f"{said}{who}, {seconds(outcome.seconds)}"),
        Row("ledger", str(files.ledger)),
        Row("model", str(files.model)),
        Row("report", str(files.report), "  one line a round; unprotected_... in it: not private"),
    ]  # fmt: skip
    if job.dataset.label_set == "unprotected":
        told = "the classes are read off the data, and epsilon does not cover them: say --classes"
        rows.insert(2, Row("label set", "unprotected", told))
    if outcome.stopped_because is not None:
        rows.insert(2, Row("stopped early", outcome.stopped_because))
    note = mechanism.delta_note(outcome.epsilon.delta, job.public.size)
    note = mechanism.with_moved_delta(note, job.delta)
    closing = f"dpacct ledger show {shlex.quote(str(files.ledger))} lists what was spent."
    remarks = [SIMULATED] if job.simulated else []
    if job.unit == EXAMPLE and job.dataset.owners is not None:
        remarks.append(OWNERS_OF_EXAMPLES)
    return Page(rows, closing=closing, note=note, remarks=remarks)


def played(outcome: Outcome) -> Schedule:
    """Return the rounds that ran (the first one if none did), for the words about them."""
    return Plan(outcome.schedule).first(max(outcome.rounds, 1))


def on_test_data(count: int, test_data: str) -> str:
    """Return the words beside an accuracy: the examples it was computed on, and what that costs."""
    if test_data == "public":
        return f"on {count:,} public test examples"
    return f"on {count:,} private examples, without noise: epsilon does not cover it"


def two_budgets(ledger: Path, others: list[Path]) -> str:
    """Why a ledger beside others of the same data is no way to a smaller epsilon."""
    known = ", ".join(str(path) for path in others)
    return in_units(
        f"{ledger} and {known} are budgets of their own for the same clients. Whoever sees models "
        f"of both learns what both epsilons allow together: they add up, and so do the deltas. "
        f"Neither ledger counts that."
    )


def private_checkpoint(checkpoint: Path) -> str:
    """Return the warning about a checkpoint that holds clients' memories."""
    return (
        f"{checkpoint} holds what clients remember between rounds, which is private data and not "
        "covered by epsilon. Only you may read the file; guard it like the data."
    )


def ways_out(ledger: Path) -> str:
    """What is left to do where a ledger has no room for a run."""
    file = shlex.quote(str(ledger))
    return in_units(
        f"dpacct ledger show {file} lists what was spent. --new-ledger begins a second budget for "
        f"the same clients, whose epsilon adds up with this one."
    )
