"""Reading JSON that anyone may have written: a value has its type and its range, or is refused.

Rule 1: an object has the keys that it should have, each once, and no others.
Rule 2: true and false are no numbers, and neither are NaN and infinity.
Rule 3: a refusal names the key in one line, whatever the value is.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn, cast

from dpacct.display import line
from dpacct.errors import LedgerError

# No count and no number of an entry is larger: SQLite's own whole numbers end there.
MAX_WHOLE = 2**63 - 1
_SHOWN = 40


def parse(text: str) -> Any:
    """Return the JSON value of a text, in which no object has a key twice."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        raise LedgerError("it is no JSON that a ledger writes") from None


def members(
    name: str, value: Any, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return an object that has these keys and no others."""
    if type(value) is not dict:
        refuse(name, value, "an object")
    found = cast("dict[str, Any]", value)
    for key in required:
        if key not in found:
            raise LedgerError(f"{name} has no {key!r}")
    if len(found) > len(required):
        for key in found:
            if key not in required and key not in optional:
                raise LedgerError(f"{name} has an unknown key {line(key, _SHOWN)!r}")
    return found


def whole(name: str, value: Any, low: int = 0, high: int = MAX_WHOLE) -> int:
    """Return a whole number in a range."""
    if type(value) is not int or not low <= value <= high:
        refuse(name, value, f"a whole number from {low} to {_short(high)}")
    return value


def real(name: str, value: Any, low: float, high: float) -> float:
    """Return a finite number in a range, its ends included."""
    if type(value) not in (int, float) or not low <= value <= high:
        refuse(name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """Return true or false."""
    if type(value) is not bool:
        refuse(name, value, "true or false")
    return value


def words(name: str, value: Any) -> str:
    """Return any text. Whatever is shown of it goes through `dpacct.display`."""
    if type(value) is not str:
        refuse(name, value, "a text")
    return value


def items(name: str, value: Any) -> list[Any]:
    """Return a list."""
    if type(value) is not list:
        refuse(name, value, "a list")
    return cast("list[Any]", value)


def numbers(name: str, value: Any, low: float, high: float) -> tuple[float, ...]:
    """Return a list of finite numbers in a range."""
    return tuple(real(name, part, low, high) for part in items(name, value))


def refuse(name: str, value: Any, rule: str) -> NoReturn:
    """Refuse a value, shown in one short line."""
    match value:
        case None | bool():
            shown = json.dumps(value)
        case int():
            shown = _short(value)
        case float():
            shown = repr(value)
        case str():
            shown = repr(line(value, _SHOWN))
        case list():
            shown = "a list"
        case _:
            shown = "an object"
    raise LedgerError(f"{name} is {shown}, not {rule}")


def _short(value: int) -> str:
    # Python refuses to print whole numbers of thousands of digits.
    return str(value) if value.bit_length() <= 100 else "a whole number of more than 30 digits"


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number, parse_float=_finite)
