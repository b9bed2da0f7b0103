"""A job of ours in pfl-research 0.6, in an environment of its own: ``PFL_PYTHON=its/python``."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

PYTHON = os.environ.get("PFL_PYTHON", "")
SCRIPT = Path(__file__).with_name("federated_pfl.py")


@dataclass(frozen=True)
class PflJob:
    """A training there: central DP with a clip of whole updates.

    Attributes:
        network: "logistic" for vectors of 784, "cnn" for images [3, 32, 32], with ten classes.
        cohort: clients in a round, at random, all rounds alike.
        epochs, batch, rate, weight_decay: of local training. clip_norm, noise_multiplier: of a sum.
        device: of pfl, "cpu" or "cuda".
    """

    network: str
    cohort: int
    epochs: int
    batch: int
    rate: float
    clip_norm: float
    noise_multiplier: float
    weight_decay: float = 0.0
    device: str = "cpu"


@dataclass(frozen=True)
class PflTimes:
    """Seconds of some rounds there: by the clock, of the processor, and the median of a round."""

    wall: float
    processor: float
    round: float


def written(job: PflJob, clients: Iterable[tuple[Tensor, Tensor]]) -> Path:
    """Return a file with the job and the examples of its clients."""
    inputs, targets = zip(*clients, strict=True)
    path = Path(tempfile.mkdtemp()) / "job.pt"
    torch.save({"job": asdict(job), "x": list(inputs), "y": list(targets)}, path)
    return path


def trained(path: Path, rounds: int) -> PflTimes:
    """Train ``rounds`` rounds.

    Raises:
        CalledProcessError: it failed. Its output is shown.
    """
    done = subprocess.run(
        [PYTHON, "-W", "ignore", str(SCRIPT), str(path), str(rounds)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return PflTimes(*map(float, done.stdout.split()[-3:]))
