"""On which line of a TOML text each key and each table stands; Python's parser does not tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# A path holds names of tables and keys, and a number for each table of a list, from 0.
Path = tuple[str | int, ...]

_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\-\s]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_\-]+|\"[^\"]*\"|'[^']*')\s*(\.|=)")
_QUOTES = re.compile(r'"""|\'\'\'')


@dataclass(slots=True)
class _Scan:
    found: dict[Path, int] = field(default_factory=dict[Path, int])
    counts: dict[tuple[str | int, ...], int] = field(default_factory=dict[Path, int])
    table: Path = ()
    quote: str = ""

    def header(self, brackets: str, name: str, number: int) -> None:
        parts = [part.strip() for part in name.split(".")]
        path: Path = ()
        for depth, part in enumerate(parts, start=1):
            path = (*path, part)
            if brackets == "[[" and depth == len(parts):
                self.counts[path] = self.counts.get(path, -1) + 1
            if path in self.counts:
                path = (*path, self.counts[path])
        self.table = path
        self.found.setdefault(path, number)

    def quotes(self, line: str) -> None:
        for mark in _QUOTES.findall(line):
            if not self.quote:
                self.quote = mark
            elif self.quote == mark:
                self.quote = ""


def find_lines(text: str) -> Mapping[Path, int]:
    """The line, from 1, of each table and key of a valid TOML text.

    Keys of inline tables, and of tables written with dots, are left out: see `line_of`.
    """
    scan = _Scan()
    for number, line in enumerate(text.splitlines(), start=1):
        if not scan.quote:
            header, key = _HEADER.match(line), _KEY.match(line)
            if header:
                scan.header(header[1], header[2], number)
            elif key:
                scan.found.setdefault((*scan.table, key[1].strip("\"'")), number)
        scan.quotes(line)
    return scan.found


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """The line of a key, or of the nearest thing around it that has one; 1 at least."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return 1
