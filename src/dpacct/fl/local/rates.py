"""Numbers that change from round to round: learning rates and clip norms, fixed before the run.

A number may be given as itself, or as a function of the round (1, 2, ...). All values are computed
before the first round: they are part of the plan, so they are public and cannot follow the data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from dpacct.errors import InvalidParameter

Changing = float | Callable[[int], float]


@dataclass(frozen=True, slots=True, repr=False)
class RoundValues:
    """One number for each round of a plan. Rounds behind the last number use that number."""

    values: tuple[float, ...]

    def __call__(self, round_number: int) -> float:
        """Return the value of round 1, 2, ..."""
        return self.values[min(round_number, len(self.values)) - 1]

    def __repr__(self) -> str:
        # Checkpoints compare settings as text, which must not grow with the number of rounds.
        digest = hashlib.sha256(repr(self.values).encode()).hexdigest()[:16]
        first, last = self.values[0], self.values[-1]
        return f"{first!r} to {last!r} in {len(self.values)} rounds, {digest}"


def changes(value: object) -> bool:
    """Return whether a value is given round by round."""
    return callable(value)


def values_over(
    name: str, given: Changing, rounds: int, check: Callable[[object], float]
) -> float | RoundValues:
    """Return a number as it is, or the values of all rounds of a plan, each checked."""
    if isinstance(given, RoundValues):
        return given
    if not callable(given):
        return check(given)
    try:
        return RoundValues(tuple(check(given(number)) for number in range(1, rounds + 1)))
    except (AttributeError, TypeError) as error:
        rule = f"it is a function of the round's number alone, which is public ({error})"
        raise InvalidParameter(name, getattr(given, "__name__", "a function"), rule) from None
