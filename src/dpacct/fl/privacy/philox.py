"""Philox 4x64 with ten rounds, in whole-number operations that every device of torch has.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
Block i of four words of 64 bits is a function of a key of 128 bits and of the 256-bit counter plus
i. The words repeat after 2^258 of them. They are those of NumPy's generator of that name.

Torch has no unsigned words: an int64 holds the two's complement, sums and products wrap as unsigned
ones do, and right shifts are masked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_KEY_STEPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_ROUNDS = 10
_HALF, _WORD = (1 << 32) - 1, (1 << 64) - 1
_SIGN = -(1 << 63)
# Blocks at a time: a dozen tensors of this number of words are alive.
_SLAB = 1 << 21


def words(
    key: Sequence[int], counter: Sequence[int], blocks: int, device: torch.device, first: int = 0
) -> Tensor:
    """Return the words of blocks first, first + 1, ..., int64 [blocks, 4] on the device.

    The key has two words, the counter four, the lowest one first. Block 0 is the one behind it.
    """
    start = sum(word << 64 * place for place, word in enumerate(counter)) + 1 + first
    low = start & _WORD
    lanes = [torch.arange(blocks, device=device) + _signed(low)]
    # Within a slab the lowest word wraps once at most.
    carried = (lanes[0] ^ _SIGN) < (_signed(low) ^ _SIGN)
    for place in (1, 2, 3):
        before, behind = (
            _signed(value >> 64 * place & _WORD) for value in (start, start + (1 << 64))
        )
        lanes.append(torch.where(carried, behind, before))
    keys = list(key)
    for _ in range(_ROUNDS):
        high, low_product = zip(
            *(_product(lanes[2 * k], _MULTIPLIERS[k]) for k in (0, 1)), strict=True
        )
        lanes = [
            high[1] ^ lanes[1] ^ _signed(keys[0]),
            low_product[1],
            high[0] ^ lanes[3] ^ _signed(keys[1]),
            low_product[0],
        ]
        keys = [(word + step) & _WORD for word, step in zip(keys, _KEY_STEPS, strict=True)]
    return torch.stack(lanes, dim=1)


def normals(key: Sequence[int], counter: Sequence[int], size: int, device: torch.device) -> Tensor:
    """Return standard normal variates, float64 [size], by Box and Muller.

    A radius has 64 bits and an angle 53. Values above 9.49 are missing, 3e-21 of the law. The rest
    is Gaussian up to rounding of doubles. Key and counter (see `words`) are never used twice.
    """
    found = torch.empty(-(-size // 4), 4, dtype=torch.float64, device=device)
    for first in range(0, len(found), _SLAB):
        part = found[first : first + _SLAB]
        drawn = words(key, counter, len(part), device, first)
        radius = _unit(drawn[:, ::2]).log_().mul_(-2).sqrt_()
        angle = _shifted(drawn[:, 1::2], 11).double().mul_(2 * math.pi * 2.0**-53)
        part[:, ::2] = radius * angle.cos()
        part[:, 1::2] = radius * angle.sin()
    return found.flatten()[:size]


def _unit(word: Tensor) -> Tensor:
    """Return (word + 1/2) / 2^64, float64 in (0, 1]."""
    high, low = _shifted(word, 32).double(), (word & _HALF).double()
    return (low + 0.5).mul_(2.0**-64).add_(high, alpha=2.0**-32)


def _product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Return the higher and the lower word of a product. No intermediate sum exceeds 2^64."""
    top, bottom = factor >> 32, factor & _HALF
    high, low = _shifted(word, 32), word & _HALF
    middle = high * bottom + _shifted(low * bottom, 32)
    other = low * top + (middle & _HALF)
    return high * top + _shifted(middle, 32) + _shifted(other, 32), word * _signed(factor)


def _shifted(word: Tensor, places: int) -> Tensor:
    """Shift to the right, with zeros from the left."""
    return (word >> places) & ((1 << (64 - places)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
