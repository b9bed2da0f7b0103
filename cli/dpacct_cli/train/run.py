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
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, cast

from dpacct.budget import Spent
from dpacct.errors import InvalidParameter
from dpacct.fl.clients import Population
from dpacct.fl.federation import Federation
from dpacct.fl.models import cross_entropy, save_parameters
from dpacct.fl.report.callbacks import Callback, RunView
from dpacct.fl.report.evaluation import evaluate
from dpacct.fl.report.reports import Report
from dpacct.rounds import Schedule
from dpacct_cli import waiting
from dpacct_cli.options import Style
from dpacct_cli.output import write_new
from dpacct_cli.render import plain, up
from dpacct_cli.train.files import RunFiles
from dpacct_cli.train.job import Job
from dpacct_cli.train.settings import Settings

Advance = Callable[[Report, float | None], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        rounds, planned: rounds that are done, in all parts of the run, and rounds of the plan.
        epsilon: [achieved, proven] of the released rounds, with its delta.
        schedule: the planned rounds, with their noise.
        accuracy: on the test set, at the end.
        seconds: of this part of the run.
        interrupted: Ctrl-C or SIGTERM stopped it.
        clip_norm, stopped_because, not_private_because: of the `Federation`.
    """

    rounds: int
    planned: int
    epsilon: Spent
    schedule: Schedule
    clip_norm: float
    accuracy: float
    seconds: float
    interrupted: bool
    stopped_because: str | None
    not_private_because: str | None


class _Beginning(Callback):
    """Writes settings and checkpoint before the first round is charged.

    Without them, a run that dies in its first round could not resume.
    """

    def __init__(self, files: RunFiles, settings: str) -> None:
        self._files = files
        self._settings = settings

    def start(self, run: RunView) -> None:
        """Write both once the ledger has admitted the run."""
        if run.round == 0:
            if not self._files.settings.exists():
                write_new(self._settings, self._files.settings, "ledger")
            run.save()


def open_run(job: Job, files: RunFiles, settings: Settings, *, resume: bool) -> Federation:
    """Return the run of a job, at its beginning or at its checkpoint.

    Args:
        job: the job to run.
        files: the files of its record.
        settings: the settings of the job, written when the run begins.
        resume: continue from the checkpoint, if it exists.

    Raises:
        DpacctError: as `Federation` and its ``resume``.
    """
    run = federation(
        job,
        job.clients,
        ledger=files.ledger,
        name=files.run_name(settings.method),
        checkpoint=files.checkpoint,
        callbacks=[_Beginning(files, replace(settings, ledger=files.ledger.name).dump())],
    )
    # Without a checkpoint nothing was ever charged.
    return run.resume() if resume and files.checkpoint.exists() else run


def federation(job: Job, clients: Population, **recorded: Any) -> Federation:
    """Return the run of a job on its own clients, or on others in their place.

    Args:
        job: the job to run.
        clients: the population.
        recorded: arguments of `Federation` that set the place of the record.
    """
    return Federation(
        job.model,
        cross_entropy,
        clients,
        rounds=None if job.schedule else job.rounds,
        schedule=job.schedule,
        method=job.method,
        clip_norm=job.clip_norm,
        sampling=None if job.schedule else job.sampling,
        adjacency=job.adjacency,
        public_size=job.public.size if job.public.stated else None,
        budget=job.budget,
        noise_multiplier=job.noise_multiplier,
        delta=job.delta.value if job.budget is None else None,
        local=job.local,
        server_lr=job.server_lr,
        server=job.server,
        secure_noise=job.secure_noise,
        noise=job.noise,
        vectorize=job.vectorize,
        device=job.device,
        seed=job.seed,
        **recorded,
    )


def train(run: Federation, job: Job, files: RunFiles, style: Style, eval_every: int) -> Outcome:
    """Run all rounds that are left, or stop in order.

    Args:
        run: from `open_run`, not yet iterated.
        job: the job to train.
        files: the places of report and model.
        style: of the output.
        eval_every: rounds between evaluations on the test set.
    """
    started = time.perf_counter()
    target = None if job.budget is None else job.budget.epsilon
    tested = {"test_data": job.dataset.test_data}
    accuracy: float | None = None
    evaluated = -1
    try:
        with (
            _orderly_stop() as stopping,
            bar(style, run.round, run.rounds, target, **tested) as advance,
        ):
            for report in run:
                due = report.round % eval_every == 0 or report.round == run.rounds
                if due:
                    accuracy, evaluated = _accuracy(run, job), report.round
                _append(
                    files.report, report, {"test_accuracy": accuracy if due else None, **tested}
                )
                advance(report, accuracy)
                # The last round ends alone, and with it the run in the ledger.
                if stopping() and report.round < run.rounds:
                    break
            interrupted = stopping() and run.round < run.rounds
    except KeyboardInterrupt:
        interrupted = True
    run.save()
    save_parameters(run.model, files.model)
    if accuracy is None or evaluated != run.round:
        accuracy = _accuracy(run, job)
    return Outcome(
        rounds=run.round,
        planned=run.rounds,
        epsilon=run.epsilon,
        schedule=run.schedule,
        clip_norm=run.bound.clip_norm,
        accuracy=accuracy,
        seconds=time.perf_counter() - started,
        interrupted=interrupted,
        stopped_because=run.stopped_because,
        not_private_because=run.not_private_because,
    )


def _accuracy(run: Federation, job: Job) -> float:
    return evaluate(run.model, cross_entropy, job.tested).accuracy


def _append(file: Path, report: Report, tested: dict[str, Any]) -> None:
    """Append a line of JSON to the report. Numbers that JSON does not have are null."""
    row = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in report.to_dict().items()
    } | tested
    try:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row, allow_nan=False) + "\n")
    except OSError as error:
        rule = f"a file in its folder cannot be written ({error.strerror or error})"
        raise InvalidParameter("ledger", str(file), rule) from None


def describe(
    report: Report, target: float | None, accuracy: float | None, test_data: str = "public"
) -> str:
    """Return the text next to the bar: budget and accuracy."""
    if report.not_private_because is not None:
        parts = ["not private"]
    else:
        limit = "" if target is None else f" of {plain(target)}"
        parts = [f"epsilon {up(report.epsilon.upper, 3)}{limit}"]
    if accuracy is not None:
        unprotected = "" if test_data == "public" else "unprotected "
        parts.append(f"{unprotected}accuracy {accuracy:.3f}")
    return "   ".join(parts)


@contextmanager
def bar(
    style: Style,
    done: int,
    rounds: int,
    target: float | None,
    console: Any = None,
    *,
    test_data: str = "public",
) -> Generator[Advance]:
    """Show a bar on a terminal, which each report with the latest accuracy advances.

    A terminal without escape codes gets a line for each tenth of the rounds.

    Args:
        style: of the output. Only text output has a bar.
        done, rounds: rounds that an earlier part of the run has done, and rounds of the plan.
        target: epsilon of the budget, if there is one.
        console: where to draw, default stderr.
        test_data: public or unprotected.
    """
    # This bar takes the place of the one that every command shows after two seconds.
    waiting.end()
    if style is not Style.HUMAN or (console is None and not sys.stderr.isatty()):
        yield lambda _report, _accuracy: None
        return
    if console is None and not waiting.knows_codes():

        def print_line(report: Report, accuracy: float | None) -> None:
            if report.round % max(1, rounds // 10) == 0:
                text = describe(report, target, accuracy, test_data)
                print(f"round {report.round}/{rounds}   {text}", file=sys.stderr, flush=True)

        yield print_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("round {task.completed}/{task.total}"),
        BarColumn(bar_width=32),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console or Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=rounds, completed=done)

        def advance(report: Report, accuracy: float | None) -> None:
            text = describe(report, target, accuracy, test_data)
            progress.update(task, completed=report.round, description=text)

        yield advance


@contextmanager
def _orderly_stop() -> Generator[Callable[[], bool]]:
    """Yield a function that returns True after a signal to stop. A second signal interrupts."""
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
