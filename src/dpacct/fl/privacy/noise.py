"""The noise on a sum: its place, its source and its distribution.

Rule 1: one draw per round, on the sum, also if the cohort is empty. Rule 2: the standard deviation
that is drawn is at least the one that was charged.

Secure noise is whole numbers from bound to release. Contributions are cut toward zero to multiples
of a grid, so that they do not grow, and are summed exactly. The noise is a real Gaussian variate
rounded to the same grid, drawn exactly. Since the sum is on the grid, the release is the ideal
Gaussian release, rounded: a post-processing of it. So the accountant's figure holds under any
sampling and adjacency.

Shares are such noise from the clients: each client adds a share to its bounded update, in whole
numbers, and hides their sum. An aggregator that adds up all of them, modulo 2^64, has the noisy sum
and nothing else. Rule 3: the standard deviation of a share is at least 2^10 grid units. So the sum
of the shares is, to within a factor 1 +- exp(-9 million), a post-processing of the ideal Gaussian
on the sum. Proofs and costs: docs/derivations/federated.md.

The rounded Gaussian variate is sigma X with X standard normal and sigma rational. Uniform bits
decide X by inversion. Floating point proposes the integer. Wherever its error could matter, the
comparison is repeated in decimal arithmetic with as many further random bits as it takes. Proof:
docs/derivations/federated.md.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri  # pyright: ignore[reportMissingTypeStubs]
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.privacy.randomness import Randomness, normals
from dpacct.fl.public import HasRate
from dpacct.fl.tensors import from_array
from dpacct.rounds import Adjacency, Full, Uniform

# |float result - sigma X| <= sigma GUARD (|X| + 4): many times the observed error of scipy's ndtri,
# and the rounding of the uniform. tests/fl/privacy/test_exact_gaussian.py holds ndtri against
# mpmath.
GUARD = 2.0**-44
# Fewer leading bits than this do not pin down X well enough for GUARD.
_FEW = 1 << 44
_BLOCK = 1 << 18
MAX_SIGMA = 2.0**40


def rounded_gaussian(size: int, sigma: Fraction, source: Randomness) -> NDArray[np.int64]:
    """Return independent draws of round(sigma X), X standard normal, int64 [size].

    sigma is in (0, 2^40], and should be well above 1 for speed alone.
    Error: none. The law is exact if the bits are uniform and scipy's ndtri meets `GUARD`.
    """
    values = np.empty(size, dtype=np.int64)
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        values[start:stop] = _block(stop - start, sigma, source)
    return values


def _block(size: int, sigma: Fraction, source: Randomness) -> NDArray[np.int64]:
    bits = np.frombuffer(source.take(8 * size), dtype="<u8")
    negative = (bits & np.uint64(1)).astype(bool)
    # The upper tail's probability lies in [leading, leading + 1] / 2^64, leading < 2^63.
    leading = bits >> np.uint64(1)
    scale = float(sigma)
    with np.errstate(divide="ignore", invalid="ignore"):
        magnitude = -ndtri(np.ldexp(leading.astype(np.float64), -64))
        guess = np.rint(scale * magnitude)
        distance = np.abs(np.abs(scale * magnitude - guess) - 0.5)
        doubtful = ~(distance > scale * GUARD * (magnitude + 4)) | (leading < _FEW)
    sure = np.where(doubtful, 0.0, guess).astype(np.int64)
    for place in np.flatnonzero(doubtful):
        sure[place] = decide(int(leading[place]), sigma, source)
    return np.where(negative, -sure, sure)


def decide(leading: int, sigma: Fraction, source: Randomness) -> int:
    """Return the integer k >= 0 to which sigma Q^-1(p) rounds.

    Q is the upper tail of the standard normal. K is the smallest with Q((k + 1/2) / sigma) < p.
    ``leading`` has the first 64 bits of p < 1/2, a whole number below 2^63. More bits are drawn.
    """
    tail = _LazyUniform(leading, source)

    def enough(k: int) -> bool:
        return k >= 0 and tail.exceeds_tail((k + Fraction(1, 2)) / sigma)

    guess = int(float(sigma) * float(-ndtri(max(leading, 1) * 2.0**-64)))
    # A bracket around the guess, widened until it holds.
    high, step = guess, 1
    while not enough(high):
        high, step = high + step, 2 * step
    low, step = min(high, guess) - 1, 1
    while enough(low):
        high, low, step = low, low - step, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


class _LazyUniform:
    """A uniform number of which as many bits are drawn as comparisons need."""

    def __init__(self, leading: int, source: Randomness) -> None:
        self._leading = leading
        self._bits = 64
        self._source = source

    def exceeds_tail(self, x: Fraction) -> bool:
        """Return whether p > Q(x) for x > 0. Ties have probability zero."""
        while True:
            digits = 30 + self._bits // 3
            value, error = upper_tail(x, digits)
            with decimal.localcontext(decimal.Context(prec=2 * digits + 20)):
                width = Decimal(2) ** -self._bits
                lower = Decimal(self._leading) * width
                if lower >= value + error:
                    return True
                if lower + width <= value - error:
                    return False
            self._leading = (self._leading << 64) | int.from_bytes(self._source.take(8), "little")
            self._bits += 64


def upper_tail(x: Fraction, digits: int) -> tuple[Decimal, Decimal]:
    """Return Q(x) = 1/2 - phi(x) (x + x^3/3 + x^5/(3 5) + ...) for x >= 0.

    With it comes its absolute error bound, 10^-digits.
    """
    if x * x > 5 * digits + 50:
        # Q(x) < exp(-x^2 / 2) < 10^-digits.
        return Decimal(0), Decimal(10) ** -digits
    with decimal.localcontext(decimal.Context(prec=digits + 30, Emin=-(10**9), Emax=10**9)):
        point = Decimal(x.numerator) / Decimal(x.denominator)
        square = point * point
        term, total, odd = point, point, 1
        # All terms are positive, and phi(x) times their sum is below 1/2. If the ratio of terms is
        # below 1/2 the rest of the series is below the last term.
        while 2 * square > odd + 2 or term > Decimal(10) ** -(digits + 5):
            odd += 2
            term = term * square / odd
            total += term
        density = (-square / 2).exp() / (2 * _pi(digits + 30)).sqrt()
        return Decimal("0.5") - density * total, Decimal(10) ** -digits


@cache
def _pi(digits: int) -> Decimal:
    """Return pi by Machin's formula in whole numbers, right in all ``digits``."""
    unit = 10 ** (digits + 10)

    def arctan_inverse(n: int) -> int:
        total = term = unit // n
        odd, sign = 3, -1
        while term:
            term //= n * n
            total += sign * (term // odd)
            odd, sign = odd + 2, -sign
        return total

    value = 4 * (4 * arctan_inverse(5) - arctan_inverse(239))
    with decimal.localcontext(decimal.Context(prec=digits + 12)):
        return Decimal(value) / Decimal(unit)


Limits = Sequence[tuple[int, int, float]]

# On top of z C, so that rounding of the product cannot take anything away.
STD_MARGIN = 2.0**-40
# The grid of whole numbers is 2^-24 times a power of two that is at most the largest limit.
_RESOLUTION = 24
# Rule 3, and the most shares for which it is proven.
LEAST_SIGMA = 2**10
MAX_SHARES = 2**20


class Noise(Protocol):
    """The step from a sum of bounded rows to a noisy sum.

    The defaults are those of noise that a trusted server adds once, in floating point: it fits
    every setting and every cohort.
    """

    # In the ledger's record.
    name: str = ""

    def check(self, sampling: HasRate, adjacency: Adjacency, num_clients: int) -> None:
        """Reject as Unsupported a setting in which this noise would not be the charged one."""

    def actual_std(self, std: float, arrived: int) -> float | None:
        """Return the standard deviation of the noise on the sum of ``arrived`` contributions.

        At least ``std``, which was charged, or None if it would be less: then nothing may leave.
        """
        del arrived
        return std

    def zeros(self, size: int, device: torch.device) -> Tensor:
        """Return an empty sum, float64 [size]. A device without float64 is Unsupported."""
        if device.type == "mps":
            raise Unsupported("sums in float32, all that an mps device has, are not exact. Use cpu")
        return torch.zeros(size, dtype=torch.float64, device=device)

    def encode(self, rows: Tensor, limits: Limits, std: float) -> Tensor:
        """Return bounded rows [c, k] in the form in which they are summed. Here unchanged."""
        del limits, std
        return rows

    def add(self, total: Tensor, limits: Limits, std: float, source: Randomness) -> Tensor:
        """Return the sum with fresh noise on each coordinate, float64 [k].

        Args:
            total: sum of encoded rows. limits: of one row.
            std: standard deviation of the noise, in units of the rows.
            source: of the randomness.
        """
        ...


def drawn_std(noise: Noise, charged: float, arrived: int) -> float | None:
    """Return `Noise.actual_std`, checked. Rule 2."""
    std = noise.actual_std(charged, arrived)
    if std is not None and not std >= charged:
        raise Unsupported(
            f"{noise.name} noise of standard deviation {std:g} where {charged:g} is charged"
        )
    return std


def sums_as_they_are(noise: Noise) -> bool:
    """Return whether bounded rows are summed unchanged, so that no single row is needed."""
    return type(noise).encode is Noise.encode


@dataclass(frozen=True, slots=True)
class GaussianNoise(Noise):
    """Gaussian noise in floating point, added once by the trusted server.

    Its distribution is Gaussian up to the resolution of doubles, which delta does not cover. So it
    proves nothing against an attacker with the last bits of a release and the generator's algorithm
    (Mironov 2012, 10.1145/2382196.2382264). `SecureGaussianNoise` protects against that too.
    """

    name = "gaussian"

    def add(self, total: Tensor, limits: Limits, std: float, source: Randomness) -> Tensor:
        """Return the sum plus std times standard normal variates."""
        del limits
        return normals(source, len(total), total.device).mul_(std).add_(total)


def grid_exponent(limits: Limits) -> int:
    """Return e of the grid 2^e that belongs to the norm limits of one row."""
    return math.frexp(max(limit for _, _, limit in limits))[1] - 1 - _RESOLUTION


@dataclass(frozen=True, slots=True)
class SecureGaussianNoise(Noise):
    """Exactly sampled Gaussian noise on a grid, from the operating system's random bits.

    The grid is a power of two between 2^-25 and 2^-24 times the (largest) norm limit. It costs
    about 80 ns a coordinate and round on one core, and works on the CPU. Contributions on other
    devices are summed there, in whole numbers, and the sum comes over.

    Source: rounding as post-processing of an ideal release. The attacks are those of Mironov 2012
    (10.1145/2382196.2382264) and Casacuberta et al. 2022 (10.1145/3548606.3560708).
    """

    name = "secure gaussian"

    def zeros(self, size: int, device: torch.device) -> Tensor:
        """Return int64 [size], in units of the grid."""
        return torch.zeros(size, dtype=torch.int64, device=device)

    def encode(self, rows: Tensor, limits: Limits, std: float) -> Tensor:
        """Return rows in units of the grid, int64, cut toward zero.

        Their real norms were within the limits (docs/derivations/exact-sums.md), the product with a
        power of two is exact, and the cut makes no coordinate longer.
        """
        del std
        return (rows.double() * 2.0 ** -grid_exponent(limits)).trunc_().long()

    def add(self, total: Tensor, limits: Limits, std: float, source: Randomness) -> Tensor:
        """Return the exact sum plus exact noise, times the grid, float64 [k]."""
        exponent = grid_exponent(limits)
        sigma = Fraction(std) / Fraction(2) ** exponent
        if sigma > MAX_SIGMA:
            raise Unsupported(
                f"secure noise of standard deviation {std:g} on contributions of norm "
                f"{limits[0][2]:g}: the grid has room for 2^15 times the norm"
            )
        noise = from_array(rounded_gaussian(len(total), sigma, source))
        return (total + noise.to(total.device)).double() * 2.0**exponent


@dataclass(frozen=True, slots=True)
class NoiseShares(Noise):
    """Noise without a trusted server: each client adds a share before secure aggregation.

    The server receives the sum alone. Each share is N(0, std^2 / minimum), so ``minimum`` honest
    shares make up the noise that is charged. A round to which fewer arrive releases nothing. More
    shares are more noise, and are charged as the minimum, since the count of arrivals follows the
    reservation. Cohorts have a planned size: under Poisson sampling the variance of the noise would
    reveal the cohort's size.

    Args:
        minimum: fewest shares that may arrive, not counting clients that help an attacker.
    """

    minimum: int

    name = "gaussian shares"

    def __post_init__(self) -> None:
        count = validate.count("minimum", self.minimum, "the minimum of noise shares")
        object.__setattr__(self, "minimum", count)

    def check(self, sampling: HasRate, adjacency: Adjacency, num_clients: int) -> None:
        """Accept fixed cohorts under replace-one or zero-out, at least as large as the minimum."""
        if not isinstance(sampling, Uniform | Full):
            raise Unsupported(
                f"noise shares under {type(sampling).__name__} sampling: the variance of the sum "
                "would reveal how many took part. Use Uniform or Full sampling, or noise from a "
                "trusted server"
            )
        if adjacency is Adjacency.ADD_REMOVE:
            raise Unsupported(
                "noise shares under add-remove: a client that leaves takes its share along, and "
                "the variance shows it. Use adjacency zero-out or replace-one"
            )
        cohort = getattr(sampling, "cohort_size", num_clients)
        if self.minimum > cohort:
            rule = f"at most the whole cohort ({cohort}) can send shares"
            raise InvalidParameter("minimum", self.minimum, rule)

    def actual_std(self, std: float, arrived: int) -> float | None:
        """Return std sqrt(arrived / minimum), None below the minimum."""
        return None if arrived < self.minimum else std * (arrived / self.minimum) ** 0.5

    def add(self, total: Tensor, limits: Limits, std: float, source: Randomness) -> Tensor:
        """Return the sum plus one draw, distributed as the sum of all shares that arrived."""
        return GaussianNoise().add(total, limits, std, source)


def share_sigma(limits: Limits, std: float, minimum: int) -> Fraction:
    """Return the standard deviation of one of the ``minimum`` shares, in units of the grid.

    ``std`` is that of the charged noise on the sum, in units of the rows.
    """
    if minimum > MAX_SHARES:
        raise InvalidParameter("minimum", minimum, f"at most {MAX_SHARES} shares make up a noise")
    sigma = Fraction(std / minimum**0.5) / Fraction(2) ** grid_exponent(limits)
    if not LEAST_SIGMA <= sigma <= MAX_SIGMA:
        shown = float(min(sigma, Fraction(2) ** 1000))
        raise Unsupported(
            f"shares of standard deviation {shown:g} grid units: between {LEAST_SIGMA} and "
            f"2^40 are proven. Change the noise multiplier, or the minimum of {minimum} shares"
        )
    return sigma


def with_share(
    rows: Tensor, limits: Limits, std: float, minimum: int, source: Randomness
) -> Tensor:
    """Return rows [c, k] of `contribute` in units of the grid, each with a share: int64 [c, k]."""
    sigma = share_sigma(limits, std, minimum)
    whole = SecureGaussianNoise().encode(rows, limits, std)
    for row in whole:
        row.add_(from_array(rounded_gaussian(len(row), sigma, source)).to(row.device))
    return whole


@dataclass(frozen=True, slots=True)
class SharesElsewhere(NoiseShares):
    """`NoiseShares` of a server's clients: the sum that arrives has its noise already."""

    zeros = SecureGaussianNoise.zeros

    def encode(self, rows: Tensor, limits: Limits, std: float) -> Tensor:
        """Reject single updates, which the server must not receive."""
        del rows, limits, std
        raise Unsupported(
            "single updates of clients that add their own noise: only their sum has enough noise. "
            "Take dpacct.fl.flower, or add a sum yourself: OpenRound.add_sum"
        )

    def add(self, total: Tensor, limits: Limits, std: float, source: Randomness) -> Tensor:
        """Return the sum times the grid, float64 [k]: its noise is in it."""
        del std, source
        return total.double() * 2.0 ** grid_exponent(limits)
