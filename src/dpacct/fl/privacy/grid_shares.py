"""Shares of noise in whole numbers, for sums that nobody sees before they are noisy.

Each client adds a share to its bounded update, both in units of the grid of secure noise, and hides
the sum of the two behind masks. Whoever adds up all of it, modulo 2^64, has the noisy sum and
nothing else. Rule 1: a share is a real Gaussian variate rounded to the grid, drawn exactly. Rule 2:
its standard deviation is at least 2^10 units, so that the sum of the shares is, to within a factor
1 +- exp(-9 million), a post-processing of the ideal Gaussian on the sum. Proof:
docs/derivations/federated.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NoReturn

import torch
from torch import Tensor

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.privacy.exact_gaussian import MAX_SIGMA, rounded_gaussian
from dpacct.fl.privacy.noise import Limits, NoiseShares
from dpacct.fl.privacy.randomness import Randomness
from dpacct.fl.privacy.secure_noise import SecureGaussianNoise, grid_exponent
from dpacct.fl.tensors import from_array
from dpacct.rounds import Adjacency, Sampling

# Rule 2, and the most shares for which it is proven.
LEAST_SIGMA = 2**10
MAX_SHARES = 2**20
_REHEARSED = 8


def share_sigma(limits: Limits, std: float, minimum: int) -> Fraction:
    """Standard deviation of one share in units of the grid.

    Args:
        limits: of one row. std: of the noise on the sum that is charged, in units of the rows.
        minimum: shares that make it up.
    Raises:
        Unsupported: too small for rule 2, or too large for the grid. InvalidParameter: too many.
    """
    if minimum > MAX_SHARES:
        raise InvalidParameter("minimum", minimum, f"at most {MAX_SHARES} shares make up a noise")
    sigma = Fraction(NoiseShares(minimum).share_std(std)) / Fraction(2) ** grid_exponent(limits)
    if not LEAST_SIGMA <= sigma <= MAX_SIGMA:
        shown = float(min(sigma, Fraction(2) ** 1000))
        raise Unsupported(
            f"shares of standard deviation {shown:g} grid units: between {LEAST_SIGMA} and "
            f"2^40 are proven; change the noise multiplier, or the minimum of {minimum} shares"
        )
    return sigma


def with_share(
    rows: Tensor, limits: Limits, std: float, minimum: int, source: Randomness
) -> Tensor:
    """Bounded rows [c, k] in units of the grid, each with a share of noise: int64 [c, k].

    Args:
        rows: as `contribute` gives them. limits, std, minimum: as for `share_sigma`.
        source: of the noise.
    Raises:
        Unsupported, InvalidParameter: see `share_sigma`.
    """
    sigma = share_sigma(limits, std, minimum)
    whole = SecureGaussianNoise().encode(rows, limits, std)
    for row in whole:
        row.add_(from_array(rounded_gaussian(len(row), sigma, source)).to(row.device))
    return whole


@dataclass(frozen=True, slots=True)
class SharesElsewhere:
    """`NoiseShares` as a server sees them: the sum that arrives has its noise already.

    Args:
        minimum: as for `NoiseShares`.
    """

    minimum: int

    name = "gaussian shares"

    def check(self, sampling: Sampling, adjacency: Adjacency, num_clients: int) -> None:
        """As `NoiseShares.check`."""
        NoiseShares(self.minimum).check(sampling, adjacency, num_clients)

    def arrivals(self: object, cohort: Sequence[int], source: Randomness) -> list[int]:
        """All that are asked."""
        del source
        return list(cohort)

    def actual_std(self, std: float, arrived: int) -> float | None:
        """As `NoiseShares.actual_std`."""
        return NoiseShares(self.minimum).actual_std(std, arrived)

    def zeros(self: object, size: int, device: torch.device) -> Tensor:
        """Int64 [size], in units of the grid."""
        return torch.zeros(size, dtype=torch.int64, device=device)

    def encode(self: object, rows: Tensor, limits: Limits, std: float) -> NoReturn:
        """Nobody's update is seen here.

        Raises:
            Unsupported: always.
        """
        del rows, limits, std
        raise Unsupported(
            "single updates of clients that add their own noise: they are hidden until they are "
            "summed. Take dpacct.fl.flower, or add a sum yourself: OpenRound.add_sum"
        )

    def add(self, total: Tensor, limits: Limits, std: float, source: Randomness) -> Tensor:
        """The sum times the grid, float64 [k]: its noise is in it."""
        del std, source
        return total.double() * 2.0 ** grid_exponent(limits)


@dataclass(frozen=True, slots=True)
class RehearsedShares:
    """`SharesElsewhere` with clients that are made up: few, whose shares have the same sum."""

    minimum: int

    name = "gaussian shares"

    def check(self, sampling: Sampling, adjacency: Adjacency, num_clients: int) -> None:
        """As `NoiseShares.check`."""
        NoiseShares(self.minimum).check(sampling, adjacency, num_clients)

    def actual_std(self, std: float, arrived: int) -> float | None:
        """As `NoiseShares.actual_std`."""
        return NoiseShares(self.minimum).actual_std(std, arrived)

    arrivals = SharesElsewhere.arrivals
    zeros = SharesElsewhere.zeros
    encode = SharesElsewhere.encode

    def add(self, total: Tensor, limits: Limits, std: float, source: Randomness) -> Tensor:
        """The sum with shares of those who would have sent them."""
        nothing = torch.zeros(min(self.minimum, _REHEARSED), len(total), dtype=torch.float64)
        shares = with_share(nothing, limits, std, len(nothing), source)
        whole = total + shares.sum(dim=0).to(total.device)
        return whole.double() * 2.0 ** grid_exponent(limits)
