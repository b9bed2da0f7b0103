"""Computations at the same time, each as its caller would make it."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dpacct.fl.tensors import one_thread
from dpacct.fl.trainers import at_once as at_once_module
from dpacct.fl.trainers.at_once import at_once, can_share

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def alone():
    with one_thread(CPU):
        yield


def test_jobs_run_at_the_same_time_and_results_are_in_order():
    # None of them gets past the barrier by itself.
    barrier = threading.Barrier(3, timeout=60)

    def job(number: int) -> tuple[int, int]:
        barrier.wait()
        return number, threading.get_ident()

    found = at_once([partial(job, number) for number in range(3)])
    assert [number for number, _ in found] == [0, 1, 2]
    assert found[0][1] == threading.get_ident()
    assert len({thread for _, thread in found}) == 3


def test_each_has_one_thread_of_torch():
    assert at_once([torch.get_num_threads] * 3) == [1, 1, 1]


def test_each_has_one_thread_of_torch_whatever_others_set_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
):
    # Another run may end between the start of a thread and its first operation.
    begin = at_once_module._one_torch_thread
    begun = threading.Event()

    def beginning() -> None:
        begin()
        begun.set()
        assert others_set.wait(60)

    others_set = threading.Event()

    def other() -> None:
        begun.wait(60)
        torch.set_num_threads(3)
        others_set.set()

    monkeypatch.setattr(at_once_module, "_one_torch_thread", beginning)
    at_once_module._helpers.cache_clear()
    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert at_once([torch.get_num_threads] * 2) == [1, 1]
    finally:
        thread.join()
        at_once_module._helpers.cache_clear()


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_gradients_are_on_or_off_as_for_the_caller(mode):
    with mode():
        assert at_once([torch.is_grad_enabled] * 2) == [torch.is_grad_enabled()] * 2


def test_tiny_numbers_are_kept_or_not_as_for_the_caller():
    tiny = torch.full((64,), torch.finfo(torch.float32).tiny)

    def halved() -> float:
        return float((tiny * 0.5).sum())

    # Threads that were there before too.
    at_once([halved] * 2)
    found: list[list[float]] = []
    try:
        for flush in (True, False):
            if not torch.set_flush_denormal(flush):
                pytest.skip("this processor cannot")
            found.append(at_once([halved] * 2))
    finally:
        torch.set_flush_denormal(False)
    assert found[0] == [0.0, 0.0]
    assert found[1][0] == found[1][1] > 0


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_what_a_job_raises_is_raised_when_all_are_done(failing: int):
    done: list[int] = []

    def job(number: int) -> None:
        if number == failing:
            raise ValueError(str(number))
        done.append(number)

    with pytest.raises(ValueError, match=str(failing)):
        at_once([partial(job, number) for number in range(3)])
    assert sorted([*done, failing]) == [0, 1, 2]


@pytest.mark.parametrize("case", ["refused", "queued in vain"])
def test_where_no_thread_can_be_had_the_one_that_asked_does_the_work(
    monkeypatch: pytest.MonkeyPatch, case: str
):
    """As at the end of a program, or where the system starts no thread."""
    done: list[tuple[int, int]] = []

    def job(number: int) -> int:
        done.append((number, threading.get_ident()))
        return number

    class Refusing:
        def submit(self, job: Any) -> Any:
            if case != "refused":
                job()
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(at_once_module, "_helpers", lambda _: Refusing())
    assert at_once([partial(job, number) for number in range(3)]) == [0, 1, 2]
    assert {ident for _, ident in done} == {threading.get_ident()}
    assert [number for number, _ in done] == ([] if case == "refused" else [1, 2]) + [0, 1, 2]


class Watching(TorchFunctionMode):
    """Does nothing."""


class Looking(TorchDispatchMode):
    """Does nothing."""


@pytest.mark.parametrize("mode", [Watching, Looking, torch.inference_mode])
def test_a_thread_with_modes_of_its_own_shares_nothing(mode):
    assert can_share()
    with mode():
        assert not can_share()
    assert can_share()
