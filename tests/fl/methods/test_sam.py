"""DP-FedSAM: golden steps, closed form on quadratics, and what each placement of top-k does."""

from __future__ import annotations

import pytest
import torch

from dpacct import fl
from dpacct.fl.layout import Layout
from dpacct.fl.local.sgd import Batch
from dpacct.fl.methods import DPFedAvg, DPFedSAM, DPFedSAMTopK
from dpacct.fl.methods.protocol import Context
from tests.fl.methods.stage import Curved, moved, quadratics, same, simulate, vector
from tests.fl.problems import cross_entropy, make_clients, perceptron

ROOTS = torch.diag(torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("vectorized", [False, True])
def test_the_two_printed_steps(vectorized):
    clients = quadratics([[0.0, 0.0]], ROOTS)
    options = {"local": fl.SGD(lr=0.1, steps=1, batch_size=None), "vectorized": vectorized}
    model = Curved([1.0, 1.0], ROOTS)
    once = simulate(DPFedSAM(rho=0.1), model, clients, 1, **options)[-1]
    assert vector(once.params).tolist() == pytest.approx([0.8975746437, 0.5611943000], abs=1e-9)
    options["local"] = fl.SGD(lr=0.1, steps=2, batch_size=None)
    twice = simulate(DPFedSAM(rho=0.1), model, clients, 1, **options)[-1]
    assert vector(twice.params).tolist() == pytest.approx([0.8041044716, 0.2995755943], abs=1e-9)
    clipped = simulate(DPFedSAM(rho=0.1), model, clients, 1, clip_norm=0.2, **options)[-1]
    move = vector(clipped.params) - 1
    # The engine clips to C (1 - 2^-17).
    assert move.tolist() == pytest.approx([-0.0538690406, -0.1926087393], rel=1e-5)


class Counting:
    """A loss that notes where its gradient was asked for."""

    def __init__(self, gradient):
        self.places = []
        self.batches = []
        self._gradient = gradient

    def __call__(self, params, batch):
        raise NotImplementedError

    def gradient(self, params, batch):
        self.places.append(dict(params))
        self.batches.append(batch)
        return self._gradient(params)


BATCH = Batch(torch.zeros(1), torch.zeros(1), None)


def context(params):
    return Context(1, params, {}, fl.SGD(), 0.1, 1)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_two_gradients_on_one_batch_at_distance_rho_of_all_tensors_together(scale):
    generator = torch.Generator().manual_seed(1)
    params = {name: torch.randn(3, 2, generator=generator).double() for name in ("a", "b")}
    slopes = {name: scale * torch.randn(3, 2, generator=generator).double() for name in params}
    before = {name: value.clone() for name, value in params.items()}
    loss = Counting(lambda _: slopes)
    DPFedSAM(rho=0.3).gradient(loss, params, BATCH, context(params))
    first, second = loss.places
    assert all(batch is BATCH for batch in loss.batches)
    assert all(torch.equal(params[name], before[name]) for name in params)
    assert all(torch.equal(first[name], params[name]) for name in params)
    gap = vector({name: second[name] - params[name] for name in params})
    assert float(gap.norm()) == pytest.approx(0.3, rel=1e-9)
    # One tensor's gradient changes the perturbation of the others.
    slopes["a"] = 100 * slopes["a"]
    again = Counting(lambda _: slopes)
    DPFedSAM(rho=0.3).gradient(again, params, BATCH, context(params))
    assert float((again.places[1]["b"] - second["b"]).norm()) > 0.01


def test_where_the_gradient_is_zero_nothing_is_perturbed():
    params = {"a": torch.ones(3)}
    loss = Counting(lambda _: {"a": torch.zeros(3)})
    found = DPFedSAM().gradient(loss, params, BATCH, context(params))
    assert torch.equal(loss.places[1]["a"], params["a"])
    assert torch.equal(found["a"], torch.zeros(3))


def run(method, **options):
    return simulate(
        method, perceptron(), make_clients([8, 3, 5]), 3, loss=cross_entropy, clip_norm=0.3,
        local=fl.SGD(lr=0.2, epochs=2, batch_size=4, momentum=0.5, weight_decay=5e-4), **options,
    )  # fmt: skip


def test_without_radius_it_is_federated_averaging_to_the_bit():
    plain, sam = run(DPFedAvg()), run(DPFedSAM())
    assert same(run(DPFedSAM(rho=0)), plain)
    assert not same(run(DPFedSAM(rho=0.1)), plain)
    for placement in ("server", "shared", "client"):
        assert same(run(DPFedSAMTopK(fraction=1.0, placement=placement)), sam)


def test_where_the_coordinates_are_dropped():
    layout = Layout.of(dict(perceptron().named_parameters()))
    share, all_of_it = [-(-4 * size // 10) for size in layout.sizes], list(layout.sizes)

    def counted(**options):
        states = run(DPFedSAMTopK(**options), noise=fl.GaussianNoise())
        return [
            [int(step[start:stop].count_nonzero()) for start, stop in layout.segments]
            for step in moved(states)
        ]

    assert counted() == [share] * 3
    assert counted(placement="client") == [all_of_it] * 3
    assert counted(placement="shared", refresh=2) == [all_of_it, share, all_of_it]
