"""Functions of `scipy.special`, imported at the first call (a third of a second), and `dot`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np


@cache
def _special() -> Any:
    return import_module("scipy.special")


def ndtr(x: Any) -> Any:
    """Return the normal distribution function."""
    return _special().ndtr(x)


def ndtri(x: Any) -> Any:
    """Return its inverse."""
    return _special().ndtri(x)


def dot(first: Any, second: Any) -> float:
    """Return a scalar product, by numpy's own loop: threads of BLAS spin from 10,000 terms on."""
    return float(np.einsum("i,i", first, second))
