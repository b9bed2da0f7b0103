"""One step of clients side by side, done in three ways: computed, played, and as a CUDA graph.

``python -m benchmarks.captured_steps``, and at the end of `benchmarks.device`. Computed, a step is
the model's Python, `torch.func` and autograd; played, it is the list of operations that these came
to (`dpacct.fl.trainers.replay`), which is what a run does; captured, a GPU repeats that list by
itself. Nothing in the package captures: this says whether it would work, to the same bits, and what
it would save. Gradients are compared for inputs that were not captured.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from benchmarks.device_jobs import cnn, resnet
from benchmarks.federated_jobs import cross_entropy
from dpacct.fl.devices import choose_device
from dpacct.fl.engine.precision import arithmetic
from dpacct.fl.layout import Layout, copies, trainable
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.local.sgd import Precision
from dpacct.fl.methods.dp_fedavg import DPFedAvg
from dpacct.fl.tensors import same_numbers
from dpacct.fl.trainers.replay import Record, recorded
from dpacct.fl.trainers.vectorized import VectorizedTrainer

CLIENTS, BATCH = 32, 16
NO_DEVICE = "no CUDA device"

Play = Callable[[Sequence[Tensor]], list[Tensor]]
_cuda: Any = torch.cuda


class Compared(TypedDict, total=False):
    """Milliseconds of a step in each way, and whether its bits are those of the computed one."""

    network: str
    precision: str
    clients: int
    computed_ms: float
    played_ms: float
    captured_ms: float
    played_same_bits: bool
    captured_same_bits: bool
    captured: str


def compared(
    name: str,
    model: nn.Module,
    precision: Precision,
    device: torch.device,
    *,
    clients: int = CLIENTS,
    turns: int = 30,
) -> Compared:
    """One network's step.

    Args:
        name: of the network. model: takes images [n, 3, 32, 32] to ten classes.
        clients: side by side. turns: steps that are timed.
    """
    found: Compared = {"network": name, "precision": precision, "clients": clients}
    model = model.to(device)
    layout = Layout.of(copies(trainable(model)))
    loss = LocalLoss(model, cross_entropy, layout.names, precision, functional=False)
    trainer = VectorizedTrainer(DPFedAvg(), loss.batched(), layout)
    params = {
        name: value.expand(clients, *value.shape).clone()
        for name, value in copies(trainable(model)).items()
    }

    def step(*inputs: Tensor) -> list[Tensor]:
        own = dict(zip(params, inputs, strict=False))
        grads = trainer.sum.gradients(own, *inputs[len(params) :])
        return [grads[name].detach() for name in params]

    first, other = (_inputs(params, clients, seed) for seed in (1, 2))
    with arithmetic(precision):
        _, record = recorded(step, first, list(model.buffers()))
        expected = [value.clone() for value in step(*other)]
        found["computed_ms"] = _milliseconds(lambda: step(*other), device, turns)
        if record is None:
            found["captured"] = "the step cannot be recorded"
            return found
        found["played_same_bits"] = _same(expected, record.play(other))
        found["played_ms"] = _milliseconds(lambda: record.play(other), device, turns)
        if device.type != "cuda":
            found["captured"] = NO_DEVICE
            return found
        try:
            replay = _captured(record, first)
            found["captured_same_bits"] = _same(expected, replay(other))
            found["captured_ms"] = _milliseconds(lambda: replay(other), device, turns)
            found["captured"] = "it works"
        except RuntimeError as error:
            found["captured"] = f"it fails: {str(error).splitlines()[0][:200]}"
    return found


def all_steps(device: torch.device) -> list[Compared]:
    """Of the networks of `benchmarks.device`."""
    return [
        compared("CNN", cnn(), "float32", device),
        compared("ResNet-18", resnet(), "float32", device),
        compared("ResNet-18", resnet(), "bfloat16", device),
    ]


def _captured(record: Record, inputs: Sequence[Tensor]) -> Play:
    """The record as one graph: inputs are copied to where it reads them, results stay in place."""
    held = [value.clone() for value in inputs]
    stream = _cuda.Stream()
    stream.wait_stream(_cuda.current_stream())
    with _cuda.stream(stream):
        # Libraries choose their kernels and their working memory before anything is captured.
        for _ in range(3):
            record.play(held)
    _cuda.current_stream().wait_stream(stream)
    graph = _cuda.CUDAGraph()
    with _cuda.graph(graph):
        results = record.play(held)

    def replay(given: Sequence[Tensor]) -> list[Tensor]:
        for place, value in zip(held, given, strict=True):
            place.copy_(value)
        graph.replay()
        return results

    return replay


def _inputs(params: dict[str, Tensor], clients: int, seed: int) -> list[Tensor]:
    """Parameters, images, labels, weights and seeds of a step, other ones for each seed."""
    device = next(iter(params.values())).device
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(clients, BATCH, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (clients, BATCH), generator=generator)
    moved = [value * (1 + 0.01 * seed) for value in params.values()]
    weights = torch.full((clients, BATCH), 1 / BATCH)
    seeds = torch.zeros(clients, dtype=torch.int64)
    return [*moved, *(value.to(device) for value in (images, labels, weights, seeds))]


def _same(expected: Sequence[Tensor], found: Sequence[Tensor]) -> bool:
    return all(same_numbers(one, two) for one, two in zip(expected, found, strict=True))


def _milliseconds(call: Callable[[], object], device: torch.device, turns: int) -> float:
    """Of one call, in the mean over so many behind each other, after one that does not count."""
    call()
    began = _clock(device)
    for _ in range(turns):
        call()
    return 1e3 * (_clock(device) - began) / turns


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        _cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    """Compare, and print as JSON; without a GPU one small network."""
    device = choose_device("auto")
    if device.type == "cuda":
        print(json.dumps(all_steps(device), indent=1))
    else:
        print(json.dumps([compared("CNN", cnn(), "float32", device, turns=3)], indent=1))


if __name__ == "__main__":
    main()
