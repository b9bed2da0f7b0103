"""The only range checks of the package, and their wording.

Each function returns its argument as the plain Python type that the mathematics uses, or
raises `InvalidParameter`. Rule 1: booleans and strings are never numbers, and what is not a number
is refused for that, before any range. Rule 2: NaN and infinities are never in range. Rule 3: what
no float holds (a third as a fraction, 2^53 + 1) is rounded so that no bound gets too low: noise,
delta and epsilon down, a sampling rate up.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, cast

from dpacct.errors import InvalidParameter

# Below the first value 1/sigma^2 times the largest order overflows; past the second one a
# round is indistinguishable from no round in double precision.
NOISE_MULTIPLIER_RANGE = (1e-3, 1e10)
MAX_ROUNDS = 10**12
MAX_ORDER = 1e7
# Below, its square underflows.
MIN_SAMPLING_RATE = 1e-150
# Characters of a name, or of anything that is said in one line.
MAX_LINE = 200
# Below, bounds of rates of error would have to be told in subnormal numbers.
MIN_PROBABILITY = 1e-100


# What people pass instead of numbers, in words; other types by their name.
_KINDS: dict[type[object], str] = {
    str: "text",
    bytes: "bytes",
    bool: "a truth value",
    type(None): "nothing",
}


def _not_a_number(value: object) -> str:
    """The rule that a value of a wrong type breaks."""
    kind = _KINDS.get(type(value), f"of the type {type(value).__name__}")
    return f"it has to be a number, not {kind}"


def _plain(value: object) -> object:
    """The number that an array without axes holds (numpy, JAX, torch); other values as they are."""
    held = cast("Any", value)
    return held.item() if getattr(held, "shape", None) == () and hasattr(held, "item") else value


def real(name: str, value: object, rule: str) -> float:
    """A finite real number as float: the largest one that is not above it."""
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidParameter(name, value, f"{_not_a_number(value)}: {rule}")
    try:
        number = float(value)
    except OverflowError:
        raise InvalidParameter(name, value, rule) from None
    if number > value:
        number = math.nextafter(number, -math.inf)
    if not math.isfinite(number):
        raise InvalidParameter(name, value, rule)
    return number


def _checked(name: str, value: object, rule: str, fits: Callable[[float], bool]) -> float:
    number = real(name, value, rule)
    if not fits(number):
        raise InvalidParameter(name, value, rule)
    return number


def count(name: str, value: object, noun: str, maximum: int = MAX_ROUNDS) -> int:
    """A whole number of at least one."""
    rule = f"{noun} is a whole number from 1 to {maximum:.0e}"
    value = _plain(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidParameter(name, value, f"{_not_a_number(value)}: {rule}")
    if not isinstance(value, Integral):
        raise InvalidParameter(name, value, rule)
    number = int(value)
    if not 1 <= number <= maximum:
        raise InvalidParameter(name, value, rule)
    return number


def rounds(value: object) -> int:
    """Return the number of rounds."""
    return count("rounds", value, "the number of rounds")


def noise_multiplier(value: object, name: str = "noise_multiplier") -> float:
    """Return the noise multiplier z."""
    return within(name, value, "a noise multiplier", NOISE_MULTIPLIER_RANGE)


def sampling_rate(value: object, name: str = "sampling_rate") -> float:
    """The sampling rate q."""
    rule = "a sampling rate lies in (0, 1]"
    number = real(name, value, rule)
    if number < cast("float", _plain(value)):  # More clients than asked for cost more, never less.
        number = math.nextafter(number, math.inf)
    if not 0.0 < number <= 1.0:
        hint = f"Did you mean {number / 100:g} ({number:g} %)?" if 1.0 < number <= 100.0 else ""
        raise InvalidParameter(name, value, rule, hint)
    if number < MIN_SAMPLING_RATE:
        raise InvalidParameter(name, value, f"{rule}, and is at least {MIN_SAMPLING_RATE:g} here")
    return number


def delta(value: object) -> float:
    """Return the delta of (epsilon, delta)-DP."""
    return _checked("delta", value, "delta lies in (0, 1)", lambda number: 0.0 < number < 1.0)


def epsilon(value: object) -> float:
    """Return the epsilon at which a delta is asked for."""
    return at_least_zero("epsilon", value, "epsilon")


def target_epsilon(value: object) -> float:
    """Return the epsilon of a budget: finite and above zero."""
    return above_zero("epsilon", value, "a target epsilon")


def several(name: str, values: object, noun: str) -> Iterable[object]:
    """What can be gone through one by one; what it holds is checked by the caller."""
    given = cast("Any", values)
    if not isinstance(values, Iterable) or getattr(given, "shape", None) == ():
        raise InvalidParameter(name, given, f"several {noun} are asked for, as a list")
    return cast("Iterable[object]", given)


def order(value: object, name: str = "orders") -> float:
    """Return a Renyi order above one."""
    rule = f"a Renyi order lies in (1, {MAX_ORDER:g}]"
    return _checked(name, value, rule, lambda number: 1.0 < number <= MAX_ORDER)


def probability(name: str, value: object, noun: str = "a rate of errors") -> float:
    """Return a number in [0, 1]."""
    return _checked(name, value, f"{noun} lies in [0, 1]", lambda number: 0.0 <= number <= 1.0)


def positive_probability(
    name: str, value: object, noun: str = "a rate of errors", *, below_one: bool = False
) -> float:
    """A probability above 0, and below 1 where that is asked for."""
    rule = f"{noun} lies in (0, 1{')' if below_one else ']'}"
    number = real(name, value, rule)
    if not 0.0 < number <= 1.0 or (below_one and number == 1.0):
        raise InvalidParameter(name, value, rule)
    if number < MIN_PROBABILITY:
        raise InvalidParameter(name, value, f"{rule}, and is at least {MIN_PROBABILITY:g} here")
    return number


def at_least_zero(name: str, value: object, noun: str) -> float:
    """Return a finite number of at least 0."""
    rule = f"{noun} is a finite number of at least 0"
    return _checked(name, value, rule, lambda number: number >= 0.0)


def above_zero(name: str, value: object, noun: str) -> float:
    """Return a finite number above 0."""
    rule = f"{noun} is a finite number above 0"
    return _checked(name, value, rule, lambda number: number > 0.0)


def bound(name: str, value: object) -> float:
    """Return an end of an interval: a number, or an infinity."""
    value = _plain(value)
    if isinstance(value, float) and math.isinf(value):
        return value
    return real(name, value, "a bound is a number")


def file_path(name: str, value: object) -> Path:
    """Return the path of a file."""
    given = cast("Any", value)
    if not isinstance(value, str | PathLike) or isinstance(os.fspath(given), bytes):
        raise InvalidParameter(name, given, "a path is text or a pathlib.Path")
    return Path(given)


def flag(name: str, value: object) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise InvalidParameter(name, value, "it is true or false")
    return value


def within(name: str, value: object, noun: str, ends: tuple[float, float]) -> float:
    """Return a number between two ends, which are in range."""
    low, high = ends
    rule = f"{noun} lies in [{low:g}, {high:g}]"
    return _checked(name, value, rule, lambda number: low <= number <= high)


def line(name: str, value: object, noun: str) -> str:
    """Words on one line: a name, a unit, a reason.

    No control characters, line ends or marks of direction, so that it looks like what it is
    wherever it is shown.
    """
    rule = f"{noun} is 1 to {MAX_LINE} printable characters on one line"
    if not isinstance(value, str) or not value.strip():
        raise InvalidParameter(name, value, rule)
    if len(value) > MAX_LINE or not value.isprintable():
        raise InvalidParameter(name, value, rule)
    return value
