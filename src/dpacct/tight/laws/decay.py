"""How fast characteristic functions decay, and their powers. Shared by all tilted laws.

|phi(t)| <= left + variation / t, where ``left`` is the mass left of some point and ``variation``
that of the density right of it; and 1 - |phi(t)|^2 >= (1 - |phi(2 t)|^2) / 4. Where the density is
analytic, `shifted` has bounds that fall faster.

Derivation: docs/derivations/inversion.md.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct.numerics.rounding import UNIT, Array, ComplexArray

# Frequencies grow by the factor 2^(1/4), and are doubled this often.
_PER_DOUBLING, _DOUBLINGS = 4, 30
_BLOCK = 2_000_000


def decay_table(first: float, number: int) -> Array:
    """The frequencies at which decay is bounded: first 2^(k/4), shape (number,)."""
    return first * np.exp2(np.arange(float(number)) / _PER_DOUBLING)


def doubled(number: int) -> int:
    """How many entries of `decay_table` bounds at the first ``number`` of them rest on."""
    return number + _PER_DOUBLING * _DOUBLINGS


def log_decay(
    first: float, number: int, left: Array, log_variation: Array, known: Array | None = None
) -> Array:
    """Bounds of log |phi(t')| for every t' >= t, for several laws.

    Args:
        first, number: t runs through `decay_table`.
        left, log_variation: |phi(t)| <= left + e^log_variation / t for each entry, shape (m, n).
        known: other bounds of |phi(t')|, t' >= t, at `doubled` many t; shape (m, doubled(number)).
    Returns:
        Array (m, number), at most 0.
    """
    length = doubled(number)
    # 1e-9 pays for the rounding of t.
    log_t = np.log(decay_table(first, length)) - 1e-9
    found = np.empty((len(left), number))
    block = max(1, _BLOCK // (left.shape[1] * length))
    for start in range(0, len(left), block):
        rows = slice(start, start + block)
        wave = np.minimum(log_variation[rows, :, None] - log_t, 1.0)
        bound = np.minimum(1.0, np.min(left[rows, :, None] + np.exp(wave), axis=1))
        if known is not None:
            bound = np.minimum(bound, known[rows])
        deficit = 1 - bound**2
        best = deficit[:, :number].copy()
        for k in range(1, _DOUBLINGS + 1):
            shift = _PER_DOUBLING * k
            np.maximum(best, 0.25**k * deficit[:, shift : shift + number], out=best)
        found[rows] = 0.5 * np.log1p(-np.minimum(best, 1 - 1e-15))
        # One minus a square forgets what is tiny.
        found[rows] = np.minimum(found[rows], np.log(bound[:, :number] + 1e-300))
    return found


def log_of_power(
    shift: ComplexArray, error: Array, count: float | Array
) -> tuple[ComplexArray, Array]:
    """log of (1 + shift)^count and a bound of its error, given that of ``shift``; any shape.

    The error is relative to the value returned. Where ``shift`` may be -1, that stands for
    anything of at most its modulus: relative error 2.
    """
    x = np.asarray(shift.real, dtype=np.float64)
    y = np.asarray(shift.imag, dtype=np.float64)
    modulus = np.hypot(1 + x, y)
    # numpy's complex log1p is accurate only next to 1 in absolute terms; this is relative to shift.
    size = np.hypot(x, y)
    near = size < 0.5
    log_modulus = 0.5 * np.log1p(np.where(near, x * (2 + x) + y * y, 0.0))
    log_modulus = np.where(near, log_modulus, np.log(np.maximum(modulus, 1e-300)))
    angle = np.arctan2(y, 1 + x)
    unsure = modulus <= 2 * error
    log_modulus = np.where(unsure, np.log(modulus + error + 1e-300), log_modulus)
    relative = (2 * error + 32 * UNIT * size) / np.maximum(modulus, 1e-300)
    bound = np.where(unsure, math.log(3.0), count * relative)
    log_value = count * log_modulus + 1j * (count * np.where(unsure, 0.0, angle))
    return log_value, bound + 8 * UNIT * (np.abs(log_value) + 1)


def log_one_plus(value: ComplexArray, error: Array) -> tuple[ComplexArray, Array]:
    """log(1 + z) and a bound of its error, given that of z; infinite where z may be -1.

    Accurate relative to z where z is small.
    """
    x, y = value.real, value.imag
    modulus, size = np.hypot(1 + x, y), np.hypot(x, y)
    near = size < 0.5
    log_modulus = 0.5 * np.log1p(np.where(near, x * (2 + x) + y * y, 0.0))
    log_modulus = np.where(near, log_modulus, np.log(np.maximum(modulus, 1e-300)))
    sure = modulus > 2 * error
    relative = (2 * error + 48 * UNIT * size) / np.maximum(modulus, 1e-300)
    return log_modulus + 1j * np.arctan2(y, 1 + x), np.where(sure, relative, np.inf)
