"""Work that is shared out over threads."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from dpacct import fl
from dpacct.fl.clients import ClientData
from dpacct.fl.engine import engine, example_sums
from dpacct.fl.engine.example_sums import threads_for
from dpacct.fl.engine.shared_work import in_shares
from dpacct.fl.privacy.bounds import Clip
from dpacct.fl.tensors import one_thread
from tests.fl.problems import cross_entropy, flat, perceptron

CPU = torch.device("cpu")
FEATURES, CLASSES, COUNT = 6, 3, 90


@pytest.mark.parametrize("count", [0, 1, 2, 7, 64])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_shares_come_back_in_order_each_from_a_thread_of_its_own(count: int, threads: int):
    def work(start: int, stop: int) -> tuple[list[int], int, int]:
        return list(range(start, stop)), threading.get_ident(), torch.get_num_threads()

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with one_thread(CPU):
            found = in_shares(count, threads, work)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert [row for rows, _, _ in found for row in rows] == list(range(count))
    assert len(found) == max(1, min(count, threads))
    assert len({thread for _, thread, _ in found}) == 1 or threads > 1
    assert found[-1][1] == threading.get_ident()
    assert {own for _, _, own in found} == {1}


@pytest.mark.parametrize("failing", [0, 1])
def test_what_a_share_raises_is_raised(failing: int):
    done: list[int] = []

    def work(start: int, stop: int) -> None:
        del stop
        if (start > 0) == bool(failing):
            raise MemoryError(start)
        done.append(start)

    with pytest.raises(MemoryError), one_thread(CPU):
        in_shares(4, 2, work)
    assert len(done) == 1


@pytest.mark.parametrize(
    "around",
    [
        pytest.param(nullcontext, id="nothing"),
        pytest.param(lambda: torch.autocast("cpu", torch.bfloat16), id="autocast"),
        pytest.param(torch.inference_mode, id="inference"),
        pytest.param(torch.no_grad, id="no gradients"),
        pytest.param(lambda: torch.device("cpu"), id="a default device"),
    ],
)
def test_only_threads_that_torch_treats_alike_compute(around: Any):
    def work(start: int, stop: int) -> tuple[int, bool]:
        del start, stop
        return threading.get_ident(), torch.is_autocast_enabled("cpu")

    with one_thread(CPU), around():
        found = in_shares(6, 3, work)
        assert {auto for _, auto in found} == {torch.is_autocast_enabled("cpu")}
    here = sum(thread == threading.get_ident() for thread, _ in found)
    assert here == (1 if around is nullcontext else 3)


def test_subnormal_numbers_are_treated_alike():
    small = torch.full((6,), 2.0**-1030, dtype=torch.float64)

    def work(start: int, stop: int) -> float:
        return float((small[start:stop] * 0.5).sum())

    if not torch.set_flush_denormal(True):
        pytest.skip("the processor cannot")
    try:
        with one_thread(CPU):
            found = in_shares(6, 3, work)
    finally:
        torch.set_flush_denormal(False)
    assert found == [0.0, 0.0, 0.0]


def test_what_others_have_written_is_called_by_one_thread():
    class Own(Clip):
        """As it is."""

    class Quiet(fl.GaussianNoise):
        """As it is."""

    noise, bound, before = fl.GaussianNoise(), Clip(1.0), torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert threads_for(20, CPU, bound, noise) == 4
        assert threads_for(20, CPU, fl.AdaptiveClip(1.0), fl.SecureGaussianNoise()) == 4
        assert threads_for(1, CPU, bound, noise) == 1
        assert threads_for(20, torch.device("cuda"), bound, noise) == 1
        assert threads_for(20, CPU, Own(1.0), noise) == 1
        assert threads_for(20, CPU, bound, Quiet()) == 1
    finally:
        torch.set_num_threads(before)


def four(*_: object) -> int:
    """Rows, as if a cache held no more; a share has as many at least."""
    return 4


def played(
    threads: int,
    population: fl.Examples,
    monkeypatch: pytest.MonkeyPatch,
    rounds: int = 4,
    **options: Any,
) -> tuple[Tensor, list[Any], set[int]]:
    """The model behind a run, its figures, and how many shares groups had."""
    shares: set[int] = set()

    def counted(count: int, most: int, work: Any) -> Any:
        found = in_shares(count, most, work)
        shares.add(len(found))
        return found

    monkeypatch.setattr(example_sums, "in_shares", counted)
    monkeypatch.setattr(engine, "few_rows", four)
    before = torch.get_num_threads()
    model = perceptron(FEATURES, CLASSES)
    settings: dict[str, Any] = {
        "clip_norm": 0.5, "noise_multiplier": 1.0, "sampling": fl.Poisson(0.7), "rounds": rounds,
        "seed": 3, "chunk_size": 32, "preflight": False,
    }  # fmt: skip
    try:
        torch.set_num_threads(threads)
        run = fl.Federation(model, cross_entropy, population, **(settings | options))
        if "checkpoint" in options and options["checkpoint"].exists():
            run = run.resume()
        with run:
            figures = [report.diagnostics for report in run]
    finally:
        torch.set_num_threads(before)
    return flat(model), figures, shares


def examples(count: int = COUNT) -> fl.Examples:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, FEATURES, generator=generator)
    inputs[5] = torch.nan
    return fl.Examples(ClientData(inputs, inputs[:, :CLASSES].argmax(dim=1)))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"clip_norm": None, "bound": fl.AdaptiveClip(0.5)},
        {"secure_noise": True},
        {"method": fl.FedSMPRandK()},
    ],
    ids=["plain", "adaptive", "secure", "mask"],
)
def test_threads_show_in_no_bit(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    model, figures, shares = played(1, examples(), monkeypatch, **more)
    assert not shares
    for threads in (2, 3):
        other, others, shares = played(threads, examples(), monkeypatch, **more)
        assert threads in shares
        assert torch.equal(model, other)
        assert repr(figures) == repr(others)


def test_a_run_goes_on_with_another_number_of_threads(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    whole, _, _ = played(1, examples(), monkeypatch)
    place = tmp_path / "run.pt"
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        begun = fl.Federation(
            perceptron(FEATURES, CLASSES), cross_entropy, examples(), clip_norm=0.5, rounds=4,
            noise_multiplier=1.0, sampling=fl.Poisson(0.7), seed=3, chunk_size=32, preflight=False,
            checkpoint=place,
        )  # fmt: skip
        next(iter(begun))
        begun.close()
    finally:
        torch.set_num_threads(threads)
    for_the_rest, _, shares = played(3, examples(), monkeypatch, checkpoint=place)
    assert 3 in shares
    assert torch.equal(whole, for_the_rest)


def test_planted_updates_are_asked_for_by_one_thread(monkeypatch: pytest.MonkeyPatch):
    population, asked = examples(), set[int]()

    def planted(row: int) -> None:
        del row
        asked.add(threading.get_ident())

    monkeypatch.setattr(population, "planted", planted)
    _, _, shares = played(2, population, monkeypatch, rounds=1)
    assert not shares
    assert asked == {threading.get_ident()}
