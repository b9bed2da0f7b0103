"""Schedules of rounds: their shapes, and their files."""

from dpacct.schedules.files import dump_schedule, load_schedule
from dpacct.schedules.shapes import constant, geometric, linear, steps, warm_up

__all__ = [
    "constant",
    "dump_schedule",
    "geometric",
    "linear",
    "load_schedule",
    "steps",
    "warm_up",
]
