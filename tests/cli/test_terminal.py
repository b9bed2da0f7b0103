"""Whatever the terminal: no traceback, the exit code of the reference, one line on stderr at most.

Each case is a process of its own, so there is one for each kind of fault and few beyond.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpacct import Budget
from dpacct.ledger import Ledger
from dpacct_cli.app import UsageError

pytestmark = pytest.mark.needs("posix")

CALIBRATE = "calibrate --eps 8 --rounds 30 --q 0.1"
EPSILON = "epsilon --noise 1 --rounds 3 --q 0.1"
NOTED = f"{EPSILON} --clients 50000 --delta 1e-5"
CLOSED = "dpacct: Bad file descriptor.\n"
FULL = "dpacct: No space left on device.\n"
# An encoding that has next to nothing, as in a minimal container.
ASCII = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"}


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def run(
    words: str,
    folder: Path,
    *,
    below: str = 'exec "$@"',
    env: Mapping[str, str] | None = None,
    start: tuple[str, ...] = ("-m", "dpacct_cli"),
    stdout: int = subprocess.PIPE,
) -> Ended:
    """What `dpacct` does below a shell line that sets up its terminal."""
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        ["/bin/sh", "-c", below, "sh", sys.executable, *start, *words.split()],
        cwd=folder,
        env=inherited | (env or {}),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        check=False,
        timeout=3600,
        # A shell's background jobs ignore Ctrl-C, and their children inherit it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    return Ended(done.returncode, done.stdout or "", done.stderr)


@pytest.mark.parametrize(
    ("redirected", "words", "code", "err"),
    [
        (">&- <&-", CALIBRATE, 1, CLOSED),
        (">/dev/full", "--help", 1, FULL),
        (">/dev/full", NOTED, 1, FULL),
        ("2>&-", "epsilon --noise 0", 2, ""),
    ],
)
def test_output_that_is_lost_is_said_once(
    tmp_path: Path, redirected: str, words: str, code: int, err: str
) -> None:
    if "/dev/full" in redirected and not Path("/dev/full").exists():
        pytest.skip("there is no device that is full")
    ended = run(words, tmp_path, below=f'exec "$@" {redirected}')
    assert (ended.code, ended.err) == (code, err)
    assert ended.out.startswith("{") if code == 0 else ended.out == ""


def test_a_ledger_is_never_given_the_number_of_a_screen(tmp_path: Path) -> None:
    ended = run("ledger init é.ledger --eps 8", tmp_path, below='exec "$@" <&- >&- 2>&-')
    # It was made, and nobody was told.
    assert (ended.code, ended.out, ended.err) == (1, "", "")
    with Ledger.open(tmp_path / "é.ledger", read_only=True) as ledger:
        assert ledger.verify().sound


def test_nobody_reads(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = run(EPSILON, tmp_path, stdout=writer)
    os.close(writer)
    assert (ended.code, ended.err) == (141, "")


def test_what_a_screen_cannot_show_is_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "é"
    folder.mkdir()
    ended = run("ledger init é—.ledger --eps 8", folder, env=ASCII)
    assert (ended.code, ended.err) == (0, "")
    assert r"\xe9\u2014.ledger" in ended.out
    assert ended.out.isascii()
    assert (folder / "é—.ledger").exists()


def test_the_environment_changes_nothing(tmp_path: Path, dpacct: Any) -> None:
    odd = {
        "PYTHONWARNINGS": "error",
        "TERM": "dumb",
        "COLUMNS": "many",
        "LINES": "-1",
        "HOME": "/nowhere",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if UsageError.__module__.startswith("click"):
        # A Typer without a Click of its own may import names that Click deprecates.
        del odd["PYTHONWARNINGS"]
    ended = run(EPSILON, tmp_path, env=odd)
    assert (ended.code, ended.out, ended.err) == (0, dpacct(EPSILON).text, "")


# A module in the place of numpy, which is imported before all else: what it does, how that ends.
IMPORTS = {
    "interrupt": ("os.kill(os.getpid(), signal.SIGINT)", 130, "interrupted."),
    "missing": ("raise ImportError('no\\nnumpy\\nhere')", 1, "it cannot start: no"),
    "memory": ("raise MemoryError", 1, "there is not enough memory for this."),
    "disk": ("open('/nowhere/x')", 1, "No such file or directory: '/nowhere/x'."),
}


@pytest.mark.parametrize(("does", "code", "line"), IMPORTS.values(), ids=IMPORTS)
def test_what_befalls_an_import_is_one_line(
    tmp_path: Path, does: str, code: int, line: str
) -> None:
    (tmp_path / "numpy.py").write_text(f"import os, signal\n{does}\nraise SystemExit(3)\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = run(CALIBRATE, tmp_path, env={"PYTHONPATH": path})
    assert ended == Ended(code, "", f"dpacct: {line}\n")


def test_an_interrupt_ends_a_computation(dpacct: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_given: object, **_named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpacct.calibrate", interrupted)
    ran = dpacct(CALIBRATE)
    assert (ran.code, ran.out, ran.err) == (130, "", "dpacct: interrupted.\n")


INTERRUPTED = """\
import os, signal
flush = os.fsync
def interrupted(file):
    os.fsync = flush
    os.kill(os.getpid(), signal.SIGINT)
    flush(file)
os.fsync = interrupted
from dpacct_cli.__main__ import main
main()
"""
WRITES = [
    "ledger export census.ledger -o out.jsonl",
    "explore --noise 1 --rounds 3 --q 0.1 -o out.csv",
    pytest.param("plot eps --noise 1 --rounds 3 --q 0.1 -o out.svg", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("words", WRITES)
def test_ctrl_c_in_the_middle_of_a_file_leaves_nothing_of_it(tmp_path: Path, words: str) -> None:
    if ".svg" in words:
        pytest.importorskip("matplotlib")
    with Ledger.open(tmp_path / "census.ledger", Budget(8, 1e-5)):
        pass
    before = {path.name for path in tmp_path.iterdir()}
    (tmp_path / "start.py").write_text(INTERRUPTED)
    ended = run(words, tmp_path, start=("start.py",))
    assert (ended.code, ended.out, ended.err) == (130, "", "dpacct: interrupted.\n")
    left = {path.name for path in tmp_path.iterdir()} - before - {"start.py"}
    assert left == set()


@pytest.mark.parametrize(
    "words",
    [
        "ledger export census.ledger -o out",
        "report --noise 4 --rounds 50 --q 0.1 --format md -o out",
    ],
)
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, dpacct: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Ledger.open("census.ledger", Budget(8, 1e-5)):
        pass
    file = Path(words.rpartition(" ")[2])
    file.write_text("mine", encoding="utf-8")
    before = sorted(path.name for path in tmp_path.iterdir())
    refused = dpacct(words)
    assert (refused.code, refused.out) == (2, "")
    assert "it exists already. --force replaces it." in refused.err

    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpacct.files.os.fsync", full)
    lost = dpacct(words, "--force")
    assert (lost.code, lost.out) == (2, "")
    assert "it cannot be written (No space left on device)" in lost.err
    assert file.read_text(encoding="utf-8") == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == before
