"""Somebody who waits at a terminal is told so, from two seconds on; nobody else is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpacct_cli import waiting

pty = pytest.importorskip("pty")

# Computes until the line stands.
SCRIPT = """\
import sys, dpacct
from dpacct_cli import waiting
from dpacct_cli.__main__ import main
waiting.PATIENCE = 0.0
exact = dpacct.calibrate
def slow(**given):
    while not waiting._current.written: pass
    return exact(**given)
dpacct.calibrate = slow
main()
"""
CALIBRATE = "calibrate --eps 8 --rounds 30 --q 0.1"


def at_a_terminal(
    folder: Path, words: str, *, term: str = "xterm", stdout: bool = True
) -> tuple[bytes, bytes]:
    """What a terminal is sent, and what goes to stdout where that is a pipe."""
    script = folder / "start.py"
    script.write_text(SCRIPT)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, str(script), *words.split()],
        stdin=theirs,
        stdout=theirs if stdout else subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": term},
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:
                # How Linux says that the other side is closed.
                break
            if not chunk:
                break
            shown += chunk
        piped = process.stdout.read() if process.stdout is not None else b""
    os.close(ours)
    assert process.returncode == 0, shown
    return shown, piped


def test_the_line_is_gone_before_the_answer(tmp_path: Path) -> None:
    shown, _ = at_a_terminal(tmp_path, CALIBRATE)
    assert b"dpacct calibrate: 0 s so far; Ctrl-C stops it" in shown
    line, answer = shown.rsplit(waiting.ERASE, 1)
    assert b"so far" in line
    assert b"noise multiplier" in answer
    assert b"noise multiplier" not in line
    assert b"so far" not in answer


def test_a_number_for_a_pipe_is_waited_for_at_the_terminal(tmp_path: Path) -> None:
    shown, piped = at_a_terminal(tmp_path, f"{CALIBRATE} -q", stdout=False)
    assert b"so far" in shown
    assert shown.endswith(waiting.ERASE)
    assert float(piped) > 0


def test_a_terminal_without_escape_codes_gets_one_line(tmp_path: Path) -> None:
    shown, _ = at_a_terminal(tmp_path, CALIBRATE, term="dumb")
    assert b"\x1b" not in shown
    assert shown.startswith(b"dpacct calibrate: this takes a while; Ctrl-C stops it\r\n")
    assert shown.count(b"takes a while") == 1


def test_whoever_wants_no_codes_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown, _ = at_a_terminal(tmp_path, CALIBRATE)
    assert b"\x1b" not in shown
    assert shown.startswith(b"dpacct calibrate: this takes a while; Ctrl-C stops it\r\n")


def test_a_note_is_as_wide_as_the_terminal(tmp_path: Path) -> None:
    words = "epsilon --noise 1 --rounds 3 --q 0.1 --clients 50000 --delta 1e-5"
    shown, _ = at_a_terminal(tmp_path, words)
    lines = shown.decode().split("note: ")[1].splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80


def test_what_is_computed_gives_way_to_how_long() -> None:
    ours, theirs = pty.openpty()
    wait = waiting.Waiting("dpacct claims, 1 of 49, " + 80 * "x", theirs, plain=True, patience=0.0)
    wait.thread.join()
    assert len(os.read(ours, 999).rstrip()) == 79
    os.close(ours)
    os.close(theirs)


def test_nobody_waits_at_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpacct_cli.waiting.PATIENCE", 0.0)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        monkeypatch.setattr("sys.stderr", nowhere)
        with waiting.waiting("dpacct calibrate"):
            assert waiting._current is None
            waiting.say("dpacct compare")
            assert waiting.eraser() == b""


def test_the_line_follows_what_is_computed() -> None:
    reader, writer = os.pipe()
    wait = waiting.Waiting("one", writer, plain=False, patience=0.0)
    assert os.read(reader, 999).startswith(waiting.ERASE + b"one: 0 s so far")
    wait.end()
    assert os.read(reader, 999) == waiting.ERASE
    wait.end()
    os.close(writer)
    assert os.read(reader, 999) == b""
    os.close(reader)


def test_nothing_is_said_of_what_is_quick() -> None:
    reader, writer = os.pipe()
    wait = waiting.Waiting("one", writer, plain=False, patience=600.0)
    wait.end()
    wait.thread.join()
    os.close(writer)
    assert os.read(reader, 999) == b""
    os.close(reader)
    assert waiting.PATIENCE >= 1
