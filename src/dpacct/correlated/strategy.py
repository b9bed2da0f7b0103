"""Strategy matrices of correlated noise, and their noise row by row.

Round t releases its sum of contributions plus row t of C^{-1} Z, where Z holds independent Gaussian
noise. Every released row is a function of C G + Z, a Gaussian mechanism (`release` proves it):

* C is lower triangular with a positive diagonal, so row t of C^{-1} Z needs rows up to t of Z only:
      W_t = (Z_t - sum_{j >= 1} C_{t,t-j} W_{t-j}) / C_{t,t}.
* With b bands the sum has b - 1 terms, which are the rows that a server keeps.
* A buffered Toeplitz matrix has c_0 = 1 and c_j = sum_i a_i d_i^{j-1}. Then the sum is
  sum_i a_i S_i, where S_i <- d_i S_i + W_t. One row for each buffer is kept.

Source: Denisov et al. 2022 (arXiv:2202.08312), Choquette-Choo et al. 2023 (arXiv:2306.08153),
Dvijotham et al. 2024 (arXiv:2404.16706). Proofs: docs/derivations/correlated-noise.md.

In the words of files, ledgers and the command line:

Rule 1: a strategy has the name of its maker, and a number of rounds.
Rule 2: the keys of each maker are in `MAKERS`. Another one is an error.
Rule 3: a strategy without a maker of its own is written with all its numbers, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np

from dpacct import validate
from dpacct.budget import Interval
from dpacct.correlated.matrix import (
    MAX_ROUNDS,
    LowerTriangular,
    Workload,
    coefficients_of,
    workload_norm,
)
from dpacct.correlated.sensitivity import bound_sensitivity, check_participation
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import Numbers

Row = TypeVar("Row")


@dataclass(frozen=True, eq=False, repr=False)
class Strategy(LowerTriangular):
    """A lower-triangular matrix C of shape (rounds, rounds) with a positive diagonal.

    Two strategies are equal if their matrices and their buffers are. Use `toeplitz`, `banded` or
    one of the named makers.

    Args:
        rounds: the number of rounds n.
        diagonals: for a Toeplitz matrix its first column, shape (bands,). Else shape
            (bands, rounds): entry (j, i) is C_{i+j,i}.
        buffers: for a buffered Toeplitz matrix its pairs (a_i, d_i), else empty.
        name: a word for reports. It takes no part in comparisons.
    Attributes:
        fingerprint: a hash of the matrix and its buffers, 64 hexadecimal digits.
    Raises:
        InvalidParameter: see `LowerTriangular`.
    """

    buffers: tuple[tuple[float, float], ...] = ()
    name: str = "strategy"
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        # A cold start without a strategy does not pay for it.
        import hashlib  # noqa: PLC0415 - as said

        content = f"{self.rounds} {self.diagonals.shape} {self.buffers}".encode()
        digest = hashlib.sha256(content + self.diagonals.tobytes()).hexdigest()
        object.__setattr__(self, "fingerprint", digest)

    @property
    def memory(self) -> int:
        """The number of rows of noise that `noise_row` keeps."""
        return len(self.buffers) or self.bands - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Strategy):
            return NotImplemented
        return self is other or self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"<Strategy {self.name}: {self.rounds} rounds, {self.bands} bands>"

    def noise_row(
        self, round_: int, fresh: Row, memory: Sequence[Row] = ()
    ) -> tuple[Row, tuple[Row, ...]]:
        """Return row t of C^{-1} Z, and what row t + 1 needs.

        The arithmetic is that of ``Row``: numpy arrays, torch tensors or numbers.

        Args:
            round_: the round t, counted from 0, in order.
            fresh: row t of Z, independent Gaussian noise.
            memory: the second result of round t - 1. Empty at t = 0.
        Returns:
            The row, and `memory` rows at most: the last rows of noise, newest first, or the state
            of each buffer.
        """
        total: Any = fresh
        if self.buffers:
            state = cast("Sequence[Any]", memory) or [cast("Any", fresh) * 0.0] * len(self.buffers)
            for (scale, _), buffered in zip(self.buffers, state, strict=True):
                total = total - scale * buffered
            kept = (
                decay * buffered + total
                for (_, decay), buffered in zip(self.buffers, state, strict=True)
            )
            return total, tuple(kept)
        coefficients = self.row(round_).tolist()
        for coefficient, past in zip(coefficients[1:], memory, strict=True):
            total = total - coefficient * cast("Any", past)
        if coefficients[0] != 1.0:
            total = total / coefficients[0]
        return total, (total, *memory)[: self.bands - 1]

    def sensitivity(self, min_separation: int, participations: int | None = None) -> Interval:
        """Return bounds of the sensitivity of C G, for contributions of norm at most 1.

        Args:
            min_separation: two participations of one client are at least this many rounds apart.
            participations: the most participations of one client. Default: as many as fit.
        Returns:
            Both ends agree but for rounding if the bands do not exceed the separation, or if the
            matrix is Toeplitz with coefficients that are nonnegative and do not increase.
            Otherwise an explicit pattern of participations reaches the lower end.
        Raises:
            InvalidParameter: a value out of range, or more participations than fit.
        """
        separation, times = check_participation(self.rounds, min_separation, participations)
        return _sensitivity(self, separation, times)

    def prefix_error(self, noise_multiplier: float, workload: Workload | None = None) -> float:
        """Return the root mean square error of the running sums of rounds, for clip norm 1.

        Args:
            noise_multiplier: standard deviation of the entries of Z.
            workload: a `Workload` of learning rates and momentum. Default: running sums.
        Returns:
            noise_multiplier |A C^{-1}| / sqrt(rounds), the Frobenius norm, per coordinate. It is a
            measure of utility, accurate to about 1e-9, without a proven error.
        """
        z = validate.noise_multiplier(noise_multiplier)
        return z * workload_norm(self, workload) / math.sqrt(self.rounds)


# A search for the noise, or for a separation, asks again and again.
@lru_cache(maxsize=256)
def _sensitivity(strategy: Strategy, min_separation: int, participations: int) -> Interval:
    return bound_sensitivity(strategy, min_separation, participations)


def toeplitz(coefficients: Numbers, rounds: int, *, name: str = "toeplitz") -> Strategy:
    """Return the Toeplitz strategy whose first column starts with ``coefficients``.

    Raises:
        InvalidParameter: see `Strategy`.
    """
    column = coefficients_of("coefficients", coefficients)
    if column.ndim != 1:
        rule = "a Toeplitz strategy has one list of coefficients, its first column"
        raise InvalidParameter("coefficients", column.shape, rule)
    return Strategy(rounds, column, name=name)


def banded(matrix: Any, *, name: str = "banded") -> Strategy:
    """Return the strategy of a square lower-triangular matrix, shape (rounds, rounds).

    Raises:
        InvalidParameter: it is not square or not lower triangular, or see `Strategy`.
    """
    dense = coefficients_of("matrix", matrix)
    if dense.ndim != 2 or dense.shape[0] != dense.shape[1] or np.triu(dense, 1).any():
        raise InvalidParameter("matrix", dense.shape, "it is square and lower triangular")
    n = len(dense)
    bands = 1 + max((j for j in range(n) if np.diagonal(dense, -j).any()), default=0)
    diagonals = np.zeros((bands, n))
    for j in range(bands):
        diagonals[j, : n - j] = np.diagonal(dense, -j)
    return Strategy(n, diagonals, name=name)


def independent(rounds: int) -> Strategy:
    """Return the identity: independent noise in each round."""
    return Strategy(rounds, np.ones(1), name="independent")


def square_root(rounds: int, bands: int | None = None) -> Strategy:
    """Return the square root of the running sum, c_j = binomial(2j, j) / 4^j.

    Args:
        rounds: the number of rounds.
        bands: the number of leading coefficients that are kept. Default: all.
    Raises:
        InvalidParameter: a value out of range.
    Source: Fichtenberger, Henzinger, Upadhyay 2023 (arXiv:2202.11205), Kalinin, Lampert 2024
        (arXiv:2405.13763).
    """
    n = validate.count("rounds", rounds, "the number of rounds", MAX_ROUNDS)
    width = n if bands is None else validate.count("bands", bands, "the number of bands", n)
    j = np.arange(1.0, width)
    coefficients = np.concatenate([[1.0], np.cumprod((2.0 * j - 1.0) / (2.0 * j))])
    return Strategy(n, coefficients, name="square-root")


def from_buffers(rounds: int, buffers: Numbers) -> Strategy:
    """Return the buffered Toeplitz strategy with pairs (scale, decay): c_j = sum a_i d_i^{j-1}.

    Raises:
        InvalidParameter: there are no pairs, or a decay lies outside [0, 1).
    """
    n = validate.count("rounds", rounds, "the number of rounds", MAX_ROUNDS)
    pairs = coefficients_of("buffers", buffers)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        rule = "buffers are pairs (scale, decay), at least one, or their number"
        raise InvalidParameter("buffers", pairs.tolist(), rule)
    for decay in pairs[:, 1]:
        validate.below_one("buffers", float(decay), "the decay of a buffer")
    powers = pairs[:, 1, None] ** np.arange(n - 1)
    column = np.concatenate([[1.0], pairs[:, 0] @ powers])
    kept = tuple((float(scale), float(decay)) for scale, decay in pairs)
    return Strategy(n, column, kept, name="buffered-toeplitz")


def _toeplitz(rounds: int, coefficients: Any) -> Strategy:
    return toeplitz(coefficients, rounds)


def _banded(rounds: int, diagonals: Any) -> Strategy:
    return Strategy(rounds, diagonals, name="banded")


# The keys that each maker takes, and the maker: of the rounds and the values of these keys.
MAKERS: dict[str, tuple[tuple[str, ...], Callable[..., Strategy]]] = {
    "independent": ((), independent),
    "square-root": (("bands",), square_root),
    "toeplitz": (("coefficients",), _toeplitz),
    "buffered-toeplitz": (("buffers",), from_buffers),
    "banded": (("diagonals",), _banded),
}
_OPTIONAL = ("bands",)


def make_strategy(name: object, rounds: object, values: dict[str, Any]) -> Strategy:
    """Return the strategy that ``name`` and the values of its keys describe.

    Raises:
        InvalidParameter: no maker has that name, a key is missing or belongs to another maker, or
            a value is out of range.
    """
    keys, make = MAKERS[validate.one_of("strategy", name, "a strategy", MAKERS)]
    for key, value in values.items():
        if key not in keys:
            raise InvalidParameter(key, value, f"the strategy {name} takes no {key}", "Drop it.")
    for key in keys:
        if key not in values and key not in _OPTIONAL:
            raise InvalidParameter(key, None, f"the strategy {name} needs {key}")
    return make(validate.count("steps", rounds, "the number of rounds", MAX_ROUNDS), **values)


def described(strategy: Strategy) -> tuple[str, dict[str, Any]]:
    """Return the name of a maker, and what it takes."""
    n, bands, numbers = strategy.rounds, strategy.bands, strategy.diagonals
    if strategy.buffers:
        return "buffered-toeplitz", {"buffers": [list(pair) for pair in strategy.buffers]}
    if not strategy.is_toeplitz:
        return "banded", {"diagonals": numbers.tolist()}
    if np.array_equal(numbers, [1.0]):
        return "independent", {}
    if strategy == square_root(n, bands):
        return "square-root", {} if bands == n else {"bands": bands}
    return "toeplitz", {"coefficients": numbers.tolist()}
