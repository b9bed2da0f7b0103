"""The runs behind the comparison of DP-Fed and DP-Fed-LS on MNIST.

Logistic regression (784 x 10 and a bias) on 50000 training images shared evenly, accuracy on the
10000 test images. Uniform cohorts of 50 out of 1000 clients (replace-one), or Poisson cohorts at
rate 0.05 out of 500 clients (zero-out). 30 rounds, 5 epochs, batch 10, rate 0.1 decaying by 0.99
a round, weight decay 4e-5, clip norm 0.4, server rate 1, delta = N^-1.1. Every run is private (no
seed). Run r deals the images out with seed r.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import torch
from torch import nn

from benchmarks.federated_jobs import Job, cross_entropy, mnist_job
from dpacct import Poisson, Round, Schedule, Uniform, calibrate, epsilon, fl
from dpacct.calibration.noise_rule import noise_rule
from dpacct.fl.data.partitions import iid
from dpacct.fl.postprocess import noise_gain, smooth
from dpacct.fl.tensors import seed_generators
from dpacct.rounds import Sampling
from evidence.records import Records

TRAIN, ROUNDS, CLIP_NORM = 50_000, 30, 0.4
CLIENTS = {"uniform": 1000, "poisson": 500}
SAMPLINGS: dict[str, Sampling] = {"uniform": Uniform(50, 1000), "poisson": Poisson(0.05)}
SMOOTHINGS = (0, 1, 2, 3)
# The name of a target: with noise of the closed-form theorem, which costs less than the printed
# epsilon, and with noise that is calibrated to cost it.
THEOREM, TIGHT = "printed_epsilon", "epsilon"
PRINTED_EPSILONS = (6, 7, 8, 9)
SMALL_EPSILONS = (0.5, 1, 2, 3)
# Instead of smoothing, which leaves 0.72 to 0.86 of a step along the gradient. And shorter rates,
# past the best.
SERVER_RATES = (0.85, 0.7, 0.5, 0.35)
# "unit": pixels in [0, 1], weights start at zero. "standardized": the usual mean and deviation of
# MNIST's pixels are taken out, weights start as PyTorch draws them (seed r in run r).
INPUTS = ("unit", "standardized")
PIXEL_MEAN, PIXEL_STD = 0.1307, 0.3081
# Table 2 of the DP-Fed-LS paper: accuracy and deviation of five runs at epsilon 6, 7, 8, 9.
PUBLISHED: dict[str, dict[int, Sequence[tuple[float, float]]]] = {
    "uniform": {
        0: ((82.87, 0.97), (84.67, 0.54), (84.99, 1.01), (85.41, 0.57)),
        1: ((84.77, 0.28), (85.90, 0.22), (86.32, 0.40), (86.63, 0.80)),
        2: ((83.92, 0.62), (85.43, 1.00), (85.78, 0.49), (86.22, 0.42)),
        3: ((84.73, 0.91), (85.62, 0.58), (86.40, 0.50), (86.42, 0.54)),
    },
    "poisson": {
        0: ((83.94, 0.28), (85.45, 0.24), (86.30, 0.74), (86.53, 0.79)),
        1: ((85.64, 0.52), (86.51, 0.46), (86.61, 0.67), (86.95, 0.56)),
        2: ((85.49, 0.28), (86.34, 0.52), (86.79, 0.28), (87.23, 0.53)),
        3: ((85.52, 0.72), (86.51, 0.28), (86.63, 0.70), (86.85, 0.32)),
    },
}
LABELS = {None: "clipped once", **{s: f"smoothing {s}" for s in SMOOTHINGS}}
# How many images the noise in logits is averaged over.
SHOWN_IMAGES = 500


def cell(
    sampling: str,
    smoothing: int | None,
    key: str,
    target: float,
    *,
    inputs: str = "unit",
    order: str = "OIHW",
) -> dict[str, Any]:
    """Return one cell of a table. Without smoothing it is DP-FedAvg, clipped once."""
    return {
        "inputs": inputs,
        "sampling": sampling,
        "smoothing": smoothing,
        "order": order,
        key: target,
    }


def slower(sampling: str, server_lr: float, target: float) -> dict[str, Any]:
    """Return DP-Fed with a smaller server rate instead of smoothing, as published otherwise."""
    chosen = {"inputs": "standardized", "sampling": sampling, "server_lr": server_lr}
    return {**chosen, THEOREM: target}


def settings() -> list[dict[str, Any]]:
    """Return every private run of the page: five of each published cell, two of each other one."""
    published = [(THEOREM, target) for target in PRINTED_EPSILONS]
    tight = [(TIGHT, target) for target in PRINTED_EPSILONS]
    small = [(TIGHT, target) for target in SMALL_EPSILONS]
    often: list[dict[str, Any]] = []
    twice: list[dict[str, Any]] = []
    for name in SAMPLINGS:
        for smoothing in LABELS:
            twice += [cell(name, smoothing, *noise) for noise in (*published, *small, *tight)]
            if smoothing is None:
                continue
            often += [
                cell(name, smoothing, *noise, inputs="standardized")
                for noise in (*published, *tight)
            ]
            twice.append(cell(name, smoothing, TIGHT, 0.5, inputs="standardized"))
        twice += [cell(name, smoothing, TIGHT, 1, order="IOHW") for smoothing in (1, 3)]
        twice += [slower(name, rate, e) for rate in SERVER_RATES for e in PRINTED_EPSILONS]
    return [
        {**chosen, "run": run}
        for repeats, cells in ((5, often), (2, twice))
        for run in range(repeats)
        for chosen in cells
    ]


def spectra() -> list[dict[str, Any]]:
    """Return the settings of `spectrum`, of which one is enough."""
    return [
        {"quantity": "spectrum", "order": order, "smoothing": smoothing}
        for order in ("OIHW", "IOHW")
        for smoothing in SMOOTHINGS[1:]
    ]


def plan_of(sampling: str, noise: float) -> tuple[Schedule, float]:
    """Return the rounds of a run, and their delta."""
    adjacency = "replace-one" if sampling == "uniform" else "zero-out"
    plan = ROUNDS * Round(noise, SAMPLINGS[sampling], adjacency)
    return plan, CLIENTS[sampling] ** -1.1


def costs(records: Records) -> list[dict[str, Any]]:
    """Return the settings of `cost`: each noise of the runs once.

    Bounds improve, so a run's own epsilon is that of its day.
    """
    runs = [record for record in records if "run" in record.setting]
    pairs = {(r.setting["sampling"], r.result["noise_multiplier"]) for r in runs}
    return [
        {"quantity": "cost", "sampling": name, "noise_multiplier": noise}
        for name, noise in sorted(pairs)
    ]


def cost(sampling: str, noise: float) -> dict[str, float]:
    """Return what the rounds of a run cost by today's bounds."""
    plan, delta = plan_of(sampling, noise)
    spent = epsilon(plan, delta=delta)
    return {"epsilon": spent.upper, "epsilon_achieved": spent.lower}


def known_cost(records: Records, sampling: str, noise: float) -> dict[str, float]:
    """Return the recorded `cost` of a noise."""
    wanted = {"quantity": "cost", "sampling": sampling, "noise_multiplier": noise}
    return next(record.result for record in records if record.matches(**wanted))


@cache
def tight_noise(sampling: str, target: float) -> float:
    """Return noise on the sum / clip norm at which the proven epsilon is the target."""
    delta = CLIENTS[sampling] ** -1.1
    scheme = SAMPLINGS[sampling]
    found = calibrate(epsilon=target, delta=delta, rounds=ROUNDS, sampling=scheme)
    return found.noise_multiplier


@cache
def theorem_noise(sampling: str, target: float) -> float:
    """Return noise on the sum / clip norm that the closed-form theorem asks for."""
    delta = CLIENTS[sampling] ** -1.1
    scheme = SAMPLINGS[sampling]
    return noise_rule(target, delta, ROUNDS, scheme).noise_multiplier


@cache
def images(folder: str) -> Job:
    """Return MNIST as vectors with all training images at one client. Each run deals them again."""
    return mnist_job(1, train=TRAIN, folder=folder)


def as_seen(data: fl.ClientData, inputs: str) -> fl.ClientData:
    """Return pixels as the model sees them."""
    if inputs == "unit":
        return data
    return fl.ClientData((data.tensor - PIXEL_MEAN) / PIXEL_STD, data.targets)


@lru_cache(maxsize=1)
def people(folder: str, sampling: str, run: int, inputs: str) -> list[fl.ClientData]:
    """Return the training images, dealt out with the run's number as seed."""
    everything = as_seen(images(folder).clients[0], inputs)
    parts = iid(TRAIN, CLIENTS[sampling], seed=run)
    return [
        fl.ClientData(everything.tensor[part], everything.targets[part])
        for part in (torch.as_tensor(indices) for indices in parts)
    ]


def start(inputs: str, run: int) -> nn.Module:
    """Return zero weights, or PyTorch's random weights with the run's number as seed."""
    seed_generators(run, torch.device("cpu"))
    model = nn.Linear(784, 10)
    if inputs == "unit":
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
    return model


def play(setting: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return one private run, or one spectrum."""
    if "quantity" in setting:
        if setting["quantity"] == "cost":
            return cost(setting["sampling"], setting["noise_multiplier"])
        return spectrum(setting["order"], setting["smoothing"], folder)
    name, inputs, run_number = setting["sampling"], setting["inputs"], setting["run"]
    model = start(inputs, run_number)
    if THEOREM in setting:
        noise = theorem_noise(name, setting[THEOREM])
    else:
        noise = tight_noise(name, setting[TIGHT])
    smoothing = setting.get("smoothing", 0)
    method = fl.DPFedAvg()
    if smoothing is not None:
        method = fl.DPFedLS(smoothing=smoothing, order=setting.get("order", "OIHW"))
    with fl.Federation(
        model,
        cross_entropy,
        people(folder, name, run_number, inputs),
        method=method,
        clip_norm=CLIP_NORM,
        sampling=SAMPLINGS[name],
        noise_multiplier=noise,
        delta=CLIENTS[name] ** -1.1,
        rounds=ROUNDS,
        server_lr=setting.get("server_lr", 1.0),
        local=fl.SGD(lr=0.1, epochs=5, batch_size=10, lr_decay=0.99, weight_decay=4e-5),
        vectorize=True,
    ) as run:
        run.run()
        spent = run.epsilon
    test = as_seen(images(folder).test, inputs)
    return {
        "accuracy": round(100 * fl.evaluate(model, cross_entropy, test).accuracy, 2),
        "epsilon": spent.upper,
        "epsilon_achieved": spent.lower,
        "noise_multiplier": run.noise_multiplier,
    }


def spectrum(order: str, smoothing: float, folder: str) -> dict[str, float]:
    """Return the share of the logits' noise, and of progress along a gradient, after smoothing.

    Noise n in the weights W moves the logit of class k by <n, E>, E being the image in row k of a
    matrix of the shape of W. After smoothing it moves the logit by <n, A^-1 E>. So |A^-1 E|^2 /
    |E|^2 of the logit's noise variance is left. That is the figure over classes and test images,
    without the mean image: noise along it moves all images alike. A short step along the gradient
    G keeps <G, A^-1 G> / |G|^2 of its decrease of the loss (all test images, weights zero).
    """
    test = images(folder).test
    centered = test.tensor - test.tensor.mean(dim=0)
    left = whole = 0.0
    for number, image in enumerate(centered[:SHOWN_IMAGES]):
        row = torch.zeros(10, 784)
        row[number % 10] = image
        left += float(smooth(row, smoothing, order).square().sum())
        whole += float(row.square().sum())
    errors = 0.1 - nn.functional.one_hot(test.targets, 10).float()
    gradient = errors.T @ test.tensor / len(test.tensor)
    kept = (gradient * smooth(gradient, smoothing, order)).sum() / gradient.square().sum()
    return {
        "noise_in_weights": round(noise_gain(7840, smoothing), 4),
        "noise_in_logits": round(left / whole, 4),
        "progress": round(float(kept), 4),
    }
