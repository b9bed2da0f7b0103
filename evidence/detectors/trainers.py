"""Results of audits of each trainer: a sound run, and planted faults.

Usage: python -m evidence.detectors.trainers [TRAINER ...]

Needs Opacus and Flower as well as torch. Prints two tables of the page: lower bounds and the charge
with the audit's time over that of the run, and faults with the tests that detect them. A trainer is
a function of a population and a fault. The audit and the run use the same code.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, cast
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import dpacct
from dpacct import Full, Ledger, Poisson, Round, fl
from dpacct.errors import LedgerError
from dpacct.fl.auditing.canary_audit import passing_ledger
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
        given |= {"noise": DividedTwice(), "preflight": False}
    return given


def federated(noise: float, fault: str) -> Shown:
    """Return `fl.Federation` in one process."""

    def build(clients: Any) -> fl.Federation:
        return fl.Federation(model(), cross_entropy, clients, **settings(noise, fault))

    return timed(
        lambda: fl.audit_run(build, people(), canaries=CANARIES), lambda: build(people()).run()
    )


def own_loop(noise: float, fault: str) -> Shown:
    """Yield a loop written by hand around `privatize`."""
    like = dict(model().named_parameters())
    times = 2 if fault == "each client sends two rows" else 1

    def training(plan: Any, run: Any, update: Any) -> Iterator[Any]:
        while run.held:
            updates = [update(number) for number in plan.draw_cohort() for _ in range(times)]
            yield fl.privatize(updates[: plan.num_clients], plan, run, like=like)

    def update(_: int) -> dict[str, Tensor]:
        local = model()
        loss: Any = cross_entropy(local(torch.randn(14, 64)), torch.randint(10, (14,)))
        loss.backward()
        return {name: cast("Tensor", value.grad) for name, value in local.named_parameters()}

    sampling: Any = Poisson(0.3) if times > 1 else Full()
    plan = fl.AggregationPlan(noise, CLIP, sampling, OTHERS)

    def plain() -> None:
        with passing_ledger(DELTA) as ledger:
            list(training(plan, ledger.start_run("own", ROUNDS * plan.round), update))

    def audit() -> fl.RunAudit:
        rounds = ROUNDS * (3 if times > 1 else 1)
        return fl.audit_loop(
            training, update, plan, like=like, rounds=rounds, canaries=CANARIES, delta=DELTA
        )

    return timed(audit, plain)


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


def opacus(noise: float, fault: str) -> Shown:
    """Return Opacus' engine with `attach_ledger`, everybody in every batch."""
    library: Any = import_module("opacus")
    plug_in: Any = import_module("dpacct.interop.opacus")

    def training(data: Any, ledger: Ledger) -> None:
        module = model()
        made: Any = library.PrivacyEngine().make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=DataLoader(data, len(data)),
            noise_multiplier=noise,
            max_grad_norm=CLIP,
        )
        private, optimizer, loader = made[0], made[1], made[-1]
        loss = nn.CrossEntropyLoss()
        run = ledger.start_run(
            "audit", ROUNDS * Round(noise, Poisson(loader.sample_rate), "zero-out")
        )
        loader = plug_in.attach_ledger(loader, optimizer, run)
        _spoil(fault, optimizer)
        while run.held:
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss(private(inputs), targets).backward()
                optimizer.step()

    data = TensorDataset(torch.randn(OTHERS, 64), torch.randint(10, (OTHERS,)))

    def plain() -> None:
        with passing_ledger(DELTA) as ledger:
            training(data, ledger)

    return timed(lambda: plug_in.audit_loop(training, data, canaries=CANARIES, delta=DELTA), plain)


def _spoil(fault: str, optimizer: Any) -> None:  # noqa: C901 - one fault a case
    """Plant a fault in a training with Opacus."""
    add, clip, pre_step = optimizer.add_noise, optimizer.clip_and_accumulate, optimizer.pre_step

    def as_if(call: Callable[[], Any], **settings: float) -> None:
        kept = {name: getattr(optimizer, name) for name in settings}
        for name, value in settings.items():
            setattr(optimizer, name, value)
        call()
        for name, value in kept.items():
            setattr(optimizer, name, value)

    def summed() -> None:
        for parameter in optimizer.params:
            parameter.summed_grad = parameter.grad_sample.sum(dim=0)

    def off_again(*words: Any) -> Any:
        done = pre_step(*words)
        for parameter in optimizer.params:
            mean = parameter.summed_grad / optimizer.expected_batch_size
            parameter.grad = mean.view_as(parameter)
        return done

    multiplier, length = optimizer.noise_multiplier, optimizer.max_grad_norm
    match fault:
        case "noise divided twice":
            optimizer.add_noise = lambda: as_if(add, noise_multiplier=multiplier / 2)
        case "clip norm 1.5 times that of the noise":
            optimizer.clip_and_accumulate = lambda: as_if(clip, max_grad_norm=1.5 * length)
        case "gradients are not clipped":
            optimizer.clip_and_accumulate = summed
        case "noise taken off before the step":
            optimizer.pre_step = off_again
        case _:
            pass


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
    "own loop": (own_loop, ("each client sends two rows",)),
    "Flower": (flower, ("noise divided twice", "clients do not clip")),
    "Opacus": (
        opacus,
        (
            "noise divided twice", "clip norm 1.5 times that of the noise",
            "gradients are not clipped", "noise taken off before the step",
        ),
    ),
}  # fmt: skip


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
            try:
                seen = ", ".join(run(QUIET, fault).found.shown.faults)
            except LedgerError:
                seen = "refused by the plug-in"
            print(f"|| {name} | {fault} | {seen} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
