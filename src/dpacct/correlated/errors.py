"""The error of what a training run computes from releases with correlated noise.

A workload A maps the releases to the models: running sums, or steps with learning rates h_s and
momentum m, theta_t = - sum_{s <= t} h_s v_s with v_s = m v_{s-1} + g_s. Its inverse has three
diagonals:

    A = (running sum) diag(h) (1 / (1 - m x)),    A^{-1} = (1 - m x) diag(1 / h) (1 - x).

The error of all models together is |A C^{-1}| = |(C A^{-1})^{-1}|, the Frobenius norm.

For a lower-triangular L with w + 1 diagonals, P = (L L^T)^{-1} has the trace |L^{-1}|^2. The matrix
L^T P = L^{-1} is lower triangular, so that for j > i

    P_ij = - sum_{t > i} L_ti P_tj / L_ii,    P_ii = (1 / L_ii - sum_{t > i} L_ti P_ti) / L_ii,

which needs the entries of P next to the diagonal only (Takahashi's recursion): n w^2 operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpacct import validate
from dpacct.correlated.matrix import LowerTriangular
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import Array


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


RUNNING_SUM = Workload()


def workload_norm(matrix: LowerTriangular, workload: Workload | None = None) -> float:
    """Return |A C^{-1}|, the Frobenius norm."""
    work = RUNNING_SUM if workload is None else workload
    if not isinstance(work, Workload):
        raise InvalidParameter("workload", work, "a workload is a Workload of learning rates")
    n = matrix.rounds
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
    found, backwards = np.zeros(rounds), coefficients[::-1].copy()
    bands = len(coefficients)
    found[0] = 1 / coefficients[0]
    for t in range(1, rounds):
        width = min(t, bands - 1)
        past = found[t - width : t] @ backwards[bands - 1 - width : bands - 1]
        found[t] = -past / coefficients[0]
    return found


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
    width, n = len(diagonals) - 1, diagonals.shape[1]
    window = np.zeros((width, width))
    total = 0.0
    for i in range(n - 1, -1, -1):
        column, pivot = diagonals[1:, i], diagonals[0, i]
        row = window @ column / -pivot
        corner = (1 / pivot - column @ row) / pivot
        total += corner
        window[1:, 1:] = window[:-1, :-1].copy()
        window[0, 1:] = window[1:, 0] = row[:-1]
        window[0, 0] = corner
    return total
