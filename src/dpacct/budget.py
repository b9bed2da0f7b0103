"""A target (`Budget`), a bracket (`Interval`), and an epsilon with its delta (`Spent`).

Rule: an epsilon that is shown with a delta is a `Spent`, from the place that computed it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from numbers import Real

from dpacct import validate
from dpacct.display import chosen, down, html_table, up
from dpacct.errors import InvalidParameter, NotConverged

# Used if no delta is given, and no population says more.
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

    ``upper`` holds for every pair of neighboring data sets, and an explicit pair reaches ``lower``.
    The truth is never outside.

    Used as one number, an interval stands for its proven upper end: ``float(interval)`` is
    ``upper``, ``interval <= 8`` compares ``upper``, and ``f"{interval:.3f}"`` formats ``upper``,
    rounded up. ``str(interval)`` shows both ends.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        # Searches make thousands of intervals of floats. NaN fails this comparison.
        if type(self.lower) is float and type(self.upper) is float and self.lower <= self.upper:
            return
        object.__setattr__(self, "lower", validate.bound("lower", self.lower))
        object.__setattr__(self, "upper", validate.bound("upper", self.upper))
        if self.lower > self.upper:
            rule = f"an interval has lower <= upper, and upper is {self.upper!r}"
            raise InvalidParameter("lower", self.lower, rule)

    @property
    def width(self) -> float:
        """upper - lower."""
        return self.upper - self.lower

    @staticmethod
    def bracket(lower: float, upper: float) -> Interval:
        """Return the interval of two bounds that were computed separately.

        Raises:
            NotConverged: the lower bound lies above the upper one by more than rounding, or a
                bound is not a number, so that something is wrong.
        """
        unknown = any(isinstance(v, float) and math.isnan(v) for v in (lower, upper))
        if not unknown:
            lower, upper = validate.bound("lower", lower), validate.bound("upper", upper)
        if unknown or lower > upper * (1 + 1e-9) + 1e-300:
            raise NotConverged(
                f"bounds contradict each other: achieved {lower!r}, proven {upper!r}"
            )
        return Interval(min(lower, upper), max(lower, upper))

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    def __float__(self) -> float:
        return self.upper

    def __lt__(self, other: Interval | float) -> bool:
        return self.upper < float(other) if isinstance(other, Interval | Real) else NotImplemented

    def __le__(self, other: Interval | float) -> bool:
        return self.upper <= float(other) if isinstance(other, Interval | Real) else NotImplemented

    def __gt__(self, other: Interval | float) -> bool:
        return self.upper > float(other) if isinstance(other, Interval | Real) else NotImplemented

    def __ge__(self, other: Interval | float) -> bool:
        return self.upper >= float(other) if isinstance(other, Interval | Real) else NotImplemented

    def __str__(self) -> str:
        return f"<= {up(self.upper)} (lower bound {down(self.lower)})"

    def __format__(self, spec: str) -> str:
        if not spec or spec[-1] == "s":
            return format(str(self), spec)
        kind = spec[-1] if spec[-1] in "eEfFgG%" else ""
        if not math.isfinite(self.upper) or (not kind and "." not in spec):
            return format(self.upper, spec)
        # A float has six digits by default, a decimal all of them.
        digits = "" if "." in spec else ".6"
        with localcontext(rounding=ROUND_CEILING):
            return format(Decimal(self.upper), f"{spec.removesuffix(kind)}{digits}{kind}")

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: each end, shortened to its safe side."""
        return html_table(
            [
                ("proven", up(self.upper), "no neighboring data sets exceed it"),
                ("achieved", down(self.lower), "an explicit pair of data sets reaches it"),
            ]
        )


@dataclass(frozen=True, slots=True)
class Spent(Interval):
    """Achieved and proven epsilon, with the delta at which they were computed.

    Raises:
        InvalidParameter: lower above upper, or delta outside (0, 1).
    """

    delta: float

    def __post_init__(self) -> None:
        # Dataclasses with slots are made twice, which super() without arguments does not survive.
        Interval.__post_init__(self)
        object.__setattr__(self, "delta", validate.delta(self.delta))

    @classmethod
    def at(cls, delta: float, interval: Interval) -> Spent:
        """Return an interval with the delta at which it was computed."""
        return cls(interval.lower, interval.upper, delta)

    @property
    def interval(self) -> Interval:
        """The interval without its delta."""
        return Interval(self.lower, self.upper)

    @property
    def without_privacy(self) -> Spent:
        """The same without an upper bound, for a run without a guarantee."""
        return Spent(self.lower, math.inf, self.delta)

    def __str__(self) -> str:
        return f"{Interval.__str__(self)} at delta {chosen(self.delta, 3)}"
