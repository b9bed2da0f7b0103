"""Where training runs, by name."""

from __future__ import annotations

import torch

from dpacct.errors import InvalidParameter

Device = torch.device


def choose_device(name: str = "auto") -> Device:
    """The device called ``name``.

    Args:
        name: ``cpu``, ``cuda``, ``cuda:K``, or ``auto``: the first GPU if there is one.

    Raises:
        InvalidParameter: no such device, or PyTorch does not see it.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rule = "a device is cpu, cuda or cuda:K"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise InvalidParameter("device", name, rule) from None
    if device.type not in ("cpu", "cuda"):
        raise InvalidParameter("device", name, rule)
    seen = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= seen:
        raise InvalidParameter("device", name, f"PyTorch sees {seen} CUDA devices here")
    return device
