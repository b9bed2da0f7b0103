"""What server and clients have in common: the model, and where the examples are."""

from __future__ import annotations

import torch
from flwr.app import Context
from torch import nn

from dpacct import fl
from dpacct.fl.data import load

HOSPITALS = 3
CLIP_NORM = 1.0
# Nobody's update is summed with fewer, or with less noise.
MINIMUM = 3
NOISE_MULTIPLIER = 2.0


def model() -> nn.Module:
    """The same at the start for all."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def own_data(context: Context) -> fl.ClientData:
    """The third of the digits that a hospital has; a real one reads its own files."""
    everything = load("digits").train
    rows = torch.arange(context.node_config["partition-id"], len(everything), HOSPITALS)
    inputs, targets = everything.batch(rows)
    return fl.ClientData(inputs, targets)
