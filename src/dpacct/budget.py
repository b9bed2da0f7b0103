"""What may be spent (`Budget`), and what was: an `Interval`, or with its delta a `Spent`.

Rule: an epsilon that is shown beside a delta comes as a `Spent`, from where it was computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpacct import validate
from dpacct.display import down, html_table, up
from dpacct.errors import InvalidParameter, NotConverged

# Where nobody names one, and no population says more.
DEFAULT_DELTA = 1e-5


@dataclass(frozen=True, slots=True)
class Budget:
    """A target (epsilon, delta).

    Raises:
        InvalidParameter: epsilon not above 0, delta outside (0, 1).
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", validate.target_epsilon(self.epsilon))
        object.__setattr__(self, "delta", validate.delta(self.delta))


@dataclass(frozen=True, slots=True)
class Interval:
    """A quantity with a proven upper bound and a lower bound that is achieved.

    ``upper`` holds for every pair of neighboring data sets; ``lower`` is reached by an explicit
    pair. The truth is never outside.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", validate.bound("lower", self.lower))
        object.__setattr__(self, "upper", validate.bound("upper", self.upper))
        if self.lower > self.upper:
            raise InvalidParameter(
                "lower", self.lower, f"an interval has lower <= upper, and upper is {self.upper!r}"
            )

    @property
    def width(self) -> float:
        """upper - lower."""
        return self.upper - self.lower

    @classmethod
    def bracket(cls, lower: float, upper: float) -> Interval:
        """The interval of two bounds that were computed apart.

        Raises:
            NotConverged: the lower one lies above the upper one by more than rounding, so that
                one of them is wrong.
        """
        unknown = any(isinstance(v, float) and math.isnan(v) for v in (lower, upper))
        if not unknown:
            lower, upper = validate.bound("lower", lower), validate.bound("upper", upper)
        # What is not a number bounds nothing.
        if unknown or lower > upper * (1 + 1e-9) + 1e-300:
            raise NotConverged(
                f"bounds contradict each other: achieved {lower!r}, proven {upper!r}"
            )
        return cls(min(lower, upper), max(lower, upper))

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    def _repr_html_(self) -> str:
        """For a notebook."""
        return html_table(bracket_rows(self))


def bracket_rows(found: Interval) -> list[tuple[str, str, str]]:
    """Both sides, each shortened to its safe side, and what it is worth."""
    return [
        ("proven", up(found.upper), "no neighboring data sets exceed it"),
        ("achieved", down(found.lower), "an explicit pair of data sets reaches it"),
    ]


@dataclass(frozen=True, slots=True)
class Spent:
    """Achieved and proven epsilon, with the delta at which they were computed.

    Reads like an `Interval`: ``lower``, ``upper``, ``width``, ``in``.

    Raises:
        InvalidParameter: lower above upper, or delta outside (0, 1).
    """

    lower: float
    upper: float
    delta: float

    def __post_init__(self) -> None:
        ends = Interval(self.lower, self.upper)
        object.__setattr__(self, "lower", ends.lower)
        object.__setattr__(self, "upper", ends.upper)
        object.__setattr__(self, "delta", validate.delta(self.delta))

    @classmethod
    def at(cls, delta: float, interval: Interval) -> Spent:
        """The bracket that was computed at a delta."""
        return cls(interval.lower, interval.upper, delta)

    @property
    def interval(self) -> Interval:
        """The bracket alone."""
        return Interval(self.lower, self.upper)

    @property
    def width(self) -> float:
        """upper - lower."""
        return self.interval.width

    @property
    def without_privacy(self) -> Spent:
        """The same where nothing is promised: no upper end."""
        return Spent(self.lower, math.inf, self.delta)

    def __contains__(self, value: float) -> bool:
        return value in self.interval
