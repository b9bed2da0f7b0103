"""Threads that share a group of examples: the same bits, and no code but ours on them."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dpacct import fl
from dpacct.fl.engine import engine, example_sums
from dpacct.fl.trainers.lots import plants_nothing
from tests.fl.problems import flat, perceptron
from tests.fl.test_examples import CLASSES, FEATURES, Silent, data, train

MANY = 170


class Broken(fl.Examples):
    """Some that are not finite, one with a class that does not exist."""

    def __init__(self) -> None:
        rows = data(MANY)
        rows.inputs[[3, 90, 169]] = math.nan
        rows.targets[70] = 99
        super().__init__(rows)


class Planting(fl.Examples):
    """One canary."""

    def planted(self, row: int) -> Tensor | None:
        size = sum(p.numel() for p in perceptron(FEATURES, CLASSES).parameters())
        return torch.full((size,), 9.0) if row == 7 else None


class Own(fl.Clip):
    """A bound of a user."""

    def apply(self, rows: Tensor, norms: Tensor, layout: Any, margin: float) -> Tensor:
        return super().apply(rows, norms, layout, margin) / 2


def played(
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    population: fl.Examples,
    worth: int = 64,
    **options: Any,
) -> tuple[Tensor, Any, int, list[int]]:
    """Where a seeded run of two rounds ends, its last report, on how many threads rows were added,
    and how many rows at a time.
    """
    seen, counts, shares = set[int](), list[int](), set[int]()
    add, whole = engine.Engine.add_raw, example_sums.at_once

    def shared(jobs: Any) -> Any:
        shares.add(len(jobs))
        return whole(jobs)

    def watched(self: Any, state: Any, found: Any, rows: Tensor) -> None:
        seen.add(threading.get_ident())
        counts.append(len(rows))
        add(self, state, found, rows)

    monkeypatch.setattr(engine.Engine, "add_raw", watched)
    monkeypatch.setattr(example_sums, "at_once", shared)
    # Sums of a few rows each are worth a thread, and rows come a few at a time.
    monkeypatch.setattr(example_sums, "_WORTH", worth)
    monkeypatch.setattr(example_sums, "few_rows", lambda *_: 11)
    model, before = perceptron(FEATURES, CLASSES), torch.get_num_threads()
    settings = {"noise": Silent(), "preflight": False, "seed": 5, "vectorize": True}
    torch.set_num_threads(threads)
    try:
        with train(population, model, **(settings | options)) as run:
            report = run.run()
    finally:
        torch.set_num_threads(before)
        monkeypatch.setattr(engine.Engine, "add_raw", add)
        monkeypatch.setattr(example_sums, "at_once", whole)
    assert (seen == {threading.get_ident()}) == (shares == {1})
    return flat(model), report, max(shares), counts


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip_norm": None, "bound": fl.AdaptiveClip(0.5)},
        {"clip_norm": None, "bound": fl.SmoothedNormalization(0.1)},
        {"method": fl.FedSMPRandK(0.5)},
        {"sampling": fl.Poisson(0.4), "chunk_size": 64},
        {"sampling": fl.Uniform(150, MANY), "noise": fl.NoiseShares(100), "rounds": 1},
    ],
    ids=["clip", "adaptive", "smoothed", "mask", "poisson", "shares"],
)
@pytest.mark.parametrize("population", [fl.Examples(data(MANY)), Broken()], ids=["fit", "broken"])
def test_threads_that_share_a_group_change_no_bit(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], population: fl.Examples
):
    found = {n: played(monkeypatch, n, population, **options) for n in (1, 2, 3)}
    assert found[1][2] == 1
    for threads in (2, 3):
        assert found[threads][2] == threads
        assert max(found[threads][3]) <= 11
        assert sum(found[threads][3]) == sum(found[1][3])
        assert torch.equal(found[threads][0], found[1][0])
        # Also what is told of the norms, and of who was left out.
        assert found[threads][1].diagnostics == found[1][1].diagnostics
    if "sampling" not in options:
        dropped = 4 if isinstance(population, Broken) else 0
        assert found[2][1].diagnostics.dropped_updates == dropped


class Halved(Silent):
    """A noise of a user."""

    def encode(self: object, rows: Tensor, limits: Any, std: float) -> Tensor:
        return rows / 2


@pytest.mark.parametrize(
    ("population", "options"),
    [
        (Planting(data(MANY)), {}),
        (fl.Examples(data(MANY)), {"clip_norm": None, "bound": Own(1.0)}),
        (fl.Examples(data(MANY)), {"noise": Halved()}),
        (fl.Examples(data(MANY)), {"noise": fl.SecureGaussianNoise()}),
        (
            fl.Examples(data(MANY)),
            {"clip_norm": None, "bound": fl.PerLayerClip((0.5, 0.5, 0.5, 0.5))},
        ),
    ],
    ids=["canaries", "bound", "noise", "secure", "layers"],
)
def test_code_of_users_runs_on_the_thread_that_asked(
    monkeypatch: pytest.MonkeyPatch, population: fl.Examples, options: dict[str, Any]
):
    _, report, threads, counts = played(monkeypatch, 2, population, **options)
    assert threads == 1
    assert sum(counts) == 2 * MANY
    assert report.diagnostics.cohort_size == MANY


def test_a_users_bound_and_noise_are_asked(monkeypatch: pytest.MonkeyPatch):
    """What is derived from a clip may bound otherwise, and half of everything is half as far."""
    population = fl.Examples(data(MANY))
    start = flat(perceptron(FEATURES, CLASSES))
    expected = played(monkeypatch, 2, population, rounds=1)[0] - start
    clip = fl.Clip.apply
    for options in ({"clip_norm": None, "bound": Own(1.0)}, {"noise": Halved()}, {}):
        if not options:
            monkeypatch.setattr(fl.Clip, "apply", lambda *given: clip(*given) / 2)
        found = played(monkeypatch, 2, population, rounds=1, **options)[0] - start
        torch.testing.assert_close(2 * found, expected, rtol=1e-4, atol=1e-6)


def test_a_share_for_each_thread_has_one_row_at_least(monkeypatch: pytest.MonkeyPatch):
    """Two shares that begin with the same row would add one of them twice."""
    population = fl.Examples(data(2))
    expected = played(monkeypatch, 1, population)
    found = played(monkeypatch, 5, population, worth=1)
    assert found[2] == 2
    assert torch.equal(found[0], expected[0])
    assert found[1].diagnostics == expected[1].diagnostics


def test_rows_are_added_alone_under_a_mode_that_threads_would_lack(
    monkeypatch: pytest.MonkeyPatch,
):
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            return func(*args, **(kwargs or {}))

    expected = played(monkeypatch, 1, fl.Examples(data(MANY)))[0]
    with Mode():
        found, _, threads, _ = played(monkeypatch, 2, fl.Examples(data(MANY)), vectorize=False)
    assert threads == 1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_few_rows_are_not_worth_a_thread(monkeypatch: pytest.MonkeyPatch):
    population = fl.Examples(data(20))
    assert played(monkeypatch, 2, population)[2] == 2
    monkeypatch.undo()
    assert played(monkeypatch, 2, population, worth=1 << 19)[2] == 1


def test_clients_plant_nothing():
    assert plants_nothing([data()])
    assert plants_nothing(fl.Examples(data()))
    assert not plants_nothing(Planting(data()))
