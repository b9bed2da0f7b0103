"""What a model says of single examples: their losses, and the margins of their right classes.

Rule: a model is looked at in evaluation mode, without gradients, and left as it was. What it says
is read in double precision: losses that differ in no float32 are ties, which an attack would lose.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vmap

from dpacct.errors import InvalidParameter
from dpacct.fl.clients import ClientData
from dpacct.fl.local.losses import LossFunction

Array = NDArray[np.float64]
_BATCH = 1024


def client_losses(
    model: nn.Module, loss: LossFunction, clients: Iterable[ClientData]
) -> list[Array]:
    """The loss of each example, client by client.

    Args:
        model: the module. loss: mean loss of (outputs, targets).
        clients: whose examples; one of them is in memory at a time.
    Returns:
        Float64 [n] for each client. An example with a target at each position has the mean loss of
        its positions.
    Raises:
        InvalidParameter: the loss of one example is no single number.
    """

    def alone(output: Tensor, target: Tensor) -> Tensor:
        return loss(output.unsqueeze(0), target.unsqueeze(0))

    def each(outputs: Tensor, targets: Tensor) -> Tensor:
        found = vmap(alone)(outputs, targets)
        if found.ndim != 1:
            rule = "a loss returns the mean over the batch, a tensor without dimensions"
            raise InvalidParameter("loss", tuple(found.shape[1:]), rule)
        return found

    return _of_examples(model, clients, each)


def client_margins(model: nn.Module, clients: Iterable[ClientData]) -> list[Array]:
    """log(p / (1 - p)) of the probability p that the model gives an example's class.

    Args:
        model: gives logits [n, classes], or [n, classes, positions] for targets [n, positions].
        clients: whose examples.
    Returns:
        Float64 [n] for each client, the mean over positions where there are several.
    Raises:
        InvalidParameter: the outputs are not logits of at least two classes.
    """

    def each(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.ndim != targets.ndim + 1 or outputs.shape[1] < 2:
            rule = "shadow models are compared by logits of at least two classes"
            raise InvalidParameter("model", f"outputs of shape {tuple(outputs.shape)}", rule)
        place = targets.unsqueeze(1)
        right = outputs.gather(1, place)
        others = outputs.scatter(1, place, -torch.inf).logsumexp(dim=1, keepdim=True)
        return (right - others).flatten(1).mean(dim=1)

    return _of_examples(model, clients, each)


def _of_examples(
    model: nn.Module, clients: Iterable[ClientData], each: Callable[[Tensor, Tensor], Tensor]
) -> list[Array]:
    device = next(model.parameters()).device
    found: list[Array] = []
    with _looking(model):
        for data in clients:
            parts: list[Array] = [np.empty(0)]
            for start in range(0, len(data), _BATCH):
                inputs = data.inputs[start : start + _BATCH].to(device)
                targets = data.targets[start : start + _BATCH].to(device)
                outputs = model(inputs).cpu().double()
                parts.append(each(outputs, targets.cpu()).numpy())
            found.append(np.concatenate(parts))
    return found


@contextmanager
def _looking(model: nn.Module) -> Generator[None]:
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
