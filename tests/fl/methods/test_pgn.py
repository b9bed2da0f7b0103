"""DP-FedPGN: golden rounds, the public translation, and its limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpacct import fl
from dpacct.fl.layout import Layout, trainable
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.local.sgd import plan_batches
from dpacct.fl.methods import DPFedAvg, DPFedPGN, DPFedPGNLS
from dpacct.fl.training.tasks import Broadcast, SequentialTrainer, Task
from dpacct.fl.training.vectorized import VectorizedTrainer
from tests.fl.methods.stage import half_square, points, quadratics, simulate, vector
from tests.fl.problems import cross_entropy, make_clients, perceptron

TWO = quadratics([[1.0, 0.0], [0.0, 2.0]])
# t, Dbar_1, Dbar_2, g, x for lr 0.1, K 2, beta 0.5, rho 0.1, server rate lr K, no clipping.
ROUNDS = [
    ((0.0975, 0), (0, 0.195), (-0.24375, -0.4875), (0.04875, 0.0975)),
    (
        (0.0964978326, -0.0020043349), (-0.0010021674, 0.1929956651),
        (-0.3606141628, -0.7212283256), (0.1208728326, 0.2417456651),
    ),
    (
        (0.0891736960, -0.0166526081), (-0.0083263040, 0.1783473919),
        (-0.3824255613, -0.7648511225), (0.1973579448, 0.3947158896),
    ),
]  # fmt: skip


def updates(method, model, clients, local, state=None, loss=half_square, *, vectorized=False):
    """What clients send, before the bound [c, d]."""
    params = {name: value.detach().clone() for name, value in trainable(model).items()}
    layout = Layout.of(params)
    server = method.init(params) if state is None else state
    broadcast = Broadcast(1, params, server, local)
    tasks = [
        Task(client, plan_batches(len(client), local, torch.Generator().manual_seed(1)), None)
        for client in clients
    ]
    objective = LocalLoss(model, loss, layout.names, local.precision, functional=vectorized)
    kind = VectorizedTrainer if vectorized else SequentialTrainer
    return kind(method, objective, layout).train(tasks, broadcast)


@pytest.mark.parametrize("vectorized", [False, True])
def test_the_printed_rounds(vectorized):
    local = fl.SGD(lr=0.1, steps=2, batch_size=None)
    method = DPFedPGN(rho=0.1, beta=0.5)
    states = simulate(method, points([0.0, 0.0]), TWO, 3, local=local, vectorized=vectorized)
    for before, state, (one, two, gradient, x) in zip(states, states[1:], ROUNDS, strict=False):
        model = points(vector(before.params).tolist())
        sent = updates(method, model, TWO, local, before.server_state)
        assert sent.tolist() == [pytest.approx(one, abs=1e-9), pytest.approx(two, abs=1e-9)]
        assert (vector(state.server_state) / 2).tolist() == pytest.approx(gradient, abs=1e-9)
        assert vector(state.params).tolist() == pytest.approx(x, abs=1e-9)


LOCAL = fl.SGD(lr=0.2, epochs=2, batch_size=4, lr_decay=0.9)


def run(method, clients=None, **options):
    settings = {"loss": cross_entropy, "local": LOCAL, "clip_norm": 0.3}
    people = make_clients([8, 3, 5]) if clients is None else clients
    return simulate(method, perceptron(), people, 3, **(settings | options))


def test_without_mixing_and_radius_it_is_federated_averaging():
    plain, other = run(DPFedAvg()), run(DPFedPGN(rho=0.0, beta=1.0))
    for one, two in zip(plain, other, strict=True):
        assert torch.allclose(vector(one.params), vector(two.params), atol=1e-6)
    one = simulate(DPFedAvg(), points([0.3, -2.0]), TWO, 5)[-1]
    two = simulate(DPFedPGN(rho=0.0, beta=1.0), points([0.3, -2.0]), TWO, 5)[-1]
    assert vector(one.params).tolist() == pytest.approx(vector(two.params).tolist(), abs=2e-15)


def test_with_no_share_of_their_own_gradient_clients_send_nothing():
    method = DPFedPGN(beta=0.0)
    state = {"first": torch.tensor([0.4, -0.3], dtype=torch.float64)}
    sent = updates(method, points([1.0, 1.0]), TWO, fl.SGD(lr=0.1, steps=3), state)
    assert float(sent.abs().max()) < 1e-15
    final = simulate(method, points([1.0, 1.0]), TWO, 3)[-1]
    assert vector(final.params).tolist() == [1.0, 1.0]
    noisy = simulate(method, points([1.0, 1.0]), TWO, 3, noise=fl.GaussianNoise())[-1]
    assert vector(noisy.params).tolist() != [1.0, 1.0]


def linear_loss(outputs, targets):
    return (outputs * targets).sum(dim=1).mean()


def three_one_and_none():
    """Clients that take 3, 1 and 0 steps in an epoch of batches of one."""
    clients = quadratics([[[1.0, 0.0]] * 3, [[0.0, 2.0]]])
    return [*clients, fl.ClientData(clients[0].inputs[:0], clients[0].targets[:0])]


PUBLIC = {"first": torch.tensor([0.6, -0.8], dtype=torch.float64)}


@pytest.mark.parametrize("vectorized", [False, True])
def test_momentum_takes_no_room_for_the_public_part_however_many_steps_there_are(vectorized):
    # With no gradient of their own, what is left would be the public part.
    local = fl.SGD(lr=0.2, epochs=1, batch_size=1, momentum=0.5)
    method, model = DPFedPGN(beta=0.0), points([1.0, 1.0])
    sent = updates(method, model, three_one_and_none(), local, PUBLIC, vectorized=vectorized)
    assert float(sent.abs().max()) < 1e-15


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_what_is_sent_is_the_clients_gradients_however_many_steps_it_takes(decay, vectorized):
    # Each sends -lr beta times the sum of gradients of its loss with weight decay, at the
    # perturbed points.
    rho, beta, lr = 0.1, 0.3, 0.2
    local = fl.SGD(lr=lr, epochs=1, batch_size=1, weight_decay=decay)
    start, public = np.array([0.5, 0.5]), np.array([0.6, -0.8])
    method, model = DPFedPGN(rho, beta), points(start.tolist())
    sent = updates(method, model, three_one_and_none(), local, PUBLIC, vectorized=vectorized)
    for row, (center, steps) in zip(sent, [((1, 0), 3), ((0, 2), 1), ((0, 0), 0)], strict=True):
        y, total = start.copy(), np.zeros(2)
        for _ in range(steps):
            place = y + rho * public
            gradient = place - np.array(center) + decay * place
            total += gradient
            y = y - lr * (beta * gradient + (1 - beta) * public / steps)
        assert row.numpy() == pytest.approx(-lr * beta * total, abs=1e-14)


@pytest.mark.slow
def test_the_noise_in_the_state_settles_where_the_derivation_says():
    size, beta, z, clip, lr, steps = 500, 0.3, 2.0, 0.5, 0.1, 4
    clients = [fl.ClientData(torch.zeros(1, 1).double(), torch.zeros(1, size).double())] * 5
    states = simulate(
        DPFedPGN(rho=0.2, beta=beta), points([0.0] * size), clients, 60, loss=linear_loss,
        local=fl.SGD(lr=lr, steps=steps), clip_norm=clip, noise=fl.GaussianNoise(),
        noise_multiplier=z,
    )  # fmt: skip
    fresh = z * clip / (lr * 5 * steps)
    settled = fresh / (1 - (1 - beta) ** 2) ** 0.5
    g = torch.stack([vector(state.server_state) / steps for state in states])
    assert float(g[1].std()) == pytest.approx(fresh, rel=0.2)
    assert float(g[20::8].std()) == pytest.approx(settled, rel=0.1)
    assert settled == pytest.approx(1.40 * fresh, rel=5e-3)


@pytest.mark.usefixtures("unwatched")
def test_one_gradient_per_local_step():
    class Counted(DPFedPGN):
        calls = 0

        def gradient(self, loss, params, batch, context):
            class Watched:
                def gradient(self, *place):
                    Counted.calls += 1
                    return loss.gradient(*place)

            return super().gradient(Watched(), params, batch, context)

    updates(Counted(), points([1.0, 1.0]), TWO, fl.SGD(lr=0.1, steps=5))
    assert Counted.calls == 10


def test_smoothing_zero_is_without_smoothing():
    for one, two in zip(run(DPFedPGN()), run(DPFedPGNLS(smoothing=0.0)), strict=True):
        assert torch.equal(vector(one.params), vector(two.params))
    one, two = run(DPFedPGN())[-1], run(DPFedPGNLS(smoothing=0.5))[-1]
    assert not torch.allclose(vector(one.params), vector(two.params), atol=1e-4)
