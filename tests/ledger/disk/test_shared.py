"""A ledger that several processes and threads have open, whatever else they do to its file."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dpacct import Budget, Ledger, LedgerError, Poisson, Round
from dpacct.ledger.disk import lock

BUDGET = Budget(50, 1e-5)
ROUND = Round(30.0, Poisson(0.01))
STEP = """
import os, shutil, sys, threading
from dpacct import Budget, Ledger, LedgerError, Poisson, Round
ROUND = Round(30.0, Poisson(0.01))
path = sys.argv[1]
def spend(run, rounds):
    for _ in range(rounds):
        run.reserve(ROUND).commit()
"""


def run_code(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", STEP + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def committed(path: Path) -> int:
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.verify().sound
        return sum(run.committed for run in ledger.runs)


def spend(path: Path, rounds: int) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.resume_run(1) if ledger.runs else ledger.start_run("x")
        for _ in range(rounds):
            run.reserve(ROUND).commit()


# Forks


def test_a_worker_keeps_its_rounds_when_its_parent_closes_the_ledger(path: Path) -> None:
    code = """
ledger = Ledger.open(path, Budget(50, 1e-5))
spend(ledger.start_run("parent"), 3)
ready, go = os.pipe(), os.pipe()
if os.fork() == 0:
    with Ledger.open(path) as mine:
        run = mine.start_run("worker")
        spend(run, 4)
        os.write(ready[1], b".")
        os.read(go[0], 1)
        spend(run, 4)
    os._exit(0)
os.read(ready[0], 1)
ledger.close()
with Ledger.open(path): pass
os.write(go[1], b".")
os.wait()
"""
    run_code(code, str(path))
    assert committed(path) == 11


def test_a_child_that_ends_in_the_usual_way_undoes_nothing_of_its_parent(path: Path) -> None:
    """The fork comes in the middle of a transaction, from what interrupts it; the child exits."""
    code = """
import signal, time
from dpacct.ledger.disk import rows
children = []
def fork(*_):
    child = os.fork()
    if child == 0:
        try:
            ledger.rounds
        except LedgerError as error:
            print("refused" if "another process" in str(error) else error, flush=True)
        sys.exit(0)
    children.append(child)
    os.waitpid(child, 0)
signal.signal(signal.SIGUSR1, fork)
add = rows.Rows.add
def slow(self, entry, closes):
    add(self, entry, closes)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.001)
ledger = Ledger.open(path, Budget(50, 1e-5))
run = ledger.start_run("x")
rows.Rows.add = slow
spend(run, 1)
print(len(children))
"""
    assert run_code(code, str(path)).split() == ["refused", "refused", "2"]
    assert committed(path) == 1


def test_a_lock_does_not_outlive_its_process_in_a_child(path: Path) -> None:
    code = """
import time
ledger = Ledger.open(path, Budget(50, 1e-5))
run = ledger.start_run("x")
run.reserve(ROUND)
def fork(rows):
    # As another thread would, at any time.
    child = os.fork()
    if child == 0:
        os.close(1); os.close(2)
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    os._exit(0)
ledger._book.store.write(fork)
"""
    child = int(run_code(code, str(path)))
    try:
        with Ledger.open(path) as ledger:
            assert ledger.rounds == 1
    finally:
        os.kill(child, 9)


# Copies, moves and links


def test_a_copy_made_beside_the_writer_costs_no_round(path: Path, tmp_path: Path) -> None:
    """Whatever opens and closes the file drops the locks that SQLite holds in the process."""
    code = """
ledger = Ledger.open(path, Budget(50, 1e-5))
run = ledger.start_run("x")
spend(run, 5)
shutil.copy(path, path + ".copy")
print(flush=True)
sys.stdin.readline()
spend(run, 5)
"""
    command = [sys.executable, "-c", STEP + code, str(path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        for _ in range(2):
            spend(path, 1)
        writer.communicate("\n", timeout=300)
    assert writer.returncode == 0
    assert committed(path) == 12
    shutil.move(f"{path}.copy", tmp_path / "copy.ledger")
    assert committed(tmp_path / "copy.ledger") == 5


def test_threads_that_copy_the_file_all_the_time_cost_no_round(path: Path) -> None:
    code = """
ledger = Ledger.open(path, Budget(50, 1e-5))
run = ledger.start_run("x")
stop = threading.Event()
def copy():
    while not stop.is_set():
        shutil.copy(path, path + ".copy")
threads = [threading.Thread(target=copy) for _ in range(2)]
for thread in threads: thread.start()
try:
    for _ in range(40):
        spend(run, 1)
        with Ledger.open(path, read_only=True) as reader:
            assert reader.runs[-1].rounds == run.rounds
finally:
    stop.set()
for thread in threads: thread.join()
"""
    command = [sys.executable, "-c", STEP + code, str(path)]
    spend(path, 1)
    with subprocess.Popen(command, stderr=-1, text=True) as copying:
        for _ in range(9):
            spend(path, 1)
        _, errors = copying.communicate(timeout=300)
    assert copying.returncode == 0, errors
    assert committed(path) == 50


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere.ledger"))


def moved_and_made_anew(path: Path) -> None:
    moved(path)
    path.with_name(f"{path.name}.witness").unlink()
    spend(path, 1)


def deleted(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    other = path.with_name("copy.ledger")
    shutil.copy(path, other)
    other.replace(path)


@pytest.mark.parametrize("happens", [moved, moved_and_made_anew, deleted, replaced])
def test_a_file_that_is_no_longer_under_its_name_is_not_written(
    path: Path, happens: Callable[[Path], None]
) -> None:
    with Ledger.open(path, BUDGET) as ledger, Ledger.open(path, read_only=True) as reader:
        run = ledger.start_run("x")
        run.reserve(ROUND).commit()
        ticket = run.reserve(ROUND)
        happens(path)
        for use in (ticket.commit, lambda: run.reserve(ROUND), lambda: reader.rounds):
            with pytest.raises(LedgerError, match="was moved, replaced or deleted"):
                use()
        assert ticket.state == "drawn"


def test_a_move_in_the_middle_of_a_write_is_not_a_release(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        ticket = ledger.start_run("x").reserve(ROUND)
        store = ledger._book.store
        commit = store._commit

        def too_late() -> None:
            moved(path)
            commit()

        monkeypatch.setattr(store, "_commit", too_late)
        with pytest.raises(LedgerError, match="was moved, replaced or deleted"):
            ticket.commit()
    path.with_name("elsewhere.ledger").rename(path)
    assert committed(path) == 0
    with Ledger.open(path) as ledger:
        assert ledger.rounds == 1


def test_a_second_name_is_refused_as_long_as_it_is_there(path: Path, tmp_path: Path) -> None:
    spend(path, 1)
    other = tmp_path / "other.ledger"
    with Ledger.open(path) as ledger:
        run = ledger.resume_run(1)
        os.link(path, other)
        with pytest.raises(LedgerError, match="second name"):
            run.reserve(ROUND)
        for name in (path, other):
            for read_only in (False, True):
                with pytest.raises(LedgerError, match="second name"):
                    Ledger.open(name, read_only=read_only)
        other.unlink()
        run.reserve(ROUND).commit()
    assert committed(path) == 2


def test_a_name_that_a_killed_maker_left_is_no_second_name(path: Path) -> None:
    spend(path, 1)
    draft = path.with_name(f".{path.name}.draft-12-34")
    os.link(path, draft)
    assert committed(path) == 1
    assert draft.exists()
    spend(path, 1)
    assert not draft.exists()


def test_a_link_to_a_ledger_is_the_ledger(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "deeper"
    folder.mkdir()
    link = folder / "link.ledger"
    link.symlink_to(path)
    spend(path, 1)
    spend(link, 1)
    assert committed(path) == committed(link) == 2
    assert [file.name for file in folder.iterdir()] == ["link.ledger"]


def test_a_file_overwritten_by_an_older_copy_is_not_gone_on_with(path: Path) -> None:
    spend(path, 1)
    old = path.read_bytes()
    with Ledger.open(path) as ledger, Ledger.open(path, read_only=True) as reader:
        run = ledger.resume_run(1)
        run.reserve(ROUND).commit()
        ticket = run.reserve(ROUND)
        assert reader.rounds == 3
        path.write_bytes(old)
        for use in (ticket.commit, lambda: run.reserve(ROUND), lambda: reader.rounds):
            with pytest.raises(LedgerError, match=r"was overwritten|has lost entries"):
                use()
        assert path.read_bytes() == old


# Waiting and interrupts


def test_two_ledgers_of_one_process_take_turns(path: Path) -> None:
    with Ledger.open(path, BUDGET) as one, Ledger.open(path) as two:
        first, second = one.start_run("one"), two.start_run("two")
        for _ in range(5):
            tickets = [first.reserve(ROUND), second.reserve(ROUND)]
            for ticket in tickets:
                ticket.commit()
        assert first.committed == second.committed == 5

        def other_thread() -> None:
            with Ledger.open(path) as three:
                run = three.start_run("three")
                for _ in range(5):
                    run.reserve(ROUND).commit()

        thread = threading.Thread(target=other_thread)
        thread.start()
        for _ in range(5):
            first.reserve(ROUND).commit()
        thread.join()
    assert committed(path) == 20


def test_an_open_ledger_is_refused_by_whoever_sends_it_to_another_process(
    ledger: Ledger, path: Path
) -> None:
    run = ledger.start_run("x")
    ticket = run.reserve(ROUND)
    for thing, send in product((ledger, run, ticket), (pickle.dumps, copy.deepcopy)):
        with pytest.raises(LedgerError, match="open it by its path there") as refused:
            send(thing)
        assert str(path) in str(refused.value)
        gc.collect()
    ticket.commit()
    assert committed(path) == 1


def test_a_ledger_stays_in_its_thread(ledger: Ledger) -> None:
    problems: list[str] = []

    def use() -> None:
        try:
            ledger.start_run("x")
        except LedgerError as error:
            problems.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "another thread" in problems[0]
    assert ledger.start_run("x").id == 1


def test_waiting_for_others_ends_and_leaves_nothing_locked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BUSY_SECONDS", 0.05)
    with Ledger.open(path, BUDGET) as ledger, Ledger.open(path) as other:
        run = ledger.start_run("x")

        def wait(_: object) -> None:
            for use in (lambda: run.reserve(ROUND), lambda: ledger.rounds):
                with pytest.raises(LedgerError, match="kept the file locked"):
                    use()

        other._book.store.write(wait)
        run.reserve(ROUND).commit()
        assert other.rounds == 1


def test_a_long_reading_keeps_nobody_from_writing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BUSY_SECONDS", 0.0)
    spend(path, 3)
    with Ledger.open(path) as ledger, Ledger.open(path, read_only=True) as reader:
        run = ledger.resume_run(1)
        entries = reader._book.now().source.entries()
        next(entries)
        run.reserve(ROUND).commit()
        assert [entry.number for entry, _ in entries] == list(range(2, 10))


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
    with Ledger.open(path, BUDGET) as ledger, Ledger.open(path) as other:
        run, witness = ledger.start_run("x"), other.start_run("other")
        released, at = 0, 0
        while True:
            # Every call takes a while; from time to time all of them were tried.
            at += 4
            ticket = run.reserve(ROUND) if settles else None
            use = ticket.commit if ticket else lambda: run.reserve(ROUND)
            if not interrupted(at, use):
                break
            # At once, by others and by itself: nobody is locked out.
            witness.reserve(ROUND).commit()
            run.reserve(ROUND).commit()
            released += 1
            assert run.committed >= released
            assert witness.committed == released
        assert at > 60


def test_ctrl_c_while_waiting_leaves_no_transaction(path: Path) -> None:
    code = """
import _thread, signal
ledger = Ledger.open(path, Budget(50, 1e-5))
run = ledger.start_run("x")
print(flush=True)
sys.stdin.readline()
threading.Timer(0.2, _thread.interrupt_main).start()
try:
    run.reserve(ROUND)
except KeyboardInterrupt:
    pass
# It may also come too late, or where Python only writes it down.
print("on", flush=True)
sys.stdin.readline()
spend(run, 1)
"""
    spend(path, 1)
    command = [sys.executable, "-c", STEP + code, str(path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdin is not None
        waiting.stdout.readline()
        # A program that is not ours, so that waiting is SQLite's.
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        waiting.stdin.write("\n")
        waiting.stdin.flush()
        time.sleep(0.5)
        blocker.execute("ROLLBACK")
        blocker.close()
        assert waiting.stdout.readline() == "on\n"
        spend(path, 1)
        waiting.communicate("\n", timeout=300)
    assert waiting.returncode == 0
    assert committed(path) == 3
