"""Ledgers that somebody changed who knows the chain: every hash fits, and what it covers does not.

Nothing keeps such a file from being opened. `Ledger.verify` finds figures that do not follow.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpacct import Budget, Ledger, Poisson, Round
from dpacct.ledger import Event, NoisySum
from dpacct.ledger.disk.rows import APPLICATION_ID, SCHEMA, SCHEMA_VERSION
from dpacct.ledger.record import entries as chain

ROUND = Round(1.3, Poisson(0.1))
BUDGET = Budget(8, 1e-5)


@dataclass(frozen=True)
class Row:
    """One line of the file: the parsed text, and what stands beside it."""

    content: Any
    closes: Any


def _everyone(path: Path) -> None:
    """Full participation, which composes exactly and quickly: of everything a little."""
    round_, other = Round(9.0), Round(12.0)
    event = Event(round_, (NoisySum("update", 9.5), NoisySum("count", 30.0, 0.5)), {"lr": [1]})
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("planned", 3 * event.charged + 2 * other, details={"a": {"b": 1}})
        run.reserve(event).commit({"loss": 0.5})
        run.reserve(event).abandon("nothing drawn")
        ledger.start_run("chosen").reserve(other).commit()
        ledger.resume_run(1).reserve(other).commit()
        run.reserve(Round(8.0))
        run.finish()
        ledger.start_run("late", 4 * other).reserve(other).commit()


def _part_of_a_plan(path: Path) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        ledger.start_run("given up", 3 * Round(9.0)).finish()
        run = ledger.start_run("planned", 9 * Round(9.0))
        for noise in (9.0, 9.0, 9.5, 9.0):
            run.reserve(Round(noise)).commit()
        run.finish()


def _elsewhere(path: Path) -> None:
    with Ledger.open(path, Budget(1, 1e-5)) as ledger:
        ledger.start_run("here").reserve(Round(9.0)).commit()
        ledger.charge("there", 9 * Round(9.0), over_budget=True)


# Ledgers to be forged; reading one takes milliseconds.
QUICK = (_everyone, _part_of_a_plan, _elsewhere)


def read(path: Path) -> list[Row]:
    """All lines of a ledger."""
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT text, closes FROM entries ORDER BY number").fetchall()
    connection.close()
    return [Row(json.loads(text), closes) for text, closes in rows]


def put(path: Path, data: bytes) -> None:
    """A file with these bytes, and nothing beside it that remembers another one."""
    for beside in path.parent.glob(f"{path.name}*"):
        beside.unlink()
    path.write_bytes(data)


def write(path: Path, rows: list[Row]) -> None:
    """A ledger file of these lines, every hash as it must be."""
    put(path, b"")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=OFF")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("BEGIN")
    for statement in SCHEMA:
        connection.execute(statement)
    previous = chain.GENESIS
    for number, row in enumerate(rows, 1):
        content = row.content
        text = chain.canonical(content)
        previous = chain.link(previous, text)
        line = (number, content["run"], content["kind"], row.closes, text, previous)
        connection.execute(
            "INSERT INTO entries (number, run, kind, closes, text, hash) VALUES (?, ?, ?, ?, ?, ?)",
            line,
        )
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    connection.execute("COMMIT")
    connection.close()
