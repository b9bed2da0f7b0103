"""A new ledger file: it comes into being complete, under its own name, or not at all."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress

from dpacct.errors import LedgerError
from dpacct.ledger.disk.failures import reason_of
from dpacct.ledger.disk.leftovers import connect
from dpacct.ledger.disk.place import Place, check_mount, draft_of, sync_folder
from dpacct.ledger.disk.place import reason_of as reason_of_system
from dpacct.ledger.disk.rows import make_tables
from dpacct.ledger.record.chain import Entry


def make_file(place: Place, first: Entry) -> bool:
    """Make a new file with its first entry.

    Returns:
        Whether it was made; False if another process was faster.
    Raises:
        LedgerError: the folder cannot be written to, or is on a network, or the disk is full.
    """
    check_mount(place, writing=True)
    draft = draft_of(place, f"{os.getpid()}-{time.monotonic_ns()}")
    try:
        with closing(connect(draft, "rwc")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            make_tables(connection, first)
            connection.execute("COMMIT")
        # A link fails where the name exists already: nobody's ledger is ever replaced.
        os.link(draft, place.file)
        sync_folder(place.folder)
    except FileExistsError:
        return False
    except sqlite3.Error as error:
        raise LedgerError(f"{place.path}: no ledger can be made: {reason_of(error)}.") from None
    except OSError as error:
        reason = reason_of_system(error)
        raise LedgerError(f"{place.path}: no ledger can be made: {reason}.") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return True
