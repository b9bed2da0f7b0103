"""One of two processes that train single examples; called as `tests.fl.engine.ranked` is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpacct import Budget, fl
from dpacct.errors import Unsupported
from dpacct.fl.trainers import example_chooser, recording
from dpacct.fl.trainers.sizes import Sizes
from tests.fl.engine.ranked import main
from tests.fl.problems import cross_entropy, perceptron

ROUNDS, EXPECTED = 9, 150


def run_of(**options: Any) -> fl.Federation:
    """Batches of about 150 examples: groups of several sizes, recorded from the third round on."""
    recording._WORTH = 2
    recording._LONG = 0.0
    random = torch.Generator().manual_seed(2)
    inputs = torch.randn(600, 6, generator=random)
    data = fl.Examples(inputs, (inputs.sum(1) > 0).long())
    given: dict[str, Any] = {
        "noise_multiplier": 2.0,
        "budget": Budget(20.0, 1e-5),
        "vectorize": True,
    } | options
    return fl.Federation(
        perceptron(), cross_entropy, data, rounds=ROUNDS, clip_norm=1.0,
        sampling=fl.Poisson(EXPECTED / 600), **given,
    )  # fmt: skip


def weights(model: nn.Module) -> list[Tensor]:
    return [value.detach().clone() for value in model.parameters()]


def interrupted(checkpoint: Path, **options: Any) -> list[Tensor]:
    """Left twice, and taken up again from its checkpoint."""
    for stop in (3, 6, ROUNDS):
        run = run_of(seed=4, checkpoint=checkpoint, **options)
        run = run.resume() if checkpoint.exists() or stop > 3 else run
        for report in run:
            if report.round == stop:
                break
        run.close()
    return weights(run.model)


def whole(folder: Path, rank: int) -> None:
    """Never left, and left twice; on one thread, and on two."""
    found: list[list[Tensor]] = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        run = run_of(seed=4, distributed=True)
        run.run()
        found.append(weights(run.model))
        found.append(interrupted(folder / f"{threads}-{rank}.pt", distributed=True))
    torch.save(found, folder / f"whole{rank}.pt")


def from_one(folder: Path, rank: int) -> None:
    """From the checkpoint of one process, and rank 0 leaves one behind for another."""
    path = folder / f"one{rank}.pt" if rank else folder / "one.pt"
    run = run_of(seed=4, checkpoint=path, distributed=True).resume()
    for report in run:
        if report.round == 6:
            break
    run.close()


def objecting(folder: Path, rank: int) -> None:
    """Bits that depend on the size on one processor alone: all stop, and nothing is charged."""
    real = example_chooser.alike

    def elsewhere(trainer_of: Any, tried: Any, *others: Any) -> Sizes | None:
        found = real(trainer_of, tried, *others)
        return None if rank and len(tried) > 1 else found

    example_chooser.alike = elsewhere
    options: dict[str, Any] = {} if rank else {"ledger": folder / "kept.ledger"}
    words = "depend on its place" if rank else "rank 1 of 2 failed: Unsupported"
    with pytest.raises(Unsupported, match=words):
        run_of(distributed=True, vectorize="auto", **options).run()
    if not rank:
        assert not options["ledger"].exists()
    example_chooser.alike = real
    assert run_of(distributed=True).run() is not None


CASES = {case.__name__: case for case in (whole, from_one, objecting)}


if __name__ == "__main__":
    main(CASES)
