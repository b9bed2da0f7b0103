"""A ledger that several processes and threads have open, whatever else they do to its file."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from children import Child
from dpacct import Ledger, LedgerError
from dpacct.ledger.disk import lock, store
from dpacct.ledger.disk.rows import StoredEntries
from ledgers import MANY, SMALL, WIDE, beside, committed, play, spend

# Forks


@pytest.mark.needs("posix")
def test_a_worker_keeps_its_rounds_when_its_parent_closes_the_ledger(path: Path) -> None:
    ready, go = os.pipe(), os.pipe()

    def work(_: object) -> None:
        with Ledger.open(path) as mine:
            run = mine.start_run("worker")
            play(run, SMALL, 4)
            os.write(ready[1], b".")
            os.read(go[0], 1)
            play(run, SMALL, 4)

    with Ledger.open(path, WIDE) as ledger:
        ledger.start_run("parent").reserve(SMALL).commit()
        worker = Child(work)
        os.read(ready[0], 1)
    Ledger.open(path).close()
    os.write(go[1], b".")
    worker.end()
    assert committed(path) == 9


@pytest.mark.needs("posix")
def test_a_child_that_ends_in_the_usual_way_undoes_nothing_of_its_parent(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork comes in the middle of a transaction, from what interrupts it; the child unwinds."""
    run, add, main = ledger.start_run("x"), StoredEntries.add, os.getpid()
    children: list[int] = []

    def fork(rows: StoredEntries, *entry: Any) -> None:
        add(rows, *entry)
        child = os.fork()
        if child == 0:
            with pytest.raises(LedgerError, match="another process"):
                _ = ledger.rounds
            raise KeyError
        children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    monkeypatch.setattr(StoredEntries, "add", fork)
    code = 1
    try:
        run.reserve(SMALL).commit()
    except KeyError:
        code = 7
    finally:
        if os.getpid() != main:
            os._exit(code)
    assert children == [7, 7, 7]
    assert committed(path) == 1


@pytest.mark.needs("posix")
def test_a_lock_does_not_outlive_its_process_in_a_child(path: Path) -> None:
    def work(say: Callable[[object], None]) -> None:
        ledger = Ledger.open(path, WIDE)
        ledger.start_run("x").reserve(SMALL)

        def fork(_: object) -> None:
            # As another thread would, at any time.
            child = os.fork()
            if child == 0:
                # What is waited for ends with the last who has it.
                os.closerange(0, 3)
                for number in range(3, 64):
                    with suppress(OSError):
                        if stat.S_ISFIFO(os.fstat(number).st_mode):
                            os.close(number)
                time.sleep(60)
                os._exit(0)
            say(child)
            os._exit(0)

        ledger._file.store.write(fork)

    (child,) = Child(work).end()
    try:
        with Ledger.open(path) as ledger:
            assert ledger.rounds == 1
    finally:
        os.kill(int(child), 9)


# Copies, moves and links


@pytest.mark.needs("posix")
def test_whatever_copies_the_file_costs_no_round(path: Path, tmp_path: Path) -> None:
    """What opens and closes the file drops the locks that SQLite holds in the process."""

    def work(_: object) -> None:
        stop = threading.Event()

        def copy_all_the_time() -> None:
            while not stop.is_set():
                shutil.copy(path, f"{path}.copy")

        thread = threading.Thread(target=copy_all_the_time)
        thread.start()
        try:
            with Ledger.open(path) as ledger:
                run = ledger.start_run("copied")
                for _ in range(15):
                    run.reserve(SMALL).commit()
                    with Ledger.open(path, read_only=True) as reader:
                        assert reader.runs[-1].rounds == run.rounds
        finally:
            stop.set()
            thread.join()

    spend(path, 5)
    shutil.copy(path, tmp_path / "copy.ledger")
    copying = Child(work)
    for _ in range(9):
        spend(path, 1)
    copying.end()
    assert committed(path) == 29
    assert committed(tmp_path / "copy.ledger") == 5


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere.ledger"))


def moved_and_made_anew(path: Path) -> None:
    moved(path)
    beside(path).unlink()
    beside(path, "-journal").unlink()
    spend(path, 1)


def replaced(path: Path) -> None:
    shutil.copy(path, beside(path, ".copy")).replace(path)


@pytest.mark.parametrize("happens", [moved, moved_and_made_anew, Path.unlink, replaced])
def test_a_file_that_is_no_longer_under_its_name_is_not_written(
    path: Path, happens: Callable[[Path], None]
) -> None:
    with Ledger.open(path, WIDE) as ledger, Ledger.open(path, read_only=True) as reader:
        run = ledger.start_run("x")
        run.reserve(SMALL).commit()
        ticket = run.reserve(SMALL)
        happens(path)
        for use in (ticket.commit, lambda: run.reserve(SMALL), lambda: reader.rounds):
            with pytest.raises(LedgerError, match="was moved, replaced or deleted"):
                use()
        assert ticket.state == "drawn"


@pytest.mark.parametrize("before", [True, False])
def test_a_move_in_the_middle_of_a_write_is_not_a_release(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, before: bool
) -> None:
    check, calls = store.check_still_there, 0

    def move_at_the_commit(*place: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == (2 if before else 3):
            moved(path)
        check(*place)

    with Ledger.open(path, WIDE) as ledger:
        ticket = ledger.start_run("x").reserve(SMALL)
        monkeypatch.setattr(store, "check_still_there", move_at_the_commit)
        with pytest.raises(LedgerError, match="was moved, replaced or deleted"):
            ticket.commit()
    monkeypatch.undo()
    path.with_name("elsewhere.ledger").rename(path)
    # Written or not, it was not released, and is spent.
    assert committed(path) == (not before)
    with Ledger.open(path) as ledger:
        assert ledger.rounds == 1


def test_a_second_name_is_refused_as_long_as_it_is_there(path: Path, tmp_path: Path) -> None:
    spend(path, 1)
    other = tmp_path / "other.ledger"
    with Ledger.open(path) as ledger:
        run = ledger.resume_run(1)
        os.link(path, other)
        with pytest.raises(LedgerError, match="second name"):
            run.reserve(SMALL)
        for name in (path, other):
            for read_only in (False, True):
                with pytest.raises(LedgerError, match="second name"):
                    Ledger.open(name, read_only=read_only)
        other.unlink()
        run.reserve(SMALL).commit()
    assert committed(path) == 2


def test_other_names_that_are_no_second_names(path: Path, tmp_path: Path) -> None:
    spend(path, 2)
    folder = tmp_path / "deeper"
    folder.mkdir()
    link = folder / "link.ledger"
    link.symlink_to(path)
    spend(link, 1)
    assert committed(path) == committed(link) == 3
    assert [file.name for file in folder.iterdir()] == ["link.ledger"]


def test_a_file_overwritten_by_an_older_copy_is_not_gone_on_with(path: Path) -> None:
    spend(path, 1)
    old = path.read_bytes()
    with Ledger.open(path) as ledger, Ledger.open(path, read_only=True) as reader:
        run = ledger.resume_run(1)
        run.reserve(SMALL).commit()
        ticket = run.reserve(SMALL)
        assert reader.rounds == 3
        path.write_bytes(old)
        for use in (ticket.commit, lambda: run.reserve(SMALL), lambda: reader.rounds):
            with pytest.raises(LedgerError, match=r"was overwritten|has lost entries"):
                use()
        assert path.read_bytes() == old


def test_a_file_overwritten_by_a_longer_copy_that_went_its_own_way_is_not_gone_on_with(
    path: Path, tmp_path: Path
) -> None:
    spend(path, 1)
    (tmp_path / "fork").mkdir()
    fork = tmp_path / "fork" / path.name
    shutil.copyfile(path, fork)
    spend(fork, 3)
    with Ledger.open(path) as ledger, Ledger.open(path, read_only=True) as reader:
        run = ledger.resume_run(1)
        ticket = run.reserve(SMALL)
        assert reader.rounds == 2
        path.write_bytes(fork.read_bytes())
        beside(path).write_bytes(beside(fork).read_bytes())
        for use in (ticket.commit, lambda: run.reserve(SMALL), lambda: reader.rounds):
            with pytest.raises(LedgerError, match="was overwritten"):
                use()


# Waiting and interrupts


def test_ledgers_of_one_process_take_turns(path: Path) -> None:
    with Ledger.open(path, WIDE) as one, Ledger.open(path) as two:
        first, second = one.start_run("one"), two.start_run("two")
        problems: list[str] = []

        def other_thread() -> None:
            with Ledger.open(path) as three:
                play(three.start_run("three"), SMALL, 5)
            # What another thread opened stays there.
            try:
                second.reserve(SMALL)
            except LedgerError as error:
                problems.append(str(error))

        thread = threading.Thread(target=other_thread)
        thread.start()
        for _ in range(5):
            for ticket in [first.reserve(SMALL), second.reserve(SMALL)]:
                ticket.commit()
        thread.join()
    assert "another thread" in problems[0]
    assert committed(path) == 15


def test_an_open_ledger_is_refused_by_whoever_sends_it_to_another_process(
    ledger: Ledger, path: Path
) -> None:
    run = ledger.start_run("x")
    ticket = run.reserve(SMALL)
    for thing, send in product((ledger, run, ticket), (pickle.dumps, copy.deepcopy)):
        with pytest.raises(LedgerError, match="Open it by its path there") as refused:
            send(thing)
        assert str(path) in str(refused.value)
    gc.collect()
    ticket.commit()
    assert committed(path) == 1


@pytest.mark.needs("posix")
def test_waiting_for_others_ends_and_leaves_nothing_locked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BUSY_SECONDS", 0.05)
    with Ledger.open(path, WIDE) as ledger, Ledger.open(path) as other:
        run = ledger.start_run("x")

        def wait(_: object) -> None:
            for use in (lambda: run.reserve(SMALL), lambda: ledger.rounds):
                with pytest.raises(LedgerError, match="kept the file locked"):
                    use()

        other._file.store.write(wait)
        run.reserve(SMALL).commit()
        assert other.rounds == 1


def test_a_long_reading_keeps_nobody_from_writing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BUSY_SECONDS", 0.0)
    spend(path, 3)
    with Ledger.open(path) as ledger, Ledger.open(path, read_only=True) as reader:
        run = ledger.resume_run(1)
        entries = reader._file.now().entries()
        next(entries)
        run.reserve(SMALL).commit()
        assert [entry.number for entry in entries] == list(range(2, 11))


class Interrupt:
    """Raises KeyboardInterrupt at the so many-th call inside the ledger, where Ctrl-C may come."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:  # noqa: ARG002 - as settrace has it
        if event == "call" and "/dpacct/ledger/" in frame.f_code.co_filename:
            above: FrameType | None = frame
            while above is not None and above.f_code.co_name != "__del__":
                above = above.f_back
            # What a destructor raises goes nowhere.
            self.left -= above is None
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt


def interrupted(at: int, use: Callable[[], object]) -> bool:
    """Whether something was interrupted at its so many-th call."""
    sys.settrace(Interrupt(at))
    try:
        use()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("settles", [False, True])
def test_ctrl_c_anywhere_leaves_neither_lock_nor_transaction(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, settles: bool
) -> None:
    monkeypatch.setattr(lock, "BUSY_SECONDS", 0.0)
    with Ledger.open(path, WIDE) as ledger, Ledger.open(path) as other:
        run, witness = ledger.start_run("x"), other.start_run("other")
        released, at = 0, 0
        while True:
            at += 4 if MANY > 1 else 9
            ticket = run.reserve(SMALL) if settles else None
            use = ticket.commit if ticket else lambda: run.reserve(SMALL)
            if not interrupted(at, use):
                break
            # At once, by others and by itself: nobody is locked out.
            witness.reserve(SMALL).commit()
            run.reserve(SMALL).commit()
            released += 1
            assert run.committed >= released
            assert witness.committed == released
        assert at > 60


# Without flock, as on Windows


def test_a_writer_that_was_overtaken_does_not_set_the_witness_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "fcntl", None)
    with Ledger.open(path, WIDE) as one, Ledger.open(path) as two:
        first, second, commit = one.start_run("one"), two.start_run("two"), store.Store._commit

        def overtaken(writer: store.Store) -> None:
            commit(writer)
            if writer is one._file.store:
                second.reserve(SMALL)

        monkeypatch.setattr(store.Store, "_commit", overtaken)
        first.reserve(SMALL)
        witness = two._file.store.witness()
        assert witness is not None
        assert witness.position == one.position == two.position


def test_a_ledger_that_another_process_makes_meanwhile_counts(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows, a rename replaces nothing."""
    other = tmp_path / "other.ledger"
    spend(other, 1)

    def rename(_: Path, target: Path) -> None:
        shutil.copyfile(other, target)
        raise FileExistsError

    monkeypatch.setattr(Path, "rename", rename)
    with Ledger.open(path, WIDE) as ledger:
        assert ledger.rounds == 1
    assert not list(tmp_path.glob(".*draft*"))
