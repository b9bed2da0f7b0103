"""Tables of a TOML file, read key by key: every refusal names the file and the line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, TypeVar, cast

from dpacct.claims.lines import Path, line_of
from dpacct.errors import InvalidParameter, shown

LONGEST = 600
# What people write for a key, and what it is called here.
MEANT = {
    "sigma": "noise_multiplier",
    "z": "noise_multiplier",
    "noise": "noise_multiplier",
    "std": "noise_std",
    "variance": "noise_variance",
    "q": "sampling_rate",
    "rate": "sampling_rate",
    "steps": "rounds",
    "eps": "epsilon",
    "clients": "num_clients",
    "cohort": "cohort_size",
    "clip": "clip_norm",
    "neighbors": "adjacency",
}
_Choice = TypeVar("_Choice", bound=StrEnum)
_Value = TypeVar("_Value")


def invalid(name: str, rule: str, hint: str = "") -> InvalidParameter:
    """The refusal of a file of claims."""
    return InvalidParameter("claims", name, rule, hint)


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads tables of one file.

    Attributes:
        name: of the file.
        lines: on which its keys stand.
    """

    name: str
    lines: Mapping[Path, int]

    def refuse(self, path: Path, rule: str, hint: str = "") -> NoReturn:
        """Refuse what stands at a path."""
        raise invalid(self.name, f"line {line_of(self.lines, path)}: {rule}", hint) from None

    def tables(self, data: dict[str, Any], key: str, path: Path) -> list[dict[str, Any]]:
        """The tables ``[[key]]``; none where there are none."""
        found = data.get(key, [])
        named = ".".join(str(part) for part in (*path, key) if isinstance(part, str))
        if not isinstance(found, list):
            self.refuse((*path, key), f"each {key} stands below [[{named}]], with two brackets")
        tables = cast("list[Any]", found)
        if not all(isinstance(table, dict) for table in tables):
            self.refuse((*path, key), f"each {key} stands below [[{named}]], with two brackets")
        return cast("list[dict[str, Any]]", tables)

    def known(self, table: dict[str, Any], keys: tuple[str, ...], path: Path) -> None:
        """Refuse a key that nobody knows."""
        for key in table:
            if key not in keys:
                meant = MEANT.get(key.lower())
                if meant in keys:
                    hint = f"Did you mean {meant}?"
                    self.refuse((*path, key), f"{key[:40]!r} is not known here", hint)
                self.refuse((*path, key), f"{key[:40]!r} is not one of {', '.join(keys)}")

    def text(self, table: dict[str, Any], key: str, path: Path) -> str:
        """A text of one paragraph."""
        value = table[key]
        if not isinstance(value, str) or not value.strip():
            self.refuse((*path, key), f"{key} is text")
        flat = " ".join(value.split())
        if len(flat) > LONGEST or not flat.isprintable():
            self.refuse((*path, key), f"{key} is at most {LONGEST} printable characters")
        return flat

    def choice(
        self, table: dict[str, Any], key: str, kind: type[_Choice], default: _Choice, path: Path
    ) -> _Choice:
        """One of a few words."""
        if key not in table:
            return default
        try:
            return kind(table[key])
        except ValueError:
            known = ", ".join(kind)
            self.refuse((*path, key), f"{key} is {shown(table[key])}; it is one of {known}")

    def number(self, read: Callable[[], _Value], path: Path) -> _Value:
        """What ``read`` returns; its refusal, with the line of the key that it names."""
        try:
            return read()
        except InvalidParameter as error:
            said = error.rule if error.value is None else f"{error.name} is {shown(error.value)}"
            rule = said if error.value is None else f"{said}; {error.rule}"
            place = (*path, error.name)
            if place not in self.lines and (*path[:2], error.name) in self.lines:
                place = (*path[:2], error.name)
            self.refuse(place, rule, error.hint)
