"""Gaussian noise that withstands floating-point attacks: whole numbers from bound to release.

Contributions are rounded toward zero to multiples of a grid, checked against their bound in whole
numbers, and summed exactly. The noise is a real Gaussian variate rounded to the same grid, drawn
exactly. As the sum lies on the grid, the release is the ideal Gaussian release, rounded: a
post-processing of it. So it costs what the accountant says, under any sampling and adjacency.
Proof and cost: docs/derivations/federated.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from dpacct.errors import Unsupported
from dpacct.fl.privacy.exact_gaussian import MAX_SIGMA, rounded_gaussian
from dpacct.fl.privacy.noise import GaussianNoise, Limits
from dpacct.fl.privacy.randomness import Randomness
from dpacct.fl.tensors import from_array

# The grid is 2^-24 times a power of two that is at most the largest limit.
_RESOLUTION = 24
_TOO_LONG = 2.0**40


@dataclass(frozen=True, slots=True)
class SecureGaussianNoise:
    """Exactly sampled Gaussian noise on a grid, from the operating system's random bits.

    The grid is a power of two between 2^-25 and 2^-24 times the (largest) norm limit. Costs about
    80 ns a coordinate and round on one core, and works on the CPU: contributions on other devices
    are summed there, in whole numbers, and the sum comes over.

    Source: rounding as post-processing of an ideal release; the attacks are those of Mironov 2012
    (10.1145/2382196.2382264) and Casacuberta et al. 2022 (10.1145/3548606.3560708).
    """

    name = "secure gaussian"

    check = GaussianNoise.check
    arrivals = GaussianNoise.arrivals
    actual_std = GaussianNoise.actual_std

    def zeros(self, size: int, device: torch.device) -> Tensor:
        """Int64 [size], in units of the grid."""
        return torch.zeros(size, dtype=torch.int64, device=device)

    def encode(self, rows: Tensor, limits: Limits, std: float) -> Tensor:
        """Rows in units of the grid, int64, whose exact norms are within the limits."""
        del std
        scale = 2.0 ** -grid_exponent(limits)
        # Whatever does not fit a whole number becomes one that is too long, and is not sent.
        scaled = (rows.double() * scale).nan_to_num_(_TOO_LONG).clamp_(-_TOO_LONG, _TOO_LONG)
        whole = scaled.trunc_().long()
        for start, stop, limit in limits:
            most = math.floor((Fraction(limit) * Fraction(scale)) ** 2)
            part = whole[:, start:stop]
            if start == stop or not len(part):
                continue
            # Rows that come here are within the limit up to rounding. A row that is not, whatever
            # the reason, is not sent. The check is exact: coordinates first, so that the sum of
            # their squares cannot overflow.
            sane = (part.abs() <= math.isqrt(most)).all(dim=1)
            part.mul_(sane.unsqueeze(1))
            fits = _squares(part, most) <= most
            part.mul_(fits.unsqueeze(1))
        return whole

    def add(self, total: Tensor, limits: Limits, std: float, source: Randomness) -> Tensor:
        """The exact sum plus exact noise, times the grid, float64 [k].

        Raises:
            Unsupported: the noise is more than 2^15 times the limit.
        """
        exponent = grid_exponent(limits)
        sigma = Fraction(std) / Fraction(2) ** exponent
        if sigma > MAX_SIGMA:
            raise Unsupported(
                f"secure noise of standard deviation {std:g} on contributions of norm "
                f"{limits[0][2]:g}: the grid has room for 2^15 times the norm"
            )
        noise = from_array(rounded_gaussian(len(total), sigma, source))
        return (total + noise.to(total.device)).double() * 2.0**exponent


def _squares(part: Tensor, most: int) -> Tensor:
    """Sums of squares of rows with entries up to sqrt(most) <= 2^25; exact up to 2 most."""
    squares = part.square()
    width = len(part[0])
    # 512 sums of at most 2^51 stay below 2^61.
    while width > 1:
        filled = torch.nn.functional.pad(squares, (0, -width % 512))
        width = -(-width // 512)
        squares = filled.reshape(len(part), width, 512).sum(dim=2).clamp_(max=2 * most)
    return squares[:, 0]


def grid_exponent(limits: Limits) -> int:
    """e of the grid 2^e that belongs to the norm limits of one row."""
    largest = max(limit for _, _, limit in limits)
    return math.frexp(largest)[1] - 1 - _RESOLUTION
