"""The accuracy that is assumed of floating point, stated once, and bounds carried as pairs.

Assumption A: IEEE double precision with round to nearest for + - * / sqrt.
Assumption B: numpy's and Python's exp, expm1, log, log1p, numpy's logaddexp, sin and arctan2, and
math.erfc are within `FUNCTION_ULPS` units in the last place. `tests/numerics/test_rounding.py`
compares them with 50-digit values on a dense sample.

Assumption C, of fast Fourier transforms, is stated in `fourier`. Every proof in this package
rests on these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpacct import validate
from dpacct.errors import InvalidParameter

Array = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]
# What `validate.several` accepts.
Numbers = Sequence[Any] | NDArray[Any]

UNIT = 2.0**-53
FUNCTION_ULPS = 4
# An ulp is at most 2 UNIT relative.
FUNCTION_ERROR = 2 * FUNCTION_ULPS * UNIT


class Bounds(NamedTuple):
    """A quantity, or an array of them, between ``lower`` and ``upper``."""

    lower: Array
    upper: Array


def numbers(name: str, values: object, noun: str) -> Array:
    """Return a copy of a sequence or an array of numbers as doubles. Text is never a number.

    Raises:
        InvalidParameter: it is neither (`validate.several`), or its entries are no numbers.
    """
    given = validate.several(name, values, noun)
    try:
        read = np.array(given)
        floats = read.astype(np.float64)
    except (TypeError, ValueError):
        read = floats = np.array("")
    if read.dtype.kind not in "iufO":
        rule = f"{noun} are numbers, in rows of one length"
        raise InvalidParameter(name, given, rule)
    return floats


def widen(lower: Array, upper: Array, slack: Array) -> Bounds:
    """Return bounds moved apart by ``slack`` >= 0, and by one more ulp for the rounding of that."""
    return Bounds(
        np.nextafter(lower - slack, -np.inf),
        np.nextafter(upper + slack, np.inf),
    )


def weighted_sum(bounds: Bounds, weights: Array) -> Bounds:
    """Return bounds of sum_i weights_i x_i for weights >= 0, over the first axis.

    Moments stay below 1e16 and rounds below 1e13, so that no product comes near overflow.
    Error: n + 2 roundings, each at most `UNIT` of the sum of absolute values.
    """
    columns = weights.reshape((-1,) + (1,) * (bounds.lower.ndim - 1))
    low, high = columns * bounds.lower, columns * bounds.upper
    slack = (len(weights) + 2) * UNIT
    return widen(
        low.sum(axis=0) - slack * np.abs(low).sum(axis=0),
        high.sum(axis=0) + slack * np.abs(high).sum(axis=0),
        np.zeros(bounds.lower.shape[1:]),
    )


def positive_sum(terms: Array) -> tuple[float, float]:
    """Return the sum of terms >= 0, shape (n,), and its relative error.

    The terms are summed in blocks, so that about 2 sqrt(n) roundings follow each other, in any
    order.
    """
    block = max(1, math.isqrt(len(terms)))
    parts = np.add.reduceat(terms, np.arange(0, len(terms), block))
    return float(parts.sum()), UNIT * (block + len(parts) + 2)


def above(value: float, *terms: float) -> float:
    """Return ``value``, computed from ``terms`` by a few operations and functions, rounded up."""
    return math.nextafter(value + 4 * FUNCTION_ERROR * sum(map(abs, terms)), math.inf)


def below(value: float, *terms: float) -> float:
    """Return ``value``, computed from ``terms`` by a few operations and functions, rounded down."""
    return math.nextafter(value - 4 * FUNCTION_ERROR * sum(map(abs, terms)), -math.inf)


def decimal(value: float) -> Fraction:
    """Return the number that a float is written as: 0.1 is one tenth.

    Parameters of releases and budgets mean their decimals, which add up exactly: ten times 0.1 is
    1. Their floats do not. Monotone in ``value``.
    """
    return Fraction(repr(float(value)))


def decimal_above(value: Fraction) -> float:
    """Return the least float whose decimal is at least ``value``, which is positive or zero.

    So ``decimal_above(value) <= x`` is ``value <= decimal(x)``, without rounding.
    """
    # Each decimal rounds to its own float, so none below the nearest one can be enough.
    number = float(value)
    while decimal(number) < value:
        number = math.nextafter(number, math.inf)
    return number
