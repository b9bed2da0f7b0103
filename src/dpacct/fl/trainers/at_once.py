"""Computations at the same time on threads of Python, each on one thread of torch.

Torch lets go of Python's lock in each operation. Where operations are long, threads that have whole
computations of their own are as quick as operations that are split over threads, and an operation
has no seams, at which numbers would be rounded otherwise.

Rule: a thread computes as the one that asked for it would. So gradients are on or off and tiny
numbers are kept or not as there, and a thread with modes of its own shares nothing. Where no thread
can be had, the one that asked does the work: a program that ends, say, starts no more of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
_torch: Any = torch
_core: Any = _torch._C  # noqa: SLF001 - nobody else counts the modes
_TINY, _HALF = sys.float_info.min, 0.5


def can_share() -> bool:
    """Whether other threads may compute for this one: no mode is active that they would lack."""
    return not (
        _core._len_torch_function_stack()  # noqa: SLF001
        or _core._len_torch_dispatch_stack()  # noqa: SLF001
        or torch.is_inference_mode_enabled()
    )


def at_once(jobs: Sequence[Callable[[], Result]]) -> list[Result]:
    """What the jobs give: the first one on this thread, each other one on one of its own.

    Called where torch has one thread, of a thread that `can_share`. All but the first job only
    return what they compute: one that was passed on in vain may run twice, and counts once. None
    asks for gradients.

    Raises:
        What a job raised, when all of them are done.
    """
    first, *others = jobs
    if not others:
        return [first()]
    gradients, flushes = torch.is_grad_enabled(), _flushes()

    def alike(job: Callable[[], Result]) -> Result:
        torch.set_flush_denormal(flushes)
        with torch.set_grad_enabled(gradients):
            return job()

    waiting = [_passed_on(partial(alike, job)) for job in others]
    try:
        mine = first()
    finally:
        failures = [one.exception() for one in waiting if one is not None]
    for failure in failures:
        if failure is not None:
            raise failure
    pairs = zip(waiting, others, strict=True)
    return [mine, *(job() if one is None else one.result() for one, job in pairs)]


def _passed_on(job: Callable[[], Result]) -> Future[Result] | None:
    """A job that another thread does; None where there is none."""
    try:
        # By process: a fork has none of its parent's threads.
        return _helpers(os.getpid()).submit(job)
    except RuntimeError:
        return None


@cache
def _helpers(process: int) -> ThreadPoolExecutor:
    """Threads that are started when they are needed, and then wait for more."""
    del process
    return ThreadPoolExecutor(
        os.cpu_count(), thread_name_prefix="dpacct", initializer=_one_torch_thread
    )


def _one_torch_thread() -> None:
    # Torch keeps this number for each thread of Python. The first time that it needs it there, it
    # takes the one that any thread has set last; so it is asked before.
    torch.get_num_threads()
    torch.set_num_threads(1)


def _flushes() -> bool:
    """Whether this thread takes tiny numbers for zero, which the processor keeps for each one."""
    return _TINY * _HALF == 0.0
