"""Seconds of a round's parts: on a GPU by its own marks, and waited for at the end alone."""

from __future__ import annotations

import itertools

import pytest
import torch

from dpacct.fl.engine import engine as laps
from dpacct.fl.engine.engine import Laps


def test_laps_of_a_part_are_added_up(monkeypatch):
    times = iter([10.0, 11.0, 13.0, 16.0, 20.0])
    monkeypatch.setattr(laps.time, "perf_counter", lambda: next(times))
    clock = Laps(torch.device("cpu"))
    for part in ("local", "privacy", "local", "other"):
        clock.end(part)
    assert [clock.seconds(part) for part in ("local", "privacy", "nobody")] == [4.0, 2.0, 0.0]


class Gpu:
    """A GPU on which each mark comes a millisecond after the one before."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._clock = itertools.count()

    def Event(self, *, enable_timing):  # noqa: N802 - torch's name
        assert enable_timing
        return Event(self)

    def current_stream(self, device):
        assert device == torch.device("cuda")
        return self._clock


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self.done = gpu, False

    def record(self, stream):
        self._gpu.said.append("mark")
        self.time = next(stream)

    def synchronize(self):
        self._gpu.said.append("wait")
        self.done = True

    def elapsed_time(self, other):
        assert "wait" in self._gpu.said
        return float(other.time - self.time)


def test_a_gpu_marks_the_time_and_is_waited_for_once(monkeypatch):
    gpu = Gpu()
    monkeypatch.setattr(laps, "_cuda", gpu)
    clock = Laps(torch.device("cuda"))
    for part in ("local", "privacy") * 3:
        clock.end(part)
    assert gpu.said == ["mark"] * 7
    assert clock.seconds("local") == pytest.approx(3e-3)
    assert gpu.said == ["mark"] * 7 + ["wait"]
