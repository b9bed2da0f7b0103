"""Training at the papers' scale on a device: seconds, memory, and the limit.

``python -m benchmarks.device [--out FILE] [--minutes 9] [--device auto] [--small | --full]``. Each
job has its share of the minutes. A job that does not end in time is stopped, and its seconds for
all rounds are extrapolated from its pace. Results are written to the file after each job, as JSON.
Without a device a small form of every job runs, unless the full form is requested, and the file
says so. It shows that everything runs, and nothing about a device's speed.

With pfl-research in an environment of its own, ``PFL_PYTHON=path/to/its/python`` trains its job
there, too, some rounds on the same device.

The limit is the time that the floating-point operations of all forward and backward passes take at
the rate of one large matrix product in the same precision: no program is faster, and none for small
networks comes near.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import torch

import dpacct
from benchmarks import pfl_research
from benchmarks.device_jobs import JOBS, Job, images
from benchmarks.measure import peak_memory, table
from dpacct.fl.data import Examples
from dpacct.fl.tensors import arithmetic, choose_device

# Rounds that are not timed: the first one chooses how to train.
WARM = 1
# Rounds of the peer, of which the first is not timed.
PEER_ROUNDS = 12
SMALL = "a small form, which says nothing about a device's speed"
CPU = "no device: a CPU"


class Measured(TypedDict, total=False):
    """One job of the file, with seconds by the clock."""

    job: str
    weights: int
    way: str
    rounds_planned: int
    rounds_timed: int
    setup_seconds: float
    seconds_per_round: float
    seconds_in_all: float
    goal_seconds: float | None
    limit_seconds: float
    times_the_limit: float
    memory_mib: float
    pfl_research_seconds_per_round: float
    failed: str


def product_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Return floating-point operations a second of one matrix product, the best of five."""
    one = torch.randn(size, size, device=device, dtype=dtype)
    best = float("inf")
    with arithmetic("float32"):
        for _ in range(6):
            began = _clock(device)
            torch.mm(one, one)
            best = min(best, _clock(device) - began)
    return 2 * size**3 / best


def measured(job: Job, device: torch.device, train: Examples, seconds: float) -> Measured:
    """Run the job for at most ``seconds``."""
    found: Measured = {"job": job.name, "rounds_planned": job.rounds, "goal_seconds": job.goal}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = _clock(device)
    total = 0.0
    timed = 0
    with job.federation(device, train) as run:
        found["weights"] = sum(value.numel() for value in run.model.parameters())
        reports = iter(run)
        for _ in range(WARM):
            next(reports)
        found["setup_seconds"] = _clock(device) - began
        next(reports)
        for report in reports:
            timed += 1
            total += report.seconds
            if _clock(device) - began > seconds:
                break
        found["way"] = str(run.training_path)
    each = total / timed
    dtype = torch.bfloat16 if job.precision == "bfloat16" else torch.float32
    rate = product_rate(device, dtype, 8192 if device.type == "cuda" else 512)
    limit = job.operations() * job.rounds / rate
    found |= {
        "rounds_timed": timed,
        "seconds_per_round": each,
        "seconds_in_all": each * job.rounds,
        "limit_seconds": limit,
        "times_the_limit": each * job.rounds / limit,
        "memory_mib": _peak(device),
    }
    if job.peer and pfl_research.PYTHON:
        peer = pfl_research.trained(job.in_pfl(device, train), PEER_ROUNDS)
        found["pfl_research_seconds_per_round"] = peer.round
    return found


def all_jobs(device: torch.device, minutes: float, out: Path, *, small: bool) -> dict[str, Any]:
    """Play every job, and write the file after each."""
    jobs = tuple(job.small() for job in JOBS) if small else JOBS
    train = images(jobs)
    said: dict[str, Any] = {
        "form": "small" if small else "full",
        "note": "; ".join([CPU] * (device.type == "cpu") + [SMALL] * small),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "dpacct": dpacct.__version__,
        "peer": "pfl-research 0.6" if pfl_research.PYTHON else "PFL_PYTHON names none",
        "jobs": [],
    }
    for job in jobs:
        try:
            said["jobs"].append(measured(job, device, train, 60 * minutes / len(jobs)))
        except torch.OutOfMemoryError as error:
            words = f"out of memory on the device: {str(error).splitlines()[0]}"
            said["jobs"].append({"job": job.name, "failed": words})
        out.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return said


def shown(said: dict[str, Any]) -> str:
    """Return the file as a table."""
    rows = [
        [job["job"], job["failed"], *["-"] * 6]
        if "failed" in job
        else [
            job["job"],
            f"{job['rounds_timed']} of {job['rounds_planned']}",
            f"{job['seconds_per_round']:.4f}",
            _beside(job),
            f"{job['seconds_in_all']:.1f}",
            "-" if job["goal_seconds"] is None else f"{job['goal_seconds']:.0f}",
            f"{job['limit_seconds']:.2f}",
            f"{job['memory_mib']:.0f}",
        ]
        for job in said["jobs"]
    ]
    header = [
        "",
        "rounds timed",
        "s a round",
        "pfl-research",
        "s in all",
        "goal",
        "limit",
        "MiB",
    ]
    title = f"{said['device']}, {said['threads']} threads, torch {said['torch']}"
    return "\n".join(filter(None, [said["note"], table(title, header, rows)]))


def _beside(job: Mapping[str, Any]) -> str:
    """Return seconds of the peer's rounds, and ours in units of these."""
    theirs = job.get("pfl_research_seconds_per_round")
    if theirs is None:
        return "-"
    return f"{theirs:.4f} ({job['seconds_per_round'] / theirs:.2f})"


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _peak(device: torch.device) -> float:
    """Return the peak memory of the device, or of this process so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return peak_memory()


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("device.json"))
    parser.add_argument("--minutes", type=float, default=9.0, help="for all jobs together")
    parser.add_argument("--device", default="auto")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--small", action="store_true", help="the small form, also on a device")
    form.add_argument("--full", action="store_true", help="the full form, also without a device")
    given = parser.parse_args()
    device = choose_device(given.device)
    small = given.small or (device.type == "cpu" and not given.full)
    said = all_jobs(device, given.minutes, given.out, small=small)
    print(shown(said))
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
