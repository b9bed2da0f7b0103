"""In which order the numbers of images lie in memory: channel by channel, or place by place.

Place by place (PyTorch's "channels last"), convolutions and poolings of small networks take less
time on a CPU: their kernels read all channels of a place at once. The numbers are the same, what is
computed of them differs by rounding; a model that looks at how its input lies may refuse it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpacct.fl.trainers.examples import Kind

# Height, width, and channels before them.
_DIMENSIONS = 3


def are_images(kind: Kind) -> bool:
    """Whether examples look like images [channels, height, width] of reals."""
    return len(kind.input_shape) == _DIMENSIONS and kind.input_dtype.is_floating_point


def by_place(images: Tensor) -> Tensor:
    """The same images [n, channels, height, width], place by place; others as they are.

    With a single channel both orders have the same numbers in the same places, and which kernels
    are taken follows from the strides: a copy that has these.
    """
    if images.ndim != 1 + _DIMENSIONS or not images.is_floating_point():
        return images
    count, channels, height, width = images.shape
    lying = torch.empty(
        count, height, width, channels, dtype=images.dtype, device=images.device
    ).permute(0, 3, 1, 2)
    return lying.copy_(images)
