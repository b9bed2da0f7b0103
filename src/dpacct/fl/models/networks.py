"""Networks for vectors, images and text: logistic regression, convolutions, ResNets, an LSTM.

Also layers that federated training asks for: random crops and flips, and no batch norms.

Their parameters are their only state. Batch normalization mixes examples, and its running
means are a release that no noise covers. Residual networks have group normalization instead
(Wu, He 2018, arXiv:1803.08494), which treats each image separately.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn

from dpacct import validate
from dpacct.fl.layout import modules_of

_BITS = 20
_BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


class LogisticRegression(nn.Module):
    """One linear layer on the flattened input, with weights of zero at first.

    Args:
        num_features: values in one input. num_classes: outputs.
    """

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_classes)
        # The loss is convex, so any start will do, and zero favors no class.
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits [n, num_classes] of inputs [n, ...]."""
        return self.linear(inputs.flatten(1))


class ConvNet(nn.Module):
    """Convolutions that keep the size, each with ReLU and 2 x 2 pooling, then dense layers.

    Args:
        input_shape: (channels, height, width), height and width divisible by 2 for each
            convolution.
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
        """Return logits [n, num_classes] of images [n, channels, height, width]."""
        values = inputs
        for convolution in self.convolutions:
            values = F.max_pool2d(F.relu(convolution(values)), 2)
        values = values.flatten(1)
        for layer in self.dense[:-1]:
            values = F.relu(layer(values))
        return self.dense[-1](values)


def group_norm(channels: int) -> nn.GroupNorm:
    """Return 32 groups, or groups of two channels if there are fewer than 64 channels."""
    return nn.GroupNorm(min(32, channels // 2), channels)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, which is projected where the shape changes."""

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
        """Return [n, out, h / stride, w / stride] of [n, channels, h, w]."""
        values = F.relu(self.first_norm(self.first(inputs)))
        return F.relu(self.second_norm(self.second(values)) + self.shortcut(inputs))


class ResNet(nn.Module):
    """A 3 x 3 convolution, stages of residual blocks, the mean over the image, a linear layer.

    Args:
        in_channels: of the image. num_classes: outputs.
        blocks: residual blocks in each stage. Every stage but the first halves the image.
        width: channels of the first stage, doubled by each further one.

    Source: He, Zhang, Ren, Sun 2016, arXiv:1512.03385. The stem is that for images of 32 pixels.
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
        """Return logits [n, num_classes] of images [n, in_channels, height, width]."""
        values = F.relu(self.stem_norm(self.stem(inputs)))
        return self.head(self.blocks(values).mean((2, 3)))


def resnet10(in_channels: int, num_classes: int) -> ResNet:
    """Return ResNet-10: one block in each of four stages."""
    return ResNet(in_channels, num_classes, (1, 1, 1, 1))


def resnet18(in_channels: int, num_classes: int) -> ResNet:
    """Return ResNet-18: two blocks in each of four stages."""
    return ResNet(in_channels, num_classes, (2, 2, 2, 2))


def resnet20(in_channels: int, num_classes: int) -> ResNet:
    """Return ResNet-20: three blocks in each of three narrow stages."""
    return ResNet(in_channels, num_classes, (3, 3, 3), width=16)


class LSTMLayer(nn.Module):
    """One layer of long short-term memory, from a state of zeros.

    Plain tensor operations, since `torch.func` cannot vectorize PyTorch's layer over clients. Gates
    have its order (input, forget, cell, output), with one bias for both inputs.

    Args:
        num_inputs: values at each position. num_units: size of the state.
    """

    def __init__(self, num_inputs: int, num_units: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(num_units)
        self.from_inputs = nn.Parameter(torch.empty(4 * num_units, num_inputs))
        self.from_state = nn.Parameter(torch.empty(4 * num_units, num_units))
        self.bias = nn.Parameter(torch.empty(4 * num_units))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return hidden states [n, length, num_units] of inputs [n, length, num_inputs]."""
        gates = (inputs @ self.from_inputs.T + self.bias).transpose(0, 1)
        zeros = gates.new_zeros(len(inputs), self.from_state.shape[1])
        states, _ = lstm_states(gates, self.from_state, zeros, zeros)
        return states.transpose(0, 1)


def lstm_states(
    gates: Tensor, from_state: Tensor, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor]:
    """Return hidden states [length, n, u] and the last cell [n, u] of a layer, step by step.

    Args:
        gates: what the inputs add to input, forget, cell and output gate, [length, n, 4 u].
        from_state: weights of the state, [4 u, u]. hidden, cell: at the start, [n, u].
    """
    transposed, states = from_state.mT, list[Tensor]()
    for position in gates.unbind(0):
        enter, keep, new, out = (position + hidden @ transposed).chunk(4, dim=-1)
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(enter) * torch.tanh(new)
        hidden = torch.sigmoid(out) * torch.tanh(cell)
        states.append(hidden)
    return torch.stack(states), cell


class CharacterLSTM(nn.Module):
    """An embedding, layers of LSTM, and a linear layer at each position.

    Args:
        num_characters: size of the alphabet.
        embedding: values for each character. num_units: of each LSTM layer. num_layers: of them.
        every_position: predict the character behind each position, or only behind the last.

    Source: the two-layer network of McMahan, Moore, Ramage, Hampson, Aguera y Arcas 2017,
        arXiv:1602.05629, section 3.
    """

    def __init__(
        self,
        num_characters: int,
        *,
        embedding: int = 8,
        num_units: int = 256,
        num_layers: int = 2,
        every_position: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_characters, embedding)
        widths = [embedding, *([num_units] * num_layers)]
        self.layers = nn.ModuleList(LSTMLayer(width, num_units) for width in widths[:-1])
        self.head = nn.Linear(num_units, num_characters)
        self.every_position = every_position

    def forward(self, characters: Tensor) -> Tensor:
        """Return logits of int64 characters [n, length].

        Their shape is [n, num_characters, length] at every position, else [n, num_characters].
        """
        values = self.embedding(characters)
        for layer in self.layers:
            values = layer(values)
        if not self.every_position:
            return self.head(values[:, -1])
        return self.head(values).transpose(1, 2)


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
        coins = F.dropout(bits, 0.5, training=True) > 0
        if self.flip:
            images = torch.where(coins[:, -1].view(-1, 1, 1, 1), images.flip(-1), images)
        if self.padding:
            weights = 2 ** torch.arange(_BITS, device=images.device)
            places = (coins[:, :-1].view(number, 2, _BITS) * weights).sum(dim=2)
            down, right = (places % (2 * self.padding + 1)).unbind(dim=1)
            images = F.pad(images, [self.padding] * 4)
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
    norm = nn.GroupNorm(math.gcd(groups, channels), channels, eps=batch.eps, affine=batch.affine)
    if batch.affine:
        norm.weight = batch.weight
        norm.bias = batch.bias
    return norm.train(batch.training)
