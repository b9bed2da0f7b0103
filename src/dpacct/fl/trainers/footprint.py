"""How much memory a client in training takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from dpacct.fl.layout import Params
from dpacct.fl.local.batches import Batch
from dpacct.fl.trainers.tensors_made import TensorsMade

# Copies of the parameters that a client in training needs: itself, gradient, momentum, update, and
# what the arithmetic between them holds.
_COPIES = 6
_GIB = 1 << 30


def client_bytes(gradient: Callable[[], Params], params: Params, batch: Batch) -> tuple[int, float]:
    """Memory that one more client in a chunk takes beside its data, measured on one step.

    Args:
        gradient: does the step. params: of the model. batch: of the step.
    Returns:
        Bytes, and how many of them are kept for a backward pass for each byte of the batch.
    """
    saved = _saved_bytes(gradient)
    own = sum(value.nbytes for value in params.values())
    return _COPIES * own + 2 * saved, saved / max(batch.inputs.nbytes + batch.targets.nbytes, 1)


def _saved_bytes(gradient: Callable[[], Params]) -> int:
    """Bytes that are kept for a backward pass."""
    saved = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel() * tensor.element_size()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor)
    try:
        with cast("Any", hooks):
            gradient()
    except RuntimeError:
        # `torch.func` in a model bears no hooks: what operations make is more than what is kept.
        sizes: list[int] = []
        with TensorsMade(lambda tensor: sizes.append(tensor.nbytes)):
            gradient()
        return sum(sizes)
    return saved


def default_memory_limit(device: torch.device) -> int:
    """Bytes for the clients of one chunk: 1 GiB, or 40 % of what is free on a GPU."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return max(_GIB, int(0.4 * free))
    return _GIB
