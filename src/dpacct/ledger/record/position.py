"""How far a ledger had come: what a checkpoint, or a witness, remembers of it.

Rule 1: a ledger is the one that is meant if its first entry is; a copy has the same.
Rule 2: it has lost nothing up to a position if its entry of that number has that hash: the hash
covers all entries before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.record.chain import Entry

_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Position:
    """A place in one ledger; `dataclasses.asdict` gives it as JSON, and the constructor checks it.

    Attributes:
        identity: of the ledger, the hash of its first entry, in hex.
        entry: the number of its latest entry.
        head: the hash of that entry, in hex.
        committed: how many rounds of all runs had been released.

    Raises:
        InvalidParameter: a hash that is none, or a number out of range.
    """

    identity: str
    entry: int
    head: str
    committed: int

    def __post_init__(self) -> None:
        for name in ("identity", "head"):
            value = getattr(self, name)
            if not isinstance(value, str) or not _HASH.fullmatch(value):
                raise InvalidParameter(name, value, "a hash has 64 hexadecimal digits")
        for name, least in (("entry", 1), ("committed", 0)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value < 2**63:
                raise InvalidParameter(name, value, f"a count of {least} or more")


class Chain(Protocol):
    """Entries that can be read one by one."""

    @property
    def path(self) -> Path:
        """Of the ledger, for messages."""
        ...

    def head(self) -> Entry:
        """The latest entry."""
        ...

    def entry(self, number: int) -> Entry:
        """One entry."""
        ...


def require(chain: Chain, position: Position, holder: str) -> None:
    """Refuse a ledger that has lost what a position says it had.

    Args:
        chain: the ledger.
        position: how far it had come.
        holder: who remembers it, e.g. ``the checkpoint run.ckpt``; the sentence begins with it.
    Raises:
        LedgerError: it is another ledger, or its entries up to the position are not all there.
        InvalidParameter: it is no position.
    """
    if not isinstance(position, Position):
        raise InvalidParameter("position", position, "a position is what Ledger.position gives")
    if chain.entry(1).hash.hex() != position.identity:
        raise LedgerError(
            f"{chain.path}: {holder} belongs to another ledger, whose first entry has the hash "
            f"{position.identity[:12]}... Use that ledger."
        )
    latest = chain.head()
    known = f"entry {position.entry}, with {position.committed} released rounds"
    if latest.number < position.entry:
        raise LedgerError(
            f"{chain.path}: the ledger has lost entries: {holder} knows {known}, and the file ends "
            f"at entry {latest.number}. It is an older copy, or was damaged; restore the newer one."
        )
    if chain.entry(position.entry).hash.hex() != position.head:
        raise LedgerError(
            f"{chain.path}: the ledger was changed: {holder} knows another {known}. The file is a "
            f"copy that went its own way; restore the one that {holder} belongs to."
        )
