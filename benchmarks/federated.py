"""Training: cohort-parallel, sequential, a loop by hand and pfl-research, with privacy and memory.

``DPACCT_DATA=folder python -m benchmarks.federated`` uses MNIST from the folder. With pfl-research
in an environment of its own, ``PFL_PYTHON=path/to/its/python`` adds it to the first table.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from benchmarks import pfl_research
from benchmarks.federated_jobs import Job, cross_entropy, mnist_job, small_cnn
from benchmarks.measure import table
from benchmarks.pfl_research import PflJob
from dpacct import fl
from dpacct.fl.tensors import norm

ROUNDS = 30
REPEATS = 3
BY_HAND = "by hand, for this model"


def logistic(job: Job, *, vectorize: bool | Literal["auto"]) -> list[fl.RoundReport]:
    """Run the MNIST job of the DP-Fed-LS paper at 1000 clients. Return its reports."""
    model = nn.Linear(784, 10)
    run = fl.Federation(
        model,
        cross_entropy,
        job.clients,
        vectorize=vectorize,
        clip_norm=0.4,
        sampling=fl.Poisson(0.05),
        noise_multiplier=1.1359,
        delta=1000**-1.1,
        rounds=ROUNDS,
        local=fl.SGD(lr=0.1, epochs=5, batch_size=10, lr_decay=0.99, weight_decay=4e-5),
    )
    with run:
        return list(run)


def by_hand(job: Job) -> None:
    """Run the same job as a loop for this model alone, with gradients in closed form.

    Cohorts and noise come from torch's generator. Nothing is charged, checked, or isolated.
    """
    inputs = torch.stack([client.tensor for client in job.clients])
    targets = torch.stack([client.targets for client in job.clients])
    weight, bias = torch.zeros(784, 10), torch.zeros(10)
    for number in range(ROUNDS):
        cohort = (torch.rand(len(inputs)) < 0.05).nonzero()
        count, rate = len(cohort), 0.1 * 0.99**number
        own = weight.expand(count, -1, -1).clone()
        offset = bias.expand(count, 1, -1).clone()
        for _ in range(5):
            order = torch.rand(count, inputs.shape[1]).argsort(dim=1)
            for first in range(0, inputs.shape[1], 10):
                rows = order[:, first : first + 10]
                x, y = inputs[cohort, rows], targets[cohort, rows].unsqueeze(2)
                slope = torch.baddbmm(offset, x, own).softmax(dim=2)
                slope.scatter_add_(2, y, -torch.ones(y.shape)).div_(rows.shape[1])
                own.mul_(1 - rate * 4e-5).baddbmm_(x.mT, slope, alpha=-rate)
                offset.mul_(1 - rate * 4e-5).sub_(slope.sum(dim=1, keepdim=True), alpha=rate)
        moves = torch.cat([(own - weight).flatten(1), (offset - bias).flatten(1)], dim=1)
        moves.mul_((0.4 / norm(moves, dim=1).unsqueeze(1)).clamp(max=1.0))
        mean = (moves.sum(dim=0) + 0.4 * 1.1359 * torch.randn(moves.shape[1])) / 50
        weight += mean[:-10].view_as(weight)
        bias += mean[-10:]


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return wall-clock seconds and processor seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def pfl(path: Path) -> tuple[float, float]:
    """Return wall-clock and processor seconds of the job in pfl-research."""
    found = pfl_research.trained(path, ROUNDS)
    return found.wall, found.processor


def speed() -> str:
    """Return the whole job: 1000 clients, rate 0.05, 30 rounds, 5 epochs, batch 10.

    Runs alternate, and medians are shown. Processor seconds are the fairer ones on a busy machine.
    """
    job = mnist_job(1000)
    calls: dict[str, Callable[[], tuple[float, float]]] = {
        "one client at a time": lambda: timed(lambda: logistic(job, vectorize=False)),
        "side by side": lambda: timed(lambda: logistic(job, vectorize=True)),
        "auto (measures first)": lambda: timed(lambda: logistic(job, vectorize="auto")),
        BY_HAND: lambda: timed(lambda: by_hand(job)),
    }
    if pfl_research.PYTHON:
        same = PflJob("logistic", 50, 5, 10, 0.1, 0.4, 1.1359, weight_decay=4e-5)
        path = pfl_research.written(same, [(one.tensor, one.targets) for one in job.clients])
        calls["pfl-research"] = lambda: pfl(path)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, call in calls.items():
            found[name].append(call())
    medians = {
        name: [statistics.median(values) for values in zip(*pairs, strict=True)]
        for name, pairs in found.items()
    }
    base, hand = medians["one client at a time"], medians[BY_HAND]
    rows = [
        [
            name,
            f"{wall:.2f} s",
            f"{cpu:.2f} s",
            f"{base[0] / wall:.2f}",
            f"{base[1] / cpu:.2f}",
            f"{cpu / hand[1]:.2f}",
        ]
        for name, (wall, cpu) in medians.items()
    ]
    title = f"Logistic regression on {job.data}, {ROUNDS} rounds, {torch.get_num_threads()} threads"
    header = ["", "wall", "processor", "times as fast", "by processor", "processor / by hand"]
    return table(title, header, rows)


def shares() -> str:
    """Measure the shares of bounding, summing, noise and charging in a round."""
    job, rows = mnist_job(1000, images=True), list[list[str]]()
    for name, secure in (("Gaussian", False), ("secure", True)):
        model = small_cnn()
        with fl.Federation(
            model,
            cross_entropy,
            job.clients,
            clip_norm=0.4,
            sampling=fl.Poisson(0.05),
            noise_multiplier=1.0,
            rounds=4,
            secure_noise=secure,
            local=fl.SGD(lr=0.1, epochs=5, batch_size=10),
        ) as run:
            reports = list(run)[1:]
            path = run.training_path
        total = sum(report.seconds for report in reports) / len(reports)
        rows.append([name, f"{total:.2f} s"])
    size = sum(value.numel() for value in small_cnn().parameters())
    title = f"CNN of {size} weights, 50 clients a round, {path}"
    return table(title, ["noise", "round"], rows)


MEMORY = """
import sys, torch
from torch import nn
from dpacct import fl
from dpacct.fl.tensors import norm
torch.set_num_threads(1)
cohort, chunk = int(sys.argv[1]), int(sys.argv[2])
class Lazy:
    def __len__(self): return 1_000_000
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x, y = torch.randn(20, 200, generator=g), torch.randint(10, (20,), generator=g)
        return fl.ClientData(x, y)
model = nn.Sequential(nn.Linear(200, 1000), nn.ReLU(), nn.Linear(1000, 10))
run = fl.Federation(model, nn.functional.cross_entropy, Lazy(), clip_norm=1.0, rounds=3,
    sampling=fl.Poisson(cohort / 1e6), noise_multiplier=1.0, vectorize=True, chunk_size=chunk,
    local=fl.SGD(lr=0.1, epochs=1, batch_size=10))
def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))
base = status("VmRSS")
rounds = iter(run)
next(rounds)
# Forget the peak of the accountant.
with open("/proc/self/clear_refs", "w") as clear:
    clear.write("5")
list(rounds)
print(status("VmHWM") - base)
"""


def memory() -> str:
    """Measure peak memory above that before the first round, by cohorts and chunks, on Linux."""
    rows: list[list[str]] = []
    for cohort, chunk in ((100, 50), (400, 50), (1600, 50), (1600, 200)):
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, str(cohort), str(chunk)],
            check=True,
            capture_output=True,
            text=True,
        )
        rows.append([str(cohort), str(chunk), f"{float(done.stdout):.0f} MiB"])
    return table(
        "Peak memory of training, 1000000 lazy clients, 211 thousand weights",
        ["cohort", "chunk", "peak"],
        rows,
    )


def main() -> None:
    """Print all three."""
    print(speed())
    print()
    print(shares())
    print()
    print(memory())


if __name__ == "__main__":
    main()
