"""What may happen to a file: a clear error or correct continuation, never a smaller total."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
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
from dpacct.ledger.disk.rows import APPLICATION_ID, SCHEMA_VERSION
from dpacct.ledger.record import entries as chain

BUDGET = Budget(8, 1e-5)
ROUND = Round(1.3, Poisson(0.1))
WIDE, SMALL = Budget(50, 1e-5), Round(30.0, Poisson(0.01))


def fill(path: Path, rounds: int = 12) -> str:
    """A ledger with two runs, a plan that is left, and an abandoned round; its head."""
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("planned", 5 * ROUND, details={"lr": 0.1})
        other = ledger.start_run("chosen")
        for _ in range(rounds // 2):
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
    found = 0
    for place in [*dice.sample(used, 60), *(-dice.randrange(len(data)) for _ in range(10))]:
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
    assert found >= 66


DATABASE = f"PRAGMA application_id={APPLICATION_ID}"
ENTRIES = "CREATE TABLE entries (number, run, kind, closes, text, hash)"
LAST = "WHERE number = (SELECT max(number) FROM entries)"


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize(
    ("content", "statements", "words"),
    [
        (b"", (), "empty, and a ledger never is"),
        (b"x" * 5000, (), "not a ledger"),
        (bytes(4096), (), "not a ledger"),
        (None, ("CREATE TABLE entries (x)",), "is not a ledger of dpacct"),
        (None, (DATABASE, f"PRAGMA user_version={SCHEMA_VERSION}", ENTRIES), "no entries"),
        (None, (DATABASE, "PRAGMA user_version=0", ENTRIES), "no schema version"),
        (None, (DATABASE, "PRAGMA user_version=1", ENTRIES), r"dpacct 0\.1 wrote this"),
        (None, (DATABASE, "PRAGMA user_version=8", ENTRIES), r"a later dpacct .* \(schema 8"),
        # The latest entries may stand in another file then.
        (None, (DATABASE, "PRAGMA journal_mode=WAL", ENTRIES), "write-ahead mode"),
    ],
)
def test_a_foreign_file_is_left_alone(
    path: Path, content: bytes | None, statements: tuple[str, ...], words: str, *, read_only: bool
) -> None:
    if content is None:
        edit(path, *statements)
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises((LedgerError, InvalidParameter), match=words):
        Ledger.open(path, BUDGET, read_only=read_only)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("replace(text, '\"rounds\":', '\"round\":')", "the chain is broken at entry"),
        # Nothing of it is shown.
        ("CAST(X'1B5B333168FF' AS TEXT)", "ledger: an entry is not text; the ledger is damaged"),
    ],
)
def test_a_damaged_head_stops_readers_and_writers(path: Path, text: str, words: str) -> None:
    fill(path)
    edit(path, "DROP TRIGGER entries_keep", f"UPDATE entries SET text = {text} {LAST}")  # noqa: S608
    for read_only in (True, False):
        with pytest.raises(LedgerError, match=words):
            Ledger.open(path, read_only=read_only)


def test_entries_can_only_be_added(path: Path) -> None:
    fill(path)
    for statement in ("DELETE FROM entries", "UPDATE entries SET run = 1"):
        with pytest.raises(sqlite3.IntegrityError, match="never"):
            edit(path, statement)


TAMPERED: dict[str, tuple[str, ...]] = {
    "an entry": ("UPDATE entries SET text = replace(text, '1.3', '9.3') WHERE number = 5",),
    "a hash": ("UPDATE entries SET hash = zeroblob(32) WHERE number = 5",),
    "a run": ("UPDATE entries SET run = 2 WHERE number = 4",),
    "a kind": ("UPDATE entries SET kind = 'commit' WHERE number = 4",),
    "what is closed": ("UPDATE entries SET closes = 999 WHERE closes = 4",),
    "an order": ("DELETE FROM entries WHERE number = 7",),
    "text": ("UPDATE entries SET text = 'x' WHERE number = 6",),
    "types": ("UPDATE entries SET text = x'ff' WHERE number = 6",),
    "the schema": ("CREATE TABLE more (x)",),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_changing_any_part_of_an_entry_is_found(path: Path, what: str) -> None:
    fill(path)
    edit(path, "DROP TRIGGER entries_keep", "DROP TRIGGER entries_stay", *TAMPERED[what])
    with Ledger.open(path) as ledger:
        found = ledger.verify()
    assert not found.sound
    assert found.problems


def test_dropping_the_newest_entries_needs_a_witness(path: Path) -> None:
    head = fill(path)
    edit(path, "DROP TRIGGER entries_stay",
         "DELETE FROM entries WHERE number = (SELECT max(number) FROM entries)",
         "CREATE TRIGGER entries_stay BEFORE DELETE ON entries "
         "BEGIN SELECT RAISE(ABORT, 'entries are never deleted'); END")  # fmt: skip
    for read_only in (False, True):
        with pytest.raises(LedgerError, match="lost entries: its witness"):
            Ledger.open(path, read_only=read_only)
    Path(f"{path}.witness").unlink()
    with Ledger.open(path) as ledger:
        assert ledger.verify().sound
        found = ledger.verify(head)
        assert not found.sound
        assert "entries are missing" in found.problems[0]
        assert ledger.verify(ledger.head).head_found is True


# The system


def test_a_file_that_cannot_be_written_can_be_read() -> None:
    # A folder that another user may enter.
    folder = Path("/tmp") / f"dpacct-read-only-{os.getpid()}"  # noqa: S108 - see above
    folder.mkdir(mode=0o755)
    path = folder / "a.ledger"

    def use(say: Callable[[object], None]) -> None:
        with Ledger.open(path, read_only=True) as ledger:
            say((ledger.rounds, ledger.verify().sound, ledger.remaining(ROUND) > 0))
            with pytest.raises(LedgerError, match="cannot be written to"):
                ledger.start_run("x")
        for file in (path, folder / "new.ledger"):
            with pytest.raises(LedgerError) as refused:
                Ledger.open(file, BUDGET)
            say(refused.value)

    try:
        fill(path)
        path.chmod(0o444)
        folder.chmod(0o555)
        lines = Child(use, user=65534).end()
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
    assert lines[0] == "(13, True, True)"
    assert "it cannot be written to" in lines[1]
    assert "no ledger can be made" in lines[2]


def test_a_full_disk_is_an_error_and_loses_nothing(path: Path) -> None:
    """The largest file size stands for the disk: writes beyond it fail in the same way."""

    def use(say: Callable[[object], None]) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with Ledger.open(path, WIDE) as ledger:
            run = ledger.start_run("fills the disk")
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
            with pytest.raises(LedgerError, match="disk"):  # noqa: PT012 - until it is
                while True:
                    ticket = run.reserve(SMALL)
                    ticket.commit()
                    say("released")
            say(ticket.state)

    *released, state = Child(use).end()
    assert len(released) > 10
    with Ledger.open(path) as ledger:
        run = ledger.resume_run(1)
        assert run.rounds >= run.committed >= len(released)
        assert ledger.verify().sound
        # With room again it goes on.
        run.reserve(SMALL).commit()
    assert state in ("committed", "drawn")


def test_a_database_that_may_not_grow_says_the_disk_is_full(path: Path) -> None:
    with Ledger.open(path, WIDE) as ledger:
        run = ledger.start_run("x")
        connection = ledger._file.store.connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={pages + 3}")
        released = 0
        with pytest.raises(LedgerError, match="the disk is full"):  # noqa: PT012 - until it is
            while True:
                run.reserve(SMALL).commit()
                released += 1
        assert run.committed == released
        assert ledger.verify().sound


def test_a_commit_that_cannot_be_written_leaves_the_round_spent(path: Path) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("x")
        ticket = run.reserve(ROUND)
        spent = run.upper_epsilon()
        ledger._file.store.connection.execute("PRAGMA query_only=1")
        with pytest.raises(LedgerError, match="cannot be written"):
            ticket.commit()
        with pytest.raises(LedgerError, match="counts as spent"):
            ticket.abandon("it failed")
        ledger._file.store.connection.execute("PRAGMA query_only=0")
        assert run.upper_epsilon() == spent
        ticket.commit()
        assert run.committed == 1


def test_the_clock_may_go_backwards(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        hour_now = 12

        @classmethod
        def now(cls, tz: Any = None) -> Clock:  # noqa: ARG003 - as datetime has it
            return cls(2030, 1, 1, cls.hour_now, tzinfo=UTC)

    monkeypatch.setattr(chain, "datetime", Clock)
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("x")
        for Clock.hour_now in (11, 5, 20, 1):
            run.reserve(ROUND).commit()
        found = ledger.verify()
        assert found.sound
        assert sum("the clock went backwards" in remark for remark in found.remarks) == 3
        assert [e["number"] for e in ledger.export()] == list(range(1, 11))
        assert "clock" in ledger.report_markdown()


# Several processes


def test_a_ledger_does_not_cross_a_fork(path: Path) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        ticket = ledger.start_run("x").reserve(ROUND)

        def use(say: Callable[[object], None]) -> None:
            for call in (lambda: ledger.rounds, ticket.commit, lambda: ledger.start_run("y")):
                with pytest.raises(LedgerError, match="another process"):
                    call()
            say("refused")

        assert Child(use).end() == ["refused"]
        ticket.commit()
        assert ledger.runs[0].committed == 1


def test_writers_at_once_never_exceed_the_budget_together(path: Path) -> None:
    round_ = Round(4.0, Poisson(0.2))
    with Ledger.open(path, Budget(0.8, 1e-5)) as ledger:
        fitting = ledger.remaining(round_)
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
    with Ledger.open(path) as ledger:
        assert ledger.rounds == fitting
        assert ledger.verify().sound
        assert ledger.upper_epsilon() <= 0.8


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


def test_two_reservations_never_share_the_last_room(path: Path) -> None:
    with Ledger.open(path, BUDGET) as one, Ledger.open(path, BUDGET) as two:
        first, second = one.start_run("one"), two.start_run("two")
        for _ in range(one.remaining(ROUND) - 1):
            first.reserve(ROUND).commit()
        assert one.remaining(ROUND) == two.remaining(ROUND) == 1
        second.reserve(ROUND)
        assert one.remaining(ROUND) == 0


def test_a_locked_file_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpacct.ledger.disk.lock.BUSY_SECONDS", 0.05)
    fill(path)
    with Ledger.open(path) as ledger:
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="kept the file locked"):
            ledger.start_run("x")
        with pytest.raises(LedgerError, match="kept the file locked"):
            Ledger.open(path)
        blocker.execute("ROLLBACK")
        ledger.start_run("x")
        blocker.close()
