"""A generator of torch that nobody can repeat, for the noise of one step."""

from __future__ import annotations

from typing import Any

import torch

from dpacct.fl.privacy.randomness import secret_generator


def fresh_generator(optimizer: Any) -> torch.Generator:
    """A generator on the device of an optimizer's parameters."""
    return secret_generator(optimizer.params[0].device)
