"""Which way of training is taken, on a machine that does other things beside."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dpacct import fl
from dpacct.fl.clients import ClientData
from dpacct.fl.local.batches import plan_batches
from dpacct.fl.trainers import chooser, stopwatch
from dpacct.fl.trainers.stopwatch import Heat, longer, seconds
from dpacct.fl.trainers.tasks import Broadcast, Task
from tests.fl.problems import federation, make_clients, perceptron

BROADCAST = Broadcast(1, {"weight": torch.zeros(2)}, {}, fl.SGD())


class Clock:
    """A machine's time: the clock's, and this process's share of it."""

    def __init__(self) -> None:
        self.clock = self.processor = 0.0
        self.order: list[str] = []

    def trainer(self, name: str, takes: float, busy: list[float]):
        """Takes so long, and the clock that many times longer while the machine is busy."""
        slowed = iter(busy)

        def train(_, broadcast):
            assert broadcast is BROADCAST
            self.order.append(name)
            self.processor += takes
            self.clock += takes * next(slowed, 1.0)

        return Heat(SimpleNamespace(train=train), [])


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    fake = SimpleNamespace(perf_counter=lambda: made.clock, process_time=lambda: made.processor)
    monkeypatch.setattr(stopwatch, "time", fake)
    return made


def test_a_busy_machine_does_not_decide(clock):
    # What is short has the machine to itself, what is long never.
    short = clock.trainer("short", 1.0, [1.0, 1.0])
    long = clock.trainer("long", 30.0, [4.0, 3.0])
    assert seconds([short, long], BROADCAST) == [1.0, 30.0]
    assert clock.order == ["short", "long"] * 2


def test_what_is_over_soon_is_tried_often(clock):
    quick, slow = clock.trainer("quick", 1e-3, []), clock.trainer("slow", 1.0, [])
    assert seconds([quick, slow], BROADCAST) == pytest.approx([1e-3, 1.0])
    assert clock.order.count("quick") > 5 * clock.order.count("slow") == 10


def test_several_threads_count_by_the_clock(clock):
    halved = clock.trainer("threads", 2.0, [0.5, 0.5])
    assert seconds([halved], BROADCAST) == [1.0]


def test_a_client_is_timed_on_more_steps_but_never_on_more_than_it_takes():
    data = ClientData(torch.zeros(10, 2), torch.zeros(10, dtype=torch.int64))
    for epochs, steps in ((1, 2), (3, 6), (50, 8)):
        local = fl.SGD(epochs=epochs, batch_size=5)
        plan = plan_batches(10, fl.SGD(epochs=1, batch_size=5), torch.Generator())
        task = longer(Task(data, plan, None), local)
        assert task.plan.steps == steps
        assert task.plan.counts.tolist() == [5] * steps
        assert torch.equal(task.plan.indices[:2], plan.indices)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("alone", "groups", "rounds", "path"),
    [
        # Hardly any arithmetic: all are timed at once.
        (1e-4, [1e-3, 1.5e-3, 4e-3], [1, 4], "64 side by side"),
        (1e-4, [1e-1, 2e-1, 3e-1], [1, 4], "one client at a time, "),
        # More: larger groups are timed where the smallest one saves enough.
        (1e-2, [1e-1, 1e-1, 1e-1], [1, 2, 4], "128 side by side"),
        (1e-2, [2.5e-1, 1e-3, 1e-3], [1, 2], "32 side by side, 1."),
        (1e-2, [5e-1, 1e-3, 1e-3], [1, 2], "one client at a time, "),
        # Arithmetic alone.
        (1e-1, [1e-3, 1e-3, 1e-3], [1], "one client at a time: a step takes long"),
    ],
)
def test_larger_groups_are_timed_where_they_may_save_something(
    monkeypatch, alone, groups, rounds, path
):
    asked = []

    def timed(heats, broadcast):
        del broadcast
        asked.append(len(heats))
        assert [len(heat.tasks) for heat in heats] == [1, 32, 64, 128][: len(heats)]
        return [alone, *groups][: len(heats)]

    monkeypatch.setattr(chooser, "seconds", timed)
    people = make_clients([6] * 96)
    with federation(perceptron(), people, vectorize="auto", sampling=fl.Full()) as run:
        run.player.begin("name", 3, None)
        assert run.training_path.startswith(path)
    assert asked == rounds


class Halved(nn.Module):
    """Computes with numbers of two bytes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = perceptron()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(inputs).float()


@pytest.mark.parametrize(
    ("make", "precision", "lanes"),
    [(perceptron, "float32", 32), (perceptron, "bfloat16", 64), (Halved, "float32", 64)],
)
@pytest.mark.parametrize("chunk", [None, 20, 65])
def test_clients_with_numbers_of_two_bytes_have_twice_the_lanes(make, precision, lanes, chunk):
    people, local = make_clients([6] * 20), fl.SGD(lr=0.1, precision=precision)
    options = {"local": local, "vectorize": True, "chunk_size": chunk}
    with federation(make(), people, **options) as run:
        run.player.begin("name", 3, None)
        assert run.player.choice.trainer.together.clients == lanes * -(-(chunk or 20) // lanes)


def test_there_may_be_no_room_for_twice_the_lanes(monkeypatch):
    monkeypatch.setattr(chooser.TrainerChooser, "most_examples", lambda *_: (40, 400))
    people = make_clients([6] * 20)
    for precision, told in (("float32", "side by side"), ("bfloat16", "no room for 64")):
        options = {"local": fl.SGD(lr=0.1, precision=precision), "vectorize": "auto"}
        monkeypatch.setattr(chooser, "seconds", lambda heats, _: [1e-4, 1e-5][: len(heats)])
        with federation(perceptron(), people, **options) as run:
            run.player.begin("name", 3, None)
            assert told in run.training_path
