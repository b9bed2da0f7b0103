"""Schedules of rounds: shapes, files, and what a caller typed."""

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
