"""Characteristic functions at equally spaced frequencies: sums of w (e^{i t l} - 1) over nodes.

1. Few frequencies or nodes: e^{i t l} is a product of two entries of small tables, so that the sums
   are one matrix product.
2. Many of both: the nodes are moved to a grid in l, the rest of each phase is expanded in powers,
   and each power costs one fast Fourier transform.

Derivation of both error bounds: docs/derivations/inversion.md. The second one uses

Assumption C: each output of numpy's real FFT of length n = 2^k is within
`FFT_ERROR` * k of the exact transform, relative to the sum of the inputs' absolute values.
`tests/numerics/test_fourier.py` guards it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array, ComplexArray
from dpacct.numerics.special import dot


class Laws(NamedTuple):
    """The nodes of several laws, laid end to end, shape (n,).

    Law k has ``counts[k]`` nodes from ``starts[k]`` on, shape (m,).
    """

    losses: Array
    weights: Array
    error: Array
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]


FFT_ERROR = 8 * UNIT
# Above this many (frequency, node) pairs the transform is the cheaper route.
_TABLE_CELLS = 4_000_000
_TABLE_BLOCK = 1_000_000
# Multiplications up to which OpenBLAS takes one thread: those of more wait for each other by
# spinning, which takes several times the processor time.
_PRODUCT = 2**16
MAX_FREQUENCIES = 2**17


class Weighted(NamedTuple):
    """The nodes of a law, their masses, and bounds of the masses' absolute errors, shape (n,)."""

    losses: Array
    weights: Array
    error: Array


def characteristic_shifts(
    step: float, number: int, laws: Laws
) -> Iterator[tuple[NDArray[np.int64], ComplexArray, Array]]:
    """Yield `characteristic_shift` of several laws: rows (b,), values and errors (b, number)."""
    small = laws.counts * number <= _TABLE_CELLS
    for row in np.flatnonzero(~small):
        part = slice(laws.starts[row], laws.starts[row] + laws.counts[row])
        law = Weighted(laws.losses[part], laws.weights[part], laws.error[part])
        shift, error = characteristic_shift(step, number, law)
        yield np.array([row]), shift[None, :], error[None, :]
    order = np.flatnonzero(small)
    order = order[np.argsort(laws.counts[order], kind="stable")]
    width = 2 * math.isqrt(number) + 2
    while order.size:
        # Rows of about the same length, filled up with nodes of weight zero.
        cells = np.arange(1, order.size + 1) * laws.counts[order] * width
        taken = max(1, int(np.searchsorted(cells, _TABLE_BLOCK)))
        rows, order = order[:taken], order[taken:]
        counts = laws.counts[rows]
        column = np.arange(int(counts[-1]))
        inside = column < counts[:, None]
        index = laws.starts[rows, None] + np.minimum(column, counts[:, None] - 1)
        losses = laws.losses[index]
        weights = np.where(inside, laws.weights[index], 0.0)
        spread = np.where(inside, laws.error[index], 0.0)
        spread += UNIT * (4 * column.size + 128) * weights
        total, moment = spread.sum(axis=1), (spread * np.abs(losses)).sum(axis=1)
        frequencies = step * np.arange(float(number))
        size = np.minimum(4 * total[:, None], frequencies * moment[:, None])
        yield rows, _by_tables(step, number, losses, weights), size * (1 + 1e-9)


def characteristic_shift(step: float, number: int, law: Weighted) -> tuple[ComplexArray, Array]:
    """Return phi(t) - phi(0) at t = k step, k < number, and a bound of its absolute error.

    The error covers weights and sums. That of the phases t l is the caller's.

    Raises:
        NotConverged: more frequencies than `MAX_FREQUENCIES`.
    """
    if number > MAX_FREQUENCIES:
        raise NotConverged(f"the contour needs {number} frequencies, more than {MAX_FREQUENCIES}")
    losses, weights = law.losses, law.weights
    frequencies = step * np.arange(float(number))
    # |e^{itl} - 1| <= min(2, |t l|). The tables split it in two.
    parts, rounding = 2.0, 0.0
    if number * len(weights) <= _TABLE_CELLS:
        error = law.error + UNIT * (4 * len(weights) + 128) * weights
        parts, shift = 4.0, _by_tables(step, number, losses, weights)
    else:
        error = law.error
        shift, rounding = _by_transform(step, number, losses, weights)
    moment = frequencies * dot(error, np.abs(losses))
    return shift, np.minimum(parts * float(error.sum()), moment) + rounding


def shift_of_nodes(
    frequencies: Array, losses: Array, weights: Array, relative: Array, loss_error: float | Array
) -> tuple[ComplexArray, Array]:
    """Return `characteristic_shift` with the error of the phases t l, at equal steps from 0 on.

    ``relative`` bounds the relative error of each weight, ``loss_error`` the absolute one of each
    loss.
    """
    step = float(frequencies[1]) if len(frequencies) > 1 else 1.0
    law = Weighted(losses, weights, weights * relative)
    shift, size = characteristic_shift(step, len(frequencies), law)
    phase = 1.01 * dot(weights, loss_error + 8 * UNIT * np.abs(losses))
    return shift, size + phase * frequencies


def _by_tables(step: float, number: int, losses: Array, weights: Array) -> ComplexArray:
    """Return sums of w (e^{itl} - 1) without cancellation: AB - 1 = A (B - 1) + (A - 1).

    The last axis holds the nodes of both arrays, and the frequencies of the result.
    """
    width = max(1, math.isqrt(number))
    rows = -(-number // width)
    shift = np.zeros((*losses.shape[:-1], rows, width), dtype=np.complex128)
    # The exponentials stay in the cache, and the threads of BLAS out of the products.
    together = losses.size // losses.shape[-1] * (rows + width)
    block = max(1, min(_PRODUCT // (rows * width), _TABLE_BLOCK // together))
    for start in range(0, losses.shape[-1], block):
        some = (..., None, slice(start, start + block))
        part, mass = losses[some], weights[some]
        fine = _minus_one(step * np.arange(float(width))[:, None] * part)
        coarse = _minus_one(step * width * np.arange(float(rows))[:, None] * part) * mass
        shift += (mass + coarse) @ np.swapaxes(fine, -1, -2)
        shift += coarse.sum(axis=-1, keepdims=True)
    return shift.reshape(*losses.shape[:-1], -1)[..., :number]


def _minus_one(phase: Array) -> ComplexArray:
    """Return e^{i phase} - 1, each part to full relative accuracy."""
    half = np.sin(phase / 2)
    value = np.empty(phase.shape, dtype=np.complex128)
    value.real = -2 * half * half
    value.imag = np.sin(phase)
    return value


def _by_transform(
    step: float, number: int, losses: Array, weights: Array
) -> tuple[ComplexArray, float]:
    """Return sums of w (e^{itl} - 1), and a bound of their error apart from that of the phases."""
    length = 1 << (4 * number - 1).bit_length()
    # Grid points are 2 pi / (length step) apart: t_k times the j-th one is 2 pi j k / length.
    position = losses * (length * step / (2 * math.pi))
    nearest = np.rint(position)
    offset = 2 * (position - nearest)
    gather = _Gather(np.mod(nearest, float(length)).astype(np.int64), length)
    angle = math.pi * number / length
    power = 1j * math.pi / length * np.arange(float(number))
    value = np.zeros(number, dtype=np.complex128)
    factor = np.ones(number, dtype=np.complex128)
    mass = weights
    # At the grid point 0 no transform is needed, and the zeroth power is no part of the shift.
    central = nearest == 0.0
    growth = np.expm1(angle * np.abs(offset))
    near = dot(weights[central], growth[central])
    far = dot(weights[~central], 1 + growth[~central])
    remainder, order = 1.0, 0
    while remainder > UNIT:
        gathered = gather.sum(mass)
        center, gathered[0] = float(gathered[0]), 0.0
        transformed = np.conj(np.fft.rfft(gathered)[:number])
        value += factor * (
            transformed - transformed[0].real if order == 0 else transformed + center
        )
        order += 1
        factor = factor * power / order
        mass = mass * offset
        remainder *= angle / order
    each = 2 * FFT_ERROR * math.log2(length) + 2 * gather.rounding + 64 * UNIT
    error = each * far + (gather.rounding + 64 * UNIT) * near
    error += 2 * remainder * dot(weights, np.abs(offset))
    return value, error * (1 + 1e-9)


class _Gather:
    """Sums over the nodes of each bin, in two stages so that few roundings follow each other."""

    def __init__(self, bins: NDArray[np.int64], length: int) -> None:
        block = max(1, math.isqrt(len(bins)))
        starts = np.append(True, np.diff(bins) != 0)
        starts[::block] = True
        self._starts = np.flatnonzero(starts)
        self._bins, self._length = bins[self._starts], length
        per_bin = int(np.bincount(self._bins).max())
        self.rounding = UNIT * (block + per_bin)

    def sum(self, mass: Array) -> Array:
        """Return an array (length,) of sums, each within ``rounding`` times that of |mass|."""
        sums = np.add.reduceat(mass, self._starts)
        return np.asarray(np.bincount(self._bins, sums, self._length), dtype=np.float64)
