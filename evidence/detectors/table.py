"""Which planted fault is seen by which check, and how often.

Usage: python -m evidence.detectors.table [RUNS]

Prints the table of the page. The checks, in the order in which a user meets them: errors of
`Federation` when it is built or begins, the rehearsal included, `fl.audit`, and the
canaries of `fl.audit_run` in RUNS runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dpacct import InvalidParameter, Poisson, Unsupported, fl
from dpacct.fl.clients import Population
from evidence.detectors.faults import PLANTED, Fault, plain_model

RUNS = 5
SETTINGS: dict[str, Any] = {
    "rounds": 20,
    "clip_norm": 0.5,
    "noise_multiplier": 2.0,
    "sampling": Poisson(0.5),
    "local": fl.SGD(lr=0.1, steps=1),
    "delta": 1e-5,
}
# A method that keeps what `torch.func` has made fails with a RuntimeError.
REFUSALS = (InvalidParameter, Unsupported, fl.AuditFailed, RuntimeError)


def people() -> list[fl.ClientData]:
    """Return ten clients of made-up data."""
    return [fl.ClientData(torch.randn(8, 20), torch.randint(4, (8,))) for _ in range(10)]


def builder(fault: Fault) -> Callable[[Population], fl.Federation]:
    """Return makes the run with the fault."""

    def build(clients: Population) -> fl.Federation:
        options: dict[str, Any] = SETTINGS | fault.options
        model, loss = fault.model(), nn.functional.cross_entropy
        return fl.Federation(model, loss, clients, **options)

    return build


def at_the_start(fault: Fault) -> str:
    """Return whether the run is rejected before any charge."""
    try:
        with builder(fault)(people()) as run:
            marked = run.not_private_because is not None
            next(iter(run))
    except REFUSALS:
        return "refused"
    return "epsilon infinite" if marked else ""


def audited(fault: Fault) -> str:
    """Return the findings of `fl.audit`, which has a model of its own."""
    if fault.model is not plain_model:
        return ""
    known = ("method", "bound", "noise", "clip_norm")
    options = {name: fault.options[name] for name in known if name in fault.options}
    given: dict[str, Any] = {"clip_norm": 0.5} | options
    try:
        found = fl.audit(noise_multiplier=2.0, **given)
    except REFUSALS:
        return "refused"
    return ", ".join(finding.check for finding in found.findings if not finding.passed)


def recognized(fault: Fault, runs: int) -> str:
    """Return how often canaries detect the fault, and by which test."""
    seen: dict[str, int] = {}
    for _ in range(runs):
        try:
            found = fl.audit_run(builder(fault), people(), canaries=150)
        except REFUSALS:
            return "refused"
        for name in found.shown.faults:
            seen[name] = seen.get(name, 0) + 1
    return ", ".join(f"{name} {count}/{runs}" for name, count in seen.items())


def main(runs: int = RUNS) -> None:
    """Try all faults, and a run without one."""
    rows: list[list[str]] = []
    for fault in (Fault("none", {}), *PLANTED):
        began = time.perf_counter()
        refused = at_the_start(fault)
        checks = audited(fault)
        canaries = "" if refused == "refused" else recognized(fault, runs)
        rows.append([fault.name, refused, checks, canaries])
        print(f"{fault.name}: {time.perf_counter() - began:.1f} s", file=sys.stderr)
    header = ["fault", "at the start", "`fl.audit`", f"canaries, {runs} runs"]
    for row in (header, ["---"] * len(header), *rows):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:2]))
