"""Accuracy and loss on held-out examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpacct import validate
from dpacct.fl.clients import ClientData, arguments


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean ``loss``, and ``accuracy`` in [0, 1]: the share of targets that the argmax meets."""

    loss: float
    accuracy: float


def evaluate(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    data: ClientData,
    *,
    batch_size: int = 1024,
) -> Evaluation:
    """Return the loss and accuracy of a model, without gradients, in evaluation mode.

    The last dimension of the outputs (of dimension 1 where outputs are [n, classes, ...] and
    targets [n, ...]) holds the classes. Held-out data of the same clients are not covered by the
    run's epsilon.

    Args:
        model: the module. loss: mean loss of (outputs, targets).
        data: inputs [n, ...] and targets [n, ...], n >= 1.
        batch_size: examples in one forward pass.
    Returns:
        The evaluation, with the mean loss over examples.
    Raises:
        InvalidParameter: a batch size below 1.
    """
    batch_size = validate.count("batch_size", batch_size, "a batch size")
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    total, right, judged = 0.0, 0, 0
    try:
        with torch.no_grad():
            for start in range(0, len(data), batch_size):
                stop = start + batch_size
                part = data.map(lambda values: values[start:stop].to(device))  # noqa: B023
                places, named = arguments(part.inputs)
                outputs, targets = model(*places, **named), part.targets
                total += float(loss(outputs, targets)) * len(part)
                axis = 1 if outputs.ndim == targets.ndim + 1 else -1
                hits = outputs.argmax(dim=axis) == targets
                right += int(hits.sum())
                judged += hits.numel()
    finally:
        model.train(training)
    return Evaluation(total / max(len(data), 1), right / max(judged, 1))
