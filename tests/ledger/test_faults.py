"""What may happen to a file: a clear error or correct continuation, never a smaller total."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dpacct import Budget, Ledger, LedgerError, Poisson, Round
from dpacct.ledger.disk.rows import APPLICATION_ID, SCHEMA_VERSION
from dpacct.ledger.record import entries as chain

BUDGET = Budget(8, 1e-5)
ROUND = Round(1.3, Poisson(0.1))


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


def in_child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


# Damage


def test_a_single_flipped_byte_is_found_unless_nothing_hangs_on_it(tmp_path: Path) -> None:
    good = tmp_path / "good.ledger"
    fill(good)
    data, entries = good.read_bytes(), export(good)
    used = [i for i, byte in enumerate(data) if byte]
    times = random.Random(3)  # noqa: S311 - not for privacy
    found = 0
    for place in times.sample(used, 250):
        bad = tmp_path / "bad.ledger"
        changed = bytearray(data)
        changed[place] ^= 1 << times.randrange(8)
        bad.write_bytes(changed)
        try:
            with Ledger.open(bad, read_only=True) as ledger:
                sound = ledger.verify().sound
        except LedgerError:
            sound = False
        found += not sound
        if sound:
            # A counter of SQLite's own: what the ledger says is unchanged.
            assert export(bad) == entries
    assert found >= 240


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_file_is_an_error(path: Path, share: float) -> None:
    fill(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    try:
        with Ledger.open(path) as ledger:
            sound = ledger.verify().sound
    except LedgerError:
        sound = False
    assert not sound


def test_a_file_truncated_to_nothing_is_no_fresh_ledger(path: Path) -> None:
    fill(path)
    path.write_bytes(b"")
    with pytest.raises(LedgerError, match="empty, and a ledger never is"):
        Ledger.open(path, BUDGET)


@pytest.mark.parametrize("content", [b"hello", b"x" * 5000, bytes(4096)])
def test_a_foreign_file_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="not a ledger"):
        Ledger.open(path, BUDGET)
    assert path.read_bytes() == content


def test_another_database_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE entries (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="but not a ledger of dpacct"):
        Ledger.open(path, BUDGET)
    assert path.read_bytes() == before


def edit(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_a_schema_from_the_future_is_refused(path: Path) -> None:
    fill(path)
    edit(path, f"PRAGMA user_version={SCHEMA_VERSION + 5}")
    with pytest.raises(LedgerError, match=r"a later dpacct wrote this ledger \(schema 8"):
        Ledger.open(path)


def test_a_schema_from_nowhere_is_refused(path: Path) -> None:
    fill(path)
    edit(path, "PRAGMA user_version=0")
    with pytest.raises(LedgerError, match="no schema version"):
        Ledger.open(path)


@pytest.mark.parametrize("read_only", [True, False])
def test_what_another_program_or_version_0_1_wrote_is_refused(
    path: Path, *, read_only: bool
) -> None:
    fill(path)
    edit(path, "PRAGMA user_version=1")
    with pytest.raises(LedgerError, match=r"dpacct 0\.1 wrote this ledger"):
        Ledger.open(path, read_only=read_only)
    # In that mode the latest entries may stand in another file.
    edit(path, "PRAGMA journal_mode=WAL")
    with pytest.raises(LedgerError, match="write-ahead mode"):
        Ledger.open(path, read_only=read_only)


def test_a_file_without_a_first_entry_is_refused(path: Path) -> None:
    edit(path, f"PRAGMA application_id={APPLICATION_ID}", f"PRAGMA user_version={SCHEMA_VERSION}",
         "CREATE TABLE entries (number, run, kind, closes, text, hash)")  # fmt: skip
    with pytest.raises(LedgerError, match="no entries"):
        Ledger.open(path)


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


def test_a_damaged_head_stops_every_writer(path: Path) -> None:
    fill(path)
    edit(path, "DROP TRIGGER entries_keep",
         "UPDATE entries SET text = replace(text, '\"rounds\":', '\"round\":') "
         "WHERE number = (SELECT max(number) FROM entries)")  # fmt: skip
    with pytest.raises(LedgerError, match="the chain is broken at entry"):
        Ledger.open(path)


def test_text_that_is_none_is_no_part_of_a_message(path: Path) -> None:
    fill(path)
    edit(path, "DROP TRIGGER entries_keep",
         "UPDATE entries SET text = CAST(X'1B5B333168FF' AS TEXT) "
         "WHERE number = (SELECT max(number) FROM entries)")  # fmt: skip
    for read_only in (True, False):
        with pytest.raises(LedgerError, match=r"ledger: an entry is not text; the ledger is dam"):
            Ledger.open(path, read_only=read_only)


def rewrite(path: Path, change: Callable[[dict[str, Any]], None], number: int) -> None:
    """What a forger does who knows the chain: change one entry, and link all that follow."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DROP TRIGGER entries_keep")
    rows = connection.execute("SELECT number, text FROM entries ORDER BY number").fetchall()
    previous = chain.GENESIS
    for row, text in rows:
        content = text
        if row == number:
            entry = json.loads(text)
            change(entry)
            content = chain.canonical(entry)
        previous = chain.link(previous, content)
        connection.execute(
            "UPDATE entries SET text = ?, hash = ? WHERE number = ?", (content, previous, row)
        )
    connection.execute(
        "CREATE TRIGGER entries_keep BEFORE UPDATE ON entries "
        "BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END"
    )
    connection.close()
    # Who can write to the ledger can write to what stands beside it.
    Path(f"{path}.witness").unlink()


def cheaper_round(entry: dict[str, Any]) -> None:
    entry["data"]["charged"]["noise_multiplier"] *= 0.5


def smaller_total(entry: dict[str, Any]) -> None:
    entry["state"]["ledger"]["spent"] = [v // 2 for v in entry["state"]["ledger"]["spent"]]


def fewer_rounds(entry: dict[str, Any]) -> None:
    entry["state"]["ledger"]["rounds"] -= 1


def more_delta(entry: dict[str, Any]) -> None:
    entry["state"]["ledger"]["delta"] *= 2


def heavier_weights(entry: dict[str, Any]) -> None:
    entry["data"]["weights"] = [2 * weight for weight in entry["data"]["weights"]]


def test_weights_that_add_up_to_more_than_one_are_found(path: Path) -> None:
    fill(path)
    rewrite(path, heavier_weights, 1)
    # What such a ledger reads would be below the truth.
    with pytest.raises(LedgerError, match="entry 1: its weights add up to more than 1"):
        Ledger.open(path)


@pytest.mark.parametrize("change", [cheaper_round, smaller_total, fewer_rounds, more_delta])
def test_totals_that_do_not_follow_are_found_although_the_chain_holds(
    path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    head = fill(path)
    reserved = next(e["number"] for e in export(path) if e["kind"] == "reserve")
    rewrite(path, change, reserved)
    with Ledger.open(path) as ledger:
        found = ledger.verify()
        assert not found.sound
        assert ledger.verify(head).head_found is False


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


def test_a_missing_file_and_a_missing_folder(path: Path) -> None:
    with pytest.raises(LedgerError, match="No such file"):
        Ledger.open(path)
    with pytest.raises(LedgerError, match="there is no folder"):
        Ledger.open(path / "deeper", BUDGET)
    with pytest.raises(LedgerError, match="not a file"):
        Ledger.open(path.parent)


READ_ONLY = """
import os, sys
from dpacct import Budget, Ledger, LedgerError, Poisson, Round
from dpacct.ledger.book import software
software()  # imports what another user may not read
if os.getuid() == 0: os.setuid(65534)
with Ledger.open(sys.argv[1], read_only=True) as ledger:
    print(ledger.rounds, ledger.verify().sound, ledger.remaining(Round(5.0, Poisson(0.1))) > 0)
for path in sys.argv[1:]:
    try:
        with Ledger.open(path, Budget(8, 1e-5)) as ledger:
            ledger.start_run("x").reserve(Round(5.0, Poisson(0.1)))
    except LedgerError as error:
        print(error)
"""


def test_a_file_that_cannot_be_written_can_be_read() -> None:
    # A folder that another user may enter.
    folder = Path("/tmp") / f"dpacct-read-only-{os.getpid()}"  # noqa: S108 - see above
    folder.mkdir(mode=0o755)
    try:
        path = folder / "a.ledger"
        fill(path)
        path.chmod(0o444)
        folder.chmod(0o555)
        done = in_child(READ_ONLY, str(path), str(folder / "new.ledger"))
        lines = done.stdout.splitlines()
        assert len(lines) == 3, done.stderr
        assert lines[0] == "13 True True"
        assert "cannot be written" in lines[1] or "cannot be opened" in lines[1]
        assert "no ledger can be made" in lines[2], done.stderr
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_read_only_ledger_refuses_to_spend(path: Path) -> None:
    fill(path)
    with Ledger.open(path, read_only=True) as ledger:
        rounds = ledger.rounds
        with pytest.raises(LedgerError, match="cannot be written to"):
            ledger.start_run("x")
        assert ledger.rounds == rounds


FULL = """
import resource, signal, sys
from dpacct import Budget, Ledger, LedgerError, Poisson, Round
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ledger = Ledger.open(sys.argv[1], Budget(50, 1e-5))
run = ledger.start_run("fills the disk")
round_ = Round(30.0, Poisson(0.01))
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
released, tickets = 0, []
try:
    while True:
        ticket = run.reserve(round_)
        ticket.commit()
        released += 1
except LedgerError as error:
    print(released, error)
print(ticket.state, run.rounds)
"""


def test_a_full_disk_is_an_error_and_loses_nothing(path: Path) -> None:
    """The largest file size stands for the disk: writes beyond it fail in the same way."""
    done = in_child(FULL, str(path))
    first, second = done.stdout.splitlines()
    released = int(first.split()[0])
    assert "disk" in first, done.stdout + done.stderr
    assert released > 10
    with Ledger.open(path) as ledger:
        run = ledger.runs[0]
        assert run.committed >= released
        assert run.rounds >= released
        assert ledger.verify().sound
        # With room again it goes on.
        run = ledger.resume_run(1)
        run.reserve(Round(30.0, Poisson(0.01))).commit()
    assert second.split()[0] in ("committed", "drawn")


def test_a_database_that_may_not_grow_says_the_disk_is_full(path: Path) -> None:
    with Ledger.open(path, Budget(50, 1e-5)) as ledger:
        run = ledger.start_run("x")
        connection = ledger._book.store.connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={pages + 3}")
        released = 0
        with pytest.raises(LedgerError, match="the disk is full"):  # noqa: PT012 - until it is
            while True:
                run.reserve(Round(30.0, Poisson(0.01))).commit()
                released += 1
        assert run.committed == released
        assert ledger.verify().sound


def test_a_commit_that_cannot_be_written_leaves_the_round_spent(path: Path) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("x")
        ticket = run.reserve(ROUND)
        spent = run.upper_epsilon()
        ledger._book.store.connection.execute("PRAGMA query_only=1")
        with pytest.raises(LedgerError, match="cannot be written"):
            ticket.commit()
        with pytest.raises(LedgerError, match="counts as spent"):
            ticket.abandon("it failed")
        ledger._book.store.connection.execute("PRAGMA query_only=0")
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
    code = """
import os, sys
from dpacct import Budget, Ledger, LedgerError, Round
ledger = Ledger.open(sys.argv[1], Budget(8, 1e-5))
ticket = ledger.start_run("x").reserve(Round(9.0))
if os.fork() == 0:
    for use in (lambda: ledger.rounds, ticket.commit, lambda: ledger.start_run("y")):
        try: use()
        except LedgerError as error: print(error, flush=True)
    os._exit(0)
os.wait()
ticket.commit()
print(ledger.runs[0].committed)
"""
    lines = in_child(code, str(path)).stdout.splitlines()
    assert [("another process" in line) for line in lines] == [True, True, True, False]
    assert lines[-1] == "1"


RACE = """
import sys
from dpacct import Budget, BudgetExceeded, Ledger, Poisson, Round
with Ledger.open(sys.argv[1], Budget(2, 1e-5)) as ledger:
    run = ledger.start_run(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    done = 0
    try:
        while True:
            run.reserve(Round(3.0, Poisson(0.2))).commit()
            done += 1
    except BudgetExceeded:
        print(done)
"""


def test_writers_at_once_never_exceed_the_budget_together(path: Path) -> None:
    with Ledger.open(path, Budget(2, 1e-5)) as ledger:
        fitting = ledger.remaining(Round(3.0, Poisson(0.2)))
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(path), f"writer {n}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    done = [writer.communicate("\n", timeout=300)[0] for writer in writers]
    assert sum(map(int, done)) == fitting > 20
    with Ledger.open(path) as ledger:
        assert ledger.rounds == fitting
        assert ledger.verify().sound
        assert ledger.upper_epsilon() <= 2


def test_two_reservations_never_share_the_last_room(path: Path) -> None:
    with Ledger.open(path, BUDGET) as one, Ledger.open(path, BUDGET) as two:
        first, second = one.start_run("one"), two.start_run("two")
        for _ in range(one.remaining(ROUND) - 1):
            first.reserve(ROUND).commit()
        assert one.remaining(ROUND) == two.remaining(ROUND) == 1
        second.reserve(ROUND)
        assert one.remaining(ROUND) == 0


def test_processes_that_make_the_same_file_get_the_same_ledger(path: Path) -> None:
    code = "import sys; from dpacct import *; print(Ledger.open(sys.argv[1], Budget(8, 1e-5)).head)"
    makers = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    heads = {maker.communicate(timeout=300)[0] for maker in makers}
    assert len(heads) == 1
    assert {file.name for file in path.parent.iterdir()} == {path.name, f"{path.name}.witness"}


def test_readers_see_whole_rounds_while_a_writer_commits(path: Path) -> None:
    with Ledger.open(path, Budget(50, 1e-5)) as ledger:
        run = ledger.start_run("writer")
        stop, seen, problems = threading.Event(), [], []

        def read() -> None:
            with Ledger.open(path, read_only=True) as reader:
                while not stop.is_set():
                    seen.append(reader.rounds)
                    if reader.runs[0].committed < seen[-1] - 1:
                        problems.append(seen[-1])
                    reader.upper_epsilon()

        thread = threading.Thread(target=read)
        thread.start()
        for _ in range(80):
            run.reserve(Round(30.0, Poisson(0.01))).commit()
        stop.set()
        thread.join()
    assert seen == sorted(seen)
    assert len(set(seen)) > 3
    assert problems == []


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


def test_limits_of_this_machine_are_as_they_were() -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    assert signal.getsignal(signal.SIGXFSZ) is not None
