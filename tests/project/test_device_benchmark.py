"""The benchmark for devices runs to its end on any machine, and says which form it was."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

import torch

from benchmarks import device
from benchmarks.device_jobs import JOBS


@pytest.mark.slow
def test_the_small_form_is_written_job_by_job(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "JOBS", JOBS[:1])
    out = tmp_path / "device.json"
    said = device.all_jobs(torch.device("cpu"), 1.0, out, small=True)
    assert json.loads(out.read_text("utf-8")) == said
    [job] = said["jobs"]
    assert job["weights"] == 545_098
    assert job["rounds_timed"] >= 1
    assert job["limit_seconds"] > 0
    assert "no device" in device.shown(said)


def test_memory_that_is_full_is_told_as_such(tmp_path, monkeypatch):
    def full(*_: object) -> device.Measured:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")

    monkeypatch.setattr(device, "measured", full)
    said = device.all_jobs(torch.device("cpu"), 1.0, tmp_path / "out.json", small=True)
    assert {job["failed"] for job in said["jobs"]} == {
        "out of memory on the device: CUDA out of memory. Tried to allocate 2 GiB."
    }
    assert "out of memory" in device.shown(said)


def test_the_peer_stands_beside_it_where_it_was_trained():
    job: device.Measured = {
        "job": "CNN",
        "rounds_timed": 3,
        "rounds_planned": 4,
        "seconds_per_round": 0.3,
        "seconds_in_all": 1.2,
        "goal_seconds": None,
        "limit_seconds": 1.0,
        "memory_mib": 7.0,
    }
    said = {"note": "", "device": "CPU", "threads": 1, "torch": "2", "jobs": [job]}
    assert "(1.50)" not in device.shown(said)
    job["pfl_research_seconds_per_round"] = 0.2
    assert "0.2000 (1.50)" in device.shown(said)
