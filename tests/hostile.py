"""Files and names as an attacker would make them, and an end for what must not hang."""

from __future__ import annotations

import faulthandler
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Far beyond what any of these tests takes on a busy machine.
HANGS = 120.0
PAGE = 4096
MARKUP = (
    "`dpacct |![t](http://evil.example/p.png)`",
    "`dpacct |[Sign here](http://evil.example/)`",
    "x|<img src=//evil.example/q> [a](javascript:alert(1))|",
    "<script>alert(1)</script><a href='http://evil.example'>a</a>",
    "![t][r] [r]: http://evil.example/ <http://evil.example/>",
    "http://evil.example/ https://evil.example www.evil.example a@evil.example",
    "![p](chart) ![p](data:image/png;base64,AAAA) ![p](file:///etc/passwd)",
    "&lt;img src=x&gt; &#60;img src=x&#62; \\![t](x) \\\\[a](b) \\`",
    "---", "- - -", "# a", "> a", "1. a", "1) a", "+ a", "- a", "===", "~~~", "```", "    a", "| a",
    "$body $unit ${title} %s {0} [if planned] $chart",
    "**a** _b_ ~~c~~ *d", "<!-- a", "<![CDATA[ a", "$\\frac{a}$", "W" * 200, "é中עב\U0001f600",
)  # fmt: skip


@contextmanager
def in_time() -> Iterator[None]:
    """End the process, with a traceback, if the block does not end. SQLite heeds no signal."""
    faulthandler.dump_traceback_later(HANGS, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


# Ledgers


def _pages(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return [data[start : start + PAGE] for start in range(0, len(data), PAGE)]


def _store(path: Path, pages: list[bytes]) -> None:
    first = pages[0][:28] + struct.pack(">I", len(pages)) + pages[0][32:]
    path.write_bytes(b"".join([first, *pages[1:]]))


def _page(kind: int, cells: Iterable[bytes], right: int = 0) -> bytes:
    """Return a page of a b-tree: its header, the places of its cells, and the cells."""
    cells = list(cells)
    start = 12 if right else 8
    places, end = [], PAGE
    for cell in cells:
        end -= len(cell)
        places.append(end)
    head = struct.pack(">BHHHB", kind, 0, len(cells), end, 0)
    head += struct.pack(">I", right) if right else b""
    head += b"".join(struct.pack(">H", place) for place in places)
    assert len(head) == start + 2 * len(cells)
    return head + bytes(end - len(head)) + b"".join(reversed(cells))


def _varint(number: int) -> bytes:
    parts = [number >> 7 * place & 0x7F for place in range(max(1, -(-number.bit_length() // 7)))]
    return bytes([part | 0x80 for part in reversed(parts[1:])] + parts[:1])


def _root(path: Path, name: str) -> int:
    connection = sqlite3.connect(path)
    query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
    (root,) = connection.execute(query, (name,)).fetchone()
    connection.close()
    return root


def _endless(path: Path, name: str, kind: int, keys: list[bytes], leaf: bytes | None) -> None:
    """Twelve levels of pages, each of which has the next one as all of its children."""
    root, pages = _root(path, name), _pages(path)
    pages.append(pages[root - 1])
    whole = len(pages)
    if leaf is not None:
        pages.append(leaf)
    for _ in range(12):
        child = len(pages)
        pages.append(_page(kind, [struct.pack(">I", child) + key for key in keys], child))
    down = [struct.pack(">I", len(pages)) + key for key in keys]
    # The entries are still found: at the left end of the table, and at the right end of both.
    before = [struct.pack(">I", whole) + _varint(900)] if leaf is None else []
    pages[root - 1] = _page(kind, before + down, whole)
    _store(path, pages)


def endless_index(path: Path) -> None:
    cell = b"\x05\x03\x08\x02\x00\x01"  # a record of five bytes: run 0, entry 1
    _endless(path, "entries_of_run", 0x02, [cell] * 250, _page(0x0A, [cell] * 250))


def endless_table(path: Path) -> None:
    keys = [_varint(number) for number in range(1000, 1250)]
    _endless(path, "entries", 0x05, keys, None)


def claims_a_gigabyte(path: Path) -> None:
    """The text of the last entry goes on in a page that goes on in itself."""
    root, pages, size = _root(path, "entries"), _pages(path), 999_000_000
    pages.append(struct.pack(">I", len(pages) + 1).ljust(PAGE, b"x"))
    # Serial types of a row: its number is the key, run, kind, closes, text, and 32 bytes of hash.
    types = bytes([0, 1, 13 + 2 * 3, 0]) + _varint(13 + 2 * (size - 50)) + _varint(12 + 2 * 32)
    least = (PAGE - 12) * 32 // 255 - 23
    local = least + (size - least) % (PAGE - 4)
    local = local if local <= PAGE - 35 else least
    record = bytes([1 + len(types)]) + types + b"\x01row"
    cell = _varint(size) + _varint(900) + record.ljust(local, b"x") + struct.pack(">I", len(pages))
    pages.append(_page(0x0D, [cell]))
    last = len(pages)
    pages.append(pages[root - 1])
    pages[root - 1] = _page(0x05, [struct.pack(">I", len(pages)) + _varint(899)], last)
    _store(path, pages)


def with_statements(*statements: str) -> Callable[[Path], None]:
    def forge(path: Path) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        for statement in statements:
            connection.execute(statement)
        connection.close()

    return forge


_AWAY = ("DROP TRIGGER entries_stay", "DROP TRIGGER entries_keep", "DROP INDEX entries_of_run")
_NUMBERS = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT i, 0, 'commit', 0, '{}', zeroblob(32) FROM n"
)
LEDGERS: dict[str, Callable[[Path], None]] = {
    "endless view": with_statements(
        *_AWAY,
        "ALTER TABLE entries RENAME TO other",
        "CREATE VIEW entries (number, run, kind, closes, text, hash) AS " + _NUMBERS,
    ),
    "endless trigger": with_statements(
        f"CREATE TRIGGER slow AFTER INSERT ON entries BEGIN INSERT INTO entries {_NUMBERS}; END"
    ),
    "another table": with_statements("CREATE TABLE more (x)"),
    "column that computes": with_statements(
        "ALTER TABLE entries ADD COLUMN more AS (zeroblob(1000000000))"
    ),
    "index on an expression": with_statements(
        "CREATE INDEX more ON entries (replace(text, 'a', hex(text)))"
    ),
    "endless index": endless_index,
    "endless table": endless_table,
    "text of a gigabyte": claims_a_gigabyte,
}


def journal_that_deletes(victim: Path, ledger: Path) -> None:
    """A journal that names a file, which SQLite deletes when it has applied the journal."""
    magic, name = bytes.fromhex("d9d505f920a163d7"), str(victim).encode()
    size = ledger.stat().st_size // PAGE
    head = magic + struct.pack(">IIIII", 0, 1, size, 512, PAGE)
    check = sum(name) & 0xFFFFFFFF
    tail = struct.pack(">I", 2**30 // PAGE + 1) + name + struct.pack(">II", len(name), check)
    ledger.with_name(f"{ledger.name}-journal").write_bytes(head.ljust(512, b"\0") + tail + magic)
