"""Looks at models: against quadratics whose Hessian is known, and the figures of DP-Fed-LS."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

import torch

from dpacct import fl
from dpacct.errors import InvalidParameter
from dpacct.fl import inspect
from dpacct.fl.models import cross_entropy
from tests.fl.problems import linear, make_clients

CURVES = torch.tensor([4.0, 1.0, 0.25])


class Quadratic(torch.nn.Module):
    """Its output is half the quadratic form of the weights, at each example."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[0.5, -1.0, 2.0]]))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (0.5 * CURVES * self.weight.square()).sum() + 0 * inputs


def first(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs.mean() + 0 * targets.sum()


DATA = fl.ClientData(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))


def test_the_largest_eigenvalue_is_that_of_the_quadratic():
    assert inspect.top_eigenvalue(Quadratic(), first, DATA) == pytest.approx(4, rel=1e-5)
    model = linear()
    [data] = make_clients([6])

    def flat(weights: torch.Tensor) -> torch.Tensor:
        named = [*model.named_parameters()]
        parts = weights.split([p.numel() for _, p in named])
        new = {n: part.reshape(p.shape) for (n, p), part in zip(named, parts, strict=True)}
        return cross_entropy(torch.func.functional_call(model, new, (data.inputs,)), data.targets)

    point = torch.cat([p.detach().flatten() for p in model.parameters()])
    truth = torch.linalg.eigvalsh(torch.autograd.functional.hessian(flat, point)).max()
    found = inspect.top_eigenvalue(model, cross_entropy, data, iterations=200)
    assert found == pytest.approx(float(truth), rel=1e-3)


def test_losses_along_lines_and_in_a_plane_are_those_of_the_quadratic():
    model = Quadratic()
    start = model.weight.detach().clone()
    lengths = (-1.0, 0.0, 0.5)
    lines = inspect.losses_on_lines(model, first, DATA, lengths, directions=3)
    plane = inspect.losses_on_plane(model, first, DATA, lengths)
    assert torch.equal(model.weight, start)
    directions = [inspect.random_direction({"w": start}, seed)["w"] for seed in range(3)]
    for direction, losses in zip(directions, lines, strict=True):
        assert float(direction.norm()) == pytest.approx(float(start.norm()), rel=1e-6)
        for length, loss in zip(lengths, losses, strict=True):
            moved = start + length * direction
            assert loss == pytest.approx(float((0.5 * CURVES * moved**2).sum()), rel=1e-5)
    moved = start - directions[0] + 0.5 * directions[1]
    assert plane[2][0] == pytest.approx(float((0.5 * CURVES * moved**2).sum()), rel=1e-5)
    assert plane[1][1] == lines[0][1]


def test_a_wave_is_in_its_band_and_noise_in_all():
    wave = torch.sin(2 * math.pi * 3 * torch.arange(256) / 256)
    low, *rest = inspect.power_spectrum(wave, 8)
    assert low > 1e6 * max(rest)
    noise = torch.randn(2**14, generator=torch.Generator().manual_seed(1))
    assert all(abs(power - 1) < 0.2 for power in inspect.power_spectrum(noise, 16))
    assert len(inspect.power_spectrum(torch.ones(3), 32)) == 2


def test_one_step_has_the_length_of_the_gradient_and_leaves_the_model():
    model, clients = linear(), make_clients([3, 5])
    before = [p.detach().clone() for p in model.parameters()]
    found = inspect.update_norms(model, cross_entropy, clients, lr=0.5, steps=1)
    for data, length in zip(clients, found, strict=True):
        slope = torch.autograd.grad(
            cross_entropy(model(data.inputs), data.targets), [*model.parameters()]
        )
        truth = 0.5 * math.sqrt(sum(float(part.square().sum()) for part in slope))
        assert length == pytest.approx(truth, rel=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_model_in_training_mode_is_left_as_it_was_and_answers_repeat():
    parts = (
        torch.nn.Linear(4, 5),
        torch.nn.BatchNorm1d(5),
        torch.nn.Dropout(),
        torch.nn.Linear(5, 2),
    )
    model, data = torch.nn.Sequential(*parts), fl.ClientData(torch.randn(9, 4), torch.arange(9) % 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    looks = (
        lambda: inspect.update_norms(model, cross_entropy, [data], lr=0.5, steps=2),
        lambda: inspect.top_eigenvalue(model, cross_entropy, data),
        lambda: inspect.losses_on_lines(model, cross_entropy, data, [0.5]),
    )
    for look in looks:
        assert look() == look()
        assert model.training
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("strength", "error", "break_even"),
    [(1, 0.0030197, 0.0214), (2, 0.0024311, 0.0267), (3, 0.0022778, 0.0304)],
)
def test_smoothing_of_a_sine_has_the_errors_of_the_paper(strength, error, break_even):
    """DP-Fed-LS, figure 1: sin on 500 points of [0, 30], noise 0.1."""
    signal = torch.sin(torch.linspace(0, 30, 500, dtype=torch.float64))
    found = inspect.smoothing_of(signal, 0.1, strength)
    assert found.mean_squared_error == pytest.approx(error, abs=1e-7)
    assert found.mse_ratio == pytest.approx(error / 0.01, rel=1e-4)
    assert found.break_even_noise == pytest.approx(break_even, abs=1e-4)
    assert inspect.smoothing_of(signal, found.break_even_noise, strength).mse_ratio == (
        pytest.approx(1)
    )


@pytest.mark.parametrize(
    ("strength", "dimension", "variance"),
    [(0.5, 0.5774, 0.3849), (1, 0.4472, 0.2683), (2, 0.3333, 0.1852), (0.01, 0.9806, 0.9617)],
)
def test_effective_dimension_and_variance_are_those_of_the_paper(strength, dimension, variance):
    found = inspect.smoothing_of(torch.ones(4096), 1.0, strength)
    assert found.effective_dimension / 4096 == pytest.approx(dimension, abs=5e-5)
    assert found.noise_variance == pytest.approx(variance, abs=5e-5)
    assert found.signal == pytest.approx(1)


def test_smoothing_helps_by_as_much_as_draws_show():
    generator = torch.Generator().manual_seed(2)
    signal = torch.sin(torch.linspace(0, 20, 300, dtype=torch.float64))
    noise = 0.3 * torch.randn(4000, 300, dtype=torch.float64, generator=generator)
    errors = [
        float((fl.postprocess.smooth(signal + row, 1.5) - signal).square().mean())
        for row in noise[:500]
    ]
    found = inspect.smoothing_of(signal, 0.3, 1.5)
    assert sum(errors) / len(errors) == pytest.approx(found.mean_squared_error, rel=0.05)


@pytest.mark.parametrize(
    ("noise", "strength"), [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, -0.1)]
)
def test_bad_input_is_named(noise, strength):
    with pytest.raises(InvalidParameter):
        inspect.smoothing_of(torch.ones(4), noise, strength)


@pytest.mark.parametrize(("lr", "steps"), [(0.5, 0), (0.5, 1.5), (-1, 1), (math.nan, 1)])
def test_steps_and_rate_are_checked(lr, steps):
    with pytest.raises(InvalidParameter, match="lr" if steps == 1 else "steps"):
        inspect.update_norms(linear(), cross_entropy, make_clients([3]), lr=lr, steps=steps)


FROZEN = linear().requires_grad_(False)
[SIX] = make_clients([6])


@pytest.mark.parametrize(
    ("look", "name"),
    [
        *[
            (look, name)
            for values in (torch.zeros(0), torch.tensor([1.0, math.nan]), torch.ones(2) * 1j, [1.0])
            for look, name in (
                (lambda values=values: inspect.power_spectrum(values), "values"),
                (lambda values=values: inspect.smoothing_of(values, 1.0, 1.0), "signal"),
            )
        ],
        (lambda: inspect.top_eigenvalue(FROZEN, cross_entropy, SIX), "model"),
        (lambda: inspect.update_norms(FROZEN, cross_entropy, [SIX], lr=0.1, steps=1), "model"),
        (
            lambda: inspect.top_eigenvalue(
                linear(), lambda out, y: cross_entropy(out.detach(), y), SIX
            ),
            "model",
        ),
    ],
)
def test_what_cannot_be_looked_at_is_named(look, name):
    with pytest.raises(InvalidParameter, match=f"^{name} is "):
        look()


def test_a_loss_of_some_parameters_or_without_curvature_has_an_answer():
    model = torch.nn.ModuleDict({"used": linear(), "other": linear()})
    model.forward = model["used"].forward
    assert inspect.top_eigenvalue(linear(), lambda out, _: out.mean(), SIX) == 0.0
    assert inspect.top_eigenvalue(model, cross_entropy, SIX) == pytest.approx(
        inspect.top_eigenvalue(linear(), cross_entropy, SIX), rel=0.05
    )
    [alone], [both] = (
        inspect.update_norms(each, cross_entropy, [SIX], lr=0.1, steps=2)
        for each in (linear(), model)
    )
    assert both == pytest.approx(alone)
