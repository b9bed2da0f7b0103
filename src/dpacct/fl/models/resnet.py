"""Residual networks for small images, with group normalization.

Batch normalization is out of question here: it mixes examples, and its running means are a release
of their own. Group normalization (Wu, He 2018, arXiv:1803.08494) treats each image by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn

MAX_GROUPS = 32


def group_norm(channels: int) -> nn.GroupNorm:
    """32 groups, or groups of two channels where there are fewer than 64."""
    return nn.GroupNorm(min(MAX_GROUPS, channels // 2), channels)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, which is projected where the shape changes."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.first_norm = group_norm(out)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.second_norm = group_norm(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            projection = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, group_norm(out))

    def forward(self, inputs: Tensor) -> Tensor:
        """[n, out, h / stride, w / stride] of [n, channels, h, w]."""
        values = F.relu(self.first_norm(self.first(inputs)))
        return F.relu(self.second_norm(self.second(values)) + self.shortcut(inputs))


class ResNet(nn.Module):
    """A 3 x 3 convolution, stages of residual blocks, the mean over the image, a linear layer.

    Args:
        in_channels: of the image. num_classes: outputs.
        blocks: residual blocks in each stage; every stage but the first halves the image.
        width: channels of the first stage, doubled by each further one.

    Source: He, Zhang, Ren, Sun 2016, arXiv:1512.03385; the stem is that for images of 32 pixels.
    """

    def __init__(
        self, in_channels: int, num_classes: int, blocks: Sequence[int], *, width: int = 64
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.stem_norm = group_norm(width)
        stages: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            out = width * 2**stage
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(ResidualBlock(channels, out, stride))
                channels = out
        self.blocks = nn.Sequential(*stages)
        self.head = nn.Linear(channels, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [n, num_classes] of images [n, in_channels, height, width]."""
        values = F.relu(self.stem_norm(self.stem(inputs)))
        return self.head(self.blocks(values).mean((2, 3)))


def resnet10(in_channels: int, num_classes: int) -> ResNet:
    """ResNet-10: one block in each of four stages."""
    return ResNet(in_channels, num_classes, (1, 1, 1, 1))


def resnet18(in_channels: int, num_classes: int) -> ResNet:
    """ResNet-18: two blocks in each of four stages."""
    return ResNet(in_channels, num_classes, (2, 2, 2, 2))


def resnet20(in_channels: int, num_classes: int) -> ResNet:
    """ResNet-20: three blocks in each of three narrow stages."""
    return ResNet(in_channels, num_classes, (3, 3, 3), width=16)
