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
from dpacct.ledger.record.replay import Replay
from dpacct.ledger.record.state import state_text

ROUND = Round(1.3, Poisson(0.1))
BUDGET = Budget(8, 1e-5)


@dataclass(frozen=True)
class Row:
    """One line of the file: what happened, the totals behind it, and what it settles."""

    content: Any  # kind, run, closes, data, state


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
    """All lines of a sound ledger, each with the totals behind it."""
    found: list[Row] = []
    with Ledger.open(path, read_only=True) as ledger:
        now = ledger._file.now()
        replay = Replay(now.known.opening)
        for entry in now.entries():
            replay.take(entry)
            data, state = dict(entry.content), None
            data.pop("t")
            if data.pop("d", None):
                own = replay.runs[entry.run][2] if entry.run else None
                state = json.loads(state_text(replay.ledger, own))
            index = {"kind": entry.kind, "run": entry.run, "closes": entry.closes}
            found.append(Row({**index, "data": data, "state": state}))
    return found


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
    head = None
    for row in rows:
        content = row.content
        totals = None if content["state"] is None else chain.canonical(content["state"])
        kind, run, closes = content["kind"], content["run"], content["closes"]
        head = chain.new_entry(head, kind, run, content["data"], totals, closes)
        connection.execute(
            "INSERT INTO entries (number, run, kind, closes, text, hash) VALUES (?, ?, ?, ?, ?, ?)",
            (head.number, run, kind, closes, head.text, head.hash),
        )
        if totals is not None:
            line = (head.number, run, totals)
            connection.execute("REPLACE INTO states VALUES (?, ?, ?)", line)
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    connection.execute("COMMIT")
    connection.close()
