"""Results of audits of each trainer: a sound run, and planted faults.

Usage: python -m evidence.detectors.trainers [TRAINER ...]

Needs Flower as well as torch. Prints two tables of the page: lower bounds and the charge
with the audit's time over that of the run, and faults with the tests that detect them. A trainer is
a function of a population and a fault. The audit and the run use the same code.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn

import dpacct
from dpacct import Full, fl
from dpacct.fl.tensors import norm
from evidence.detectors.faults import DividedTwice

OTHERS, CANARIES, ROUNDS, CLIP = 100, 100, 20, 0.5
DELTA = 1e-5
# Of faults: contributions of one and a half show above so little noise.
QUIET = 0.5
cross_entropy = nn.functional.cross_entropy


class Shown(NamedTuple):
    """An audit, its processor time, and that of the run without it."""

    found: fl.RunAudit
    seconds: float
    plain: float


def model() -> nn.Module:
    """Return logistic regression on digits: 650 weights."""
    return nn.Linear(64, 10)


def people(count: int = OTHERS) -> list[fl.ClientData]:
    """Return clients with 14 made-up examples each."""
    return [fl.ClientData(torch.randn(14, 64), torch.randint(10, (14,))) for _ in range(count)]


def settings(noise: float, fault: str) -> dict[str, Any]:
    """Return the settings of all federated trainers."""
    given: dict[str, Any] = {
        "rounds": ROUNDS, "clip_norm": CLIP, "noise_multiplier": noise, "sampling": Full(),
        "local": fl.SGD(lr=0.1, steps=2), "delta": DELTA,
    }  # fmt: skip
    if fault == "noise divided twice":
        given["noise"] = DividedTwice()
    return given


def federated(noise: float, fault: str) -> Shown:
    """Return `fl.Federation` in one process."""

    def build(clients: Any) -> fl.Federation:
        return fl.Federation(model(), cross_entropy, clients, **settings(noise, fault))

    return timed(
        lambda: fl.audit_run(build, people(), canaries=CANARIES), lambda: build(people()).run()
    )


def flower(noise: float, fault: str) -> Shown:
    """Return Flower's strategy and ClientApps over its messages in one process."""
    # Imported here, not with all other packages.
    by: Any = import_module("dpacct.fl.flower")

    def build(count: int) -> fl.Server:
        return fl.Server(model(), count, **settings(noise, fault))

    def play(server: fl.Server, clients: Any) -> None:
        def data(context: Any) -> Any:
            return clients[context.node_config["partition-id"]]

        app = by.client_app(model, cross_entropy, data)
        by.PrivateStrategy(server, poll=1e-3).start(by.LocalGrid([app] * len(clients)), timeout=0.1)

    def plain() -> None:
        play(build(OTHERS), people(OTHERS))

    with spoiled(fault):
        return timed(lambda: fl.audit_server(build, play, people(OTHERS), canaries=CANARIES), plain)


@contextmanager
def spoiled(fault: str) -> Generator[None]:
    """Yield faults of Flower's clients."""
    clients: Any = import_module("dpacct.fl.flower.clients")

    def unclipped(rows: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        return rows, norm(rows, dim=1), torch.zeros(len(rows), dtype=torch.bool)

    if fault != "clients do not clip":
        yield
        return
    with mock.patch.object(clients, "contribute", unclipped):
        yield


def timed(audit: Callable[[], fl.RunAudit], plain: Callable[[], object]) -> Shown:
    """Return both, and what they take, imports and first calls not counted."""
    plain()
    start = time.process_time()
    plain()
    middle = time.process_time()
    found = audit()
    return Shown(found, time.process_time() - middle, middle - start)


TRAINERS: dict[str, tuple[Callable[[float, str], Shown], tuple[str, ...]]] = {
    "`Federation`": (federated, ("noise divided twice",)),
    "Flower": (flower, ("noise divided twice", "clients do not clip")),
}


def main(*names: str) -> None:
    """Play what is named, by default all."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    noise = dpacct.calibrate(epsilon=8, delta=DELTA, rounds=ROUNDS, sampling=Full())
    for name in names or TRAINERS:
        run, faults = TRAINERS[name]
        replaced = name.endswith("sums")
        sound = run(noise.noise_multiplier * (2 if replaced else 1), "")
        found = sound.found
        print(
            f"| {name} | {found.charged.upper:.3f} | {found.shown.epsilon:.2g} "
            f"| {found.gaussian_epsilon:.2g} | {', '.join(found.shown.faults) or 'none'} "
            f"| {sound.seconds / sound.plain:.1f} x, {sound.seconds:.1f} s |",
            flush=True,
        )
        for fault in faults:
            seen = ", ".join(run(QUIET, fault).found.shown.faults)
            print(f"|| {name} | {fault} | {seen} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
