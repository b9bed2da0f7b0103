"""A hospital: it bounds its update, adds its share of the noise, and sends the sum behind masks."""

from __future__ import annotations

from torch.nn.functional import cross_entropy

from dpacct.fl.flower import HiddenSum, client_app
from hospitals.keys import membership
from hospitals.task import CLIP_NORM, MINIMUM, NOISE_MULTIPLIER, model, own_data

app = client_app(
    model,
    cross_entropy,
    own_data,
    clip_norm=CLIP_NORM,
    hidden=HiddenSum(MINIMUM, NOISE_MULTIPLIER, membership=membership),
)
