"""Local steps of SGD with a bound, and of Adam, against torch's own, in both trainers."""

from __future__ import annotations

import pytest
import torch

from dpacct import fl
from dpacct.errors import InvalidParameter
from dpacct.fl.layout import Layout, trainable
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.local.sgd import plan_batches
from dpacct.fl.methods import DPFedAvg
from dpacct.fl.training.tasks import Broadcast, SequentialTrainer, Task
from dpacct.fl.training.vectorized import VectorizedTrainer
from tests.fl.problems import cross_entropy, federation, flat, make_clients, perceptron

LIMIT = 0.5


def sgd(parameters, local):
    momentum, decay = local.momentum, local.weight_decay
    return torch.optim.SGD(parameters, lr=local.lr, momentum=momentum, weight_decay=decay)


def adam(parameters, local):
    betas, decay = (local.beta1, local.beta2), local.weight_decay
    return torch.optim.Adam(parameters, local.lr, betas, local.floor, weight_decay=decay)


def by_torch(client, local, make):
    model = perceptron()
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer = make(model.parameters(), local)
    lengths = []
    for _ in range(local.count_steps(len(client))):
        optimizer.zero_grad()
        cross_entropy(model(client.inputs), client.targets).backward()
        if local.max_grad_norm is not None:
            lengths.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)))
        optimizer.step()
    # The bound is felt in this test.
    assert not lengths or max(lengths) > LIMIT
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach() - start


def trained(kind, clients, local):
    model = perceptron()
    params = {name: value.detach().clone() for name, value in trainable(model).items()}
    layout = Layout.of(params)
    tasks = [
        Task(client, plan_batches(len(client), local, torch.Generator()), None)
        for client in clients
    ]
    functional = kind is VectorizedTrainer
    loss = LocalLoss(model, cross_entropy, layout.names, "float32", functional=functional)
    return kind(DPFedAvg(), loss, layout).train(tasks, Broadcast(1, params, {}, local))


@pytest.mark.parametrize("kind", [SequentialTrainer, VectorizedTrainer])
@pytest.mark.parametrize(
    ("make", "local"),
    [
        (sgd, fl.SGD(lr=0.3, steps=4, batch_size=None, max_grad_norm=LIMIT)),
        (sgd, fl.SGD(lr=0.3, steps=4, batch_size=None, momentum=0.5, max_grad_norm=LIMIT)),
        (sgd, fl.SGD(lr=0.1, steps=6, batch_size=None, momentum=0.9, weight_decay=0.1)),
        (adam, fl.LocalAdam(lr=0.03, steps=5, batch_size=None)),
        (adam, fl.LocalAdam(lr=0.03, steps=5, batch_size=None, beta1=0.5, weight_decay=0.1)),
        (adam, fl.LocalAdam(lr=0.03, steps=5, batch_size=None, floor=0.1, max_grad_norm=LIMIT)),
    ],
)
def test_steps_are_those_of_torch(kind, make, local):
    clients = make_clients([6, 9, 4])
    rows = trained(kind, clients, local)
    expected = torch.stack([by_torch(client, local, make) for client in clients])
    assert torch.allclose(rows, expected, atol=4e-6)


def test_clients_with_few_adam_steps_stop_while_others_go_on():
    local, clients = fl.LocalAdam(lr=0.01, epochs=2, batch_size=3), make_clients([2, 0, 11, 5])
    one, two = (trained(kind, clients, local) for kind in (SequentialTrainer, VectorizedTrainer))
    assert torch.allclose(one, two, atol=1e-4)
    assert not one[1].any()
    assert one[2].norm() > one[0].norm() > 0


def test_moments_begin_at_zero_in_every_round():
    """The first step of Adam has the size of its learning rate, in each round again."""
    local = fl.LocalAdam(lr=0.01, steps=1, batch_size=None)
    model = perceptron()
    run = federation(model, make_clients([8]), local=local, noise_multiplier=1e-3, clip_norm=0.2)
    before = flat(model)
    for _ in run:
        after = flat(model)
        moves, before = (after - before).abs(), after
        assert float(moves.median()) == pytest.approx(0.01, rel=0.05)


ADAM_REFUSED = ("dp-fedpgn", "dp-fedpgn-ls", "scaffold", "fedcm", "alpha-normec")


@pytest.mark.sampled(5)
@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize("name", sorted(set(fl.METHODS) - set(ADAM_REFUSED)))
def test_every_method_trains_with_adam(name):
    """Group and single clients agree for every method that takes Adam."""
    local, clients, ends = fl.LocalAdam(lr=0.01, steps=3, batch_size=4), make_clients([6, 9, 4]), []
    for vectorize in (False, True):
        settings = {"method": fl.METHODS[name](), "noise_multiplier": 0.01, "seed": 3}
        run = federation(perceptron(), clients, vectorize=vectorize, local=local, **settings)
        run.run()
        ends.append(flat(run.model))
    assert torch.allclose(*ends, atol=1e-4)
    assert not torch.equal(ends[0], flat(perceptron()))


def test_single_examples_and_other_settings_refuse_adam():
    for name in ADAM_REFUSED:
        with pytest.raises(InvalidParameter, match="Adam"):
            fl.METHODS[name]().prepare(fl.LocalAdam(lr=0.01, steps=3))
    examples = fl.Examples(make_clients([9])[0])
    with pytest.raises(InvalidParameter, match=r"server=fl\.Adam"):
        federation(perceptron(), examples, local=fl.LocalAdam())
    for make, words in (
        (lambda: fl.LocalAdam(beta1=1.0), "beta1"),
        (lambda: fl.LocalAdam(floor=0.0), "floor"),
        (lambda: fl.SGD(max_grad_norm=0.0), "max_grad_norm"),
    ):
        with pytest.raises(InvalidParameter, match=words):
            make()


CHANGED = {"momentum": 0.5, "total_lr": True, "max_grad_norm": 1.0}


@pytest.mark.parametrize("name", CHANGED)
def test_methods_that_read_sums_of_gradients_refuse_other_steps(name):
    local = fl.SGD(**{name: CHANGED[name]})
    assert fl.FedDyn().prepare(local) == local
    for method in (fl.DPFedPGN(), fl.Scaffold(), fl.FedCM()):
        if name == "momentum" and isinstance(method, fl.DPFedPGN):
            # It takes momentum out of the public part.
            assert method.prepare(local) == local
            continue
        with pytest.raises(InvalidParameter, match=method.name) as refused:
            method.prepare(local)
        assert refused.value.name == name
