"""Methods whose participants remember, and optimizers on the server: what is charged and kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dpacct import fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.engine.checkpoint import read_checkpoint
from dpacct.fl.methods.protocol import Method
from dpacct.fl.postprocess import ServerState
from tests.fl.methods.stage import points, quadratics, simulate
from tests.fl.problems import federation, flat, goes_on, make_clients, perceptron

REMEMBERING = [fl.Scaffold(), fl.FedDyn()]
named = pytest.mark.parametrize("method", REMEMBERING, ids=lambda method: method.name)


def run(model: nn.Module, **options: Any):
    settings: dict[str, Any] = {
        "rounds": 4,
        "sampling": fl.Poisson(0.6),
        "local": fl.SGD(lr=0.2, epochs=1, batch_size=3),
        "seed": 12,
    }
    return federation(model, make_clients([5, 3, 8, 6]), **(settings | options))


@pytest.mark.sampled(1)
@named
def test_cohorts_of_fixed_size_are_refused_and_poisson_is_charged_by_pairs(method, tmp_path):
    with pytest.raises(Unsupported, match="remember when they took part"):
        run(perceptron(), method=method, sampling=fl.Uniform(2, 4))
    with run(perceptron(), method=method, seed=None, ledger=tmp_path / "a.ledger") as found:
        found.run()
        [charged] = found.account._ledger.runs
        assert charged.accountant == "pairs"


@named
def test_only_those_who_take_part_remember(method):
    clients = quadratics([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    cohorts = [[0, 2], [2], []]
    states = simulate(method, points([0.0, 0.0]), clients, 3, cohorts=cohorts)
    assert [sorted(state.client_states) for state in states] == [[], [0, 2], [0, 2], [0, 2]]
    first = states[1].client_states[0]["memory"]
    assert torch.equal(first, states[3].client_states[0]["memory"])
    moved = states[2].client_states[2]["memory"] - states[1].client_states[2]["memory"]
    assert float(moved.norm()) > 0


@pytest.mark.slow
def test_scaffold_ends_where_all_clients_together_do():
    # Curvatures differ, so that DP-FedAvg with many local steps ends elsewhere.
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, inputs):
            return inputs * self.x

    rows = torch.tensor([[[1.0]], [[2.0]]]).double(), torch.tensor([[[1.0]], [[-2.0]]]).double()
    clients = [fl.ClientData(inputs, targets) for inputs, targets in zip(*rows, strict=True)]
    # Minimum of (x - 1)^2 + (2 x + 2)^2. The margin of a bound shortens nothing here, and its grid
    # is finer than this.
    best, local = (1 - 4) / 5, fl.SGD(lr=0.1, steps=5, batch_size=None)
    for method, least, most in (
        (fl.Scaffold(), 0, 1e-6), (fl.FedDyn(strength=1.0), 0, 1e-4), (fl.DPFedAvg(), 0.02, 9),
    ):  # fmt: skip
        end = simulate(method, Scaled(), clients, 60, local=local)[-1].params["x"]
        assert least <= abs(float(end) - best) <= most


# Optimizers on the server.


def walked(optimizer: Any, moves: list[torch.Tensor]) -> torch.Tensor:
    place, state = torch.zeros_like(moves[0]), {}
    for move in moves:
        moved, state = optimizer.step({"w": move}, state)
        place = place + moved["w"]
    return place


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (fl.Momentum(0.8), lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.8)),
        (
            fl.Momentum(0.8, nesterov=True),
            lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.8, nesterov=True),
        ),
        (
            fl.Adam(0.05, 0.7, 0.9, floor=1e-2),
            lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.7, 0.9), eps=1e-2),
        ),
    ],
    ids=["momentum", "nesterov", "adam"],
)
def test_an_optimizer_walks_as_that_of_torch_does(ours, theirs):
    generator = torch.Generator().manual_seed(1)
    moves = [torch.randn(5, generator=generator, dtype=torch.float64) for _ in range(6)]
    weight = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    peer = theirs([weight])
    for move in moves:
        weight.grad = -move
        peer.step()
    torch.testing.assert_close(walked(ours, moves), weight.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("method", "server"),
    [(fl.DPFedPGN(), fl.Momentum(0.5)), (fl.Scaffold(), fl.Adam(lr=0.05))],
    ids=["momentum", "adam"],
)
def test_a_run_with_an_optimizer_goes_on_bit_by_bit(method, server, tmp_path):
    path, settings = tmp_path / "run.pt", {"method": method, "server": server}
    whole, _ = goes_on(lambda path: run(perceptron(), checkpoint=path, **settings), path)
    plain = perceptron()
    run(plain, method=method).run()
    assert not torch.equal(flat(whole.model), flat(plain))
    assert ServerState.of(read_checkpoint(path, "cpu")["server_state"]).optimizer


def test_another_optimizer_is_another_setting_and_none_is_as_before(tmp_path):
    path = tmp_path / "run.pt"
    with run(perceptron(), checkpoint=path) as begun:
        next(iter(begun))
    # Written without a word of optimizers, as versions that knew none did.
    assert "server=" not in read_checkpoint(path, "cpu")["setting"]
    with run(perceptron(), checkpoint=path).resume() as going:
        assert going.round == 1
    with pytest.raises(InvalidParameter, match="another setting"):
        run(perceptron(), checkpoint=path, server=fl.Momentum(0.5)).resume()


def test_clients_are_not_told_of_the_optimizer():
    class Watching(Method):
        def init(self, params):
            return {"mine": torch.zeros(1)}

        def server(self, params, noised, server_state):
            assert set(server_state) == {"mine"}
            return {n: value + noised.tensors[n] for n, value in params.items()}, server_state

        def gradient(self, loss, params, batch, context):
            if set(context.server_state) != {"mine"}:
                raise AssertionError(sorted(context.server_state))
            return loss.gradient(params, batch)

    assert run(perceptron(), method=Watching(), server=fl.Adam()).run().released


@pytest.mark.slow
def test_the_charge_does_not_depend_on_the_optimizer():
    plain, moved = (
        run(perceptron(), seed=None, server=server).run() for server in (None, fl.Adam())
    )
    assert plain is not None
    assert moved is not None
    assert plain.epsilon.upper == moved.epsilon.upper


def test_values_out_of_range_are_refused():
    for make, options in (
        (fl.Momentum, {"beta": 1.0}), (fl.Momentum, {"beta": -0.1}), (fl.Adam, {"lr": 0}),
        (fl.Adam, {"beta1": 1}), (fl.Adam, {"beta2": float("nan")}), (fl.Adam, {"floor": 0}),
    ):  # fmt: skip
        with pytest.raises(InvalidParameter):
            make(**options)
