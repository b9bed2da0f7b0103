"""Rows computed side by side, in processes of their own.

Rule 1: what is quick is computed here: processes are started only for what is left after a moment.
Rule 2: a process that dies costs the row that it had, with the reason, and is replaced.
Rule 3: Ctrl-C reaches this process alone, which ends the others.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from dpacct_cli.explore.rows import Done, Task, blank, compute

# About what it takes to start a process that can compute.
MOMENT = 1.0


def results(tasks: Iterable[Task], jobs: int) -> Iterator[Done]:
    """The rows, in the order in which they are ready.

    Args:
        tasks: what is to be computed.
        jobs: how many processes at most.
    """
    left, began = deque(tasks), time.monotonic()
    while left and (jobs == 1 or time.monotonic() - began < MOMENT):
        yield compute(left.popleft())
    if left:
        yield from _side_by_side(left, min(jobs, len(left)))


@dataclass(slots=True)
class _Worker:
    """A process, the pipe to it, and what it computes."""

    process: BaseProcess
    pipe: Connection
    task: Task

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _side_by_side(left: deque[Task], jobs: int) -> Iterator[Done]:
    workers: list[_Worker] = []
    try:
        workers += [_started(left.popleft()) for _ in range(jobs)]
        while workers:
            ready = wait([worker.pipe for worker in workers])
            for worker in [one for one in workers if one.pipe in ready]:
                done = _received(worker)
                alive = worker.process.is_alive() and left
                if not alive:
                    worker.end()
                    workers.remove(worker)
                    if left:
                        workers.append(_started(left.popleft()))
                else:
                    _give(worker, left.popleft())
                yield done
    finally:
        for worker in workers:
            worker.end()


def _received(worker: _Worker) -> Done:
    try:
        return worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join()
        code = worker.process.exitcode
        reason = f"its process ended with code {code}, perhaps for want of memory"
        return Done(worker.task.index, blank(worker.task, reason))


def _give(worker: _Worker, task: Task) -> None:
    worker.task = task
    # If it has just died, its pipe says so when it is read.
    with suppress(OSError):
        worker.pipe.send(task)


def _started(task: Task) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    with _interrupts_held():
        process.start()
    theirs.close()
    worker = _Worker(process, ours, task)
    _give(worker, task)
    return worker


@contextmanager
def _interrupts_held() -> Generator[None]:
    """A process that starts in here never hears Ctrl-C; this one hears it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(pipe: Connection) -> None:
    """Compute what comes, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(compute(pipe.recv()))
