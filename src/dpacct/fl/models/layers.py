"""Layers that federated training asks for: random crops and flips, and no batch norms."""

from __future__ import annotations

import copy
from math import gcd

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpacct import validate
from dpacct.fl.layout import modules_of

_BITS = 20
_BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


class CropFlip(nn.Module):
    """A first layer that crops and mirrors images at random while a model trains.

    ``nn.Sequential(CropFlip(4), network)``: each image [channels, height, width] is padded with
    zeros, cut back to its size at a random place, and mirrored with probability 1/2. In evaluation
    nothing is changed. Zero in standardized images is the mean color.

    The randomness is that of dropout. It follows from a client's own seed and step, one by one and
    side by side. A method with two gradients in a step (`DPFedSAM`) sees two crops.

    Args:
        padding: pixels on each side, at least 0. Offsets are uniform up to 1e-5.
        flip: whether images are mirrored.

    Raises:
        InvalidParameter: the padding is no whole number of at least 0.
    """

    def __init__(self, padding: int = 4, *, flip: bool = True) -> None:
        super().__init__()
        noun = "the padding of a crop"
        self.padding = validate.count("padding", padding, noun) if padding != 0 else 0
        self.flip = validate.flag("flip", flip)

    def forward(self, images: Tensor) -> Tensor:
        """Return images of the same shape [b, channels, height, width]."""
        if not self.training:
            return images
        number, _, height, width = images.shape
        bits = torch.ones(number, 2 * _BITS + 1, device=images.device)
        coins = functional.dropout(bits, 0.5, training=True) > 0
        if self.flip:
            images = torch.where(coins[:, -1].view(-1, 1, 1, 1), images.flip(-1), images)
        if self.padding:
            weights = 2 ** torch.arange(_BITS, device=images.device)
            places = (coins[:, :-1].view(number, 2, _BITS) * weights).sum(dim=2)
            down, right = (places % (2 * self.padding + 1)).unbind(dim=1)
            images = functional.pad(images, [self.padding] * 4)
            images = _cut(images, 2, down, height)
            images = _cut(images, 3, right, width)
        return images


def _cut(images: Tensor, axis: int, first: Tensor, size: int) -> Tensor:
    """Return ``size`` rows (axis 2) or columns (axis 3) of each image, from ``first`` [b] on."""
    places = first.unsqueeze(1) + torch.arange(size, device=images.device)
    shape = list(images.shape)
    shape[axis] = size
    index = places.view(-1, 1, size, 1) if axis == 2 else places.view(-1, 1, 1, size)
    return images.gather(axis, index.expand(shape))


def with_group_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """Return a copy of a model with each batch norm replaced by a group norm.

    A batch norm mixes a client's examples and keeps statistics that no noise protects. It serves
    for models of torchvision and ``timm``: ``with_group_norm(torchvision.models.resnet18())``.
    Weights and shifts of the norms are kept, their statistics are not.

    Args:
        model: any module. groups: of channels, at most. A layer takes the greatest common divisor
            of this and its channels.

    Raises:
        InvalidParameter: the number of groups is below 1.
    """
    validate.count("groups", groups, "the number of groups")
    own = copy.deepcopy(model)
    if isinstance(own, _BatchNorm):
        return _group_norm(own, groups)
    for _, module in list(modules_of(own)):
        for name, child in list(module.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(module, name, _group_norm(child, groups))
    return own


def _group_norm(batch: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = batch.num_features
    norm = nn.GroupNorm(gcd(groups, channels), channels, eps=batch.eps, affine=batch.affine)
    if batch.affine:
        norm.weight = batch.weight
        norm.bias = batch.bias
    return norm.train(batch.training)
