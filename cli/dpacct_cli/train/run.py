"""The loop of a run: rounds, looks at the test set, a report on disk, and an orderly stop.

Rule 1: settings and a checkpoint are on disk before the first round: a run can always be resumed.
Rule 2: Ctrl-C (and SIGTERM) lets the round that is under way finish, then saves; a second one stops
at once, and the checkpoint of the last finished round stands.
"""

from __future__ import annotations

import json
import math
import signal
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
from dpacct_cli.options import Style
from dpacct_cli.output import write_new
from dpacct_cli.train.files import RunFiles
from dpacct_cli.train.job import Job
from dpacct_cli.train.progress import bar
from dpacct_cli.train.settings import Settings


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to.

    Attributes:
        rounds: done, in all parts of the run.
        schedule: the planned rounds, with their noise.
        epsilon: [achieved, proven] of what was released, with its delta.
        accuracy: on the test set, at the end.
        seconds: of this part of the run.
        interrupted: somebody stopped it.
        stopped_because, not_private_because: of the `Federation`.
    """

    rounds: int
    planned: int
    epsilon: Spent
    schedule: Schedule
    noise_multiplier: float
    clip_norm: float
    accuracy: float
    seconds: float
    interrupted: bool
    stopped_because: str | None
    not_private_because: str | None


class _Beginning(Callback):
    """Ties settings and checkpoint to the ledger's run, before the first round is charged.

    Without them a run that dies in its first round could only begin again, beside what it holds.
    """

    def __init__(self, files: RunFiles, settings: str) -> None:
        self._files = files
        self._settings = settings

    def start(self, run: RunView) -> None:
        """Write both, once the ledger has admitted the run."""
        if run.round == 0:
            if not self._files.settings.exists():
                write_new(self._settings, self._files.settings, "ledger")
            run.save()


def open_run(job: Job, files: RunFiles, settings: Settings, *, resume: bool) -> Federation:
    """The run that a job describes, at its beginning or at its checkpoint.

    Args:
        job: what runs.
        files: where it is recorded.
        settings: the job's; written when the run begins.
        resume: go on from the checkpoint, if there is one.

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
    """The run that a job describes, on clients.

    Args:
        job: what runs. clients: its own, or others in their place.
        recorded: arguments of `Federation` that say where the run is recorded.
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
        vectorize=job.vectorize,
        device=job.device,
        seed=job.seed,
        **recorded,
    )


def train(run: Federation, job: Job, files: RunFiles, style: Style, eval_every: int) -> Outcome:
    """All rounds that are left, until somebody stops it.

    Args:
        run: from `open_run`, not yet iterated.
        job: what it trains.
        files: report and model are written there.
        style: of the output.
        eval_every: rounds between looks at the test set.
    """
    started = time.perf_counter()
    target = None if job.budget is None else job.budget.epsilon
    tested = {"test_data": job.dataset.test_data}
    accuracy: float | None = None
    judged = -1
    try:
        with (
            _orderly_stop() as stopping,
            bar(style, run.round, run.rounds, target, test_data=job.dataset.test_data) as advance,
        ):
            for report in run:
                if report.round % eval_every == 0 or report.round == run.rounds:
                    accuracy, judged = _accuracy(run, job), report.round
                    _append(files.report, report, {"test_accuracy": accuracy, **tested})
                else:
                    _append(files.report, report, {"test_accuracy": None, **tested})
                advance(report, accuracy)
                # The last round ends by itself, and with it the run in the ledger.
                if stopping() and report.round < run.rounds:
                    break
            interrupted = stopping() and run.round < run.rounds
    except KeyboardInterrupt:
        interrupted = True
    run.save()
    save_parameters(run.model, files.model)
    if accuracy is None or judged != run.round:
        accuracy = _accuracy(run, job)
    return Outcome(
        rounds=run.round,
        planned=run.rounds,
        epsilon=run.epsilon,
        schedule=run.schedule,
        noise_multiplier=run.noise_multiplier,
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
    row = {key: _plain(value) for key, value in report.to_dict().items()}
    row |= tested
    try:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row, allow_nan=False) + "\n")
    except OSError as error:
        rule = f"a file beside it cannot be written ({error.strerror or error})"
        raise InvalidParameter("ledger", str(file), rule) from None


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def _orderly_stop() -> Generator[Callable[[], bool]]:
    """Whether somebody asked to stop; the second time nobody is asked."""
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
