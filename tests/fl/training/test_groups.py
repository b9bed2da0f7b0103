"""Clients and examples in groups: equal to one by one, and none depends on the others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from dpacct import fl
from dpacct.errors import Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.layout import Layout, trainable
from dpacct.fl.local.batches import plan_batches
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.training.choose import TrainerChooser
from dpacct.fl.training.examples import ExampleTrainer
from dpacct.fl.training.sequential import SequentialTrainer
from dpacct.fl.training.synthetic import Kind, Synthetic
from dpacct.fl.training.tasks import Broadcast, Task
from dpacct.fl.training.vectorized import VectorizedTrainer
from tests.fl.problems import cross_entropy, federation, flat, linear, make_clients, perceptron

LOCAL = fl.SGD(lr=0.2, epochs=2, batch_size=4)
SIZES = [9, 4, 0, 40, 5, 1]


class Words(nn.Module):
    """Tokens to classes, by an embedding of six words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(6, 5), nn.Linear(5, 3)

    def forward(self, tokens):
        return self.head(self.table(tokens).mean(dim=1))


def words(sizes):
    generator = torch.Generator().manual_seed(3)
    return [
        ClientData(
            torch.randint(6, (n, 4), generator=generator),
            torch.randint(3, (n,), generator=generator),
        )
        for n in sizes
    ]


def setting(model, clients, local=LOCAL, method=None):
    """Both trainers, with tasks whose seeds are the clients' own."""
    method = method or fl.DPFedAvg()
    params = {name: value.detach().clone() for name, value in trainable(model).items()}
    layout = Layout.of(params)
    tasks = []
    for number, client in enumerate(clients):
        plan = plan_batches(len(client), local, torch.Generator().manual_seed(number))
        tasks.append(Task(client, plan, method.init_client(params), 1000 + number))
    loss = LocalLoss(model, cross_entropy, layout.names, local.precision, functional=False)
    alone = SequentialTrainer(method, loss, layout)
    together = VectorizedTrainer(method, loss.batched(), layout, 4)
    return alone, together, tasks, Broadcast(1, params, method.init(params), local)


MODELS = {
    "perceptron": (perceptron, make_clients),
    "words": (Words, words),
    "dropout": (
        lambda: nn.Sequential(perceptron(), nn.Dropout(0.5), nn.Linear(3, 3)),
        make_clients,
    ),
}
LOCALS = {
    "plain": LOCAL,
    "full": fl.SGD(lr=0.2, steps=3, batch_size=None),
    "momentum": replace(LOCAL, momentum=0.9, weight_decay=0.1),
}


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
@pytest.mark.parametrize("name", MODELS)
def test_an_update_does_not_depend_on_the_other_clients(name, local):
    """Bit by bit here: groups of one size, padding and seeds of a client's own."""
    build, make = MODELS[name]
    _, together, tasks, broadcast = setting(build(), make(SIZES), local)
    whole = together.train(tasks, broadcast)
    assert bool(whole.isfinite().all())
    for place, task in enumerate(tasks):
        assert torch.equal(together.train([task], broadcast)[0], whole[place])
    turned = together.train(tasks[::-1], broadcast).flip(0)
    torch.testing.assert_close(turned, whole, rtol=1e-6, atol=1e-7)
    # Another client, however strange, changes nothing.
    tasks[0] = replace(
        tasks[0], data=ClientData(tasks[3].data.inputs[:9], tasks[3].data.targets[:9])
    )
    assert torch.equal(together.train(tasks, broadcast)[1:], whole[1:])


def test_groups_have_one_size_whoever_came(monkeypatch):
    _, together, tasks, broadcast = setting(perceptron(), make_clients([4] * 9))
    sizes = []
    compute = VectorizedTrainer._train_group

    def counted(self, group, shown):
        sizes.append(len(group))
        return compute(self, group, shown)

    monkeypatch.setattr(VectorizedTrainer, "_train_group", counted)
    for count in (1, 4, 9):
        assert together.train(tasks[:count], broadcast).shape[0] == count
    assert sizes == [4] * (1 + 1 + 3)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
def test_values_that_are_not_finite_stay_with_their_client(value):
    clients = make_clients(SIZES)
    _, together, tasks, broadcast = setting(perceptron(), clients)
    whole = together.train(tasks, broadcast)
    clients[3].inputs[2, 1] = value
    found = together.train(tasks, broadcast)
    others = [0, 1, 2, 4, 5]
    assert torch.equal(found[others], whole[others])
    assert not torch.equal(found[3], whole[3])


def test_a_client_that_has_finished_stands_still():
    """Its own number of steps, whatever the longest client of its group takes."""
    alone, together, tasks, broadcast = setting(
        linear(), make_clients([4, 16]), replace(LOCAL, weight_decay=0.5)
    )
    found = together.train(tasks, broadcast)
    torch.testing.assert_close(found, alone.train(tasks, broadcast), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("token", [-1, 6, 8, 10**6])
def test_a_token_out_of_range_costs_its_own_client(vectorize, token):
    def run(change):
        clients = words([6] * 5)
        if change:
            clients[2].inputs[3, 1] = token
        model = Words()
        with federation(model, clients, vectorize=vectorize, clip_norm=0.1, seed=1) as found:
            report = next(iter(found))
        return flat(model), report.diagnostics.dropped_updates

    model, dropped = run(change=True)
    assert dropped == 1
    assert float((model - run(change=False)[0]).norm()) <= 2 * 0.1 / 5 * (1 + 1e-4)


def test_dropout_is_drawn_for_each_client_and_layer():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3), nn.Dropout(0.5))
    clients = [make_clients([8])[0]] * 3
    _, together, tasks, broadcast = setting(
        model, clients, fl.SGD(lr=1.0, steps=1, batch_size=None)
    )
    rows = together.train(tasks, broadcast)
    assert len({tuple(row.tolist()) for row in rows}) == 3
    same = together.train([replace(task, seed=7) for task in tasks], broadcast)
    torch.testing.assert_close(same[0], same[1])


def test_other_random_numbers_are_trained_one_by_one():
    class Noisy(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs + 0.1 * torch.randn_like(inputs))

    with federation(Noisy(6, 3), make_clients([8] * 4), vectorize="auto") as run:
        run.run()
        assert "one client at a time: torch.func cannot batch" in run.training_path


@pytest.mark.parametrize("count", [1, 3, 8, 9, 21])
def test_an_example_does_not_depend_on_the_others(count):
    model = nn.Sequential(perceptron(), nn.Dropout(0.3))
    rows = make_clients([21])[0]
    population = fl.Examples(rows)
    params = {name: value.detach().clone() for name, value in trainable(model).items()}
    layout = Layout.of(params)
    loss = LocalLoss(model, cross_entropy, layout.names, "float32", functional=True)
    trainer = ExampleTrainer(fl.DPFedAvg(), loss, layout, 8, Kind.of(rows))
    broadcast = Broadcast(1, params, {}, fl.SGD(lr=1.0, steps=1, batch_size=1))

    def gradients(numbers):
        batch = trainer.read(population, numbers, [n + 5 for n in numbers], torch.device("cpu"))
        return torch.cat([group.rows() for group in trainer.groups(batch, broadcast)])

    whole = gradients(range(21))
    torch.testing.assert_close(gradients(range(count)), whole[:count], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(gradients([20]), whole[20:], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("vectorize", [False, True])
def test_a_broken_example_costs_itself_alone(vectorize):
    rows = make_clients([40])[0]
    targets = rows.targets.clone()
    targets[7] = 99

    def run(population):
        model = perceptron()
        options = {"sampling": fl.Full(), "clip_norm": 0.1, "noise_multiplier": 1e-3, "seed": 1}
        with fl.Federation(
            model, cross_entropy, population, rounds=1, vectorize=vectorize, **options
        ) as found:
            report = found.run()
        return flat(model), report.diagnostics.dropped_updates

    clean, none = run(fl.Examples(rows))
    broken, one = run(fl.Examples(rows.inputs, targets))
    assert (none, one) == (0, 1)
    assert 0 < float((clean - broken).norm()) <= 0.1 / 40 * (1 + 1e-3)


class Writes(nn.Module):
    """Writes where clients share something, in a way of each name."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how, self.calls, self.seen = nn.Linear(6, 3), how, 0, []
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("mean", torch.zeros(3))
        self.plain = torch.zeros(3)

    def forward(self, inputs):
        found = self.layer(inputs) * self.frozen
        with torch.no_grad():
            match self.how:
                case "parameter":
                    self.layer.weight.mul_(0.999)
                case "frozen":
                    self.frozen.mul_(0.999)
                case "buffer":
                    self.mean.add_(found.mean(dim=0).detach())
                case "tensor":
                    self.plain.add_(1)
                case "counter":
                    self.calls += 1
                case "list":
                    self.seen.append(1)
                case _:
                    pass
        return found


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("how", ["parameter", "frozen", "buffer", "tensor", "counter", "list"])
def test_a_model_that_keeps_something_is_refused(how, vectorize):
    with (
        federation(Writes(how), make_clients([6] * 3), vectorize=vectorize) as run,
        pytest.raises(
            (Unsupported, RuntimeError), match=r"while a client trains|vmap|leaf|inplace"
        ),
    ):
        run.run()
    with federation(Writes(""), make_clients([6] * 3), vectorize=vectorize) as run:
        run.run()


def test_hidden_state_that_changes_updates_is_found():
    seen = []

    class Hides(nn.Linear):
        def forward(self, inputs):
            seen.append(inputs.detach().mean())
            return super().forward(inputs + seen[-2] if len(seen) > 1 else inputs)

    with (
        federation(Hides(6, 3), make_clients([6] * 3), vectorize=False) as run,
        pytest.raises(Unsupported, match="keeps something between clients"),
    ):
        run.run()


def test_a_seeded_run_does_not_measure(monkeypatch):
    def measured(*_):
        raise AssertionError("measured")

    monkeypatch.setattr("dpacct.fl.training.choose._seconds", measured)
    with federation(linear(), make_clients([6] * 30), vectorize="auto", seed=3) as run:
        next(iter(run))
        assert run.training_path.endswith("clients at once")


@pytest.mark.parametrize("slow", ["alone", "groups"])
def test_the_faster_way_is_taken_and_kept(slow, monkeypatch, tmp_path):
    def seconds(trainer, *_):
        return 1e-2 if isinstance(trainer, SequentialTrainer) == (slow == "alone") else 1e-5

    monkeypatch.setattr("dpacct.fl.training.choose._seconds", seconds)
    path, clients = tmp_path / "run.pt", make_clients([6] * 30)
    with federation(linear(), clients, vectorize="auto", checkpoint=path) as run:
        next(iter(run))
        first = run.player.choice.plan
    assert first.vectorized == (slow == "alone")
    monkeypatch.setattr("dpacct.fl.training.choose._seconds", lambda *_: 1.0)
    with federation(linear(), clients, vectorize="auto", checkpoint=path) as run:
        run.resume(path)
        next(iter(run))
        assert run.player.choice.plan == first


def test_a_plan_that_is_not_possible_any_more_is_chosen_anew(tmp_path):
    path, clients = tmp_path / "run.pt", make_clients([6] * 30)
    with federation(linear(), clients, vectorize=True, checkpoint=path) as run:
        next(iter(run))
    with federation(linear(), clients, vectorize=False, checkpoint=path) as run:
        run.resume(path)
        next(iter(run))
        assert run.training_path.startswith("one client at a time; not as before")


def test_little_memory_means_small_groups():
    model = perceptron()
    layout = Layout.of(trainable(model))
    options = {"vectorize": True}

    def chooser(limit):
        return TrainerChooser(
            model, cross_entropy, fl.DPFedAvg(), layout, LOCAL, memory_limit=limit, **options
        )

    params = {name: value.detach() for name, value in trainable(model).items()}
    broadcast = Broadcast(1, params, {}, LOCAL)
    clients = make_clients([8, 4, 2])

    def make(size, _):
        return ClientData(clients[0].inputs[:size], clients[0].targets[:size])

    synthetic = Synthetic(make, Kind.of(clients[0]), None)
    large = chooser(None).choose(synthetic, broadcast, 100).plan
    small = chooser(20_000).choose(synthetic, broadcast, 100).plan
    assert small.group < large.group == 128
    with pytest.raises(Unsupported, match="memory has no room"):
        chooser(1000).choose(synthetic, broadcast, 100)
