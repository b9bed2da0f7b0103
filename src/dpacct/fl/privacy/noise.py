"""The noise on the sum: who adds it, from what source, and what law it has.

Rule 1: one draw per round, on the sum, also when the cohort is empty. Rule 2: the standard
deviation that was charged is the one that is drawn, and never less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.privacy.randomness import Randomness, draw_below, normals
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
