"""Composition of tilted grid laws by the fast Fourier transform, with a bound of its rounding.

Assumption C: numpy's rfft and irfft of length n = 2^k are off by at most `TRANSFORM_ERROR` k times
the norm of the exact result, in the Euclidean norm. For a radix-2 transform with correctly rounded
twiddle factors it is a theorem: Higham, Accuracy and Stability of Numerical Algorithms (2002),
theorem 24.2. `tests/tight/grid/test_transform.py` guards it.

Derivation: docs/derivations/grid.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array, ComplexArray

# Higham's constant is about (1 + 4 sqrt(2)) UNIT per level.
TRANSFORM_ERROR = 8 * UNIT


@dataclass(frozen=True, slots=True)
class Factor:
    """One law of a composition: masses that sum to about one, at points first, first + 1, ..."""

    first: int
    masses: Array
    count: int


@dataclass(frozen=True, slots=True)
class Composed:
    """Cyclic masses of the sum, at points first, first + 1, ..., and their error.

    Attributes:
        first: index of the first point.
        masses: shape (n,); tiny ones may be negative.
        error: bound of the Euclidean norm of their error, wrap-around left aside.
    """

    first: int
    masses: Array
    error: float


def compose(factors: list[Factor], first: int, size: int) -> Composed:
    """The law of the sum of all losses, modulo ``size`` points.

    Args:
        factors: the laws and how often each occurs.
        first: index of the first point of the result.
        size: a power of two.
    Raises:
        NotConverged: rounding errors of this many rounds may reach the result.
    """
    levels = size.bit_length() - 1
    spectrum: ComplexArray | None = None
    # Error of the spectrum, relative to sqrt(size); then that of all roundings of products.
    error, rounding, growth = 0.0, 0.0, 0.0
    for factor in factors:
        folded = np.zeros(size)
        _fold(factor, folded)
        norm = float(np.linalg.norm(folded)) * (1 + 1e-12)
        transformed = np.fft.rfft(folded)
        del folded
        off = (TRANSFORM_ERROR * levels + 4 * UNIT) * norm
        error += factor.count * off
        # Any component: |F| <= total mass, and the error of one is at most that of all.
        growth += factor.count * (UNIT * 4 * len(factor.masses) + off * math.sqrt(size))
        rounding += 3 * UNIT * (factor.count + 1)
        transformed = _power(transformed, factor.count)
        spectrum = transformed if spectrum is None else np.multiply(spectrum, transformed)
    if spectrum is None:
        raise NotConverged("there is nothing to compose")
    if growth > 0.1:
        raise NotConverged("the rounding errors of so many rounds reach the result")
    masses = np.fft.irfft(spectrum, size)
    del spectrum
    norm = float(np.linalg.norm(masses))
    error *= 1 + 2 * growth
    error += (rounding + TRANSFORM_ERROR * levels) * (norm + error) * 1.1
    return Composed(first, np.roll(masses, -(first % size)), error)


def _fold(factor: Factor, folded: Array) -> None:
    """Masses by their index modulo the size."""
    size, masses = len(folded), factor.masses
    place, done = factor.first % size, 0
    while done < len(masses):
        part = min(size - place, len(masses) - done)
        folded[place : place + part] += masses[done : done + part]
        done += part
        place = 0


def _power(base: ComplexArray, count: int) -> ComplexArray:
    """base^count by repeated squaring: count - 1 relative roundings of sqrt(5) UNIT each."""
    result: ComplexArray | None = None
    while True:
        if count & 1:
            result = base.copy() if result is None else np.multiply(result, base, out=result)
        count >>= 1
        if not count:
            break
        base = np.multiply(base, base)
    return base if result is None else result
