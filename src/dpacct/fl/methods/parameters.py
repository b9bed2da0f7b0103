"""What the formulas of several methods share."""

from __future__ import annotations

import torch
from torch import Tensor

from dpacct.fl.layout import Params
from dpacct.fl.tensors import norm


def whole_norm(tensors: Params) -> Tensor:
    """Euclidean norm of all tensors together, a tensor without dimensions. May run under vmap."""
    return norm(torch.stack([norm(value) for value in tensors.values()]))


def step_along(tensors: Params, radius: float) -> Params:
    """A step of norm ``radius`` along all tensors together; zero where they are all zero."""
    length = whole_norm(tensors)
    scale = torch.where(length > 0, radius / length, 0.0)
    return {name: scale * value for name, value in tensors.items()}


def steps_taken(steps: int | Tensor) -> int | Tensor:
    """Number of local steps, 1 for a client that takes none (for divisions)."""
    return steps.clamp(min=1) if isinstance(steps, Tensor) else max(steps, 1)


def one_if_any(steps: int | Tensor) -> int | Tensor:
    """1 for a client that takes local steps, 0 for one that takes none."""
    return steps.clamp(max=1) if isinstance(steps, Tensor) else min(steps, 1)
