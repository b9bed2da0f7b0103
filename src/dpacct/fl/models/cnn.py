"""Convolutional networks of the federated literature: convolutions with pooling, dense layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn


class ConvNet(nn.Module):
    """Convolutions that keep the size, each followed by ReLU and 2 x 2 pooling; then dense layers.

    Args:
        input_shape: (channels, height, width), height and width divisible by 2 for each
            convolution as far as they should count.
        num_classes: outputs.
        channels: of each convolution. kernel: their odd side.
        hidden: width of each dense layer before the last.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        channels: Sequence[int] = (32, 64),
        kernel: int = 5,
        hidden: Sequence[int] = (512,),
    ) -> None:
        super().__init__()
        width, *sides = input_shape
        self.convolutions = nn.ModuleList()
        for out in channels:
            self.convolutions.append(nn.Conv2d(width, out, kernel, padding=kernel // 2))
            width = out
        shrink = 2 ** len(channels)
        features = width * (sides[0] // shrink) * (sides[1] // shrink)
        self.dense = nn.ModuleList()
        for out in (*hidden, num_classes):
            self.dense.append(nn.Linear(features, out))
            features = out

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [n, num_classes] of images [n, channels, height, width]."""
        values = inputs
        for convolution in self.convolutions:
            values = F.max_pool2d(F.relu(convolution(values)), 2)
        values = values.flatten(1)
        for layer in self.dense[:-1]:
            values = F.relu(layer(values))
        return self.dense[-1](values)
