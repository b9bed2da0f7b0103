"""The loss around trained weights: along filter-normalized random directions, and its curvature."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dpacct import fl

Weights = dict[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


def weights_of(model: nn.Module) -> Weights:
    """Return a copy of the parameters."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def random_direction(weights: Weights, seed: int) -> Weights:
    """Return a random direction, filter by filter as long as the weights (Li et al. 2018).

    A filter is the weights for one output of a layer. Biases stay the same. So a direction of
    length 1 changes each filter by as much as it is long, and rescaling the layers of a ReLU
    network changes nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    direction: Weights = {}
    for name, value in weights.items():
        if value.ndim < 2:
            direction[name] = torch.zeros_like(value)
            continue
        drawn = torch.randn(value.shape, generator=generator)
        others = tuple(range(1, value.ndim))
        squares = [(each**2).sum(others, keepdim=True) for each in (value, drawn)]
        direction[name] = drawn * (squares[0] / squares[1]).sqrt()
    return direction


def loss_at(
    model: nn.Module,
    loss: Loss,
    data: fl.ClientData,
    weights: Weights,
    steps: Sequence[tuple[float, Weights]],
) -> float:
    """Return the loss after some steps from the weights, which the model then holds."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            moved = weights[name].clone()
            for length, direction in steps:
                moved += length * direction[name]
            value.copy_(moved)
    return fl.evaluate(model, loss, data).loss


def losses_on_lines(
    model: nn.Module,
    loss: Loss,
    data: fl.ClientData,
    *,
    lengths: Sequence[float],
    directions: int,
) -> list[list[float]]:
    """Return losses [directions, lengths]. The directions have the seeds 0, 1, ..."""
    weights = weights_of(model)
    found: list[list[float]] = []
    for seed in range(directions):
        line = random_direction(weights, seed)
        losses = [loss_at(model, loss, data, weights, [(length, line)]) for length in lengths]
        found.append([round(value, 4) for value in losses])
    loss_at(model, loss, data, weights, [])
    return found


def losses_on_plane(
    model: nn.Module, loss: Loss, data: fl.ClientData, *, lengths: Sequence[float]
) -> list[list[float]]:
    """Return losses [lengths, lengths] in the plane of the directions 0 and 1."""
    weights = weights_of(model)
    across, up = (random_direction(weights, seed) for seed in (0, 1))
    found = [
        [round(loss_at(model, loss, data, weights, [(x, across), (y, up)]), 4) for x in lengths]
        for y in lengths
    ]
    loss_at(model, loss, data, weights, [])
    return found


def largest_curvature(
    model: nn.Module, loss: Loss, data: fl.ClientData, *, iterations: int
) -> float:
    """Return the Hessian's largest eigenvalue, by power iteration from a fixed start."""
    params = list(model.parameters())
    generator = torch.Generator().manual_seed(0)
    vector = [torch.randn(p.shape, generator=generator) for p in params]
    value = 0.0
    outputs = loss(model(data.inputs), data.targets)
    slope = torch.autograd.grad(outputs, params, create_graph=True)
    for _ in range(iterations):
        length = sum(float((part**2).sum()) for part in vector) ** 0.5
        vector = [part / length for part in vector]
        along = torch.stack([(g * v).sum() for g, v in zip(slope, vector, strict=True)]).sum()
        image = torch.autograd.grad(along, params, retain_graph=True)
        value = sum(float((h * v).sum()) for h, v in zip(image, vector, strict=True))
        vector = [part.detach() for part in image]
    return value
