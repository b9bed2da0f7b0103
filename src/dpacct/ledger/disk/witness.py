"""The witness: a small file in the ledger's folder that records the latest entry of the ledger.

Rule 1: it is never ahead of the ledger. It is written when the entry is on disk, and before
anything that the entry allows may leave. After a crash it may be behind.
Rule 2: a ledger that is behind its witness, or another ledger, is neither read nor written.
Rule 3: it has one form, with a checksum, of one disk sector, which is written at once. Any other
form is rejected. A missing witness is made again, with the date of that. To accept a loss, the
owner deletes it.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.disk.place import PLAIN, Place, opened, reason_of, sync_folder
from dpacct.ledger.disk.rows import StoredEntries
from dpacct.ledger.record.entries import Position, canonical

_VERSION = 1
_SIZE = 512


@dataclass(frozen=True, slots=True)
class Witness:
    """The content of a witness: how far the ledger had come, and since when the witness exists.

    ``since`` is the number of the latest entry when it was made: 1 if it is as old as the ledger.
    It cannot detect entries that were lost before.
    """

    position: Position
    since: int


def read_witness(place: Place) -> Witness | None:
    """Return the witness of a ledger, or None if it has none."""
    try:
        with opened(place.witness, os.O_RDONLY | PLAIN) as descriptor:
            data = os.read(descriptor, _SIZE + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(
            f"{place.path}: its witness {place.witness.name} cannot be read: {reason_of(error)}."
        ) from None
    found = _parsed(data)
    if found is None:
        raise LedgerError(
            f"{place.path}: its witness {place.witness.name} is damaged. Restore it with the "
            f"ledger. If you are sure that the ledger is whole, delete the witness."
        )
    return found


def make_witness(place: Place, rows: StoredEntries) -> Witness:
    """Write the first witness of a ledger, as a whole or not at all, and return it."""
    head, identity = rows.head(), rows.entry(1).hash.hex()
    known = Position(identity, head.number, head.hash.hex(), rows.released())
    witness = Witness(known, since=head.number)
    draft = place.witness.with_name(f"{place.witness.name}-new")
    try:
        draft.unlink(missing_ok=True)
        with opened(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | PLAIN) as descriptor:
            # All users with write access to the ledger may write to its witness.
            owner = place.file.stat()
            if hasattr(os, "fchmod"):
                os.fchmod(descriptor, owner.st_mode & 0o666)
            if hasattr(os, "geteuid") and os.geteuid() == 0:
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            os.write(descriptor, _rendered(witness))
            os.fsync(descriptor)
        draft.replace(place.witness)
        sync_folder(place.witness.parent)
    except OSError as error:
        raise _not_written(place, error) from None
    return witness


def update_witness(place: Place, witness: Witness) -> None:
    """Write the next witness over it: a whole sector, so that no crash leaves half of it.

    It is not flushed: a power loss leaves it behind the ledger (Rule 1).
    """
    try:
        with opened(place.witness, os.O_WRONLY | PLAIN) as descriptor:
            os.write(descriptor, _rendered(witness))
    except OSError as error:
        raise _not_written(place, error) from None


def compare(place: Place, rows: StoredEntries) -> Witness | None:
    """Return the witness, if the ledger has entries and came at least as far (Rule 2)."""
    rows.head()
    witness = read_witness(place)
    if witness is not None:
        require(rows, witness.position, f"its witness {place.witness.name}")
    return witness


def require(rows: StoredEntries, position: Position, holder: str) -> None:
    """Reject a ledger that has lost entries up to a position (see `Ledger.require`)."""
    if not isinstance(position, Position):
        raise InvalidParameter("position", position, "a position is a value of Ledger.position")
    if rows.entry(1).hash.hex() != position.identity:
        raise LedgerError(
            f"{rows.path}: {holder} belongs to another ledger, whose first entry has the hash "
            f"{position.identity[:12]}... Use that ledger."
        )
    latest = rows.head()
    known = f"entry {position.entry}, with {position.committed} released rounds"
    if latest.number < position.entry:
        raise LedgerError(
            f"{rows.path}: the ledger has lost entries: {holder} knows {known}, and the file ends "
            f"at entry {latest.number}. It is an older copy, or was damaged. Restore the newer one."
        )
    if rows.entry(position.entry).hash.hex() != position.head:
        raise LedgerError(
            f"{rows.path}: the ledger was changed: {holder} knows another {known}. The file is a "
            f"copy that went its own way. Restore the one that {holder} belongs to."
        )


def next_witness(rows: StoredEntries, witness: Witness) -> Witness:
    """Return the witness of the latest entry, from an earlier one."""
    head, known = rows.head(), witness.position
    if head.number == known.entry:
        return witness
    position = Position(known.identity, head.number, head.hash.hex(), rows.released())
    return replace(witness, position=position)


@lru_cache(maxsize=4)
def _rendered(witness: Witness) -> bytes:
    content = asdict(witness.position) | {"version": _VERSION, "since": witness.since}
    text = canonical(content)
    check = hashlib.sha256(text.encode()).hexdigest()
    return f"{text}\n{check}".ljust(_SIZE - 1).encode() + b"\n"


@lru_cache(maxsize=4)
def _parsed(data: bytes) -> Witness | None:
    try:
        content: dict[str, Any] = json.loads(data.split(b"\n")[0])
        since, _ = content.pop("since"), content.pop("version")
        found = Witness(Position(**content), since)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidParameter):
        return None
    valid = type(since) is int and 1 <= since <= found.position.entry
    # Checksum, version, and that there is nothing else, at once.
    return found if valid and _rendered(found) == data else None


def _not_written(place: Place, error: OSError) -> LedgerError:
    return LedgerError(
        f"{place.path}: its witness {place.witness.name} cannot be written: {reason_of(error)}. "
        f"Nothing may be released."
    )
