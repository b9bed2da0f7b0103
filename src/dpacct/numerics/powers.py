"""Characteristic functions of losses that are small against the frequencies: by their moments.

With the powers of x = t l, the sum of w (e^{itl} - 1) over the nodes of a law is a polynomial in t,
whose coefficients cost one pass over the nodes each, however many frequencies there are. That is
what many rounds are: each of their losses is small against that of all.

Derivation of the error bound: docs/derivations/inversion.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpacct.numerics.rounding import UNIT, Array, ComplexArray

# At the largest frequency, the sum of w (e^{|x|} - 1) may be this much, and |x| that much.
_MOST, _FARTHEST = 4.0, 200.0
# Powers, and what may be left of the series after them.
_POWERS, _LEFT = 72, UNIT / 64
# Laws times frequencies of one block.
_CELLS = 1_000_000
# Terms that are added one after the other.
_BLOCK = 128


class Rows(NamedTuple):
    """The nodes of several laws, laid end to end; all but the last two of shape (n,).

    ``starts`` and ``counts``, shape (m,), say where each law begins and how many nodes it has.
    """

    losses: Array
    weights: Array
    error: Array
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]

    def some(self, chosen: NDArray[np.int64]) -> Rows:
        """The laws with these numbers."""
        if len(chosen) == len(self.counts):
            return self
        inside = np.zeros(len(self.counts), dtype=bool)
        inside[chosen] = True
        nodes = np.repeat(inside, self.counts)
        counts = self.counts[inside]
        starts = np.cumsum(counts) - counts
        return Rows(self.losses[nodes], self.weights[nodes], self.error[nodes], starts, counts)


def shifts_by_powers(
    step: float, number: int, laws: Rows
) -> Iterator[tuple[NDArray[np.int64], ComplexArray, Array]]:
    """Sums of w (e^{itl} - 1) at t = k step for those laws of which few powers are enough.

    Returns:
        In blocks: which laws, shape (b,); complex array (b, number), and array (b, number): bounds
        of the absolute error of weights and sums. The error of the phases t l is the caller's.
    """
    farthest = step * (number - 1)
    size = np.abs(farthest * laws.losses)
    grown = np.add.reduceat(laws.weights * np.expm1(np.minimum(size, _FARTHEST)), laws.starts)
    near = np.maximum.reduceat(size, laws.starts) <= _FARTHEST
    rows = np.flatnonzero(near & (grown <= _MOST))
    if not rows.size or number < 2:
        return
    laws, grown = laws.some(rows), grown[rows]
    sums, left = _sums_of_powers(farthest * laws.losses, laws)
    enough = np.flatnonzero(left <= np.maximum(UNIT * grown, _LEFT))
    # i^j: imaginary and real, with signs that alternate.
    signed = sums * np.array([1.0, -1.0, -1.0, 1.0])[np.arange(sums.shape[1]) % 4]
    share = np.arange(float(number)) / (number - 1)
    powers = np.cumprod(np.broadcast_to(share, (sums.shape[1], number)), axis=0)
    adding = np.minimum(laws.counts, _BLOCK) + laws.counts / _BLOCK + 2
    each = 1.01 * (UNIT * (adding + 8 * len(powers) + 16) * grown + left)
    total = 2 * np.add.reduceat(laws.error, laws.starts)
    moment = farthest * np.add.reduceat(laws.error * np.abs(laws.losses), laws.starts)
    block = max(1, _CELLS // number)
    for start in range(0, len(enough), block):
        some = enough[start : start + block]
        value = np.empty((len(some), number), dtype=np.complex128)
        value.imag = signed[some, 0::2] @ powers[0::2]
        value.real = signed[some, 1::2] @ powers[1::2]
        error = np.minimum(total[some, None], moment[some, None] * share)
        error += each[some, None] * share
        yield rows[some], value, error * (1 + 1e-9)


def _sums_of_powers(x: Array, laws: Rows) -> tuple[Array, Array]:
    """Sums of w x^j / j! from j = 1 on, shape (m, j), and what the first one left out has."""
    term, left = laws.weights, np.full(len(laws.counts), np.inf)
    # In blocks, so that few roundings follow each other in any order.
    blocks = np.union1d(laws.starts, np.arange(0, len(x), _BLOCK))
    rows = np.searchsorted(blocks, laws.starts)
    sums: list[Array] = []
    for j in range(1, _POWERS + 1):
        term = term * x / j
        found = np.add.reduceat(np.add.reduceat(term, blocks), rows)
        if j % 2 == 0:
            # Even powers are their own moduli: the rest of the series is at most the first of it.
            left = found
            if j == _POWERS or np.all(left <= _LEFT):
                break
        sums.append(found)
    return np.array(sums).T, left
