"""`dpacct train`: a federated run on real data, charged for what ran."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dpacct import validate
from dpacct.errors import BudgetExceeded, InvalidParameter, Unsupported
from dpacct.ledger.record.plans import Plan
from dpacct.ledger.terms import EXAMPLE, Terms
from dpacct.rounds import Schedule
from dpacct_cli import errors, mechanism, suggestions
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import Style, StyleOptions, number
from dpacct_cli.output import is_there
from dpacct_cli.render import Answer, Page, Row, down, noise, plain, print_note, seconds, show, up
from dpacct_cli.train.files import RunFiles, begin, find_run, other_ledgers
from dpacct_cli.train.options import METHODS, MethodName, Record, Training
from dpacct_cli.train.settings import FREE, Settings, check_unchanged, combine, typed_values
from dpacct_cli.words import about_examples, in_units, spelling, text_of

if TYPE_CHECKING:
    from dpacct.fl.federation import Federation
    from dpacct_cli.train.job import Job
    from dpacct_cli.train.run import Outcome

INTERRUPTED, BAD_INPUT = 130, 2
# Rule 4 of `dpacct.fl.data.partitions`.
SIMULATED = (
    "The clients are a simulation: the examples were dealt out to them, and one example less moves "
    "others. Epsilon holds for a simulated client, not for the person behind an example."
)
OWNERS_OF_EXAMPLES = (
    "Epsilon holds for a single example. The data name owners, and an owner of several examples is "
    "protected less: without --examples, each owner is a client."
)


def train(
    training: Training,
    record: Record,
    style: StyleOptions,
    method: MethodName = None,
) -> None:
    """Train a model with differential privacy, on your data or a data set by name.

    Unset options default to values tuned for the data set. With -q it prints the test accuracy.

    Examples:
      dpacct train dp-fedavg
      dpacct train dp-fedavg --data mnist --data-dir data --eps 6 --ledger mnist.ledger
      dpacct train dp-fedavg --data cifar10 --partition dirichlet:0.1 --rounds 200
      dpacct train dp-fedavg --preset mnist-logistic --eps 7
      dpacct train dp-fedpgn --set rho=0.1 --set beta=0.5
      dpacct train dp-fedavg --schedule plan.toml --eps 4
      dpacct train dp-fedavg --server adam --server-set lr=0.02
      dpacct train dp-fedavg --examples --batch 128 --epochs 20
      dpacct train dp-fedavg --config run.toml --json
      dpacct train mymethods:Proximal --set strength=0.1
      dpacct train --ledger mnist.ledger --resume
    """
    shown = style.style
    if record.new_ledger and record.ledger is not None:
        why = "a ledger that is named is used, or made"
        raise conflict("--new-ledger", f"--ledger {record.ledger}", why)
    if record.new_ledger and record.resume:
        raise conflict("--new-ledger", "--resume", "a run goes on in its own ledger")
    if record.run is not None and not record.resume:
        raise OptionConflict(f"--run {record.run} needs --resume; a new run is named by itself.")
    if record.resume and method is not None and ("." in method or "/" in method):
        raise OptionConflict(suggestions.resumed_by_name(method))
    if method is None and not (record.resume or training.examples):
        known = f"a method is one of {', '.join(METHODS)}, or package.module:Class"
        raise InvalidParameter("method", None, known)
    check_batch(examples=bool(training.examples or training.config or record.resume))
    settings = read_settings(method, training, record)
    if find_spec("torch") is None:
        raise Unsupported("training needs PyTorch, which is not installed: pip install -e '.[fl]'")
    if record.resume:
        begun = find_run(record.ledger, record.run, method, training.data)
        settings = read_settings(method or begun.settings.method, training, record)
        check_unchanged(begun.settings, settings)
        # A resumed run may have another device and data folder. Nothing else counts as chosen.
        moved = {key: settings.values[key] for key in FREE if key in settings.chosen}
        values = {**begun.settings.values, **moved}
        settings = replace(begun.settings, values=values, chosen=frozenset())
        _run(settings, begun.files, shown, resume=True)
    else:
        data = settings.values["data"]
        _propose_schema(settings)
        files = begin(record.ledger, settings.method, data, new_ledger=record.new_ledger)
        _run(settings, files, shown, resume=False)


def read_settings(method: str | None, training: Training, record: Record | None = None) -> Settings:
    """Return the settings of a command line. See `combine`."""
    return combine(
        METHODS[0] if method is None else method,
        typed_values(training, record),
        tuple(training.assignments or ()),
        training.preset,
        training.config,
        tuple(training.server_assignments or ()),
        training.schema,
    )


def _propose_schema(settings: Settings) -> None:
    """Print a schema to edit, and stop, if a table has words and no schema."""
    data, known = settings.values["data"], settings.data_options
    declared = known.keys() - {"label", "owner", "classes"}
    if not data.lower().endswith(".csv") or declared or not is_there(data):
        return
    from dpacct.fl.data.proposal import propose_schema

    label = settings.get("label") or known.get("label", "label")
    proposal = propose_schema(data, label, settings.get("owner") or known.get("owner"))
    if proposal is not None:
        print(proposal, end="")
        errors.print_line(
            f"{data} has columns of words, and no schema says what they may hold. Save the text "
            "above as schema.toml, edit it, and train with --schema schema.toml."
        )
        raise SystemExit(BAD_INPUT)


def check_batch(*, examples: bool) -> None:
    """Reject --batch if clients are sampled.

    Raises:
        OptionConflict: it was typed.
    """
    if not examples and spelling("--cohort") == "--batch":
        raise OptionConflict(
            f"--batch {text_of('--cohort')} needs --examples; clients are sampled in --cohort, and "
            "train by --batch-size."
        )


def _run(settings: Settings, files: RunFiles, style: Style, *, resume: bool) -> None:
    # PyTorch is imported here, after everything that can be checked without it.
    from dpacct.ledger.terms import known_terms
    from dpacct_cli.train.job import build_job
    from dpacct_cli.train.run import open_run, train

    if settings.get("examples") and not settings.get("records"):
        about_examples()
    every = settings.get("eval_every")
    if every is not None:
        every = validate.count("eval_every", number(every), "the rounds between looks")
    terms = known_terms(files.ledger)
    job = build_job(settings, terms)
    file = shlex.quote(str(files.ledger))
    with open_run(job, files, settings, resume=resume) as run:
        if style is Style.HUMAN:
            for note in _notes(settings, files, job, terms, private=run.has_private_checkpoint):
                print_note(note)
            print(_plan_line(run), file=sys.stderr, flush=True)
        try:
            outcome = train(run, job, files, style, every or max(1, run.rounds // 10))
        except BudgetExceeded as refusal:
            ways = in_units(
                f"dpacct ledger show {file} lists what was spent. --new-ledger begins a second "
                "budget for the same clients, whose epsilon adds up with this one."
            )
            raise BudgetExceeded(f"{refusal} {ways}") from None
    if outcome.interrupted:
        again = f"dpacct train {settings.method} --ledger {file} --run {shlex.quote(files.stem)}"
        errors.print_line(
            f"stopped after round {outcome.rounds} of {outcome.planned}; saved in "
            f"{files.checkpoint}. {again} --resume goes on."
        )
        raise SystemExit(INTERRUPTED)
    show(
        Answer(
            _data(settings, job, outcome, files),
            repr(outcome.accuracy),
            lambda: _page(settings, job, outcome, files),
        ),
        style,
    )


def _notes(
    settings: Settings, files: RunFiles, job: Job, terms: Terms | None, *, private: bool
) -> Iterator[str]:
    """Yield what a person should know before rounds are charged."""
    if others := other_ledgers(files, settings.values["data"]):
        known = ", ".join(str(path) for path in others)
        yield in_units(
            f"{files.ledger} and {known} are budgets of their own for the same clients. Their "
            "epsilons and deltas add up, and neither ledger tracks the total."
        )
    if terms is not None and terms.note:
        yield terms.note
    if job.delta.origin.startswith("that of"):
        at = f"delta is {plain(job.delta.value)}, {job.delta.origin}"
        yield f"{at}; --delta was not given."
    if private:
        yield (
            f"{files.checkpoint} holds private values, which epsilon does not cover: what clients "
            "remember, correlated noise, or the allocation of an epoch. Only you may read the "
            "file; guard it like the data."
        )


def _plan_line(run: Federation) -> str:
    """Return one line about the run before its first round: its rounds, noise and epsilon."""
    level = _noise_of(run.schedule)
    noises = "" if level is None else f", noise multiplier {noise(level)}"
    (what, *_) = mechanism.rows(run.schedule)
    return f"plan: {what.value}{noises}, epsilon {up(run.planned_epsilon.upper, 3)} at the end"


def _noise_of(schedule: Schedule) -> float | None:
    """Return the noise multiplier of all rounds, or None if it changes."""
    kinds = list(schedule.distinct())
    return getattr(kinds[0], "noise_multiplier", None) if len(kinds) == 1 else None


def _ran(outcome: Outcome) -> Schedule:
    """Return the rounds that ran, or the first one of the plan. A begun epoch counts whole."""
    from dpacct.fl.privacy.allocation import rounds_of

    each = rounds_of(outcome.schedule.phases[0].round)
    return Plan(outcome.schedule).first(max(1, -(-outcome.rounds // each)))


def _data(settings: Settings, job: Job, outcome: Outcome, files: RunFiles) -> dict[str, Any]:
    """Return the keys of --json. JSON has no infinity: null if the run is not private."""
    from dpacct.fl.privacy.allocation import Allocation
    from dpacct.fl.privacy.cohorts import Cyclic

    spent = outcome.epsilon
    private = outcome.not_private_because is None
    ran = mechanism.keys(_ran(outcome))
    del ran["rounds"]
    if isinstance(job.sampling, Cyclic):
        # One release, with what matters of its strategy.
        ran |= {"sampling": "cyclic", "sampling_rate": job.sampling.sampling_rate}
        ran["groups"] = job.sampling.groups
        ran.pop("phases", None)
    if isinstance(job.sampling, Allocation):
        # All epochs are equal, and have no other keys than equal rounds.
        ran |= {"sampling": job.sampling.name, "sampling_rate": job.sampling.sampling_rate}
        ran["noise_multiplier"] = _noise_of(outcome.schedule)
        ran["steps"] = job.sampling.steps
        ran.pop("phases", None)
    return {
        "method": settings.method,
        "data": job.dataset.name,
        "model": settings.values["model"],
        "rounds": outcome.rounds,
        "epsilon": {
            "lower": spent.lower if private else None,
            "upper": spent.upper if private else None,
            "target": None if job.budget is None else job.budget.epsilon,
        },
        "delta": spent.delta,
        "noise_multiplier": ran.pop("noise_multiplier"),
        "clip_norm": outcome.clip_norm,
        **ran,
        "public_size": job.public.size if job.public.stated else None,
        "test_accuracy": outcome.accuracy,
        "test_data": job.dataset.test_data,
        "label_set": job.dataset.label_set,
        "seconds": outcome.seconds,
        "ledger": str(files.ledger),
        "private": private,
        "not_private_because": outcome.not_private_because,
        "stopped_because": outcome.stopped_because,
        "examples" if settings.get("examples") else "clients": job.public.size,
        "partition": settings.get("partition"),
        "simulated_clients": job.simulated,
        "unit": job.unit,
        "server": settings.get("server"),
        "model_file": str(files.model),
        "report": str(files.report),
        "checkpoint": str(files.checkpoint),
    }


def _page(settings: Settings, job: Job, outcome: Outcome, files: RunFiles) -> Page:
    """Return the rows for people."""
    if outcome.not_private_because is None:
        spent = mechanism.epsilon_row(outcome.epsilon, job.delta.origin)
    else:
        spent = Row("epsilon", "infinite", outcome.not_private_because)
    # The rounds that ran; the first round of the plan if none ran.
    plan = _ran(outcome)
    level = _noise_of(plan)
    dealt = settings.get("partition")
    who = f"{'simulated ' if job.simulated else ''}clients ({dealt})" if dealt else "examples"
    declared = "declared " if job.public.stated else ""
    tested = on_test_data(len(job.tested), job.dataset.test_data)
    rows = [Row("test accuracy", down(outcome.accuracy, 4), tested), spent]
    if outcome.stopped_because is not None:
        rows.append(Row("stopped early", outcome.stopped_because))
    if job.dataset.label_set == "unprotected":
        why = "the classes are read off the data, and epsilon does not cover them: say --classes"
        rows.append(Row("label set", "unprotected", why))
    rows += mechanism.rows(plan)
    if level is not None:
        unit = f"std of the noise on the sum / clip norm {plain(outcome.clip_norm)}"
        rows.append(Row("noise multiplier", noise(level), unit))
    if ":" in settings.method:
        rows.append(Row("method", settings.method))
    if job.server is not None:
        rows.append(Row("server", repr(job.server)))
    rows += [
        Row("training", f"{settings.values['model']} on {job.dataset.name}, {job.public.size:,} "
            f"{declared}{who}, {seconds(outcome.seconds)}"),
        Row("ledger", str(files.ledger)),
        Row("model", str(files.model)),
        Row("report", str(files.report), "  one line a round; unprotected_... in it: not private"),
    ]  # fmt: skip
    note = mechanism.delta_note(outcome.epsilon.delta, job.public.size)
    remarks = [SIMULATED] if job.simulated else []
    if job.unit == EXAMPLE and job.dataset.owners is not None:
        remarks.append(OWNERS_OF_EXAMPLES)
    return Page(
        rows,
        closing=f"dpacct ledger show {shlex.quote(str(files.ledger))} lists what was spent.",
        note=mechanism.with_moved_delta(note, job.delta),
        remarks=remarks,
    )


def on_test_data(count: int, test_data: str) -> str:
    """Return the words beside an accuracy: its examples, and if epsilon covers them."""
    if test_data == "public":
        return f"on {count:,} public test examples"
    return f"on {count:,} private examples, without noise: epsilon does not cover it"
