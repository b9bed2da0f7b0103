"""Read JSON that anyone may have written: each value has its type and its range, or is rejected.

Rule 1: an object has the keys that it should have, and no others.
Rule 2: true and false are not numbers.
Rule 3: an error names the key in one line, for every value.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, TypeVar, cast

from dpacct.display import line
from dpacct.errors import LedgerError

# The largest whole number of SQLite, and so of an entry.
MAX_WHOLE = 2**63 - 1
_SHOWN = 40
_KINDS: dict[type[object], str] = {bool: "true or false", str: "a text", dict: "an object"}
T = TypeVar("T", bool, str, dict[str, Any])


def members(
    name: str, value: Any, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return an object that has these keys and no others."""
    found = typed(name, value, dict)
    for key in required:
        if key not in found:
            raise LedgerError(f"{name} has no {key!r}")
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
        refuse(name, value, f"a whole number from {low} to {float(high):.3g}")
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
    shown = repr(line(value, _SHOWN)) if isinstance(value, str) else line(json.dumps(value), _SHOWN)
    raise LedgerError(f"{name} is {shown}, not {rule}")
