"""Rows computed in parallel, in processes.

Rule 1: quick rows are computed here. Processes are started only for rows left after a moment.
Rule 2: a process that dies costs the row that it had, with the reason, and is replaced.
Rule 3: Ctrl-C reaches this process alone, which ends the others.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait

from dpacct_cli.explore.sweep import Done, Task, blank, compute

# Estimated time to start a process that can compute.
MOMENT = 1.0


def results(tasks: Iterable[Task], jobs: int) -> Iterator[Done]:
    """Yield the rows in the order in which they are ready, from at most ``jobs`` processes."""
    left, began = deque(tasks), time.monotonic()
    while left and (jobs == 1 or time.monotonic() - began < MOMENT):
        yield compute(left.popleft())
    if left:
        yield from _in_parallel(left, min(jobs, len(left)))


class Worker:
    """A process, the pipe to it, and the task that it computes."""

    def __init__(self, task: Task) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        held: set[signal.Signals] | set[int] | None = None
        if hasattr(signal, "pthread_sigmask"):
            # A process that starts now never gets Ctrl-C. This one gets it afterwards.
            held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            if held is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, held)
        theirs.close()
        self.give(task)

    def give(self, task: Task) -> None:
        """Send a task. If the process has just died, reading its pipe shows that."""
        self.task = task
        with suppress(OSError):
            self.pipe.send(task)

    def receive(self) -> Done:
        """Return the row of the task, or its error if the process has died."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            reason = f"its process ended with code {code}, perhaps for want of memory"
            return Done(self.task.place, blank(self.task, reason))

    def end(self) -> None:
        """Stop the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _in_parallel(left: deque[Task], jobs: int) -> Iterator[Done]:
    workers: list[Worker] = []
    try:
        workers += [Worker(left.popleft()) for _ in range(jobs)]
        while workers:
            ready = wait([worker.pipe for worker in workers])
            for worker in [one for one in workers if one.pipe in ready]:
                done = worker.receive()
                if left and worker.process.is_alive():
                    worker.give(left.popleft())
                else:
                    worker.end()
                    workers.remove(worker)
                    if left:
                        workers.append(Worker(left.popleft()))
                yield done
    finally:
        for worker in workers:
            worker.end()


def serve(pipe: Connection) -> None:
    """Compute the tasks of a pipe until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(compute(pipe.recv()))
