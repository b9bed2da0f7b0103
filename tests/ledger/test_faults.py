"""What may happen to a file: a clear error or correct continuation, never a smaller total."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from children import Child
from dpacct import (
    Budget,
    BudgetExceeded,
    DpacctError,
    InvalidParameter,
    Ledger,
    LedgerError,
    Poisson,
    Round,
)
from dpacct.ledger.disk.rows import APPLICATION_ID, SCHEMA, SCHEMA_VERSION
from dpacct.ledger.record import entries as chain
from ledgers import BUDGET, MANY, ROUND, SMALL, WIDE, beside, committed


def fill(path: Path) -> str:
    """A ledger with two runs, a plan that is left, and an abandoned round; its head."""
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("planned", 5 * ROUND, details={"lr": 0.1})
        other = ledger.start_run("chosen")
        for _ in range(6):
            run.reserve(ROUND).commit()
            other.reserve(Round(2.0, Poisson(0.05))).commit()
        run.reserve(ROUND).abandon("nothing drawn")
        run.reserve(ROUND)
        return ledger.head


def export(path: Path) -> list[dict[str, Any]]:
    with Ledger.open(path, read_only=True) as ledger:
        return list(ledger.export())


def edit(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


# Damage


def test_a_flipped_byte_or_a_cut_is_found_unless_nothing_hangs_on_it(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.ledger", tmp_path / "bad.ledger"
    fill(good)
    data, entries = good.read_bytes(), export(good)
    used = [i for i, byte in enumerate(data) if byte]
    dice = random.Random(3)  # noqa: S311 - not for privacy
    found, flips = 0, 20 * MANY
    for place in [*dice.sample(used, flips), *(-dice.randrange(len(data)) for _ in range(5))]:
        changed = bytearray(data)
        if place > 0:
            changed[place] ^= 1 << dice.randrange(8)
        bad.write_bytes(changed if place > 0 else data[:place])
        try:
            with Ledger.open(bad, read_only=True) as ledger:
                sound = ledger.verify().sound
        except DpacctError:
            sound = False
        found += not sound
        if sound:
            # A counter of SQLite's own: what the ledger says is unchanged.
            assert export(bad) == entries
    assert found >= 0.9 * (flips + 5)


DATABASE = f"PRAGMA application_id={APPLICATION_ID}"
ENTRIES = SCHEMA[0]
LAST = "WHERE number = (SELECT max(number) FROM entries)"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty, and a ledger never is"),
        (b"x" * 5000, "not a ledger"),
        (bytes(4096), "not a ledger"),
        (("CREATE TABLE entries (x)",), "is not a ledger of dpacct"),
        ((DATABASE, f"PRAGMA user_version={SCHEMA_VERSION}", ENTRIES), "no entries"),
        ((DATABASE, "PRAGMA user_version=0", ENTRIES), "no schema version"),
        ((DATABASE, "PRAGMA user_version=1", ENTRIES), r"dpacct 0\.1 wrote this"),
        ((DATABASE, "PRAGMA user_version=8", ENTRIES), r"a later dpacct .* \(schema 8"),
        # The latest entries may stand in another file then.
        ((DATABASE, "PRAGMA journal_mode=WAL", ENTRIES), "write-ahead mode"),
    ],
)
def test_a_foreign_file_is_left_alone(
    path: Path, content: bytes | tuple[str, ...], words: str
) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        edit(path, *content)
    before = path.read_bytes()
    # What never was a ledger is bad input. What may have been one is a ledger's error.
    error = InvalidParameter if "not a ledger" in words else LedgerError
    for read_only in (True, False):
        with pytest.raises(error, match=words):
            Ledger.open(path, BUDGET, read_only=read_only)
    beside(path).write_bytes(b"x")
    with pytest.raises(LedgerError):
        Ledger.open(path, BUDGET)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("replace(text, '\"k\":', '\"j\":')", "the chain is broken at entry"),
        # Nothing of it is shown.
        ("CAST(X'1B5B333168FF' AS TEXT)", "ledger: the ledger is damaged: an entry is not text"),
    ],
)
def test_a_damaged_head_stops_readers_and_writers(path: Path, text: str, words: str) -> None:
    fill(path)
    edit(path, "DROP TRIGGER entries_keep", f"UPDATE entries SET text = {text} {LAST}")  # noqa: S608
    for read_only in (True, False):
        with pytest.raises(LedgerError, match=words):
            Ledger.open(path, read_only=read_only)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET text = replace(text, '1.3', '9.3') WHERE number = 4",
        "UPDATE entries SET hash = zeroblob(32) WHERE number = 5",
        "UPDATE entries SET run = 2 WHERE number = 5",
        "UPDATE entries SET kind = 'commit' WHERE number = 5",
        "UPDATE entries SET closes = 999 WHERE closes = 5",
        "DELETE FROM entries WHERE number = 7",
        "UPDATE entries SET text = 'x' WHERE number = 6",
        "UPDATE entries SET text = x'ff' WHERE number = 6",
        "DROP INDEX entries_of_run",
    ],
)
def test_changing_any_part_of_an_entry_is_found(path: Path, statement: str) -> None:
    fill(path)
    if not statement.startswith("DROP"):
        with pytest.raises(sqlite3.IntegrityError, match="never"):
            edit(path, statement)
    edit(path, "DROP TRIGGER entries_keep", "DROP TRIGGER entries_stay", statement)
    with Ledger.open(path) as ledger:
        assert ledger.verify().problems


def test_dropping_the_newest_entries_needs_a_witness(path: Path) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        ledger.start_run("before")
    earlier = path.read_bytes()
    head = fill(path)
    later = path.read_bytes()
    edit(path, "DROP TRIGGER entries_stay", "DELETE FROM entries WHERE number > 18",
         "CREATE TRIGGER entries_stay BEFORE DELETE ON entries "
         "BEGIN SELECT RAISE(ABORT, 'entries are never deleted'); END")  # fmt: skip
    kept = beside(path).read_bytes()
    beside(path).unlink()
    for read_only in (True, False):
        with pytest.raises(LedgerError, match="entry 30 is missing"):
            Ledger.open(path, read_only=read_only)
    # The totals remember what was dropped, unless all of the file is an earlier one.
    assert len(later) > len(earlier)
    path.write_bytes(earlier)
    beside(path).write_bytes(kept)
    for read_only in (False, True):
        with pytest.raises(LedgerError, match="lost entries: its witness"):
            Ledger.open(path, read_only=read_only)
    beside(path).unlink()
    with Ledger.open(path) as ledger:
        assert ledger.verify().sound
        assert "entries are missing" in ledger.verify(head).problems[0]
        assert ledger.verify(ledger.head).head_found is True


# The system


@pytest.mark.needs("posix")
def test_a_full_disk_is_an_error_and_loses_nothing(path: Path) -> None:
    """The largest file size stands for the disk: writes beyond it fail in the same way."""
    import resource

    def use(say: Callable[[object], None]) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with Ledger.open(path, WIDE) as ledger:
            run = ledger.start_run("fills the disk")
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
            with pytest.raises(LedgerError, match="disk"):  # noqa: PT012 - until it is
                while True:
                    ticket = run.reserve(SMALL)
                    ticket.commit()
                    say("released")
            say(ticket.state)

    *released, state = Child(use).end()
    assert len(released) > 5
    assert state in ("committed", "drawn")
    with Ledger.open(path) as ledger:
        run = ledger.resume_run(1)
        assert run.rounds >= run.committed >= len(released)
        assert ledger.verify().sound
        # With room again it goes on, until the database may not grow.
        connection = ledger._file.store.connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={pages + 3}")
        before = run.committed
        with pytest.raises(LedgerError, match="the disk is full"):  # noqa: PT012 - until it is
            while True:
                run.reserve(SMALL).commit()
                before += 1
        assert run.committed == before > len(released)
        assert ledger.verify().sound


def test_a_commit_that_cannot_be_written_leaves_the_round_spent(ledger: Ledger) -> None:
    run, connection = ledger.start_run("x"), ledger._file.store.connection
    ticket = run.reserve(ROUND)
    spent = run.upper_epsilon()
    connection.execute("PRAGMA query_only=1")
    with pytest.raises(LedgerError, match="cannot be written"):
        ticket.commit()
    with pytest.raises(LedgerError, match="counts as spent"):
        ticket.abandon("it failed")
    connection.execute("PRAGMA query_only=0")
    assert run.upper_epsilon() == spent
    ticket.commit()
    assert run.committed == 1


def test_the_clock_may_go_backwards(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = [12]

    def time_ns() -> int:
        return (4_102_444_800 + 3600 * hours[-1]) * 10**9

    monkeypatch.setattr(chain, "time", SimpleNamespace(time_ns=time_ns))
    run = ledger.start_run("x")
    for hour in (11, 5, 20, 1):
        hours.append(hour)
        run.reserve(ROUND).commit()
    found = ledger.verify()
    assert found.sound
    assert sum("the clock went backwards" in remark for remark in found.remarks) == 3
    assert [e["number"] for e in ledger.export()] == list(range(1, 12))
    assert "clock" in ledger.report_markdown()


# Several processes


@pytest.mark.needs("posix")
def test_writers_at_once_never_exceed_the_budget_together(path: Path) -> None:
    round_ = Round(4.0, Poisson(0.2))
    with Ledger.open(path, Budget(0.8, 1e-5)) as ledger:
        fitting = ledger.remaining_one_by_one(round_)
    begin, go = os.pipe()

    def use(say: Callable[[object], None]) -> None:
        with Ledger.open(path) as ledger:
            run = ledger.start_run("writer")
            os.read(begin, 1)
            with pytest.raises(BudgetExceeded):  # noqa: PT012 - until it is
                while True:
                    run.reserve(round_).commit()
                    say("done")

    writers = [Child(use) for _ in range(2)]
    os.write(go, b"..")
    assert sum(len(writer.end()) for writer in writers) == fitting > 6
    assert committed(path) == fitting
    with Ledger.open(path) as one, Ledger.open(path) as two:
        assert one.upper_epsilon() <= 0.8
        # Nor do two reservations in turn share the last room.
        small = Round(3.0, Poisson(0.05))
        first, second = one.start_run("one"), two.start_run("two")
        for _ in range(one.remaining(small) - 1):
            first.reserve(small).commit()
        assert one.remaining(small) == two.remaining(small) == 1
        second.reserve(small)
        assert one.remaining(small) == 0


@pytest.mark.needs("posix")
def test_processes_that_make_the_same_file_get_the_same_ledger(path: Path) -> None:
    def use(say: Callable[[object], None]) -> None:
        with Ledger.open(path, BUDGET) as ledger:
            say(ledger.head)

    makers = [Child(use) for _ in range(4)]
    assert len({maker.end()[0] for maker in makers}) == 1
    assert {file.name for file in path.parent.iterdir()} == {path.name, f"{path.name}.witness"}


def test_readers_see_whole_rounds_while_a_writer_commits(path: Path) -> None:
    with Ledger.open(path, WIDE) as ledger:
        run = ledger.start_run("writer")
        stop, seen, problems = threading.Event(), [], []

        def read() -> None:
            with Ledger.open(path, read_only=True) as reader:
                while not stop.is_set():
                    seen.append(reader.rounds)
                    if reader.runs[0].committed < seen[-1] - 1:
                        problems.append(seen[-1])

        thread = threading.Thread(target=read)
        thread.start()
        while len(set(seen)) < 4:
            run.reserve(SMALL).commit()
        stop.set()
        thread.join()
    assert seen == sorted(seen)
    assert problems == []


def test_a_locked_file_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpacct.ledger.disk.rows.PATIENCE", 0.05)
    with Ledger.open(path, BUDGET) as ledger:
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        for use in (lambda: ledger.start_run("x"), lambda: Ledger.open(path)):
            with pytest.raises(LedgerError, match="kept the file locked"):
                use()
        blocker.execute("ROLLBACK")
        ledger.start_run("x")
        blocker.close()
