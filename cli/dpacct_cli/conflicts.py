"""The refusal of options that contradict each other."""

from __future__ import annotations

from dpacct.errors import DpacctError


class OptionConflict(DpacctError, ValueError):
    """Options that contradict each other, lack something or mean nothing."""


def conflict(one: str, other: str, why: str = "") -> OptionConflict:
    """Return the refusal of two options that cannot both hold."""
    reason = f" ({why})" if why else ""
    return OptionConflict(f"{one} contradicts {other}{reason}. Drop one of them.")
