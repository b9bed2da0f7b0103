"""Integers distributed exactly as a real Gaussian variate rounded to the nearest integer.

The variate is sigma X with X standard normal and sigma rational. Uniform bits decide X by
inversion. Floating point proposes the integer. Wherever its error could matter, the comparison is
repeated in decimal arithmetic with as many further random bits as it takes. Proof:
docs/derivations/federated.md.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri  # pyright: ignore[reportMissingTypeStubs]

from dpacct.fl.privacy.randomness import Randomness

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
