"""Looks at a released model and at its updates: flatness, spectra, lengths, and smoothing.

Rule: every function here computes on the data that it is given, without noise. On a released model
and public data the answer is public. On private data it is a release of its own, which epsilon does
not cover: call it unprotected, and keep it inside.

The largest eigenvalue and the directions follow a fixed seed, so answers repeat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.clients import ClientData, arguments
from dpacct.fl.local.losses import LossFunction
from dpacct.fl.models import evaluate
from dpacct.fl.postprocess import check_strength, noise_gain, smooth
from dpacct.fl.tensors import norm

Weights = dict[str, Tensor]


def random_direction(weights: Mapping[str, Tensor], seed: int) -> Weights:
    """Return a random direction, filter by filter as long as the weights.

    A filter is the weights for one output of a layer. Biases stay the same. So a step of length 1
    changes each filter by its own length, and rescaling the layers of a ReLU network changes
    nothing.

    Source: Li, Xu, Taylor, Studer, Goldstein 2018, arXiv:1712.09913.
    """
    generator = torch.Generator().manual_seed(seed)
    direction: Weights = {}
    for name, value in weights.items():
        direction[name] = torch.zeros_like(value)
        if value.ndim > 1:
            drawn = torch.randn(value.shape, generator=generator).to(value)
            others = tuple(range(1, value.ndim))
            squares = [(each**2).sum(others, keepdim=True) for each in (value, drawn)]
            direction[name] = drawn * (squares[0] / squares[1]).sqrt()
    return direction


def losses_on_lines(
    model: nn.Module,
    loss: LossFunction,
    data: ClientData,
    lengths: Sequence[float],
    *,
    directions: int = 10,
) -> list[list[float]]:
    """Return losses [directions, lengths] along random directions (see `random_direction`)."""
    count = validate.count("directions", directions, "the number of directions")
    with _Moved(model) as move:
        lines = [random_direction(move.weights, seed) for seed in range(count)]
        at: Callable[..., float] = lambda *steps: evaluate(move(steps), loss, data).loss  # noqa: E731
        return [[at((length, line)) for length in lengths] for line in lines]


def losses_on_plane(
    model: nn.Module, loss: LossFunction, data: ClientData, lengths: Sequence[float]
) -> list[list[float]]:
    """Return losses [second, first] in the plane of two random directions."""
    with _Moved(model) as move:
        first, second = (random_direction(move.weights, seed) for seed in (0, 1))
        at: Callable[..., float] = lambda *steps: evaluate(move(steps), loss, data).loss  # noqa: E731
        return [[at((x, first), (y, second)) for x in lengths] for y in lengths]


class _Moved:
    """A model in evaluation mode whose parameters are moved. It is put back at the end.

    In training mode, batch norm would learn from the data, and dropout would change answers.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._training = model, model.training
        self.weights = {n: p.detach().clone() for n, p in model.named_parameters()}

    def __call__(self, steps: Sequence[tuple[float, Weights]]) -> nn.Module:
        with torch.no_grad():
            for name, value in self._model.named_parameters():
                moved = [length * direction[name] for length, direction in steps]
                value.copy_(sum(moved, self.weights[name]))
        return self._model

    def __enter__(self) -> Self:
        self._model.eval()
        return self

    def __exit__(self, *reason: object) -> None:
        self(())
        self._model.train(self._training)


def top_eigenvalue(
    model: nn.Module, loss: LossFunction, data: ClientData, *, iterations: int = 30
) -> float:
    """Return the eigenvalue of largest magnitude of the Hessian of the loss, by power iteration.

    Error: the iteration ends below the true magnitude. Compare models at the same ``iterations``.
    """
    steps = validate.count("iterations", iterations, "the number of iterations")
    params = [p for p in model.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(0)
    vector = [torch.randn(p.shape, generator=generator).to(p) for p in params]
    places, named = arguments(data.inputs)
    training = model.training
    try:  # As in `_Moved`, which would change the parameters that the graph holds.
        value = loss(model.eval()(*places, **named), data.targets)
    finally:
        model.train(training)
    slope = _slope(value, params, create_graph=True)
    quotient = 0.0
    for _ in range(steps):
        length = math.sqrt(sum(float(part.square().sum()) for part in vector))
        if not length:
            return 0.0
        vector = [part / length for part in vector]
        along = torch.stack([(g * v).sum() for g, v in zip(slope, vector, strict=True)]).sum()
        if not along.requires_grad:  # A loss that is linear in the parameters.
            return 0.0
        image = torch.autograd.grad(along, params, retain_graph=True, materialize_grads=True)
        quotient = sum(float((h * v).sum()) for h, v in zip(image, vector, strict=True))
        vector = [part.detach() for part in image]
    return quotient


def _slope(
    value: Tensor, params: list[nn.Parameter], *, create_graph: bool = False
) -> tuple[Tensor, ...]:
    """Return the gradients of a loss, zero for parameters that it does not depend on."""
    if not params or not value.requires_grad:
        rule = "its loss depends on parameters that require a gradient"
        raise InvalidParameter("model", "frozen, or apart from its loss", rule)
    return torch.autograd.grad(value, params, create_graph=create_graph, materialize_grads=True)


def _signal(name: str, values: Tensor) -> Tensor:
    """Return a flattened tensor of finite real numbers, at least one, as float64 on the CPU."""
    real = isinstance(values, Tensor) and values.numel() > 0 and not values.is_complex()
    if not real or not bool(torch.isfinite(values).all()):
        shown = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise InvalidParameter(name, shown, "it is a tensor of finite numbers, at least one")
    return values.detach().flatten().double().cpu()


def power_spectrum(values: Tensor, bands: int = 32) -> list[float]:
    """Return the mean power of a flattened tensor in bands of frequency, from low to high.

    White noise of variance v has v in each band. DP-Fed-LS gains where an update has less in the
    high bands than its noise has.

    Args:
        values: a released update, or a tensor of it, in the order in which it is smoothed.
        bands: of equal width, at most half the number of values.
    """
    flat = _signal("values", values).numpy()
    power = np.square(np.abs(np.fft.rfft(flat, norm="ortho")))
    count = min(validate.count("bands", bands, "the number of bands"), len(power))
    return [float(part.mean()) for part in np.array_split(power, count)]


def update_norms(
    model: nn.Module, loss: LossFunction, clients: Sequence[ClientData], *, lr: float, steps: int
) -> list[float]:
    """Return the lengths of the clients' updates by ``steps`` of plain gradient descent, unbounded.

    Each client starts at the model, which is unchanged afterwards.
    """
    steps = validate.count("steps", steps, "the number of steps")
    lr = validate.above_zero("lr", lr, "a learning rate")
    norms: list[float] = []
    for data in clients:
        places, named = arguments(data.inputs)
        with _Moved(model) as move:
            params = [p for p in model.parameters() if p.requires_grad]
            for _ in range(steps):
                slope = _slope(loss(model(*places, **named), data.targets), params)
                with torch.no_grad():
                    for value, part in zip(params, slope, strict=True):
                        value.sub_(lr * part)
            moved = [
                (value.detach() - move.weights[name]).flatten()
                for name, value in model.named_parameters()
            ]
            norms.append(float(norm(torch.cat(moved))))
    return norms


class Smoothing(NamedTuple):
    """What Laplacian smoothing of strength s does to a signal v with white noise (DP-Fed-LS).

    Attributes:
        effective_dimension: trace of A_s^{-1}; for large d it is d / sqrt(1 + 4 s).
        noise_variance: share of the noise's variance that is left.
        signal: share of <v, A_s^{-1} v> / |v|^2, the progress of a short step along v.
        mean_squared_error: E |A_s^{-1} (v + n) - v|^2 / d.
        mse_ratio: the same over the noise's variance: below 1 smoothing helps.
        break_even_noise: the standard deviation of the noise below which it hurts.
    """

    effective_dimension: float
    noise_variance: float
    signal: float
    mean_squared_error: float
    mse_ratio: float
    break_even_noise: float


def smoothing_of(signal: Tensor, noise_std: float, strength: float) -> Smoothing:
    """Return the effect of smoothing on one flattened tensor, before any noise is drawn.

    With the bias B = |A_s^{-1} v - v|^2 / d and the share g of the noise's variance, the mean
    squared error is B + g std^2, and smoothing helps if std^2 > B / (1 - g).

    Source: Liang et al., "DP-Fed-LS", arXiv:2005.00218; the eigenvalues of A_s are
    1 + 4 s sin^2(pi k / d).
    """
    std = validate.above_zero("noise_std", noise_std, "the noise")
    v, s = _signal("signal", signal), check_strength(strength)
    smoothed = smooth(v, s)
    sines = torch.sin(torch.arange(len(v), dtype=torch.float64) * (math.pi / len(v))).square()
    bias, left = float((smoothed - v).square().mean()), noise_gain(len(v), s)
    error = bias + left * std**2
    return Smoothing(
        float((1 + 4 * s * sines).reciprocal().sum()),
        left,
        float((v * smoothed).sum() / v.square().sum()) if v.any() else math.nan,
        error,
        error / std**2,
        math.sqrt(bias / (1 - left)) if left < 1 else math.inf,
    )
