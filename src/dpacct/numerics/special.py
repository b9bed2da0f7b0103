"""Functions of `scipy.special`, which is imported at the first call: a third of a second."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def _special() -> Any:
    return import_module("scipy.special")


def ndtr(x: Any) -> Any:
    """Return the normal distribution function."""
    return _special().ndtr(x)


def ndtri(x: Any) -> Any:
    """Return its inverse."""
    return _special().ndtri(x)
