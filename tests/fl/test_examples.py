"""Single examples as a population."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpacct import Budget, fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.data import Examples as Rows
from dpacct.ledger import Ledger
from tests.fl.problems import (
    Silent,
    cross_entropy,
    federation,
    flat,
    goes_on,
    half_square,
    linear,
    pause,
    perceptron,
)

FEATURES, CLASSES, COUNT = 6, 3, 90


def data(count: int = COUNT, seed: int = 0) -> ClientData:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, FEATURES, generator=generator)
    return ClientData(inputs, (inputs[:, :CLASSES]).argmax(dim=1))


def train(population: Any, model: nn.Module | None = None, loss: Any = cross_entropy, **options):
    model = linear(FEATURES, CLASSES) if model is None else model
    return federation(model, population, loss, **({"rounds": 2, "vectorize": "auto"} | options))


def step(population: Any, **options: Any) -> Tensor:
    """What one round without noise adds to the model."""
    model = options.pop("model", None) or linear(FEATURES, CLASSES)
    before = flat(model)
    # With so little noise, sums are on the fine grid of float64.
    settings = {"noise": Silent(), "rounds": 1, "noise_multiplier": 1e-3}
    train(population, model, **(settings | options)).run()
    return flat(model) - before


def clipped_mean(model: nn.Module, rows: ClientData, norm: float) -> Tensor:
    """-mean of the clipped gradients, one backward pass an example."""
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for x, y in zip(rows.inputs, rows.targets, strict=True):
        model.zero_grad()
        cross_entropy(model(x.unsqueeze(0)), y.unsqueeze(0)).backward()
        grad = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
        total -= grad * min(1.0, norm / float(grad.norm()))
    return total / len(rows)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [linear, perceptron])
@pytest.mark.parametrize("noise", [1.0, 1e-3], ids=["float32", "float64"])
def test_a_round_is_a_step_of_dp_sgd(make, noise):
    rows = data()
    model = make(FEATURES, CLASSES)
    expected = clipped_mean(model, rows, 0.3)
    found = step(
        fl.Examples(rows), model=model, clip_norm=0.3, server_lr=0.5, noise_multiplier=noise
    )
    torch.testing.assert_close(found.double(), 0.5 * expected, atol=1e-6, rtol=1e-4)


def test_many_at_once_and_one_by_one_give_the_same_step():
    rows = data(40)
    many = step(fl.Examples(rows), model=perceptron(FEATURES, CLASSES))
    one = step(fl.Examples(rows), model=perceptron(FEATURES, CLASSES), vectorize=False)
    torch.testing.assert_close(many, one, atol=1e-7, rtol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "method",
    [fl.DPFedSAM(rho=0.1), fl.DPFedLS(), fl.FedSMPRandK(), fl.DPFedPGN()],
    ids=lambda method: method.name,
)
def test_methods_without_memories_train_examples_as_they_train_clients_of_one(method):
    rows = data(20)
    people = [ClientData(rows.inputs[k : k + 1], rows.targets[k : k + 1]) for k in range(20)]
    local = fl.SGD(lr=1.0, steps=1, batch_size=1)
    ours = step(fl.Examples(rows), method=method, model=perceptron(FEATURES, CLASSES))
    model = perceptron(FEATURES, CLASSES)
    theirs = step(people, method=method, model=model, local=local, vectorize=False)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


def summed(rows: ClientData, chunk: int) -> Tensor:
    """The noiseless sum over everybody, float64."""
    noise = Silent()
    step(fl.Examples(rows), model=perceptron(FEATURES, CLASSES), noise=noise, chunk_size=chunk)
    return noise.draws[-1][0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("left_out", [0, 33, 69])
def test_the_sum_moves_by_exactly_one_contribution(left_out):
    # Bit by bit: the others change their places when one of them is missing.
    rows = data(70)
    kept = [k for k in range(70) if k != left_out]
    others = ClientData(rows.inputs[kept], rows.targets[kept])
    alone = ClientData(torch.full_like(rows.inputs, math.nan), rows.targets)
    alone.inputs[left_out] = rows.inputs[left_out]
    whole, rest, own = (summed(part, 32) for part in (rows, others, alone))
    assert torch.equal(whole - rest, own)
    assert 0 < float(own.norm()) <= 1.0
    assert torch.equal(whole, summed(rows, 96))


def test_threads_change_no_bit():
    """Many small groups, many times: two of them at once would share the model's parameters."""
    rows = data(160)
    threads = torch.get_num_threads()
    found: list[Tensor] = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(
                step(fl.Examples(rows), model=perceptron(FEATURES, CLASSES), chunk_size=32)
            )
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("members", [40, 130])
def test_modes_of_the_thread_hold_for_every_group(members: int):
    """As many examples as may be: which groups there are must not decide how they are computed."""
    rows = data(members)
    # As many in all three, since the grid of sums follows from that; others come as no numbers.
    one, rest = (ClientData(rows.inputs.clone(), rows.targets) for _ in range(2))
    one.inputs[1:] = math.nan
    rest.inputs[0] = math.nan
    with torch.autocast("cpu", torch.bfloat16):
        whole, one, rest = (summed(part, 32) for part in (rows, one, rest))
    assert torch.equal(whole - rest, one)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("broken", [None, 40])
def test_groups_are_the_rows_of_the_trainer_in_their_order(broken: int | None):
    """What is summed group by group is what is trained: no example twice, none left out."""
    rows = data(70)
    run = train(fl.Examples(rows), perceptron(FEATURES, CLASSES), rounds=1)
    run.run()
    player: Any = run
    trainer, broadcast = player.choice.trainer, player.engine.broadcast(player.state)
    batch = trainer.read(fl.Examples(rows), range(70), range(70), torch.device("cpu"))
    if broken is not None:
        batch.failed[broken] = True
    found = torch.cat([group.rows() for group in trainer.groups(batch, broadcast)])
    tasks = [player.engine.task(row, player.state, 0) for row in range(70)]
    whole = trainer.train(tasks, broadcast)
    kept = [row for row in range(70) if row != broken]
    assert torch.equal(found[kept], whole[kept])
    assert bool(found.isnan().any()) == (broken is not None)


class Mixed(nn.Module):
    """Parameters of two types; the first one is the narrower."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Linear(FEATURES, 8)
        self.two = nn.Linear(8, CLASSES, dtype=torch.float64)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(inputs)).double())


class Wider(fl.DPFedAvg):
    """Sends more digits than a model has."""

    def local_update(self, delta: Tensor, state: Any, context: Any) -> Tensor:
        return delta.double() * 1.1


class WiderSteps(fl.DPFedAvg):
    """Steps with more digits than a model has."""

    def gradient(self, loss: Any, params: Any, batch: Any, context: Any) -> Any:
        found = super().gradient(loss, params, batch, context)
        return {name: value.double() / 3 for name, value in found.items()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", [fl.DPFedAvg(), Wider(), WiderSteps()], ids=repr)
@pytest.mark.parametrize("make", [lambda: perceptron(FEATURES, CLASSES), Mixed], ids=["", "mixed"])
def test_how_one_example_fails_changes_no_bit_of_others(make: Any, method: Any):
    """A group without a failure is trained in one piece, and rows of both ways are of one type."""
    noise, found, dropped = Silent(), list[Tensor](), list[int]()
    for target, value in ((None, 0.0), (None, math.nan), (99, 0.0)):
        rows = data(40)
        rows.inputs[7] += value
        if target is not None:
            rows.targets[7] = target
        options = {"method": method, "noise": noise, "clip_norm": 0.5}
        report = train(fl.Examples(rows), make(), rounds=1, seed=5, **options).run()
        dropped.append(report.diagnostics.dropped_updates)
        found.append(noise.draws[-1][0])
    assert dropped == [0, 1, 1]
    assert torch.equal(found[1], found[2])
    assert 0 < float((found[0] - found[1]).norm()) <= 0.5


@pytest.mark.sampled(1)
@pytest.mark.parametrize("vectorize", [True, "auto", False])
def test_clients_of_a_model_with_two_types_arrive(vectorize: Any):
    clients, model = [data(5, seed) for seed in range(9)], Mixed()
    report = train(clients, model, rounds=1, vectorize=vectorize, noise=Silent()).run()
    assert report.diagnostics.dropped_updates == 0
    assert float((flat(model) - flat(Mixed())).norm()) > 0


class Unreadable:
    """Examples of which some cannot be read, and some have another shape."""

    def __init__(self, rows: ClientData, bad: int, odd: int) -> None:
        self.rows, self.bad, self.odd = rows, bad, odd

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        if bool((chosen == self.bad).any()):
            raise OSError("the disk is gone")
        inputs, targets = self.rows.inputs[chosen], self.rows.targets[chosen]
        if bool((chosen == self.odd).any()):
            # As a reader that pads to the longest of what it was asked for.
            inputs = nn.functional.pad(inputs, (0, 1))
        return inputs, targets


@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize("how", ["out of range", "unreadable"])
def test_a_broken_example_costs_its_own_contribution(how: str, *, vectorize: bool):
    rows, broken = data(40), data(40)
    broken.targets[3] = 99
    broken.inputs[7] = math.nan
    people = fl.Examples(broken if how == "out of range" else Unreadable(rows, 3, 7))
    kept = [k for k in range(40) if k not in (3, 7)]
    others, sums = fl.Examples(ClientData(rows.inputs[kept], rows.targets[kept])), list[Tensor]()
    for each, dropped in ((people, 2), (others, 0)):
        noise = Silent()
        options = {"vectorize": vectorize, "rounds": 1, "noise_multiplier": 1e-3}
        report = train(each, noise=noise, **options).run()
        assert report.diagnostics.dropped_updates == dropped
        sums.append(noise.draws[-1][0])
    torch.testing.assert_close(*sums, atol=1e-5, rtol=1e-5)


class Shares(nn.Module):
    """Gradients of one memory: for all examples (unused), and for two parameters (a sum)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.unused, self.scale = nn.Parameter(torch.ones(size)), nn.Parameter(torch.tensor(2.0))
        self.one, self.two = (nn.Parameter(torch.randn(size, CLASSES)) for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scale * inputs @ (self.one + self.two)[:FEATURES]


@pytest.mark.parametrize("size", [FEATURES, 3000])
@pytest.mark.parametrize("broken", [0, 2])
def test_gradients_that_share_memory_count_once(size: int, broken: int):
    rows, sums = data(40), list[Tensor]()
    people = fl.Examples(Unreadable(rows, 3, 7) if broken else rows)
    for vectorize in (True, False):
        noise, options = Silent(), {"vectorize": vectorize, "rounds": 1}
        report = train(people, Shares(size), noise=noise, **options).run()
        assert report.diagnostics.dropped_updates == broken
        sums.append(noise.draws[-1][0])
    # The sum of rows that were cut to a grid of 2^-19.
    torch.testing.assert_close(*sums, atol=(40 - broken) * 2.0**-19, rtol=0)


def test_the_ledger_and_the_report_speak_of_examples(tmp_path):
    path = tmp_path / "examples.ledger"
    with train(fl.Examples(data()), ledger=path, budget=Budget(50, 1e-3)) as run:
        report = run.run()
    assert (report.unit, report.adjacency) == ("example", "zero-out")
    assert report.to_dict()["unit"] == "example"
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.unit == "example"
        assert "one example" in ledger.report_markdown()


@pytest.mark.parametrize("unit", ["client", "patient", "example"])
def test_a_ledger_of_another_unit_is_refused(tmp_path, unit):
    path = tmp_path / "people.ledger"
    Ledger.open(path, Budget(80, 1e-5), unit=unit).close()
    population = [data(3), data(4)] if unit == "example" else fl.Examples(data())
    with pytest.raises(InvalidParameter, match="protects one"):
        train(population, ledger=path)
    if unit == "patient":
        report = train(fl.Examples(data(), unit=unit), ledger=path, rounds=1).run()
        assert report.unit == unit


def test_more_than_one_step_and_methods_with_memories_are_refused():
    for options, name in (
        ({"steps": 2}, "local"), ({"epochs": 3}, "local"), ({"momentum": 0.9}, "momentum"),
    ):  # fmt: skip
        with pytest.raises(InvalidParameter) as caught:
            train(fl.Examples(data()), local=fl.SGD(**options))
        assert caught.value.name == name
    with pytest.raises(Unsupported, match="memory"):
        train(fl.Examples(data()), method=fl.FedAlphaNormEC())


def test_a_model_that_cannot_be_batched_trains_one_by_one():
    class Branching(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) if bool(inputs.sum() > 0) else 2 * inputs[:, :CLASSES]

    run = train(fl.Examples(data(10)), Branching(FEATURES, CLASSES))
    run.run()
    assert run.training_path.startswith("one example at a time")
    with pytest.raises(Unsupported, match="vectorize=True"):
        train(fl.Examples(data(10)), Branching(FEATURES, CLASSES), vectorize=True).run()


def test_other_losses_and_weight_decay():
    inputs = torch.randn(30, FEATURES)
    population = fl.Examples(inputs, inputs[:, :CLASSES].clone())
    local = fl.SGD(lr=1.0, weight_decay=0.1)
    many = step(population, loss=half_square, local=local)
    one = step(population, loss=half_square, local=local, vectorize=False)
    # Margins of the two paths differ by 2^-18.
    torch.testing.assert_close(many, one, atol=1e-6, rtol=2e-5)


def test_forms_of_data():
    rows = data(5)
    pairs = torch.utils.data.TensorDataset(rows.inputs, rows.targets)
    loader = torch.utils.data.DataLoader(pairs, batch_size=len(pairs))
    forms = [
        fl.Examples(rows.inputs, rows.targets),
        fl.Examples(rows),
        fl.Examples(pairs),
        fl.Examples(Rows(rows.inputs, rows.targets)),
        fl.Examples(*next(iter(loader))),
    ]
    for found in forms:
        assert len(found) == 5
        assert torch.equal(found[-1].inputs, rows.inputs[4:])
        assert torch.equal(found.batch([3, 1]).targets, rows.targets[[3, 1]])
        assert [len(one) for one in found[1:3]] == [1, 1]
    with pytest.raises(IndexError):
        forms[0][5]


def test_what_is_no_data_set():
    one = torch.zeros(3, 2)
    for bad in (one, [], torch.utils.data.TensorDataset(one), 3, {"a": 1}):
        with pytest.raises(InvalidParameter):
            fl.Examples(bad)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"server": fl.Adam(lr=0.1), "bound": fl.AdaptiveClip(0.5)},
        {"server": fl.Momentum(0.9), "method": fl.FedSMPTopK(), "secure_noise": True},
    ],
    ids=["plain", "adam, adaptive", "momentum, mask, secure"],
)
def test_a_seeded_run_goes_on_bit_by_bit(tmp_path, more):
    settings = {"sampling": fl.Poisson(0.3), "seed": 5, "rounds": 4} | more
    people = fl.Examples(data())
    goes_on(lambda path: train(people, checkpoint=path, **settings), tmp_path / "run.pt")


def test_a_private_run_that_was_stopped_goes_on_in_its_ledger(tmp_path):
    settings = {
        "sampling": fl.Poisson(0.3), "checkpoint": tmp_path / "run.pt", "rounds": 5,
        "noise_multiplier": None, "budget": Budget(6, 1e-4), "server": fl.Adam(lr=0.1),
    }  # fmt: skip
    pause(train(fl.Examples(data()), **settings), 1)
    pause(train(fl.Examples(data()), **settings).resume(), 3)
    people = [data(1, seed=k) for k in range(COUNT)]
    local = fl.SGD(lr=1.0, steps=1, batch_size=1)
    with pytest.raises(InvalidParameter, match="protects one example, and the run one client"):
        train(people, local=local, **settings).resume()
    with train(fl.Examples(data()), **settings).resume() as run:
        last = run.run()
    assert (last.round, last.unit) == (5, "example")
    assert 5.9 < last.epsilon.upper <= 6
    with Ledger.open(tmp_path / "run.pt.ledger", read_only=True) as ledger:
        [found] = ledger.runs
        assert (ledger.unit, found.rounds, found.committed) == ("example", 5, 5)


def test_a_gradient_does_not_depend_on_its_place_in_a_group():
    """A group of 16 or 48 has ends of vectors, where single numbers are rounded otherwise."""
    # An odd number of activations for each example; values whose rounding differs are few.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 125), nn.SiLU(), nn.Linear(125, CLASSES))
    rows = data(48 * 8)
    run = train(fl.Examples(data(40)), model, rounds=1)
    run.run()
    player: Any = run
    trainer, broadcast = player.choice.trainer, player.engine.broadcast(player.state)
    lot = trainer.read(fl.Examples(rows), range(len(rows)), [0] * len(rows), torch.device("cpu"))
    whole = torch.cat([group.rows() for group in trainer.groups(lot, broadcast)])
    for shift in (1, 7, 15):
        moved = torch.cat([group.rows() for group in trainer.groups(lot[shift:], broadcast)])
        torch.testing.assert_close(moved, whole[shift:], rtol=1e-5, atol=1e-7)
