"""The benchmark for devices runs to its end on any machine, and says which form it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import device
from benchmarks.device_jobs import JOBS


@pytest.mark.slow
def test_the_small_form_is_written_job_by_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "JOBS", JOBS[:1])
    out = tmp_path / "device.json"
    said = device.all_jobs(torch.device("cpu"), 1.0, out, small=True)
    assert json.loads(out.read_text("utf-8")) == said
    [job] = said["jobs"]
    assert job["weights"] == 545_098
    assert job["rounds_timed"] >= 1
    assert job["limit_seconds"] > 0
    assert "no device" in device.shown(said)


def test_memory_that_is_full_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> device.Measured:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")

    monkeypatch.setattr(device, "measured", full)
    said = device.all_jobs(torch.device("cpu"), 1.0, tmp_path / "out.json", small=True)
    assert {job["failed"] for job in said["jobs"]} == {
        "out of memory on the device: CUDA out of memory. Tried to allocate 2 GiB."
    }
    assert "out of memory" in device.shown(said)
