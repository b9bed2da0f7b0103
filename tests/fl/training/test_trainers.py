"""Sequential and vectorized training: equal to each other and to torch; clients are independent."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from dpacct import fl
from dpacct.errors import Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.engine.states import Draw
from dpacct.fl.layout import Layout, trainable
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.local.sgd import chunks, plan_batches
from dpacct.fl.methods.protocol import Method
from dpacct.fl.training.choose import TrainerChooser
from dpacct.fl.training.examples import ExampleTrainer
from dpacct.fl.training.own_functions import seeds_of_steps
from dpacct.fl.training.synthetic import Kind, Synthetic
from dpacct.fl.training.tasks import Broadcast, SequentialTrainer, Task
from dpacct.fl.training.vectorized import VectorizedTrainer
from tests.fl.problems import (
    Point,
    Silent,
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

LOCAL = fl.SGD(lr=0.2, epochs=2, batch_size=4)
SIZES = [9, 4, 0, 40, 5, 1]
BOTH = pytest.mark.parametrize("vectorize", [False, True], ids=["alone", "together"])


class Words(nn.Module):
    """Tokens to classes, by an embedding of six words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(6, 5), nn.Linear(5, 3)

    def forward(self, tokens):
        return self.head(self.table(tokens).mean(dim=1))


def random_clients(sizes, make):
    generator = torch.Generator().manual_seed(3)
    return [
        ClientData(make(n, generator), torch.randint(3, (n,), generator=generator)) for n in sizes
    ]


def words(sizes):
    return random_clients(sizes, lambda n, g: torch.randint(6, (n, 4), generator=g))


def setting(model, clients, local=LOCAL, method=None, states=None, number=1, group=4):
    """Both trainers, with tasks whose seeds are the clients' own."""
    method = method or fl.DPFedAvg()
    params = {name: value.detach().clone() for name, value in trainable(model).items()}
    layout = Layout.of(params)
    tasks = []
    for place, client in enumerate(clients):
        plan = plan_batches(len(client), local, torch.Generator().manual_seed(place))
        state = method.init_client(params) if states is None else states[place]
        tasks.append(Task(client, plan, state, 1000 + place))
    loss = LocalLoss(model, cross_entropy, layout.names, local.precision, functional=False)
    alone = SequentialTrainer(method, loss, layout)
    together = VectorizedTrainer(method, loss.batched(), layout, group)
    return alone, together, tasks, Broadcast(number, params, method.init(params), local)


def both(*arguments, **options):
    """Updates and memories of both trainers."""
    *trainers, tasks, broadcast = setting(*arguments, **options)
    for trainer in trainers:
        rows = trainer.train(tasks, broadcast)
        yield rows, trainer.remember(tasks, rows, broadcast)


def same(*arguments, rtol=1e-4, atol=1e-6, **options):
    """The updates of the sequential trainer, which those of the vectorized one equal."""
    (alone, _), (together, _) = both(*arguments, **options)
    torch.testing.assert_close(together, alone, rtol=rtol, atol=atol)
    return alone


LOCALS = [
    LOCAL,
    replace(LOCAL, momentum=0.9, weight_decay=0.01, lr_decay=0.5),
    fl.SGD(lr=0.3, steps=5, batch_size=3, momentum=0.5),
    fl.SGD(lr=0.3, steps=3, batch_size=None, total_lr=True),
    fl.SGD(lr=0.3, epochs=1, batch_size=1, shuffle=False, total_lr=True, weight_decay=0.2),
    fl.SGD(lr=0.1, epochs=2, batch_size=4, weight_decay=0.2),
]


@settings(max_examples=15)
@given(
    st.lists(st.integers(0, 13), min_size=1, max_size=5),
    st.one_of(
        st.sampled_from(LOCALS),
        st.builds(fl.SGD, lr=st.just(0.2), batch_size=st.integers(1, 6), steps=st.integers(1, 4)),
    ),
)
@example([8, 8, 8], LOCALS[1])
@example([4, 0, 7], LOCALS[2])
@example([1, 9, 4, 13, 2], LOCALS[3])
def test_both_trainers_give_the_same_updates(sizes, local):
    alone = same(perceptron(), make_clients(sizes), local, number=3)
    assert [bool(row.any()) for row in alone] == [size > 0 for size in sizes]


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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("local", LOCALS)
def test_a_method_that_uses_every_stage_is_batched_right(local):
    generator = torch.Generator().manual_seed(9)
    size = flat(perceptron()).numel()
    states = [{"memory": torch.randn(size, generator=generator)} for _ in range(3)]
    (alone, kept), (together, batched) = both(
        perceptron(), make_clients([3, 8, 5]), local, Everything(), states, number=2
    )
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-6)
    for one, two in zip(kept, batched, strict=True):
        torch.testing.assert_close(one["memory"], two["memory"], rtol=1e-4, atol=1e-6)


@dataclass(frozen=True)
class Given(Method):
    """A method whose directions are tensors that it was given, or one tensor twice."""

    what: str

    def gradient(self, loss, params, batch, context):
        grads = loss.gradient(params, batch)
        return {
            "gradients": grads,
            "the parameters": dict(params),
            "other parameters": {"x": params["y"], "y": params["x"]},
            "the anchor": dict(context.anchor),
            "one": {"x": grads["x"], "y": grads["x"]},
        }[self.what]


class Sum(nn.Module):
    """Its two parameters have one gradient, which may be one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.3, -0.7, 0.2]))
        self.y = nn.Parameter(torch.tensor([1.1, 0.4, -0.5]))

    def forward(self, inputs):
        return (self.x + self.y) * inputs[:, :3]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "what", ["gradients", "the parameters", "other parameters", "the anchor", "one"]
)
def test_directions_that_share_memory_are_batched_right(what):
    for momentum, decay, total in itertools.product((0.0, 0.5), (0.0, 0.4), (False, True)):
        local = replace(LOCAL, momentum=momentum, weight_decay=decay, total_lr=total)
        same(Sum(), make_clients([8, 3, 0, 5]), local, Given(what))


def test_convolutions_double_precision_and_words_are_batched_right():
    pictures = random_clients([6, 3, 9], lambda n, g: torch.randn(n, 1, 8, 8, generator=g))
    same(convolutional(), pictures, rtol=1e-3, atol=1e-5)
    clients = [ClientData(c.inputs.double(), c.targets) for c in make_clients([5, 7])]
    assert same(perceptron().double(), clients, rtol=1e-10, atol=1e-14).dtype == torch.float64
    same(Words(), words([6, 3]))


class Viewed(nn.Module):
    """Views of the outputs of a linear layer, and weights that are one vector."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(1, 4), nn.Linear(24, 3)
        self.vector = nn.Parameter(torch.randn(3))

    def forward(self, inputs):
        outputs = self.two(self.one(inputs.unsqueeze(-1)).view(len(inputs), -1))
        return outputs * nn.functional.linear(outputs, self.vector).unsqueeze(-1)


@pytest.mark.parametrize("padding", [None, 0, 3, -1])
def test_the_row_of_padding_stays_at_every_place_of_a_group(padding):
    model = Words()
    model.table.padding_idx = padding
    updates = same(model, words([9, 4, 6, 13]))
    table = updates[:, : model.table.weight.numel()].view(4, 6, 5)
    assert padding is None or not table[:, padding].any()


def test_outputs_of_linear_layers_are_as_torch_lays_them():
    same(Viewed(), make_clients(SIZES))


@pytest.mark.parametrize("table", [nn.Embedding, nn.EmbeddingBag])
def test_frequencies_of_tokens_are_not_those_of_a_group(table):
    model = Words()
    own = table(6, 5, scale_grad_by_freq=True)
    model.table = own if table is nn.Embedding else nn.Sequential(own, nn.Unflatten(1, (1, 5)))
    with pytest.raises(NotImplementedError, match="all clients"):
        list(both(model, words([4, 4])))


def test_reduced_precision_changes_little_and_returns_full_precision():
    clients = make_clients([8, 8])
    full = same(perceptron(), clients)
    low = replace(LOCAL, precision="bfloat16")
    for rows, _ in both(perceptron(), clients, low):
        assert rows.dtype == torch.float32
        assert 0 < (rows - full).norm() < 0.1 * full.norm()


def test_unused_and_frozen_parameters_are_handled():
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(6, 3), nn.Linear(2, 2)
            self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

        def forward(self, inputs):
            return self.used(inputs) * self.frozen

    alone = same(Partly(), make_clients([6, 6]))
    assert alone.shape[1] == 6 * 3 + 3 + 2 * 2 + 2
    assert not alone[:, -6:].any()
    assert alone[:, :21].any()


# Oracles: torch's own optimizer, plain federated averaging, a run worked out by hand.


def torch_steps(model, client, count, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for _ in range(count):
        optimizer.zero_grad()
        cross_entropy(model(client.inputs), client.targets).backward()
        optimizer.step()
    return flat(model)


@BOTH
def test_without_noise_and_clipping_it_is_plain_federated_averaging(vectorize):
    clients, model = make_clients([6, 3, 10]), linear()
    options = {"clip_norm": 1e6, "noise": Silent(), "server_lr": 0.7, "vectorize": vectorize}
    with federation(
        model, clients, local=fl.SGD(lr=0.2, steps=3, batch_size=None), **options
    ) as run:
        run.run()
    reference = linear()
    for _ in range(3):
        start = flat(reference)
        moves = []
        for client in clients:
            own = linear()
            own.load_state_dict(reference.state_dict())
            moves.append(torch_steps(own, client, 3, lr=0.2) - start)
        moved = start + 0.7 * torch.stack(moves).mean(dim=0)
        nn.utils.vector_to_parameters(moved, reference.parameters())
    torch.testing.assert_close(flat(model), flat(reference), rtol=0, atol=1e-5)


@BOTH
def test_two_quadratic_clients_worked_out_by_hand(vectorize):
    clients = quadratic_clients([[1.0, 0.0], [0.0, 2.0]])
    options = {"clip_norm": 1e6, "noise": Silent(), "vectorize": vectorize, "rounds": 2}
    local = fl.SGD(lr=0.1, steps=2)
    with federation(model := Point(), clients, half_square, local=local, **options) as run:
        for _, expected in zip(run, ([0.095, 0.19], [0.17195, 0.3439]), strict=True):
            torch.testing.assert_close(model.x.detach(), torch.tensor(expected), rtol=0, atol=1e-6)


def test_an_update_that_is_the_same_for_all_clients_is_batched_right():
    constant = {"local_update": lambda *_: torch.full((21,), 3.0)}
    same(linear(), make_clients([4] * 3), method=type("Constant", (Method,), constant)())


# No client depends on the others.

MODELS = {
    "perceptron": (perceptron, make_clients),
    "words": (Words, words),
    "dropout": (
        lambda: nn.Sequential(perceptron(), nn.Dropout(0.5), nn.Linear(3, 3)),
        make_clients,
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("local", [LOCAL, LOCALS[1], LOCALS[3]])
@pytest.mark.parametrize("name", MODELS)
def test_an_update_does_not_depend_on_the_other_clients(name, local):
    """Bit by bit here: groups of one size, padding and seeds of a client's own."""
    build, make = MODELS[name]
    _, together, tasks, broadcast = setting(build(), make(SIZES), local)
    rows = together.train(tasks, broadcast)
    assert bool(rows.isfinite().all())
    for place, task in enumerate(tasks):
        assert torch.equal(together.train([task], broadcast)[0], rows[place])
    turned = together.train(tasks[::-1], broadcast).flip(0)
    torch.testing.assert_close(turned, rows, rtol=1e-6, atol=1e-7)
    # Another client, however strange, changes nothing.
    strange = ClientData(tasks[3].data.inputs[:9], tasks[3].data.targets[:9])
    tasks[0] = replace(tasks[0], data=strange)
    assert torch.equal(together.train(tasks, broadcast)[1:], rows[1:])


def test_groups_have_one_size_for_every_cohort(monkeypatch):
    _, together, tasks, broadcast = setting(perceptron(), make_clients([4] * 9))
    sizes, compute = [], VectorizedTrainer._train_group

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
    clean = together.train(tasks, broadcast)
    clients[3].inputs[2, 1] = value
    rows = together.train(tasks, broadcast)
    assert [torch.equal(*pair) for pair in zip(rows, clean, strict=True)] == [
        place != 3 for place in range(6)
    ]


@pytest.mark.sampled(2)
@BOTH
@pytest.mark.parametrize("token", [-1, 6, 8, 10**6])
def test_a_token_out_of_range_costs_its_own_client(vectorize, token):
    finals = []
    for change in (False, True):
        clients = words([6] * 5)
        if change:
            clients[2].inputs[3, 1] = token
        options = {"vectorize": vectorize, "clip_norm": 0.1, "seed": 1, "rounds": 1}
        run = federation(Words(), clients, **options)
        assert run.run().diagnostics.dropped_updates == change
        finals.append(flat(run.model))
    assert float((finals[0] - finals[1]).norm()) <= 2 * 0.1 / 5 * (1 + 1e-4)


def test_dropout_is_drawn_for_each_client_step_and_layer():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3), nn.Dropout(0.5))
    local = fl.SGD(lr=1.0, steps=1, batch_size=None)
    _, together, tasks, broadcast = setting(model, [make_clients([8])[0]] * 3, local)
    rows = together.train(tasks, broadcast)
    assert len({tuple(row.tolist()) for row in rows}) == 3
    one, two, _ = together.train([replace(task, seed=7) for task in tasks], broadcast)
    torch.testing.assert_close(one, two)
    # Else masks would depend on the clients that are listed between two clients.
    seeds = [Draw([], [], 0, order=123456789123456789).seed_of(client) for client in range(100)]
    assert len(torch.unique(seeds_of_steps(torch.tensor(seeds), 5))) == 500


@pytest.mark.parametrize("count", [1, 3, 8, 9, 21])
def test_an_example_does_not_depend_on_the_others(count):
    model, rows = nn.Sequential(perceptron(), nn.Dropout(0.3)), make_clients([21])[0]
    params = {name: value.detach().clone() for name, value in trainable(model).items()}
    layout = Layout.of(params)
    loss = LocalLoss(model, cross_entropy, layout.names, "float32", functional=True)
    trainer = ExampleTrainer(fl.DPFedAvg(), loss, layout, 8, Kind.of(rows))
    broadcast = Broadcast(1, params, {}, fl.SGD(lr=1.0, steps=1, batch_size=1))

    def gradients(numbers):
        seeds = [number + 5 for number in numbers]
        batch = trainer.read(fl.Examples(rows), numbers, seeds, torch.device("cpu"))
        return torch.cat([group.rows() for group in trainer.groups(batch, broadcast)])

    expected = gradients(range(21))
    torch.testing.assert_close(gradients(range(count)), expected[:count], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(gradients([20]), expected[20:], rtol=1e-6, atol=1e-8)


# What clients share stays as it was.


class Writes(nn.Module):
    """Writes to something that clients share: a parameter, a frozen one, or a buffer."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(6, 3), how
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("buffer", torch.zeros(3))

    def forward(self, inputs):
        outputs = self.layer(inputs) * self.frozen
        shared = {"parameter": self.layer.weight, "frozen": self.frozen, "buffer": self.buffer}
        with torch.no_grad():
            shared[self.how].add_(0.001 * outputs.detach().mean())
        return outputs


seen: list[torch.Tensor] = []


class Hides(nn.Linear):
    """Keeps what it has seen where nobody looks."""

    def forward(self, inputs):
        seen.append(inputs.detach().mean())
        return super().forward(inputs + seen[-2] if len(seen) > 1 else inputs)


@pytest.mark.parametrize(
    ("build", "vectorize"),
    [*itertools.product(["parameter", "frozen", "buffer"], [False, True]), ("hides", False)],
)
def test_a_model_that_keeps_something_is_refused(build, vectorize):
    words = r"while a client trains|vmap|leaf|inplace"
    if build == "hides":
        words = "keeps something between clients"
    model = Hides(6, 3) if build == "hides" else Writes(build)
    run = federation(model, make_clients([6] * 3), vectorize=vectorize)
    with run, pytest.raises((Unsupported, RuntimeError), match=words):
        run.run()


# Batches, and the choice of a trainer.


def test_batches_use_every_example_once_an_epoch_in_chunks_of_even_size():
    plan = plan_batches(10, fl.SGD(epochs=3, batch_size=4), torch.Generator().manual_seed(0))
    assert plan.counts.tolist() == [4, 4, 2] * 3
    for epoch in range(3):
        rows = [plan.indices[3 * epoch + k, : plan.counts[k]] for k in range(3)]
        assert sorted(torch.cat(rows).tolist()) == list(range(10))
    assert len({tuple(plan.indices[3 * epoch].tolist()) for epoch in range(3)}) == 3
    plan = plan_batches(5, fl.SGD(epochs=2, batch_size=2, shuffle=False), torch.Generator())
    assert plan.indices[:3].flatten()[:5].tolist() == [0, 1, 2, 3, 4]
    assert plan.counts.tolist() == [2, 2, 1, 2, 2, 1]
    assert chunks(range(10), 4) == [range(3), range(3, 6), range(6, 10)]
    for count, size in itertools.product(range(20), range(1, 9)):
        parts = chunks(range(count), size)
        assert [client for part in parts for client in part] == list(range(count))
        assert all(0 < len(part) <= size for part in parts)
        assert len(parts) == -(-count // size)


@pytest.mark.usefixtures("uncounted")
def test_the_batches_of_a_client_do_not_depend_on_the_trainer_or_the_chunk():
    finals = []
    for options in ({}, {"vectorize": True}, {"vectorize": True, "chunk_size": 2}):
        run = federation(perceptron(), make_clients([7, 3, 9, 5, 4]), seed=5, **options)
        run.run()
        finals.append(flat(run.model))
    torch.testing.assert_close(finals[1:], finals[:1] * 2, rtol=0, atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("cohort", "size"), [(25, 32), (50, 64), (100, 120), (200, 112)])
def test_groups_are_equal_and_hold_most_cohorts(cohort, size):
    options = {"vectorize": True, "sampling": fl.Poisson(cohort / 500)}
    with federation(linear(), make_clients([4] * 500), **options) as run:
        next(iter(run))
        assert run.choice.plan.group == size


@dataclass(frozen=True)
class Branching(Method):
    def gradient(self, loss, params, batch, context):
        grads = loss.gradient(params, batch)
        if float(next(iter(grads.values())).sum()) > 0:
            return grads
        return {name: 2 * value for name, value in grads.items()}


class Noisy(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs + 0.1 * torch.randn_like(inputs))


def weighted(outputs, targets):
    return cross_entropy(outputs, targets, weight=torch.tensor([5.0, 1.0, 0.2]))


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (linear(), {"method": Branching()}, "torch.func cannot batch"),
        (Noisy(6, 3), {}, "torch.func cannot batch"),
        (linear(), {"loss": weighted}, "another result"),
    ],
    ids=["branches", "random numbers", "no mean"],
)
def test_a_run_that_cannot_be_batched_is_trained_one_by_one(model, options, words):
    clients = make_clients([14] * 4)
    with federation(model, clients, vectorize="auto", rounds=1, **options) as run:
        assert run.training_path == ""
        run.run()
        assert run.training_path.startswith("one client at a time")
        assert words in run.training_path
    run = federation(model, clients, vectorize=True, **options)
    with run, pytest.raises(Unsupported, match=f"vectorize=True, but .*{words}"):
        run.run()


def test_a_difference_that_hardly_happens_twice_was_rounding(monkeypatch):
    compare, calls = TrainerChooser.compare, list[int]()

    def rounded(self, tasks, broadcast):
        calls.append(1)
        return compare(self, tasks, broadcast) or ("rounding" if len(calls) == 1 else "")

    monkeypatch.setattr(TrainerChooser, "compare", rounded)
    with federation(perceptron(), make_clients([8, 3, 5]), vectorize=True) as run:
        run.run()
        assert "clients at once" in run.training_path


SECONDS = "dpacct.fl.training.choose._seconds"


@pytest.mark.parametrize("slow", ["alone", "groups", "unknown"])
def test_the_faster_trainer_is_taken_and_kept_and_a_seeded_run_does_not_measure(
    slow, monkeypatch, tmp_path
):
    def seconds(trainer, *_):
        assert slow != "unknown"
        return 1e-2 if isinstance(trainer, SequentialTrainer) == (slow == "alone") else 1e-5

    def chosen(resumed, vectorize="auto"):
        seed = 3 if slow == "unknown" else None
        options = {"vectorize": vectorize, "checkpoint": tmp_path / "run.pt", "seed": seed}
        with federation(linear(), make_clients([6] * 30), **options) as run:
            next(iter(run.resume() if resumed else run))
            return run.choice.plan, run.training_path

    monkeypatch.setattr(SECONDS, seconds)
    first = chosen(resumed=False)
    assert first[0].vectorized == (slow != "groups")
    monkeypatch.setattr(SECONDS, lambda *_: 1.0)
    assert chosen(resumed=True) == first
    # A resumed run may be told otherwise.
    assert chosen(resumed=True, vectorize=False)[1].startswith("one client at a time")


def test_little_memory_means_small_groups(monkeypatch):
    [client] = make_clients([8])
    params = {name: value.detach() for name, value in trainable(perceptron()).items()}
    broadcast, layout = Broadcast(1, params, {}, LOCAL), Layout.of(params)

    def make(size, _):
        return ClientData(client.inputs[:size], client.targets[:size])

    def choose(limit):
        monkeypatch.setattr("dpacct.fl.training.choose._MEMORY", limit)
        arguments = (perceptron(), cross_entropy, fl.DPFedAvg(), layout, LOCAL)
        chooser = TrainerChooser(*arguments, vectorize=True)
        return chooser.choose(Synthetic(make, Kind.of(client), None), broadcast, 100).plan

    assert choose(20_000).group < choose(1 << 30).group == 120
    with pytest.raises(Unsupported, match="memory has no room"):
        choose(1000)
