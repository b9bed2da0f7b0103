"""Figures for people, shortened to the safe side: proven bounds up, achieved ones down."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

DIGITS = 5


def above(value: float | None) -> str:
    """A proven bound for display, rounded up."""
    return "none (infinite)" if value is None else _short(value, ROUND_CEILING)


def below(value: float | None) -> str:
    """An achieved bound for display, rounded down."""
    return "unknown" if value is None else _short(value, ROUND_FLOOR)


def told(delta: float) -> str:
    """A delta for display: as short as it was, or rounded up to seven digits."""
    short = Context(prec=7, rounding=ROUND_CEILING).create_decimal(Decimal(repr(delta)))
    return f"{float(short):.7g}"


def _short(value: float, rounding: str) -> str:
    if not value or not math.isfinite(value):
        return f"{value:g}"
    short = Context(prec=DIGITS, rounding=rounding).create_decimal(Decimal(value))
    return f"{float(short):.{DIGITS}g}"
