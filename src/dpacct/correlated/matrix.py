"""Lower-triangular matrices with few diagonals, and the error of what a run computes from them.

A workload A maps the releases to the models: running sums, or steps with learning rates h_s and
momentum m, theta_t = - sum_{s <= t} h_s v_s with v_s = m v_{s-1} + g_s. Its inverse has three
diagonals:

    A = (running sum) diag(h) (1 / (1 - m x)),    A^{-1} = (1 - m x) diag(1 / h) (1 - x).

The error of all models together is |A C^{-1}| = |(C A^{-1})^{-1}|, the Frobenius norm.

For a lower-triangular L with w + 1 diagonals, P = (L L^T)^{-1} has the trace |L^{-1}|^2. Cut into
blocks of size w or more, L has blocks L_k on the diagonal and M_k below it. With K_k = L_k^{-1} and
G_k = M_k K_k the blocks of P on its diagonal are

    P_k = K_k^T K_k + G_k^T P_{k+1} G_k,

and the derivative of the trace by P_k is Q_k, where Q_{k+1} = 1 + G_k Q_k G_k^T and Q_0 = 1. The
trace and its derivatives by all entries of L take n w^2 operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import Array, numbers

MAX_ROUNDS = 10**6
# Squares and products of coefficients stay far from overflow and underflow.
_SMALLEST, _LARGEST = 1e-60, 1e60
# Numbers of a matrix that is kept diagonal by diagonal, and of one that is written out.
_MOST_ENTRIES = 10**8
_MAX_DENSE = 5_000


@dataclass(frozen=True, eq=False, repr=False)
class LowerTriangular:
    """A lower-triangular matrix C of shape (rounds, rounds) with a positive diagonal.

    Args:
        rounds: the number of rounds n.
        diagonals: for a Toeplitz matrix its first column, shape (bands,). Else shape
            (bands, rounds): entry (j, i) is C_{i+j,i}.
    Raises:
        InvalidParameter: a diagonal entry is not positive, a coefficient is not finite or out of
            range, or there are more bands than rounds.
    """

    rounds: int
    diagonals: Array

    def __post_init__(self) -> None:
        rounds = validate.count("rounds", self.rounds, "the number of rounds", MAX_ROUNDS)
        entries = coefficients_of("coefficients", self.diagonals)
        if entries.ndim not in (1, 2) or entries.shape[1:] not in ((), (rounds,)):
            rule = f"diagonals have the shape (bands,) or (bands, {rounds})"
            raise InvalidParameter("coefficients", entries.shape, rule)
        bands = len(entries)
        if not 1 <= bands <= rounds:
            rule = f"a strategy of {rounds} rounds has 1 to {rounds} diagonals"
            raise InvalidParameter("bands", bands, rule)
        if entries.ndim == 2:
            # Entries of column i end at row n - 1.
            entries = np.where(np.arange(bands)[:, None] < rounds - np.arange(rounds), entries, 0.0)
        if entries[0].min() < _SMALLEST:
            rule = f"the diagonal of a strategy is positive, at least {_SMALLEST:g}"
            hint = "Otherwise the matrix is singular, or its noise has the wrong sign."
            raise InvalidParameter("coefficients", float(entries[0].min()), rule, hint)
        entries.setflags(write=False)
        object.__setattr__(self, "rounds", rounds)
        object.__setattr__(self, "diagonals", entries)

    @property
    def bands(self) -> int:
        """The number of diagonals."""
        return len(self.diagonals)

    @property
    def is_toeplitz(self) -> bool:
        """Return True if each diagonal is constant."""
        return self.diagonals.ndim == 1

    def row(self, round_: int) -> Array:
        """Return C_{t,t}, C_{t,t-1}, ... of row t, counted from 0. Shape (min(t + 1, bands),)."""
        lags = np.arange(min(round_ + 1, self.bands))
        return self.diagonals[lags] if self.is_toeplitz else self.diagonals[lags, round_ - lags]

    def column(self, round_: int) -> Array:
        """Return C_{i,i}, C_{i+1,i}, ... of column i. Shape (min(rounds - i, bands),)."""
        length = min(self.bands, self.rounds - round_)
        return self.diagonals[:length] if self.is_toeplitz else self.diagonals[:length, round_]

    def matrix(self) -> Array:
        """Return the matrix written out, shape (rounds, rounds), for at most 5,000 rounds.

        Raises:
            InvalidParameter: there are more rounds.
        """
        n = validate.count("rounds", self.rounds, "the size of a dense matrix", _MAX_DENSE)
        dense = np.zeros((n, n))
        for j, diagonal in enumerate(self.diagonals):
            dense[np.arange(j, n), np.arange(n - j)] = np.broadcast_to(diagonal, (n,))[: n - j]
        return dense


def coefficients_of(name: str, values: object) -> Array:
    """Return a copy as doubles, all of which are finite and in range."""
    array = numbers(name, values, "entries")
    if array.size == 0 or array.size > _MOST_ENTRIES:
        rule = f"it has 1 to {_MOST_ENTRIES:.0e} entries"
        raise InvalidParameter(name, array.shape, rule)
    if not np.isfinite(array).all() or np.abs(array).max() > _LARGEST:
        rule = f"its entries are finite numbers of at most {_LARGEST:g}"
        raise InvalidParameter(name, values, rule)
    return array


@dataclass(frozen=True)
class Workload:
    """Steps of stochastic gradient descent with momentum. The default is the running sum.

    Args:
        learning_rates: one positive number a round. Default: 1 in each.
        momentum: in [0, 1).
    Raises:
        InvalidParameter: a value out of range.
    """

    learning_rates: tuple[float, ...] | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.learning_rates is not None:
            given = validate.several("learning_rates", self.learning_rates, "learning rates")
            noun = "a learning rate"
            rates = tuple(validate.above_zero("learning_rates", rate, noun) for rate in given)
            object.__setattr__(self, "learning_rates", rates)
        momentum = validate.below_one("momentum", self.momentum, "momentum")
        object.__setattr__(self, "momentum", momentum)

    def rates(self, rounds: int) -> Array:
        """Return the learning rates, shape (rounds,).

        Raises:
            InvalidParameter: their number is not that of the rounds.
        """
        if self.learning_rates is None:
            return np.ones(rounds)
        if len(self.learning_rates) != rounds:
            rule = f"there is one learning rate for each of {rounds} rounds"
            raise InvalidParameter("learning_rates", len(self.learning_rates), rule)
        return np.array(self.learning_rates)

    def inverse(self, rounds: int) -> Array:
        """Return the diagonals of A^{-1}, shape (3, rounds): entry (j, i) is in row i + j."""
        rates, m = self.rates(rounds), self.momentum
        following = np.append(rates[1:], 1.0)
        diagonals = np.zeros((3, rounds))
        diagonals[0] = 1 / rates
        diagonals[1, :-1] = (-1 / following - m / rates)[:-1]
        diagonals[2, :-2] = (m / following)[:-2]
        return diagonals


def as_workload(given: Workload | None) -> Workload:
    """Return a workload, by default running sums.

    Raises:
        InvalidParameter: it is none.
    """
    work = Workload() if given is None else given
    if not isinstance(work, Workload):
        raise InvalidParameter("workload", work, "a workload is a Workload of learning rates")
    return work


# Smaller blocks cost more steps than they save operations.
_LEAST_BLOCK = 32


def workload_norm(matrix: LowerTriangular, workload: Workload | None = None) -> float:
    """Return |A C^{-1}|, the Frobenius norm."""
    work, n = as_workload(workload), matrix.rounds
    rates = work.rates(n)
    if not matrix.is_toeplitz:
        product = banded_product(matrix.diagonals, work.inverse(n))
        return math.sqrt(inverse_norm_squared(product))
    inverse = inverse_series(matrix.diagonals, n)
    for t in range(1, n) if work.momentum else ():
        inverse[t] += work.momentum * inverse[t - 1]
    if work.learning_rates is None:
        # Column s of A C^{-1} holds the first n - s running sums.
        return math.sqrt(float((np.cumsum(inverse) ** 2) @ np.arange(n, 0, -1)))
    columns = (np.cumsum(rates[s:] * inverse[: n - s]) for s in range(n))
    return math.sqrt(sum(float(column @ column) for column in columns))


def inverse_series(coefficients: Array, rounds: int) -> Array:
    """Return the first column of the inverse of a Toeplitz matrix. Shape (rounds,)."""
    inverse, backwards = np.zeros(rounds), coefficients[::-1].copy()
    bands = len(coefficients)
    inverse[0] = 1 / coefficients[0]
    for t in range(1, rounds):
        width = min(t, bands - 1)
        past = inverse[t - width : t] @ backwards[bands - 1 - width : bands - 1]
        inverse[t] = -past / coefficients[0]
    return inverse


def banded_product(left: Array, right: Array) -> Array:
    """Return the diagonals of a product of lower-triangular matrices, given by theirs."""
    n = left.shape[1]
    width = min(len(left) + len(right) - 1, n)
    product = np.zeros((width, n))
    for j, diagonal in enumerate(right):
        for offset, other in enumerate(left[: width - j]):
            # Column i of the product: C_{i+j+offset,i+j} R_{i+j,i}.
            product[j + offset, : n - j] += other[j:] * diagonal[: n - j]
    return product


def inverse_norm_squared(diagonals: Array) -> float:
    """Return |L^{-1}|^2 of a lower-triangular matrix by its diagonals, shape (w + 1, n)."""
    blocks = _Blocks(diagonals)
    return sum(float(np.trace(part)) for part in blocks.traces()) - blocks.padding


def inverse_norm_gradient(diagonals: Array) -> tuple[float, Array]:
    """Return |L^{-1}|^2 and its derivatives by the entries of the diagonals, of the same shape."""
    blocks = _Blocks(diagonals)
    parts = list(blocks.traces())[::-1]
    value = sum(float(np.trace(part)) for part in parts) - blocks.padding
    above, below = np.zeros_like(blocks.on), np.zeros_like(blocks.on)
    identity = np.eye(blocks.size)
    outer = identity
    for k, inverse in enumerate(blocks.inverses):
        by_inverse = 2 * inverse @ outer
        if k + 1 < len(parts):
            ratio = blocks.under[k] @ inverse
            by_ratio = 2 * parts[k + 1] @ ratio @ outer
            by_inverse += blocks.under[k].T @ by_ratio
            below[k] = by_ratio @ inverse.T
            outer = identity + ratio @ outer @ ratio.T
        above[k] = -inverse.T @ by_inverse @ inverse.T
    return value, blocks.to_diagonals(above, below)


class _Blocks:
    """The blocks of a lower-triangular matrix that is padded by an identity to whole blocks.

    Attributes:
        on, under: the blocks L_k and M_k, shape (blocks, size, size).
        inverses: K_k.
        padding: the share of the identity in the trace.
    """

    def __init__(self, diagonals: Array) -> None:
        width, n = len(diagonals) - 1, diagonals.shape[1]
        self.size = min(n, max(width, _LEAST_BLOCK))
        number = -(-n // self.size)
        self.padding = number * self.size - n
        self._shape = diagonals.shape
        padded = np.zeros((2 * self.size, number * self.size))
        padded[: width + 1, :n] = diagonals
        padded[0, n:] = 1.0
        places: NDArray[np.int64] = np.arange(self.size, dtype=np.int64)
        blocks: NDArray[np.int64] = np.arange(number, dtype=np.int64)
        # Row r and column c of a block lie on diagonal r - c, of the block below on r - c + size.
        self._at = np.subtract.outer(places, places)
        self._first = np.add.outer(blocks * self.size, np.broadcast_to(places, self._at.shape))
        self.on = np.where(self._at >= 0, padded[self._at, self._first], 0.0)
        self.under = padded[self._at + self.size, self._first]
        self.inverses = np.linalg.inv(self.on)

    def traces(self) -> Iterator[Array]:
        """Yield P_k, the last one first."""
        part = np.zeros_like(self.on[0])
        for k in range(len(self.on) - 1, -1, -1):
            ratio = self.under[k] @ self.inverses[k]
            part = self.inverses[k].T @ self.inverses[k] + ratio.T @ part @ ratio
            yield part

    def to_diagonals(self, on: Array, under: Array) -> Array:
        """Return the diagonals of the matrix with these blocks."""
        diagonals = np.zeros((2 * self.size, len(on) * self.size))
        diagonals[self._at + self.size, self._first] = under
        lower = self._at >= 0
        first = np.broadcast_to(self._first, on.shape)
        diagonals[np.broadcast_to(self._at, on.shape)[:, lower], first[:, lower]] = on[:, lower]
        return diagonals[: self._shape[0], : self._shape[1]]
