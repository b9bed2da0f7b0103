"""Lower-triangular matrices with few diagonals, valid as soon as they exist."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
