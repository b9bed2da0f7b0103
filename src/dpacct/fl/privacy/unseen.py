"""Bounding on a device without a look: the same bits as with one, and the host waits for nothing.

On a CPU it is cheap to ask whether a row is not finite, too long, or tiny, and rare to do something
about it. On a device each question stops whoever launches its kernels. So there all of it is done
all the time, by masks and by factors that are 1 where nothing is to be done.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpacct.fl.privacy.norms import MARGIN, row_norms

# As float32, a smaller factor would have few bits left, or none.
SMALLEST_FACTOR = 2.0**-60


def asks(rows: Tensor) -> bool:
    """Whether it is quick to ask for values of these rows."""
    return rows.device.type == "cpu"


def scaled(rows: Tensor, scale: Tensor) -> Tensor:
    """As `dpacct.fl.privacy.bounds.scale_rows`, to the last bit.

    A float32 factor in float64 gives the exact product of two float32 numbers, which is then
    rounded once, as float32 rounds it.
    """
    rounded = scale.to(rows.dtype).to(scale.dtype)
    # In place, a device multiplies in float64 as it goes: no second tensor of that type is made.
    return rows.mul_(torch.where(scale < SMALLEST_FACTOR, scale, rounded).unsqueeze(1))


def held(part: Tensor, limit: float) -> None:
    """As `dpacct.fl.privacy.sums` shortens what is longer than the limit, in place."""
    norms = row_norms(part)
    finite = torch.isfinite(norms)
    part.masked_fill_(~finite.unsqueeze(1), 0.0)
    short = norms <= limit * (1 - MARGIN / 2)
    factors = torch.where(short, 1.0, (limit * (1 - MARGIN) / norms).clamp(max=1.0))
    scaled(part, torch.where(finite, factors, 1.0))


def cleared(rows: Tensor, norms: Tensor, bad: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and norms with zeros where a row is bad; rows in place."""
    return rows.masked_fill_(bad.unsqueeze(1), 0.0), torch.where(bad, 0.0, norms)
