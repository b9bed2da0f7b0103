"""Strategies of correlated noise in the words of files, ledgers and the command line.

Rule 1: a strategy has the name of its maker, and a number of rounds.
Rule 2: the keys of each maker are in `MAKERS`. Another one is an error.
Rule 3: a strategy without a maker of its own is written with all its numbers, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpacct import validate
from dpacct.correlated.matrix import MAX_ROUNDS
from dpacct.correlated.strategy import Strategy, from_buffers, independent, square_root, toeplitz
from dpacct.errors import InvalidParameter


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
