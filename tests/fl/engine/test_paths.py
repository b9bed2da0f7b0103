"""Sequential and cohort-parallel training give the same updates, and the ones they should."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpacct import fl
from dpacct.errors import Unsupported
from dpacct.fl.layout import Layout, trainable
from dpacct.fl.local.batches import chunks, plan_batches
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.methods.protocol import Method
from dpacct.fl.training.choose import TrainerChooser
from dpacct.fl.training.sequential import SequentialTrainer
from dpacct.fl.training.tasks import Broadcast, Task
from dpacct.fl.training.vectorized import VectorizedTrainer
from tests.fl.problems import (
    Point,
    convolutional,
    cross_entropy,
    federation,
    flat,
    half_square,
    linear,
    make_clients,
    perceptron,
    quadratic_clients,
)


@dataclass(frozen=True)
class Everything(Method):
    """A method that uses every stage on the client."""

    def init(self, params):
        return {"pull": torch.full((), 0.05)}

    def init_client(self, params):
        return {"memory": torch.zeros(sum(value.numel() for value in params.values()))}

    def gradient(self, loss, params, batch, context):
        first = loss.gradient(params, batch)
        moved = {name: value + 0.1 * first[name] for name, value in params.items()}
        pull = context.server_state["pull"]
        second = loss.gradient(moved, batch)
        return {n: g + pull * (params[n] - context.anchor[n]) for n, g in second.items()}

    def after_step(self, params, context):
        gap = {name: value - context.anchor[name] for name, value in params.items()}
        norm = torch.sqrt(sum(value.square().sum() for value in gap.values()))
        scale = torch.clamp(0.05 / norm, max=1.0)
        return {name: context.anchor[name] + scale * value for name, value in gap.items()}

    def local_update(self, delta, client_state, context):
        return delta / context.steps - 0.5 * client_state["memory"] + context.lr

    def client_state(self, client_state, bounded, context):
        return {"memory": client_state["memory"] + 0.1 * bounded}


def both(model, clients, local, method=None, states=None, round_number=1, loss=cross_entropy):
    method = method or fl.DPFedAvg()
    params = {name: value.detach().clone() for name, value in trainable(model).items()}
    layout = Layout.of(params)
    broadcast = Broadcast(round_number, params, method.init(params), local)
    tasks = []
    for number, client in enumerate(clients):
        plan = plan_batches(len(client), local, torch.Generator().manual_seed(number))
        state = method.init_client(params) if states is None else states[number]
        tasks.append(Task(client, plan, state))
    found = []
    for trainer, functional in ((SequentialTrainer, False), (VectorizedTrainer, True)):
        objective = LocalLoss(model, loss, layout.names, local.precision, functional=functional)
        worker = trainer(method, objective, layout)
        rows = worker.train(tasks, broadcast)
        found.append((rows, worker.remember(tasks, rows, broadcast)))
    return found


LOCALS = [
    fl.SGD(lr=0.1, epochs=2, batch_size=4),
    fl.SGD(lr=0.1, epochs=2, batch_size=4, momentum=0.9, weight_decay=0.01, lr_decay=0.5),
    fl.SGD(lr=0.3, steps=5, batch_size=3, momentum=0.5),
    fl.SGD(lr=0.3, steps=3, batch_size=None, total_lr=True),
    fl.SGD(lr=0.3, epochs=1, batch_size=1, shuffle=False, total_lr=True, weight_decay=0.2),
    fl.SGD(lr=0.1, epochs=2, batch_size=4, weight_decay=0.2),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("sizes", [[8, 8, 8], [1, 9, 4, 13, 2], [5], [4, 0, 7]])
def test_side_by_side_equals_one_by_one(local, sizes):
    (alone, _), (together, _) = both(perceptron(), make_clients(sizes), local, round_number=3)
    assert torch.allclose(alone, together, rtol=1e-4, atol=1e-6)
    for row, size in zip(alone, sizes, strict=True):
        assert bool(row.any()) == (size > 0)


@settings(max_examples=6)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=5),
    st.integers(1, 6),
    st.booleans(),
    st.integers(1, 4),
)
def test_side_by_side_equals_one_by_one_for_any_sizes(sizes, batch, epochs, count):
    local = fl.SGD(lr=0.2, batch_size=batch, **({"epochs": count} if epochs else {"steps": count}))
    (alone, _), (together, _) = both(linear(), make_clients(sizes), local)
    assert torch.allclose(alone, together, rtol=1e-4, atol=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("local", LOCALS)
def test_a_method_that_uses_every_stage_is_batched_right(local):
    clients = make_clients([3, 8, 5])
    size = sum(value.numel() for value in perceptron().parameters())
    generator = torch.Generator().manual_seed(9)
    states = [{"memory": torch.randn(size, generator=generator)} for _ in clients]
    (alone, kept), (together, batched) = both(
        perceptron(), clients, local, Everything(), states, round_number=2
    )
    assert torch.allclose(alone, together, rtol=1e-4, atol=1e-6)
    for one, two in zip(kept, batched, strict=True):
        assert torch.allclose(one["memory"], two["memory"], rtol=1e-4, atol=1e-6)


@dataclass(frozen=True)
class Given(Method):
    """A method whose directions are tensors that it was given, or one tensor twice."""

    what: str

    def gradient(self, loss, params, batch, context):
        if self.what == "the parameters":
            return dict(params)
        if self.what == "other parameters":
            return {"x": params["y"], "y": params["x"]}
        if self.what == "the anchor":
            return dict(context.anchor)
        found = loss.gradient(params, batch)
        return {"x": found["x"], "y": found["x"]}


class Sum(nn.Module):
    """Its two parameters have one gradient, which may be one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.3, -0.7, 0.2]))
        self.y = nn.Parameter(torch.tensor([1.1, 0.4, -0.5]))

    def forward(self, inputs):
        return (self.x + self.y) * inputs[:, :3]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", ["", "the parameters", "other parameters", "the anchor", "one"])
def test_directions_that_share_memory_are_batched_right(what):
    method = Given(what) if what else None
    for momentum, decay, total in itertools.product((0.0, 0.5), (0.0, 0.4), (False, True)):
        local = fl.SGD(
            lr=0.5, epochs=2, batch_size=4, momentum=momentum, weight_decay=decay, total_lr=total
        )
        (alone, _), (together, _) = both(Sum(), make_clients([8, 3, 0, 5]), local, method)
        assert torch.allclose(alone, together, rtol=1e-4, atol=1e-6)


def test_an_update_that_is_the_same_for_all_clients_is_batched_right():
    @dataclass(frozen=True)
    class Constant(Method):
        def local_update(self, delta, client_state, context):
            return torch.full((21,), 3.0)

    finals = []
    for vectorize in (False, True):
        model = linear()
        with federation(
            model, make_clients([4] * 3), method=Constant(), vectorize=vectorize, noise=Silent()
        ) as run:
            run.run()
        finals.append(flat(model))
    assert torch.allclose(finals[0], finals[1], atol=1e-6)


def test_convolutions_and_group_norm_are_batched_right():
    generator = torch.Generator().manual_seed(0)
    clients = [
        fl.ClientData(
            torch.randn(n, 1, 8, 8, generator=generator),
            torch.randint(3, (n,), generator=generator),
        )
        for n in (6, 3, 9)
    ]
    (alone, _), (together, _) = both(
        convolutional(), clients, fl.SGD(lr=0.1, epochs=2, batch_size=4)
    )
    assert torch.allclose(alone, together, rtol=1e-3, atol=1e-5)


def test_double_precision_models_train():
    model = perceptron().double()
    clients = [fl.ClientData(c.inputs.double(), c.targets) for c in make_clients([5, 7])]
    (alone, _), (together, _) = both(model, clients, fl.SGD(lr=0.1, epochs=2, batch_size=4))
    assert alone.dtype == torch.float64
    assert torch.allclose(alone, together, rtol=1e-10, atol=1e-14)


def test_reduced_precision_changes_little_and_returns_full_precision():
    clients = make_clients([8, 8])
    (full, _), _ = both(perceptron(), clients, fl.SGD(lr=0.1, epochs=2, batch_size=4))
    (alone, _), (together, _) = both(
        perceptron(), clients, fl.SGD(lr=0.1, epochs=2, batch_size=4, precision="bfloat16")
    )
    assert alone.dtype == together.dtype == torch.float32
    scale = full.norm()
    assert 0 < (alone - full).norm() < 0.1 * scale
    assert (together - full).norm() < 0.1 * scale


def test_momentum_and_weight_decay_are_those_of_torch():
    [client] = make_clients([8])
    local = fl.SGD(lr=0.1, steps=6, batch_size=None, momentum=0.9, weight_decay=0.1)
    (alone, _), (together, _) = both(linear(), [client], local)
    model = linear()
    start = flat(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        cross_entropy(model(client.inputs), client.targets).backward()
        optimizer.step()
    expected = flat(model) - start
    assert torch.allclose(alone[0], expected, atol=1e-6)
    assert torch.allclose(together[0], expected, atol=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("cohort", "size"), [(25, 32), (50, 64), (100, 128)])
def test_groups_take_the_least_work(cohort, size):
    """Of the sizes that hold most cohorts, the one with the least to compute."""
    run = federation(
        linear(), make_clients([4] * 500), vectorize=True, sampling=fl.Poisson(cohort / 500)
    )
    with run:
        next(iter(run))
        assert run.player.choice.plan.group == size


def test_unused_and_frozen_parameters_are_handled():
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(6, 3)
            self.unused = nn.Linear(2, 2)
            self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

        def forward(self, inputs):
            return self.used(inputs) * self.frozen

    torch.manual_seed(0)
    model = Partly()
    (alone, _), (together, _) = both(model, make_clients([6, 6]), fl.SGD(lr=0.1))
    assert alone.shape[1] == 6 * 3 + 3 + 2 * 2 + 2
    assert torch.allclose(alone, together, atol=1e-6)
    assert not alone[:, -6:].any()
    assert alone[:, :21].any()


def test_chunks_are_even_and_keep_the_order():
    assert chunks(range(10), 4) == [range(3), range(3, 6), range(6, 10)]
    assert chunks([5, 7], 9) == [[5, 7]]
    assert chunks([], 3) == []
    for count in range(40):
        for size in range(1, 12):
            parts = chunks(range(count), size)
            assert [client for part in parts for client in part] == list(range(count))
            assert all(0 < len(part) <= size for part in parts)
            assert len(parts) == -(-count // size)


def test_every_example_is_used_once_an_epoch():
    plan = plan_batches(10, fl.SGD(epochs=3, batch_size=4), torch.Generator().manual_seed(0))
    assert plan.counts.tolist() == [4, 4, 2] * 3
    for epoch in range(3):
        rows = [plan.indices[3 * epoch + k, : plan.counts[k]] for k in range(3)]
        assert sorted(torch.cat(rows).tolist()) == list(range(10))
    orders = {tuple(plan.indices[3 * epoch].tolist()) for epoch in range(3)}
    assert len(orders) == 3


def test_without_shuffling_the_own_order_is_kept():
    plan = plan_batches(5, fl.SGD(epochs=2, batch_size=2, shuffle=False), torch.Generator())
    assert plan.indices[:3].flatten()[:5].tolist() == [0, 1, 2, 3, 4]
    assert plan.counts.tolist() == [2, 2, 1, 2, 2, 1]


def test_the_batches_of_a_client_do_not_depend_on_the_path_or_the_chunk():
    finals = []
    for options in (
        {"vectorize": False},
        {"vectorize": True},
        {"vectorize": True, "chunk_size": 2},
    ):
        model = perceptron()
        with federation(model, make_clients([7, 3, 9, 5, 4]), seed=5, **options) as run:
            run.run()
        finals.append(flat(model))
    assert torch.allclose(finals[0], finals[1], atol=1e-5)
    assert torch.allclose(finals[0], finals[2], atol=1e-5)


def test_auto_measures_and_says_what_it_found():
    model = perceptron()
    with federation(model, make_clients([8] * 12), vectorize="auto") as run:
        assert run.training_path == ""
        next(iter(run))
        assert "time" in run.training_path


def test_auto_trains_one_by_one_what_cannot_be_batched():
    @dataclass(frozen=True)
    class Branching(Method):
        def gradient(self, loss, params, batch, context):
            grads = loss.gradient(params, batch)
            if float(next(iter(grads.values())).sum()) > 0:
                return grads
            return {name: 2 * value for name, value in grads.items()}

    with federation(linear(), make_clients([8] * 4), method=Branching(), vectorize="auto") as run:
        run.run()
        assert "torch.func cannot batch" in run.training_path
    with (
        federation(linear(), make_clients([8] * 4), method=Branching(), vectorize=True) as run,
        pytest.raises(Unsupported, match=r"torch\.func cannot batch"),
    ):
        run.run()


def test_a_loss_that_is_no_mean_over_examples_is_trained_one_by_one():
    def weighted(outputs, targets):
        weights = torch.tensor([5.0, 1.0, 0.2])
        return cross_entropy(outputs, targets, weight=weights)

    clients = make_clients([14] * 4)
    with federation(linear(), clients, loss=weighted, vectorize="auto") as run:
        run.run()
        assert "another result" in run.training_path


def test_a_difference_that_is_gone_in_double_precision_was_rounding(monkeypatch):
    agree = TrainerChooser._agree

    def rounded(self, tasks, broadcast):
        wide = next(iter(broadcast.anchor.values())).dtype == torch.float64
        return wide and agree(self, tasks, broadcast)

    monkeypatch.setattr(TrainerChooser, "_agree", rounded)
    with federation(perceptron(), make_clients([8, 3, 5]), vectorize=True) as run:
        run.run()
        assert "clients at once" in run.training_path


def test_two_quadratic_clients_worked_out_by_hand():
    clients = quadratic_clients([[1.0, 0.0], [0.0, 2.0]])
    for vectorize in (False, True):
        model = Point()
        with federation(
            model,
            clients,
            half_square,
            clip_norm=1e6,
            noise_multiplier=1e-3,
            local=fl.SGD(lr=0.1, steps=2),
            vectorize=vectorize,
            rounds=2,
            noise=Silent(),
        ) as run:
            rounds = iter(run)
            next(rounds)
            assert torch.allclose(model.x, torch.tensor([0.095, 0.19]), atol=1e-6)
            next(rounds)
            assert torch.allclose(model.x, torch.tensor([0.17195, 0.3439]), atol=1e-6)


class Silent(fl.GaussianNoise):
    """No noise: for comparing with plain federated averaging."""

    def add(self, total, limits, std, source):
        return total


@pytest.mark.parametrize("vectorize", [False, True])
def test_without_noise_and_clipping_it_is_plain_federated_averaging(vectorize):
    clients = make_clients([6, 3, 10])
    local = fl.SGD(lr=0.2, steps=3, batch_size=None)
    model = linear()
    with federation(
        model,
        clients,
        clip_norm=1e6,
        local=local,
        vectorize=vectorize,
        noise=Silent(),
        server_lr=0.7,
    ) as run:
        run.run()
    reference = linear()
    for _ in range(3):
        start = [value.detach().clone() for value in reference.parameters()]
        moves = [torch.zeros_like(value) for value in start]
        for client in clients:
            own = linear()
            own.load_state_dict(reference.state_dict())
            optimizer = torch.optim.SGD(own.parameters(), lr=0.2)
            for _ in range(3):
                optimizer.zero_grad()
                cross_entropy(own(client.inputs), client.targets).backward()
                optimizer.step()
            for move, new, old in zip(moves, own.parameters(), start, strict=True):
                move.add_((new.detach() - old) / 3)
        with torch.no_grad():
            for value, old, move in zip(reference.parameters(), start, moves, strict=True):
                value.copy_(old + 0.7 * move)
    assert torch.allclose(flat(model), flat(reference), atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("single", [False, True], ids=["clients", "examples"])
def test_a_caller_without_gradients_changes_nothing(vectorize, single):
    [whole] = make_clients([40])
    people = fl.Examples(whole) if single else make_clients([5] * 4)
    models = linear(), linear()
    for model, grads in zip(models, (True, False), strict=True):
        with (
            torch.set_grad_enabled(grads),
            federation(model, people, vectorize=vectorize, seed=3, local=fl.SGD(lr=1.0)) as run,
        ):
            run.run()
    assert torch.equal(*map(flat, models))
