"""The settings that server and clients share: the model, and where the examples are."""

from __future__ import annotations

import torch
from flwr.app import Context
from torch import nn

from dpacct import fl
from dpacct.fl.data import load

HOSPITALS = 3
CLIP_NORM = 1.0
NOISE_MULTIPLIER = 2.0


def model() -> nn.Module:
    """Return the model to begin with, the same for all."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def own_data(context: Context) -> fl.ClientData:
    """Return a hospital's third of the digits; a real one reads its own files."""
    everything = load("digits").train
    rows = torch.arange(context.node_config["partition-id"], len(everything), HOSPITALS)
    inputs, targets = everything.batch(rows)
    return fl.ClientData(inputs, targets)
