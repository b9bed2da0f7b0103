"""What a client sends is a function of its data and the broadcast, to the last bit.

Training side by side pads, batches and masks; none of that may show who else was there. At a rate
at which training is chaotic, one bit of difference becomes a difference of everything.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from dpacct import fl
from dpacct.errors import Unsupported
from dpacct.fl.layout import Layout, trainable
from dpacct.fl.local.batches import plan_batches
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.models.lstm import CharacterLSTM
from dpacct.fl.models.networks import ConvNet
from dpacct.fl.trainers.dropout import OwnDropout
from dpacct.fl.trainers.groups import GroupTrainer
from dpacct.fl.trainers.sequential import Broadcast, SequentialTrainer, Task
from dpacct.fl.trainers.vectorized import VectorizedTrainer
from tests.fl.problems import cross_entropy, federation

PLAIN = fl.SGD(lr=1.0, epochs=2, batch_size=5)
RAGGED = fl.SGD(lr=3.0, epochs=2, batch_size=5, momentum=0.9, weight_decay=0.01)
WHOLE = fl.SGD(lr=3.0, steps=4, batch_size=None, momentum=0.5)
SHARED_RATE = fl.SGD(lr=9.0, epochs=3, batch_size=3, total_lr=True)


def vectors(size, generator):
    return torch.randn(size, 13, generator=generator), (3,)


def images(size, generator):
    return torch.randn(size, 1, 8, 8, generator=generator), (3,)


def texts(size, generator):
    return torch.randint(11, (size, 7), generator=generator), (11, 7)


def logistic():
    return nn.Linear(13, 3), vectors


def perceptron():
    layers = [nn.Linear(13, 9), nn.Sigmoid(), nn.Linear(9, 7), nn.GELU(), nn.Linear(7, 3)]
    return nn.Sequential(*layers), vectors


def wide():
    layers = [nn.Linear(13, 640), nn.Sigmoid(), nn.Linear(640, 13), nn.Tanh(), nn.Linear(13, 3)]
    return nn.Sequential(*layers), vectors


def convolutional():
    return ConvNet((1, 8, 8), 3, channels=(3, 5), kernel=3, hidden=(7,)), images


def normalized():
    layers = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.AvgPool2d(6), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4, 3)), images


def recurrent():
    return CharacterLSTM(11, embedding=3, num_units=5, num_layers=1), texts


def dropping():
    layers = [nn.Dropout(0.2), nn.Linear(13, 9), nn.Dropout(inplace=True), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(9, 3)), vectors


def client(draw, size, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs, (classes, *rest) = draw(size, generator)
    return fl.ClientData(inputs, torch.randint(classes, (size, *rest), generator=generator))


def setting(build, local, method=None, loss=cross_entropy):
    torch.manual_seed(3)
    model, draw = build()
    method = method or fl.DPFedAvg()
    local = method.prepare(local)
    params = {name: value.detach().clone() for name, value in trainable(model).items()}
    layout = Layout.of(params)
    objective = LocalLoss(model, loss, layout.names, local.precision, functional=True)
    trainer = GroupTrainer(VectorizedTrainer(method, objective, layout))
    server = {
        name: value + 0.1 * torch.randn(value.shape, dtype=value.dtype)
        for name, value in method.init(dict(params)).items()
    }
    broadcast = Broadcast(1, params, server, local, 0.3)

    def task(data, seed):
        plan = plan_batches(len(data), local, torch.Generator().manual_seed(seed))
        return Task(data, plan, method.init_client(params), seed)

    return trainer, broadcast, draw, task


def companies(draw):
    """Who else may be there: nobody, few, many, the large, the empty, and the broken."""
    broken = client(draw, 6, 77)
    if broken.inputs.is_floating_point():
        broken.inputs[0] = math.nan
        broken.inputs[3] = 3e38
    yield [], 0
    yield [3, 0, 29], 1
    yield [1] * 40, 37
    yield [4, 33, 8, 2, 70], 5
    yield [broken, 9, broken], 2
    yield [5] * 31, 31


def assert_alone(trainer, broadcast, draw, task, size=9):
    target = task(client(draw, size, 99), 5)
    expected, kept = None, None
    for sizes, place in companies(draw):
        others = [c if isinstance(c, fl.ClientData) else client(draw, c, 7 + c) for c in sizes]
        tasks = [task(other, 50 + number) for number, other in enumerate(others)]
        tasks.insert(place, target)
        rows = trainer.train(tasks, broadcast)
        states = trainer.remember(tasks, rows, broadcast)
        if expected is None:
            expected = rows[place]
            kept = states and states[place]
            assert bool(expected.isfinite().all())
            assert bool(expected.any())
        assert torch.equal(rows[place], expected)
        for name in kept or {}:
            assert torch.equal(states[place][name], kept[name])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("local", [RAGGED, WHOLE, SHARED_RATE])
@pytest.mark.parametrize(
    "build", [logistic, perceptron, convolutional, normalized, recurrent, dropping]
)
def test_an_update_does_not_show_who_else_trained(build, local):
    assert_alone(*setting(build, local))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(fl.METHODS))
def test_nor_does_it_in_any_method(name):
    # Those that read gradients off displacements take no momentum.
    plain = "pgn" in name or name in ("scaffold", "fedcm")
    local = PLAIN if plain else RAGGED
    assert_alone(*setting(perceptron, local, fl.METHODS[name]()))


def test_nor_does_it_in_reduced_precision():
    assert_alone(*setting(perceptron, replace(RAGGED, precision="bfloat16")))


@pytest.mark.parametrize("size", [1, 16, 17])
def test_nor_does_it_for_clients_of_any_size(size):
    assert_alone(*setting(perceptron, WHOLE, fl.DPFedSAM()), size=size)


def test_nor_does_it_under_another_loss():
    def squared(outputs, targets):
        return (outputs - nn.functional.one_hot(targets, 3)).square().mean()

    assert_alone(*setting(perceptron, RAGGED, loss=squared))


def test_targets_that_another_client_leaves_out_change_nothing():
    trainer, broadcast, draw, task = setting(logistic, RAGGED)
    target = task(client(draw, 9, 99), 5)
    other = client(draw, 8, 1)
    plain = trainer.train([target, task(other, 2)], broadcast)
    other.targets[2] = -100
    partly = trainer.train([target, task(other, 2)], broadcast)
    assert torch.equal(plain[0], partly[0])
    assert not torch.equal(plain[1], partly[1])


@pytest.mark.parametrize("build", [logistic, recurrent])
def test_targets_that_are_left_out_count_as_they_do_one_by_one(build):
    local = fl.SGD(lr=0.1, epochs=2, batch_size=4)
    trainer, broadcast, draw, task = setting(build, local)
    torch.manual_seed(3)
    model, _ = build()
    names = tuple(broadcast.anchor)
    objective = LocalLoss(model, cross_entropy, names, "float32", functional=False)
    alone = SequentialTrainer(fl.DPFedAvg(), objective, Layout.of(broadcast.anchor))
    data = client(draw, 7, 1)
    data.targets[1] = data.targets[4] = -100
    tasks = [task(data, 2), task(client(draw, 3, 4), 3)]
    found, expected = trainer.train(tasks, broadcast), alone.train(tasks, broadcast)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_threads_change_nothing():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        # Large enough for loops over elements to be split, at places that are no multiple of 32.
        layers = [nn.Linear(13, 301), nn.Sigmoid(), nn.Linear(301, 3)]
        assert_alone(*setting(lambda: (nn.Sequential(*layers), vectors), RAGGED))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("build", [perceptron, normalized])
def test_one_by_one_nobody_shows_either(build):
    _, broadcast, draw, task = setting(build, RAGGED)
    torch.manual_seed(3)
    model, _ = build()
    layout = Layout.of(broadcast.anchor)
    objective = LocalLoss(model, cross_entropy, layout.names, "float32", functional=False)
    assert_alone(SequentialTrainer(fl.DPFedAvg(), objective, layout), broadcast, draw, task)


class Jitter(nn.Module):
    """Draws numbers that no client can have of its own side by side."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(13, 3)

    def forward(self, inputs):
        return self.layer(inputs + 0.1 * torch.randn_like(inputs))


def test_a_model_with_other_random_numbers_is_trained_one_by_one():
    clients = [client(vectors, 4, seed) for seed in range(33)]
    options = {"clip_norm": 1.0, "noise_multiplier": 1.0, "sampling": fl.Full(), "rounds": 1}
    with fl.Federation(Jitter(), cross_entropy, clients, **options) as run:
        run.run()
        assert run.training_path.startswith("one client at a time")
    refused = fl.Federation(Jitter(), cross_entropy, clients, vectorize=True, **options)
    with refused, pytest.raises(Unsupported, match="random"):
        refused.run()


def test_dropout_side_by_side_is_another_one_for_each_client_and_round():
    trainer, broadcast, draw, task = setting(dropping, fl.SGD(lr=0.1, epochs=1, batch_size=4))
    data = client(draw, 8, 1)
    rows = trainer.train([task(data, seed) for seed in (11, 12, 11)], broadcast)
    assert torch.equal(rows[0], rows[2])
    # The batches differ as well; without dropout one batch of all examples gives one update.
    trainer, broadcast, _, task = setting(dropping, fl.SGD(lr=0.1, epochs=1, batch_size=None))
    rows = trainer.train([task(data, seed) for seed in (11, 12)], broadcast)
    assert float((rows[0] - rows[1]).norm()) > 0.1 * float(rows[0].norm())


def test_each_dropout_of_a_model_drops_others():
    ones = torch.ones(1, 64)
    with OwnDropout(torch.tensor(5)):
        first, second = (torch.nn.functional.dropout(ones) for _ in range(2))
    assert not torch.equal(first, second)


class Channels(nn.Module):
    """Random numbers that no seed of ours replaces."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 6), nn.Dropout1d(0.3), nn.Linear(6, 3)

    def forward(self, inputs):
        rows = inputs[:, :12].reshape(len(inputs), 3, 4)
        return self.last(self.drop(self.first(rows)).mean(1))


@pytest.mark.parametrize("population", [list, fl.Examples])
def test_a_model_with_random_operations_of_its_own_is_trained_one_by_one(population):
    clients = [client(vectors, 6, seed) for seed in range(4)]
    if population is fl.Examples:
        both = [torch.cat([getattr(c, name) for c in clients]) for name in ("inputs", "targets")]
        clients = fl.Examples(fl.ClientData(*both))
    options = {} if population is list else {"local": None}
    with federation(Channels(), clients, vectorize="auto", rounds=1, **options) as run:
        run.run()
        assert "at a time" in run.training_path
        assert "torch.func cannot batch" in run.training_path
