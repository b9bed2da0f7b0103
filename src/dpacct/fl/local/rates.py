"""Numbers that change from round to round: learning rates and clip norms, fixed before the run.

A number may be given as itself, as a function of the round (1, 2, ...), or as a learning-rate
scheduler like those of `torch.optim.lr_scheduler`. All values are computed before the first round:
they are part of the plan, so they are public and cannot follow the data.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from dpacct.errors import InvalidParameter


class Scheduler(Protocol):
    """The part of a learning-rate scheduler of torch that is used."""

    def get_last_lr(self) -> list[float]:
        """Return the rate of each group of parameters. The first one counts."""
        ...

    def step(self) -> None:
        """Go on to the next round."""
        ...


Changing = float | Callable[[int], float] | Scheduler


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
    return is_scheduler(value) or callable(value)


def is_scheduler(value: object) -> bool:
    """Return whether a value is a learning-rate scheduler."""
    return callable(getattr(value, "get_last_lr", None)) and callable(getattr(value, "step", None))


def values_over(
    name: str, given: Changing, rounds: int, check: Callable[[object], float]
) -> float | RoundValues:
    """Return a number as it is, or the values of all rounds of a plan, each checked.

    A given scheduler stays as it is.
    """
    if isinstance(given, RoundValues):
        return given
    if is_scheduler(given):
        return RoundValues(tuple(_played(name, cast("Scheduler", given), rounds, check)))
    if not callable(given):
        return check(given)
    try:
        return RoundValues(tuple(check(given(number)) for number in range(1, rounds + 1)))
    except (AttributeError, TypeError) as error:
        rule = f"it is a function of the round's number alone, which is public ({error})"
        raise InvalidParameter(name, getattr(given, "__name__", "a function"), rule) from None


def _played(
    name: str, scheduler: Scheduler, rounds: int, check: Callable[[object], float]
) -> list[float]:
    # A copy is stepped, so that the caller's scheduler and its optimizer stay where they are.
    scheduler = copy.deepcopy(scheduler)
    found: list[float] = []
    with warnings.catch_warnings():
        # Torch warns if a scheduler steps before its optimizer, which never steps here.
        warnings.filterwarnings("ignore", "(?s).*optimizer.step", UserWarning)
        for _ in range(rounds):
            found.append(check(scheduler.get_last_lr()[0]))
            try:
                scheduler.step()
            except TypeError:
                rule = "its values depend on a metric, and all values are fixed before the run"
                raise InvalidParameter(name, type(scheduler).__name__, rule) from None
    return found
