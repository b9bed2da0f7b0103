"""Read JSON that anyone may have written: each value has its type and its range, or is rejected.

Rule 1: an object has the keys that it should have, each once, and no others.
Rule 2: true and false are not numbers, and neither are NaN and infinity.
Rule 3: an error names the key in one line, for every value.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn, TypeVar, cast

from dpacct.display import line
from dpacct.errors import LedgerError

# The largest whole number of SQLite, and so of an entry.
MAX_WHOLE = 2**63 - 1
_SHOWN = 40
_KINDS: dict[type[object], str] = {bool: "true or false", str: "a text", dict: "an object"}
T = TypeVar("T", bool, str, dict[str, Any])


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
    found = typed(name, value, dict)
    for key in required:
        if key not in found:
            raise LedgerError(f"{name} has no {key!r}")
    if len(found) > len(required):
        for key in found:
            if key not in required and key not in optional:
                raise LedgerError(f"{name} has an unknown key {line(key, _SHOWN)!r}")
    return found


def typed(name: str, value: Any, kind: type[T]) -> T:
    """Return a truth value, a text or an object. Texts are shown through `dpacct.display` only."""
    if type(value) is not kind:
        refuse(name, value, _KINDS[kind])
    return value


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


def items(name: str, value: Any) -> list[Any]:
    """Return a list."""
    if type(value) is not list:
        refuse(name, value, "a list")
    return cast("list[Any]", value)


def refuse(name: str, value: Any, rule: str) -> NoReturn:
    """Reject a value, shown in one short line."""
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
    # Python cannot print whole numbers of thousands of digits.
    return str(value) if value.bit_length() <= 100 else "a whole number of more than 30 digits"


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number, parse_float=_finite)
