"""One process of several: `python -m tests.fl.engine.ranked MEETING FOLDER RANK SIZE CASE...`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import distributed

from dpacct import Budget, Ledger, Round, fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.privacy.randomness import Randomness
from tests.fl.problems import federation, linear, make_clients, pause, perceptron

CLIENTS = make_clients([9, 4, 7, 12, 5, 8, 3, 6])
# Canaries of an audit, of which the model has room for few.
AUDITED = 60
# What a run must give on any number of ranks, bit by bit.
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"sampling": fl.Poisson(0.5)},
    "secure": {"sampling": fl.Poisson(0.5), "secure_noise": True},
    "side by side": {"vectorize": True},
    "memories": {"method": fl.FedAlphaNormEC(), "clip_norm": None, "bound": None},
    # As little noise of the indicator as the noise of the run allows.
    "adaptive": {
        "bound": fl.AdaptiveClip(1.0, indicator_noise=0.45),
        "clip_norm": None,
        "noise_multiplier": 0.3,
    },
    "half the memory": {"sampling": fl.Uniform(3, 8), "local": fl.SGD(lr=0.1, steps=3)},
    "shares": {"sampling": fl.Uniform(5, 8), "noise": fl.NoiseShares(2)},
    "schedule": {
        "schedule": 2 * Round(2.0, fl.Poisson(0.5), "zero-out") + Round(3.0, fl.Full(), "zero-out"),
        "rounds": None,
        "noise_multiplier": None,
        "sampling": None,
        "clip_norm": lambda number: 1.0 / number,
    },
    "controls": {"method": fl.Scaffold(), "server": fl.Adam(lr=0.05)},
    "epochs": {"sampling": fl.Allocation(3)},
}


def seeded(name: str, **more: Any) -> fl.Federation:
    return federation(perceptron(), CLIENTS, seed=5, **(SETTINGS[name] | more))


def weights(run: fl.Federation) -> list[torch.Tensor]:
    return [value.detach().clone() for value in run.model.parameters()]


def identity(folder: Path, rank: int) -> None:
    found, told = {}, {}
    for name in SETTINGS:
        run = seeded(name, distributed=True)
        assert (run.budget is None) == (rank > 0)
        last = run.run()
        assert run.round == run.rounds == last.round == 3
        found[name] = weights(run)
        told[name] = repr(run.budget)
    torch.save(found, folder / f"{rank}.pt")
    (folder / f"budgets{rank}.json").write_text(json.dumps(told))


def resumed(folder: Path, rank: int) -> None:
    """A run with memories and a server's optimizer stops after each round, and goes on."""
    options = {"checkpoint": folder / f"resumed{rank}.pt", "distributed": True}
    for stop in (1, 2, 3):
        run = seeded("controls", **options)
        pause(run.resume() if stop > 1 else run, stop)
    torch.save(weights(run), folder / f"controls{rank}.pt")


def charged(folder: Path, rank: int) -> None:
    """A private run in a ledger that only rank 0 can see: left, resumed, until it is spent."""
    ledger = folder / "own.ledger" if rank == 0 else Path("/nowhere/at/all.ledger")
    budget = Budget(2.0, 1e-5)
    if rank == 0:
        Ledger.open(ledger, budget).close()

    def begun() -> fl.Federation:
        return federation(
            linear(), CLIENTS, rounds=9, noise_multiplier=4.0, budget=budget, ledger=ledger,
            checkpoint=ledger.with_suffix(".pt"), distributed=True,
        )  # fmt: skip

    pause(begun(), 2)
    run = begun().resume()
    assert run.budget == (None if rank else budget)
    reports = list(run)
    assert run.budget == budget
    # The budget has room for some of the rounds.
    assert reports[0].round == 3
    assert 2 < reports[-1].round == run.round < 9
    assert run.stopped_because is not None
    if rank == 0:
        assert 0 < run.epsilon.upper <= 2
    else:
        for known in (lambda: run.epsilon, lambda: run.planned_epsilon, lambda: reports[0].epsilon):
            with pytest.raises(Unsupported, match="rank 0 has the spent budget"):
                known()
        assert run.noise_multiplier == 4.0
    torch.save(weights(run), folder / f"charged{rank}.pt")


def refusals(folder: Path, rank: int) -> None:
    """What differs is refused on every rank, before anything is charged."""
    del folder
    for options in ({"clip_norm": 1.0 + rank}, {"server_lr": 1.0 + rank}):
        run = seeded("plain", **options, distributed=True)
        with pytest.raises(InvalidParameter, match="another rank trains"):
            run.run()
        if rank == 0:
            assert run.epsilon.upper == 0


class Deadly(list[fl.ClientData]):
    """Clients whose reading ends the process, once it is armed."""

    armed = False

    def __getitem__(self, index: Any) -> Any:
        if self.armed:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def killed(folder: Path, rank: int) -> None:
    """A rank dies in its second round: that one stays spent, and nothing of it is released."""
    clients = Deadly(CLIENTS)
    ledger = folder / "killed.ledger"
    options = {"ledger": ledger} if rank == 0 else {}
    run = federation(linear(), clients, rounds=4, distributed=True, **options)
    before: list[torch.Tensor] = []

    def play() -> None:
        for report in run:
            before[:] = weights(run)
            clients.armed = rank == 1 and report.round == 1

    with pytest.raises(RuntimeError):
        play()
    assert all(map(torch.equal, before, weights(run)))
    run.close()
    with Ledger.open(ledger) as kept:
        [entry] = kept.runs
        assert (entry.rounds, entry.committed) == (2, 1)


class DividedTwice(fl.GaussianNoise):
    """Divides the noise by the number of workers, as if each of them added some."""

    def add(self, total: torch.Tensor, limits: Any, std: float, source: Any) -> torch.Tensor:
        workers = distributed.get_world_size() if distributed.is_initialized() else 1
        return super().add(total, limits, std / workers, source)


def audit_of(name: str, **options: Any) -> fl.RunAudit:
    """An audit whose cohorts and noise can be repeated, and seem to come from nowhere."""
    known, drawn = torch.Generator().manual_seed(3), np.random.default_rng(4)

    def build(people: fl.Population) -> fl.Federation:
        given = {"clip_norm": 0.5, "noise_multiplier": 1.0, "rounds": 8} | SETTINGS[name] | options
        return federation(perceptron(), people, **given)

    with mock.patch.object(Randomness, "take", lambda _, count: drawn.bytes(count)):
        return fl.audit_run(build, CLIENTS, canaries=AUDITED, generator=known)


def audited(folder: Path, rank: int) -> None:
    """All ranks have the result of one process; a fault of the whole is a fault on each."""
    found = [audit_of(name, distributed=True) for name in ("plain", "memories")]
    (folder / f"audits{rank}.txt").write_text(repr(found))
    wrong = audit_of("plain", distributed=True, noise=DividedTwice())
    assert wrong.shown.faults == ("noise",)


CASES = {case.__name__: case for case in (identity, resumed, charged, refusals, killed, audited)}


def main(known: Mapping[str, Callable[[Path, int], None]]) -> None:
    """Play what the command line names."""
    meeting, folder, rank, size, *cases = sys.argv[1:]
    distributed.init_process_group(
        "gloo", init_method=meeting, rank=int(rank), world_size=int(size),
        timeout=timedelta(minutes=30),
    )  # fmt: skip
    for case in cases:
        known[case](Path(folder), int(rank))
    distributed.destroy_process_group()
    # At the end of a process torch's own threads have been seen to abort it; nothing is left to do.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(CASES)
