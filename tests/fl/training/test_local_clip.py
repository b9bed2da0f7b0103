"""The bound of a local step's gradient, against torch's own, in both trainers."""

from __future__ import annotations

import pytest
import torch

from dpacct import fl
from dpacct.errors import InvalidParameter
from dpacct.fl.layout import Layout, trainable
from dpacct.fl.local.batches import plan_batches
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.methods import DPFedAvg
from dpacct.fl.training.sequential import SequentialTrainer
from dpacct.fl.training.tasks import Broadcast, Task
from dpacct.fl.training.vectorized import VectorizedTrainer
from tests.fl.problems import cross_entropy, make_clients, perceptron

LIMIT = 0.5


def by_torch(client, local):
    model = perceptron()
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=local.lr, momentum=local.momentum
    )  # fmt: skip
    lengths = []
    for _ in range(local.steps):
        optimizer.zero_grad()
        cross_entropy(model(client.inputs), client.targets).backward()
        lengths.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)))
        optimizer.step()
    # The bound is felt in this test.
    assert max(lengths) > LIMIT
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach() - start


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("kind", [SequentialTrainer, VectorizedTrainer])
def test_each_step_is_bounded_as_torch_bounds_it(kind, momentum):
    clients = make_clients([6, 6, 6])
    local = fl.SGD(lr=0.3, steps=4, batch_size=None, momentum=momentum, max_grad_norm=LIMIT)
    model = perceptron()
    params = {name: value.detach().clone() for name, value in trainable(model).items()}
    layout = Layout.of(params)
    tasks = [
        Task(client, plan_batches(len(client), local, torch.Generator()), None)
        for client in clients
    ]
    functional = kind is VectorizedTrainer
    loss = LocalLoss(model, cross_entropy, layout.names, "float32", functional=functional)
    rows = kind(DPFedAvg(), loss, layout).train(tasks, Broadcast(1, params, {}, local))
    expected = torch.stack([by_torch(client, local) for client in clients])
    assert torch.allclose(rows, expected, atol=2e-6)


@pytest.mark.parametrize("method", [fl.DPFedPGN(), fl.Scaffold(), fl.FedCM(), fl.FedDyn()])
def test_methods_that_read_sums_of_gradients_refuse_it(method):
    local = fl.SGD(max_grad_norm=1.0)
    if isinstance(method, fl.FedDyn):
        assert method.prepare(local) == local
        return
    with pytest.raises(InvalidParameter, match="max_grad_norm"):
        method.prepare(local)


def test_a_bound_is_above_zero():
    with pytest.raises(InvalidParameter, match="max_grad_norm"):
        fl.SGD(max_grad_norm=0.0)
