"""The rounds of a run: evaluation, report, progress bar, and an orderly stop.

Rule 1: settings and a checkpoint are on disk before the first round, so a run can always resume.
Rule 2: Ctrl-C or SIGTERM lets the current round finish, then saves. A second one stops at once, and
the checkpoint of the last finished round stands.
Rule 3: the progress bar shows only released values and the accuracy on test data, which is called
unprotected unless the data is public.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, cast

from dpacct.errors import InvalidParameter
from dpacct.fl.clients import Population
from dpacct.fl.federation import Federation
from dpacct.fl.models import cross_entropy, save_parameters
from dpacct.fl.report import Callback, RoundReport, open_report
from dpacct.items import count_of
from dpacct_cli import waiting
from dpacct_cli.options import Style
from dpacct_cli.output import write_output
from dpacct_cli.render import plain, up
from dpacct_cli.train.files import RunFiles
from dpacct_cli.train.job import Job
from dpacct_cli.train.settings import RunSettings


class Outcome(NamedTuple):
    """The end of a run, beside what its `Federation` says."""

    accuracy: float  # On the test set
    # On the validation part, and on training examples (not private), if they were asked for
    validation: float | None
    train_accuracy: float | None
    reached: int | None  # The first evaluated round with the target accuracy
    bytes: int  # That one client sent and received in all rounds, if it was in each of them
    seconds: float  # Of this part of the run
    interrupted: bool  # Ctrl-C or SIGTERM stopped it


@dataclass(frozen=True, slots=True)
class _Beginning(Callback):
    """Writes settings and checkpoint when the ledger has admitted the run. Rule 1."""

    file: Path
    settings: str

    def start(self, run: Any) -> None:
        """Write both before the first round is charged."""
        if run.round == 0:
            if not self.file.exists():
                write_output(self.settings, self.file, name="ledger")
            run.save()


def open_run(
    job: Job, files: RunFiles, settings: RunSettings, *, resume: bool, distributed: bool
) -> Federation:
    """Return the run of a job, at its beginning or at its checkpoint."""
    kept = replace(settings, ledger=files.name_of_ledger).dump()
    run = federation(
        job,
        job.clients,
        ledger=files.ledger,
        name=files.run_name(settings.method),
        checkpoint=files.checkpoint,
        callbacks=[_Beginning(files.settings, kept)],
        distributed=distributed,
    )
    # Without a checkpoint nothing was ever charged.
    return run.resume() if resume and files.checkpoint.exists() else run


def federation(job: Job, clients: Population, **recorded: Any) -> Federation:
    """Return the run of a job on its own clients, or on others in their place."""
    sampling = None if job.keywords["schedule"] else job.sampling
    return Federation(
        job.model, cross_entropy, clients, sampling=sampling, **job.keywords, **recorded
    )


def train(
    run: Federation, job: Job, files: RunFiles, settings: RunSettings, style: Style
) -> Outcome:
    """Run all rounds that are left, or stop in order."""
    started = time.perf_counter()
    eval_every = settings.every(run.rounds)
    test_data, budget = job.dataset.test_data, job.keywords["budget"]
    target = None if budget is None else budget.epsilon
    accuracy: float | None = None
    evaluated, began = -1, started

    try:
        # Text output alone has a bar. It takes the place of the one that every command has.
        waiting.end()
        shown = waiting.waiting("dpacct train") if style is Style.HUMAN else nullcontext()
        with orderly_stop() as stopping, shown:
            waiting.say(f"round {run.round}/{run.rounds}", run.round, run.rounds)
            for number, report in enumerate(run):
                due = report.round % eval_every == 0 or report.round == run.rounds
                if due:
                    accuracy = job.accuracy(run.model, job.validated)
                    evaluated = report.round
                tested = {job.looked: accuracy if due else None, "test_data": test_data}
                _append(files.report, report, tested)
                described = describe(report, target, accuracy, test_data)
                waiting.say(described, report.round, report.rounds)
                # The first round also warms up.
                if number == 0:
                    began = time.perf_counter()
                elif number == 1 and style is Style.HUMAN and not sys.stderr.isatty():
                    # Where no bar says how long the rest takes.
                    more = report.rounds - report.round
                    left = math.ceil((time.perf_counter() - began) * more)
                    if left >= waiting.PATIENCE:
                        estimate = f"about {left} s for {count_of(more, 'more round')}"
                        print(estimate, file=sys.stderr, flush=True)
                # The last round ends alone, and with it the run in the ledger.
                if stopping() and report.round < run.rounds:
                    break
            interrupted = stopping() and run.round < run.rounds
    except KeyboardInterrupt:
        interrupted = True
    run.save()
    save_parameters(run.model, files.model)
    if accuracy is None or evaluated != run.round:
        accuracy = job.accuracy(run.model, job.validated)
    rows = read_rows(files.report)
    target = settings.number("target_accuracy")
    return Outcome(
        accuracy if job.validated is None else job.accuracy(run.model),
        None if job.validated is None else accuracy,
        job.train_accuracy(run.model) if settings.get("train_accuracy") else None,
        next(
            (row["round"] for row in rows if target and (row.get(job.looked) or 0) >= target), None
        ),
        sum(row.get("bytes_down", 0) + row.get("bytes_up", 0) for row in rows),
        time.perf_counter() - started,
        interrupted,
    )


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of this run's own report."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def _append(file: Path, report: RoundReport, tested: dict[str, Any]) -> None:
    """Append a line of JSON to the report. Numbers that JSON does not have are null."""
    row = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in report.to_dict().items()
    } | tested
    try:
        with open_report(file) as stream:
            stream.write(json.dumps(row, allow_nan=False) + "\n")
    except OSError as error:
        rule = f"a file in its folder cannot be written ({error.strerror or error})"
        raise InvalidParameter("ledger", str(file), rule) from None


def describe(
    report: RoundReport, target: float | None, accuracy: float | None, test_data: str = "public"
) -> str:
    """Return the text next to the bar: round, budget and accuracy."""
    limit = "" if target is None else f" of {plain(target)}"
    spent = "not private"
    if report.not_private_because is None:
        spent = f"epsilon {up(report.epsilon.upper, 3)}{limit}"
    text = f"round {report.round}/{report.rounds}   {spent}"
    if accuracy is None:
        return text
    unprotected = "" if test_data == "public" else "unprotected "
    return f"{text}   {unprotected}accuracy {accuracy:.3f}"


@contextmanager
def orderly_stop() -> Generator[Callable[[], bool]]:
    """Yield a function that returns True after a signal to stop. Rule 2."""
    asked: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, cast("Any", handler))
