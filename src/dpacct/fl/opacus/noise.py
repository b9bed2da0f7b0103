"""A generator of torch that nobody can repeat, for the noise of one step."""

from __future__ import annotations

import os
from typing import Any

import torch

from dpacct.fl.privacy.randomness import OperatingSystem, torch_seed

# Where the 624 words of the Mersenne twister lie in what `get_state` returns, 8 bytes each.
STATE = slice(24, 24 + 8 * 624)


def fresh_generator(optimizer: Any) -> torch.Generator:
    """A generator on the device of an optimizer's parameters.

    The CPU's keeps 32 bits of a seed, few enough to try them all: its whole state is replaced.
    That of other devices has a seed of 63 random bits.
    """
    device = optimizer.params[0].device
    generator = torch.Generator(device)
    if device.type != "cpu":
        return generator.manual_seed(torch_seed(OperatingSystem()))
    state = generator.get_state()
    words = state[STATE].view(torch.int64)
    secret = torch.frombuffer(bytearray(os.urandom(4 * len(words))), dtype=torch.int32)
    words.copy_(secret.to(torch.int64) & 0xFFFFFFFF)
    generator.set_state(state)
    return generator
