"""Schedules of rounds: shapes, files, and what a caller typed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpacct.schedules.shapes import (
        constant,
        dump_schedule,
        geometric,
        linear,
        load_schedule,
        steps,
        warm_up,
    )

__all__ = [
    "constant",
    "dump_schedule",
    "geometric",
    "linear",
    "load_schedule",
    "steps",
    "warm_up",
]


def __getattr__(name: str) -> Any:
    # With the files come parsers of three formats, which most uses never need.
    if name in __all__:
        return getattr(import_module("dpacct.schedules.shapes"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
