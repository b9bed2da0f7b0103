"""Entries of a ledger, each chained to the one before by a SHA-256 hash.

Rule 1: an entry is text: one JSON object, keys sorted, no spaces, ASCII, no NaN.
Rule 2: its hash covers that text and the hash of the entry before.
Rule 3: entries are numbered 1, 2, 3, ...; the number orders them, never the clock.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from dpacct.errors import LedgerError
from dpacct.ledger.record.fields import members, parse

GENESIS = bytes(32)


@dataclass(frozen=True)
class Entry:
    """One line of the ledger.

    Attributes:
        number: its place, from 1.
        kind: ``ledger``, ``run``, ``resume``, ``reserve``, ``commit``, ``abandon``, ``finish`` or
            ``relabel``.
        run: the run it belongs to, 0 for none.
        text: the entry as it is hashed.
        hash: SHA-256 of the previous hash and the text, 32 bytes.
    """

    number: int
    kind: str
    run: int
    text: str
    hash: bytes

    @cached_property
    def content(self) -> dict[str, Any]:
        """The parsed text: ``number``, ``kind``, ``run``, ``time``, ``data``, ``state``.

        Raises:
            LedgerError: it is not what was written.
        """
        found = members("it", parse(self.text), _KEYS)
        number, run = found["number"], found["run"]
        # 5.0 and true would be equal to numbers that they are not.
        whole = type(number) is type(run) is int
        if not whole or (number, found["kind"], run) != (self.number, self.kind, self.run):
            raise LedgerError("it contradicts its own index")
        return found


_KEYS = ("number", "kind", "run", "time", "data", "state")


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(content: dict[str, Any]) -> str:
    """The one text that stands for a JSON object."""
    return _ENCODER.encode(content)


def link(previous: bytes, text: str) -> bytes:
    """The hash of an entry."""
    return hashlib.sha256(previous + text.encode("ascii", "backslashreplace")).digest()


def new_entry(
    previous: Entry | None,
    kind: str,
    run: int,
    data: dict[str, Any],
    state: dict[str, Any],
) -> Entry:
    """The entry that follows ``previous``, written now."""
    number = 1 if previous is None else previous.number + 1
    text = canonical(
        {
            "number": number,
            "kind": kind,
            "run": run,
            "time": datetime.now(UTC).isoformat(timespec="microseconds"),
            "data": data,
            "state": state,
        }
    )
    return Entry(number, kind, run, text, link(previous.hash if previous else GENESIS, text))
