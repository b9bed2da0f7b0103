"""Lists and ranges as they are typed: ``0.8,1,1.2``, ``100..1000/100``, ``1..64*2``.

Rule 1: ``A..B/STEP`` goes from A by STEP, ``A..B*FACTOR`` by a factor, neither beyond B. Whole
numbers need no step.
Rule 2: decimals are what was typed: 0.1..0.3/0.1 are 0.1, 0.2 and 0.3 to the last bit.
Rule 3: each value is the text of a number, which the library judges as it does anywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation

from dpacct_cli.errors import OptionConflict
from dpacct_cli.words import quoted, spelling

MOST_VALUES = 10_000
_RANGE = re.compile(r"(?P<first>[^/*]+?)\.\.(?P<last>[^/*]+)(?:(?P<kind>[/*])(?P<step>.+))?")


def read_values(option: str, text: str) -> list[str]:
    """The texts of the numbers that an option names, in their order, each once.

    Args:
        option: its name, for the message.
        text: as typed.
    Raises:
        OptionConflict: a range that is none, or too many values.
    """
    found: dict[str, None] = {}
    for part in text.split(","):
        for value in _part(option, part.strip()):
            found[value] = None
            if len(found) > MOST_VALUES:
                raise _refused(option, text, f"that is more than {MOST_VALUES:,} values")
    return list(found)


def _part(option: str, part: str) -> Iterator[str]:
    match = _RANGE.fullmatch(part)
    if match is None:
        yield part
        return
    first, last = _number(option, part, match["first"]), _number(option, part, match["last"])
    step = _step(option, part, match, first, last)
    value, factor = first, match["kind"] == "*"
    while value <= last:
        yield _plain(value)
        value = value * step if factor else value + step


def _step(option: str, part: str, match: re.Match[str], first: Decimal, last: Decimal) -> Decimal:
    if last < first:
        raise _refused(option, part, "a range goes up", f"Did you mean {last}..{first}?")
    if match["kind"] is None:
        if first != int(first) or last != int(last):
            raise _refused(
                option, part, "a range of decimals has a step", f"For example {part}/0.1."
            )
        return Decimal(1)
    step = _number(option, part, match["step"])
    if match["kind"] == "/" and step <= 0:
        raise _refused(option, part, "a step is above 0")
    if match["kind"] == "*" and (step <= 1 or first <= 0):
        raise _refused(option, part, "a factor is above 1, and the range begins above 0")
    return step


def _number(option: str, part: str, text: str) -> Decimal:
    try:
        found = Decimal(text.strip())
    except InvalidOperation:
        found = Decimal("NaN")
    if not found.is_finite():
        raise _refused(option, part, f"{quoted(text)} is not a number")
    return found


def _plain(value: Decimal) -> str:
    """A decimal as a person would type it; whole numbers without point and exponent."""
    if value == value.to_integral_value() and abs(value) < 10**15:
        return str(int(value))
    return f"{value.normalize():g}" if abs(value) >= Decimal("1e-6") else str(value.normalize())


def _refused(option: str, text: str, rule: str, hint: str = "") -> OptionConflict:
    message = (
        f"{spelling(option)} is {quoted(text)}; {rule}. Lists are 1,2,3 and ranges 1..9/2 (by "
        "steps) or 1..64*2 (by factors)."
    )
    return OptionConflict(f"{message} {hint}".strip())
