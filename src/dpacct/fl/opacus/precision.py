"""In which precision Opacus clips, sums and draws: less than float32 breaks what is charged.

With eight bits of a number, rounded norms and factors let an example count for 1.005 clip norms
and more, and a sum is rounded to steps that may be longer than the clip norm: one example more then
moves it by two. Noise on such a grid leaves the sum's last digits bare.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from dpacct.errors import Unsupported

_EXACT = (torch.float32, torch.float64)


def check_precision(optimizer: Any, kept: str | None = None) -> None:
    """Refuse parameters, gradients or norms of examples, and noise, of less than float32.

    Args:
        optimizer: of Opacus.
        kept: by which attribute its parameters have what was kept of examples; None for none.
    Raises:
        Unsupported: there are some.
    """
    for parameter in optimizer.params:
        found: Any = None if kept is None else getattr(parameter, kept, None)
        values = cast("list[Any]", found) if isinstance(found, list) else [found]
        for value in (parameter, *values):
            if isinstance(value, Tensor) and value.dtype not in _EXACT:
                raise Unsupported(
                    f"parameters or gradients of examples are {value.dtype}: rounded so, an "
                    "example moves the sum by more than the clip norm. Train in float32, without "
                    "autocast"
                )
    if optimizer.secure_mode and torch.get_default_dtype() not in _EXACT:
        raise Unsupported(
            f"the noise of secure_mode has torch's default dtype, {torch.get_default_dtype()}"
        )
