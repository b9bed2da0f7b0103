"""The noise on the sum: who adds it, from what source, and what law it has.

Rule 1: one draw per round, on the sum, also when the cohort is empty. Rule 2: the standard
deviation that was charged is the one that is drawn, and never less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.privacy.exact_gaussian import MAX_SIGMA, rounded_gaussian
from dpacct.fl.privacy.randomness import Randomness, draw_below, normals
from dpacct.fl.tensors import from_array
from dpacct.rounds import Adjacency, Poisson, Sampling

Limits = Sequence[tuple[int, int, float]]

# On top of z C, so that rounding of the product cannot take anything away.
STD_MARGIN = 2.0**-40


class Noise(Protocol):
    """How a sum of bounded rows becomes a noisy one."""

    @property
    def name(self) -> str:
        """For the ledger's record."""
        ...

    def check(self, sampling: Sampling, adjacency: Adjacency, num_clients: int) -> None:
        """Refuse a setting in which this noise would not be what is charged.

        Raises:
            Unsupported: it would not.
        """
        ...

    def arrivals(self, cohort: Sequence[int], source: Randomness) -> list[int]:
        """Those of the cohort whose contribution (and noise share) arrives."""
        ...

    def actual_std(self, std: float, arrived: int) -> float | None:
        """Standard deviation of the noise on the sum of ``arrived`` contributions.

        At least ``std``, which was charged; None where it would be less: then nothing may leave.
        """
        ...

    def zeros(self, size: int, device: torch.device) -> Tensor:
        """An empty sum."""
        ...

    def encode(self, rows: Tensor, limits: Limits, std: float) -> Tensor:
        """Bounded rows [c, k] in the form in which they are summed."""
        ...

    def add(self, total: Tensor, limits: Limits, std: float, source: Randomness) -> Tensor:
        """The sum with fresh noise on each coordinate, float64 [k].

        Args:
            total: sum of encoded rows. limits: of one row.
            std: standard deviation of the noise, in units of the rows.
            source: of the randomness.
        """
        ...


def drawn_std(noise: Noise, charged: float, arrived: int) -> float | None:
    """`Noise.actual_std`, held to its word.

    Raises:
        Unsupported: less than what is charged.
    """
    std = noise.actual_std(charged, arrived)
    if std is not None and not std >= charged:
        raise Unsupported(
            f"{noise.name} noise of standard deviation {std:g} where {charged:g} is charged"
        )
    return std


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """Gaussian noise in floating point, added once by the trusted server, on the device.

    Its law is Gaussian up to the resolution of doubles, and off the CPU up to 9.49 standard
    deviations, beyond which 3e-21 of it is missing; delta pays for neither. Against somebody who
    can read the last bits of a release and knows the generator's algorithm it proves nothing
    (Mironov 2012, 10.1145/2382196.2382264); `SecureGaussianNoise` does.
    """

    name = "gaussian"

    # The first three hold for all noise that a trusted server adds.
    def check(self: object, sampling: Sampling, adjacency: Adjacency, num_clients: int) -> None:
        """Fits everywhere."""
        del sampling, adjacency, num_clients

    def arrivals(self: object, cohort: Sequence[int], source: Randomness) -> list[int]:
        """Everybody."""
        del source
        return list(cohort)

    def actual_std(self: object, std: float, arrived: int) -> float | None:
        """As charged, whoever takes part."""
        del arrived
        return std

    def zeros(self, size: int, device: torch.device) -> Tensor:
        """Float64 [size].

        Raises:
            Unsupported: the device has no float64.
        """
        if device.type == "mps":
            raise Unsupported("sums in float32, all that an mps device has, are not exact; use cpu")
        return torch.zeros(size, dtype=torch.float64, device=device)

    def encode(self: object, rows: Tensor, limits: Limits, std: float) -> Tensor:
        """As they are."""
        del limits, std
        return rows

    def add(self, total: Tensor, limits: Limits, std: float, source: Randomness) -> Tensor:
        """The sum plus std times standard normal variates."""
        del limits
        return normals(source, len(total), total.device).mul_(std).add_(total)


# As it is written, whatever somebody puts in its place.
_AS_THEY_ARE = GaussianNoise.encode


def sums_as_they_are(noise: Noise) -> bool:
    """Whether bounded rows are summed as they are: then a sum needs no single one of them."""
    return getattr(noise.encode, "__func__", None) is _AS_THEY_ARE


@dataclass(frozen=True, slots=True)
class NoiseShares:
    """Noise without a trusted server: each client adds a share before secure aggregation.

    The server sees the sum alone. Each share is N(0, std^2 / minimum), so ``minimum`` honest shares
    make up the noise that is charged; a round to which fewer arrive releases nothing. More shares
    are more noise, and are charged as the minimum: what arrives is known only after the round is
    reserved. Cohorts have a planned size: shares from whoever joined under Poisson sampling would
    make the noise's variance reveal the cohort's size.

    Args:
        minimum: fewest shares that may arrive, not counting clients that help an attacker.
        dropout_rate: in simulations, the probability in [0, 1) with which a client drops out,
            whatever its data.

    Raises:
        InvalidParameter: a value out of range.
    """

    minimum: int
    dropout_rate: float = 0.0

    name = "gaussian shares"

    def __post_init__(self) -> None:
        count = validate.count("minimum", self.minimum, "the minimum of noise shares")
        object.__setattr__(self, "minimum", count)
        rule = "a dropout rate lies in [0, 1)"
        rate = validate.real("dropout_rate", self.dropout_rate, rule)
        if not 0 <= rate < 1:
            raise InvalidParameter("dropout_rate", self.dropout_rate, rule)

    def check(self, sampling: Sampling, adjacency: Adjacency, num_clients: int) -> None:
        """Fixed cohorts under replace-one or zero-out, at least as large as the minimum.

        Raises:
            Unsupported: Poisson sampling, or add-remove. InvalidParameter: the minimum is larger
                than the cohort.
        """
        if isinstance(sampling, Poisson):
            raise Unsupported(
                "noise shares under Poisson sampling: the variance of the sum would reveal how "
                "many took part. Use Uniform or Full sampling, or noise from a trusted server"
            )
        if adjacency is Adjacency.ADD_REMOVE:
            raise Unsupported(
                "noise shares under add-remove: a client that leaves takes its share along, and "
                "the variance shows it. Use adjacency replace-one"
            )
        cohort = getattr(sampling, "cohort_size", num_clients)
        if self.minimum > cohort:
            rule = f"at most the whole cohort ({cohort}) can send shares"
            raise InvalidParameter("minimum", self.minimum, rule)

    def arrivals(self, cohort: Sequence[int], source: Randomness) -> list[int]:
        """Those that do not drop out."""
        if not self.dropout_rate:
            return list(cohort)
        stays = draw_below(len(cohort), 1 - self.dropout_rate, source)
        return [cohort[place] for place in stays]

    def actual_std(self, std: float, arrived: int) -> float | None:
        """std sqrt(arrived / minimum), None below the minimum."""
        return None if arrived < self.minimum else std * (arrived / self.minimum) ** 0.5

    def share_std(self, std: float) -> float:
        """Standard deviation of the share that one client adds to its bounded update."""
        return std / self.minimum**0.5

    def zeros(self, size: int, device: torch.device) -> Tensor:
        """Float64 [size]."""
        return GaussianNoise().zeros(size, device)

    encode = GaussianNoise.encode

    def add(self, total: Tensor, limits: Limits, std: float, source: Randomness) -> Tensor:
        """One draw with the law of the sum of all shares that arrived."""
        return GaussianNoise().add(total, limits, std, source)


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
