"""A hospital: it trains on its own examples, and sends its bounded update and nothing else."""

from __future__ import annotations

from torch.nn.functional import cross_entropy

from dpacct.fl.flower import client_app
from hospitals.task import CLIP_NORM, model, own_data

app = client_app(model, cross_entropy, own_data, clip_norm=CLIP_NORM)
