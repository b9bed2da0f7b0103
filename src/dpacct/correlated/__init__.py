"""Correlated noise (matrix mechanisms, DP-FTRL): strategies, their sensitivity and their error."""

from dpacct.correlated.matrix import Workload
from dpacct.correlated.optimize import buffered_toeplitz, optimized
from dpacct.correlated.release import Correlated
from dpacct.correlated.strategy import (
    Strategy,
    banded,
    independent,
    square_root,
    toeplitz,
)

__all__ = [
    "Correlated",
    "Strategy",
    "Workload",
    "banded",
    "buffered_toeplitz",
    "independent",
    "optimized",
    "square_root",
    "toeplitz",
]
