"""`dpacct train`: a federated run on real data, charged for what ran."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from dpacct import validate
from dpacct.errors import BudgetExceeded, InvalidParameter
from dpacct.ledger import EXAMPLE, Terms
from dpacct.outputs import mechanism_of, noise_multiplier
from dpacct.rounds import Schedule, first_rounds
from dpacct_cli import errors, mechanism, outputs
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import Style, StyleOptions
from dpacct_cli.output import is_there
from dpacct_cli.render import Answer, Page, Row, down, plain, print_note, safe, seconds, show, up
from dpacct_cli.train.files import Begun, RunFiles, begin, find_run, other_ledgers, unfinished
from dpacct_cli.train.options import METHODS, MethodName, Record, Training
from dpacct_cli.train.settings import (
    FREE,
    RunSettings,
    check_folder,
    check_unchanged,
    combine,
    option,
    typed_values,
)
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
      dpacct train dp-fedpgn --set rho=0.1 --set beta=0.5
      dpacct train dp-fedavg --schedule plan.toml --eps 4
      dpacct train dp-fedavg --server adam --server-set lr=0.02
      dpacct train dp-fedavg --examples --batch 128 --epochs 20
      dpacct train dp-fedavg --config run.toml --json
      dpacct train mymethods:Proximal --set strength=0.1
      dpacct train dp-fedavg --validation 0.4 --repeats 3
      dpacct train dp-fedavg,dp-fed-ls,scaffold --rounds 20 --repeats 3
      dpacct train --ledger mnist.ledger --resume
    """
    _check_record(record)
    names = list(dict.fromkeys(name.strip() for name in (method or "").split(",")))
    begun = None
    if record.resume and len(names) == 1:
        begun = find_run(record.ledger, record.run, method, training.data)
        method = method or begun.settings.method
    settings = read_settings(names[0] if len(names) > 1 else method, training, record)
    if len(names) > 1 or (settings.get("repeats") and begun is None):
        _compare(names, settings, record, style.style)
        return
    if begun is not None:
        check_unchanged(begun.settings, settings)
        # A resumed run may have another device and data folder. Nothing else counts as chosen.
        moved = {key: settings.values[key] for key in FREE if key in settings.chosen}
        values = {**begun.settings.values, **moved}
        settings = replace(begun.settings, values=values, chosen=frozenset())
    check_unit(settings)
    settings.every(10)
    if (target := settings.number("target_accuracy")) is not None:
        validate.positive_probability("target_accuracy", target, "an accuracy", below_one=True)
    if settings.number("noise") == 0 and record.ledger is None and begun is None:
        raise OptionConflict(
            "--noise 0 needs --ledger FILE: without noise, epsilon of all runs in it is infinite."
        )
    errors.require_torch("training needs")
    if begun is not None:
        files = begun.files
    else:
        _propose_schema(settings)
        files = begin(record.ledger, settings.method, settings.values["data"])
    from dpacct_cli.train.own_code import OwnErrors

    with OwnErrors(settings.method):
        _run(settings, files, style.style, resume=record.resume, distributed=record.distributed)


def _check_record(record: Record) -> None:
    """Reject options about the run and its processes that contradict each other."""
    if record.run is not None and not record.resume:
        raise OptionConflict(f"--run {record.run} needs --resume; a new run is named by itself.")
    if record.distributed and "RANK" not in os.environ:
        raise OptionConflict(
            "--distributed needs torchrun, which starts the processes: "
            "torchrun --nproc-per-node 2 -m dpacct_cli train ..."
        )
    if record.repeats is not None and (record.resume or record.distributed):
        why = "a stopped run goes on alone" if record.resume else "its processes share one run"
        other = "--resume" if record.resume else "--distributed"
        raise conflict(f"--repeats {record.repeats}", other, why)


def _compare(names: list[str], settings: RunSettings, record: Record, style: Style) -> None:
    """Play methods, each several times, on public data."""
    from dpacct_cli.commands.reproduce import compare_methods

    shared = ("repeats", "validation", "evaluate_every")
    for key, value in record._asdict().items():
        if value and key not in shared:
            raise conflict(option(key), "several runs", "it belongs to a single run")
    check_unit(settings)
    compare_methods(names, settings, style)


def read_settings(
    method: str | None, training: Training, record: Record | None = None
) -> RunSettings:
    """Return the settings of a command line. See `combine`."""
    if method is None and not training.examples:
        known = f"a method is one of {', '.join(METHODS)}, or package.module:Class"
        raise InvalidParameter("method", None, known)
    return combine(
        METHODS[0] if method is None else method,
        typed_values(training, record),
        tuple(training.assignments or ()),
        training.config,
        tuple(training.server_assignments or ()),
        training.schema,
    )


def check_unit(settings: RunSettings) -> None:
    """Name examples in all messages if they are sampled, and reject --batch if clients are.

    A folder of data that are in none is rejected, too.
    """
    check_folder(settings)
    if settings.get("examples"):
        about_examples()
    elif spelling("--cohort") == "--batch":
        raise OptionConflict(
            f"--batch {text_of('--cohort')} needs --examples; clients are sampled in --cohort, and "
            "train by --batch-size."
        )


def _propose_schema(settings: RunSettings) -> None:
    """Print a schema to edit, and stop, if a table has words or empty cells, and no schema."""
    data, known = settings.values["data"], settings.data_options
    declared = known.keys() - {"label", "owner", "classes"}
    if not data.lower().endswith(".csv") or declared or not is_there(data):
        return
    from dpacct.fl.data.table import propose_schema

    label = settings.get("label") or known.get("label", "label")
    proposal = propose_schema(data, label, settings.get("owner") or known.get("owner"))
    if proposal is not None:
        print(proposal, end="")
        errors.print_line(
            f"{data} has words or empty cells, and no schema says what they stand for. Save the "
            "text above as schema.toml, edit it, and train with --schema schema.toml."
        )
        raise SystemExit(BAD_INPUT)


def _run(
    settings: RunSettings, files: RunFiles, style: Style, *, resume: bool, distributed: bool
) -> None:
    # PyTorch is imported here, after everything that can be checked without it.
    from dpacct.fl.engine.ranks import join_torchrun
    from dpacct.ledger import known_terms
    from dpacct_cli.train.job import build_job
    from dpacct_cli.train.run import open_run, orderly_stop, train

    first = join_torchrun() if distributed else True
    terms = known_terms(files.ledger)
    job = build_job(settings, terms)
    file = shlex.quote(str(files.ledger))
    with open_run(job, files, settings, resume=resume, distributed=distributed) as run:
        if not first:
            # The first process alone writes, prints and decides when to stop.
            with orderly_stop():
                for _ in run:
                    pass
            return
        if style is Style.HUMAN:
            for note in _notes(settings, files, job, terms, run):
                print_note(note)
            level, what = _level(run, run.schedule), mechanism.rows(run.schedule)[0]
            noises = (
                "" if level is None else f", noise multiplier {safe('noise_multiplier', level)}"
            )
            spent = up(run.planned_epsilon.upper, 3)
            line = f"plan: {what.value}{noises}, epsilon {spent} at the end"
            print(line, file=sys.stderr, flush=True)
        try:
            outcome = train(run, job, files, settings, style)
        except BudgetExceeded as refusal:
            if not run.noise_multiplier:
                way = "Give --noise above 0, or the name of a new ledger by --ledger."
                raise BudgetExceeded(f"{refusal} {way}") from None
            # The ways out come first, the figures behind them.
            stopped = " ".join(
                f"To continue the stopped run: {again_command(begun)}."
                for begun in unfinished(files.ledger)[:1]
            )
            ways = in_units(
                f"{stopped} To begin a second budget for the same clients, whose epsilon adds up "
                f"with this one: --ledger FILE. dpacct ledger show {file} lists what was spent."
            )
            why = str(refusal)
            raise BudgetExceeded(f"{ways} {why[:1].upper()}{why[1:]}".strip()) from None
        if outcome.interrupted:
            errors.print_line(
                f"stopped after round {run.round} of {run.rounds}; saved in {files.checkpoint}. "
                f"{again_command(Begun(files, settings))} goes on."
            )
            raise SystemExit(INTERRUPTED)
        done = Done(settings, files, job, run, outcome)
        show(Answer(_data(done), repr(outcome.accuracy), lambda: _page(done)), style)


def again_command(begun: Begun) -> str:
    """Return the command that continues a run."""
    place = f"--ledger {shlex.quote(str(begun.files.ledger))} --run {shlex.quote(begun.files.stem)}"
    return f"dpacct train {begun.settings.method} {place} --resume"


def _notes(
    settings: RunSettings, files: RunFiles, job: Job, terms: Terms | None, run: Federation
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
    if (resumed := run.account.goes_on) is not None:
        row, written = resumed
        noise = "" if run.state.noise is None else f" and row {row} of the noise"
        yield (
            f"goes on with round {run.round + 1} of {run.rounds}{noise}. The last entry of "
            f"{files.ledger} is of {written[:19].replace('T', ' ')} UTC. If rounds ran later, "
            "ledger and checkpoint are old copies, and what they repeat is not charged: stop."
        )
    if run.has_private_checkpoint:
        yield (
            f"{files.checkpoint} holds private values, which epsilon does not cover: what clients "
            "remember, correlated noise, or the allocation of an epoch. Only you may read the "
            "file; guard it like the data."
        )


class Done(NamedTuple):
    """A run that has ended, with all that is printed of it."""

    settings: RunSettings
    files: RunFiles
    job: Job
    run: Federation
    outcome: Outcome

    @property
    def plan(self) -> Schedule:
        """The rounds that ran, or the first one of the plan. A begun epoch counts whole."""
        from dpacct.fl.privacy.allocation import rounds_of

        plan = self.run.schedule
        return first_rounds(plan, max(1, -(-self.run.round // rounds_of(plan.phases[0].round))))


def _level(run: Federation, plan: Schedule) -> float | None:
    """Return the noise multiplier of all rounds, which a schedule has also without noise."""
    return noise_multiplier(plan) if run.noise_multiplier else 0.0


def _data(done: Done) -> outputs.Train:
    """Return the keys of --json. JSON has no infinity: null if the run is not private."""
    from dpacct.fl.privacy.allocation import Allocation
    from dpacct.fl.privacy.correlated import Cyclic

    settings, files, job, run, outcome = done
    spent, budget, sampling = run.epsilon, job.keywords["budget"], job.sampling
    private = run.not_private_because is None
    ends = (spent.lower, spent.upper) if private else (None, None)
    data: outputs.Train = {
        "method": settings.method,
        "data": job.dataset.name,
        "model": settings.values["model"],
        **mechanism_of(done.plan),
        "rounds": run.round,
        "epsilon": outputs.Target(*ends, None if budget is None else budget.epsilon),
        "delta": spent.delta,
        "clip_norm": run.bound.clip_norm,
        "public_size": job.keywords["public_size"],
        "test_accuracy": outcome.accuracy,
        "bytes_per_client": outcome.bytes,
        "test_data": job.dataset.test_data,
        "label_set": job.dataset.label_set,
        "seconds": outcome.seconds,
        "ledger": str(files.ledger),
        "private": private,
        "not_private_because": run.not_private_because,
        "stopped_because": run.stopped_because,
        "partition": settings.get("partition"),
        "simulated_clients": job.simulated,
        "unit": job.unit,
        "server": settings.get("server"),
        "bound": repr(job.keywords["bound"] or run.bound),
        "model_file": str(files.model),
        "report": str(files.report),
        "checkpoint": str(files.checkpoint),
    }
    if outcome.validation is not None:
        data[job.looked] = outcome.validation
    if outcome.train_accuracy is not None:
        data["unprotected_train_accuracy"] = outcome.train_accuracy
        data["unprotected_gap"] = outcome.train_accuracy - outcome.accuracy
    if settings.get("target_accuracy"):
        public = job.dataset.test_data == "public"
        data["rounds_to_target" if public else "unprotected_rounds_to_target"] = outcome.reached
    data["noise_multiplier"] = _level(run, done.plan)
    data["examples" if settings.get("examples") else "clients"] = job.public.size
    if isinstance(sampling, Cyclic | Allocation):
        # All releases are of one kind.
        data["sampling_rate"] = sampling.sampling_rate
    if isinstance(sampling, Cyclic):
        data["sampling"], data["groups"] = "cyclic", sampling.groups
    if isinstance(sampling, Allocation):
        data["steps"] = sampling.steps
    return data


def _page(done: Done) -> Page:
    settings, files, job, run, outcome = done
    plan, data, delta = done.plan, job.dataset, run.epsilon.delta
    spent = mechanism.epsilon_row(run.epsilon, job.delta.origin)
    if run.not_private_because is not None:
        spent = Row("epsilon", "infinite", run.not_private_because)
    dealt = settings.get("partition")
    who = f"{'simulated ' if job.simulated else ''}clients ({dealt})" if dealt else "examples"
    size = f"{job.public.size:,}{' declared' if job.public.stated else ''}"
    tested = on_test_data(len(job.tested), data.test_data)
    rows = [Row("test accuracy", down(outcome.accuracy, 4), tested), spent]
    rows += _looks(done)
    if run.stopped_because is not None:
        rows.append(Row("stopped early", run.stopped_because))
    if data.label_set == "unprotected":
        why = "the classes are read off the data, and epsilon does not cover them: say --classes"
        rows.append(Row("label set", "unprotected", why))
    rows += mechanism.rows(plan)
    level = _level(run, plan)
    first, last = job.keywords["bound"] or run.bound, run.bound.clip_norm
    if level is not None:
        unit = f"std of the noise on the sum / clip norm {plain(last)}"
        if settings.get("adaptive_clip"):
            unit = "of the updates and of what the clip norm learns, together"
        rows.append(Row("noise multiplier", safe("noise_multiplier", level), unit))
    if settings.get("adaptive_clip"):
        ends = f"{plain(first.clip_norm)} to {up(last, 4)}"
        rows.append(Row("clip norm", ends, f"at quantile {settings.values['adaptive_clip']}"))
    if ":" in settings.method:
        rows.append(Row("method", settings.method))
    if job.keywords["server"] is not None:
        rows.append(Row("server", repr(job.keywords["server"])))
    model, took = settings.values["model"], seconds(outcome.seconds)
    rows += [
        Row("training", f"{model} on {data.name}, {size} {who}, {took}"),
        *_traffic(done),
        Row("ledger", str(files.ledger)),
        Row("model", str(files.model)),
        Row("report", str(files.report), "  one line a round; unprotected_... in it: not private"),
    ]
    remarks = [SIMULATED] if job.simulated else []
    if job.unit == EXAMPLE and data.owners is not None:
        remarks.append(OWNERS_OF_EXAMPLES)
    return Page(
        rows,
        closing=f"dpacct ledger show {shlex.quote(str(files.ledger))} lists what was spent.",
        note=mechanism.delta_note(delta, job.public.size),
        remarks=remarks,
    )


def _looks(done: Done) -> Iterator[Row]:
    """Yield the rows that were asked for: other accuracies, and rounds to a target."""
    job, outcome = done.job, done.outcome
    if outcome.validation is not None and job.validated is not None:
        what = on_test_data(len(job.validated), job.dataset.test_data)
        yield Row("validation", down(outcome.validation, 4), what.replace("test", "validation"))
    if outcome.train_accuracy is not None:
        gap = f"{outcome.train_accuracy - outcome.accuracy:+.4f} above the test accuracy"
        why = f"{gap}; without noise: epsilon does not cover it"
        yield Row("training accuracy", f"{outcome.train_accuracy:.4f}", why)
    if (target := done.settings.get("target_accuracy")) is not None:
        reached = "not reached" if outcome.reached is None else f"round {outcome.reached}"
        why = "" if job.dataset.test_data == "public" else "; from private examples: not covered"
        yield Row("target", reached, f"first evaluated round with accuracy {target}{why}")


def _traffic(done: Done) -> Iterator[Row]:
    if done.job.unit != EXAMPLE:
        what = "sent and received by a client that is in every round, uncompressed"
        yield Row("communication", f"{done.outcome.bytes / 1e6:,.3g} MB", what)


def on_test_data(count: int, test_data: str) -> str:
    """Return the words beside an accuracy: its examples, and if epsilon covers them."""
    if test_data == "public":
        return f"on {count:,} public test examples"
    return f"on {count:,} private examples, without noise: epsilon does not cover it"
