"""Figures of a ledger for people, shortened to the safe side by `dpacct.display`."""

from __future__ import annotations

from dpacct.display import chosen, down, trimmed, up


def above(value: float | None) -> str:
    """A proven bound for display, rounded up."""
    return "none (infinite)" if value is None else trimmed(up(value))


def below(value: float | None) -> str:
    """An achieved bound for display, rounded down."""
    return "unknown" if value is None else trimmed(down(value))


def told(delta: float) -> str:
    """A delta for display: as short as it was, or rounded up to seven digits."""
    return chosen(delta)
