"""Sweeps: every row is what the library says, whole or not there, and never lost twice."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dpacct as library
from dpacct import Poisson, Round
from dpacct_cli.explore import sweep, workers
from dpacct_cli.explore.sweep import COLUMNS, Done, Task
from dpacct_cli.options import MechanismOptions
from tests.cli.test_bad_input import assert_refused
from tests.cli.test_help import examples

SMALL = "explore --noise 8,9 --rounds 10..30/10 --sampling full"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names() -> list[str]:
    return sorted(path.name for path in Path.cwd().iterdir())


def read(file: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(Path(file).read_text(encoding="utf-8"))))


def test_every_row_is_what_the_library_says(dpacct: Any) -> None:
    data = dpacct("explore --noise 1,2 --rounds 5 --q 0.1,0.2 --delta 1e-5,1e-6 --json").json
    assert data["failed"] == 0
    rows = data["rows"]
    assert len(rows) == 8
    assert [row["noise_multiplier"] for row in rows] == 4 * [1.0] + 4 * [2.0]
    for row in rows:
        plan = row["rounds"] * Round(row["noise_multiplier"], Poisson(row["sampling_rate"]))
        spent = library.epsilon(plan, delta=row["delta"])
        assert row["epsilon"] == {"lower": spent.lower, "upper": spent.upper}
        assert (row["sampling"], row["adjacency"]) == ("poisson", "add-remove")


def test_a_row_is_that_of_epsilon(dpacct: Any) -> None:
    one = dpacct("epsilon --noise 8 --rounds 10 --sampling full --json").json
    row = dpacct(SMALL, "--json").json["rows"][0]
    assert row["epsilon"] == one["epsilon"]
    assert all(row[key] == one[key] for key in ("delta", "rounds", "adjacency", "accountant"))


def test_the_table_shows_what_varies_and_says_the_rest_once(dpacct: Any) -> None:
    text = dpacct(SMALL).text
    assert "delta 1e-05, full sampling, add-remove" in text
    assert text.count("1e-05") == 1
    assert len([line for line in text.splitlines() if line.startswith(("  8 ", "  9 "))]) == 6


def test_quiet_prints_the_proven_epsilons(dpacct: Any) -> None:
    numbers = [float(line) for line in dpacct(SMALL, "-q").text.splitlines()]
    rows = dpacct(SMALL, "--json").json["rows"]
    assert numbers == [row["epsilon"]["upper"] for row in rows]


def test_files_hold_all_rows_and_leave_nothing_beside_them(dpacct: Any) -> None:
    assert dpacct(SMALL, "-o a.csv").text == ""
    assert dpacct(SMALL, "-o a.json").text == ""
    rows = read("a.csv")
    assert tuple(rows[0]) == COLUMNS
    data = json.loads(Path("a.json").read_text(encoding="utf-8"))
    assert [float(row["epsilon_upper"]) for row in rows] == [
        row["epsilon"]["upper"] for row in data["rows"]
    ]
    assert names() == ["a.csv", "a.json"]


@pytest.mark.parametrize(
    "form", ["svg", *(pytest.param(form, marks=pytest.mark.slow) for form in ("png", "pdf"))]
)
def test_pictures(dpacct: Any, form: str) -> None:
    pytest.importorskip("matplotlib")
    assert dpacct(SMALL, f"-o a.{form}").text == ""
    head = Path(f"a.{form}").read_bytes()[:400]
    assert any(sign in head for sign in (b"PNG", b"<svg", b"<?xml", b"%PDF"))
    assert names() == [f"a.{form}"]


def test_a_picture_says_before_anything_runs_that_it_cannot_be_drawn(
    dpacct: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(workers, "results", None)
    assert_refused(dpacct("explore --noise 1 --rounds 9 --q 0.1 -o a.png"), "something that varies")
    lists = "--noise 1,2 --rounds 1,2 --q 0.1,0.2 --delta 1e-5,1e-6"
    assert_refused(dpacct("explore", lists, "-o a.png"), "at most three things")
    monkeypatch.setattr("dpacct_cli.explore.forms.find_spec", lambda _name: None)
    result = dpacct(SMALL, "-o a.png")
    assert result.code == 1
    assert "pip install -e '.[plot]'" in result.err


def test_a_row_that_cannot_be_computed_has_its_reason(dpacct: Any) -> None:
    words = "explore --noise 1 --rounds 1 --sampling full --accountant gdp"
    assert dpacct(words, "--json").json["failed"] == 0
    result = dpacct("explore --noise 1 --rounds 5 --cohort 3,30 --clients 20 -o a.csv")
    assert result.code == 0
    assert "1 of 2 rows could not be computed. The first: --cohort is 30;" in result.err
    good, bad = read("a.csv")
    assert (good["error"], bad["epsilon_upper"]) == ("", "")
    assert float(good["epsilon_upper"]) > 0
    assert "at most as many members" in bad["error"]
    every = dpacct("explore --noise 9 --rounds 5 --q 0.1,0.2 --accountant gdp --json")
    assert every.code == 1
    assert json.loads(every.out)["failed"] == 2
    assert json.loads(every.out)["rows"][0]["epsilon"] is None


BAD = [
    ("explore --noise 1 --rounds 9", ("--q is missing;", "--sampling full")),
    ("explore --rounds 9 --q 0.1", ("--noise is missing;",)),
    ("explore --noise 1 --q 0.1", ("--rounds is missing;",)),
    ("explore --noise 1,0 --rounds 9 --q 0.1", ("--noise is 0;", "lies in [")),
    ("explore --noise 1 --rounds 9,2.5 --q 0.1", ("--rounds is 2.5;", "whole number")),
    ("explore --noise 1 --rounds 9 --q 0.1,10", ("--q is 10;", "Did you mean 0.1 (10 %)?")),
    ("explore --noise 1 --rounds 9 --q 0.1 --delta 1,2", ("--delta is 1;", "(0, 1)")),
    ("explore --noise 1 --rounds 9 --q 0.1,", ("--q is '0.1,', where a number is missing",)),
    ("explore --noise 2..1 --rounds 9 --q 0.1", ("--noise is '2..1'; a range goes up.",)),
    ("explore --noise 1 --rounds 9 --q 0.1 --sampling full", ("--q 0.1", "--sampling full")),
    ("explore --noise 1 --rounds 9 --q 0.1 --cohort 3 --clients 9", ("--q 0.1", "--cohort 3")),
    ("explore --noise 1 --rounds 9 --cohort 3", ("--cohort 3 needs --clients",)),
    ("explore --noise 1 --rounds 9 --q 0.1 --sampling x", ("--sampling is 'x';",)),
    ("explore --noise 1 --rounds 9 --q 0.1 --accountant x", ("--accountant is 'x';",)),
    ("explore --noise 1 --rounds 9 --q 0.1 --adjacency x", ("--adjacency is 'x';",)),
    ("explore --noise 1 --rounds 9 --q 0.1 --jobs 0", ("--jobs is 0;", "whole number")),
    ("explore --noise 1 --rounds 9 --q 0.1 --resume", ("--resume needs -o",)),
    ("explore --noise 1 --rounds 9 --q 0.1 -o a.txt", ("-o is 'a.txt';", ".csv")),
    ("explore --noise 1 --rounds 9 --q 0.1 -o a.csv --resume", ("nothing to go on with",)),
    ("explore --noise 1 --rounds 9 --q 0.1 -o a.csv --resume --force", ("--resume contradicts",)),
    ("explore --noise 1 --rounds 9 --q 0.1 -o a.csv --json", ("--json contradicts -o a.csv",)),
    ("explore --noise 1..100 --rounds 1..2000 --q 0.1", ("200,000 rows", "at most 100,000")),
    ("explore --noise 1 --rounds 9 --q 0.1 -o nowhere/a.csv", ("-o is 'nowhere/a.csv'",)),
]


@pytest.mark.parametrize(("words", "parts"), BAD, ids=[words for words, _ in BAD])
def test_bad_input_is_refused_before_anything_is_computed(
    dpacct: Any, words: str, parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "results", None)
    assert_refused(dpacct(words), *parts)
    assert names() == []


def test_nothing_is_replaced_unasked(dpacct: Any) -> None:
    Path("a.csv").write_text("mine", encoding="utf-8")
    assert_refused(dpacct(SMALL, "-o a.csv"), "it exists already", "--force replaces it.")
    assert Path("a.csv").read_text(encoding="utf-8") == "mine"
    assert dpacct(SMALL, "-o a.csv --force").text == ""
    assert len(read("a.csv")) == 6


def stop_after(rows: int) -> Any:
    """As `results`, but somebody presses Ctrl-C."""
    computed = workers.results

    def results(tasks: list[Task], jobs: int) -> Iterator[Done]:
        for number, done in enumerate(computed(tasks, jobs)):
            if number == rows:
                raise KeyboardInterrupt
            yield done

    return results


def test_an_interrupted_sweep_goes_on_where_it_was(
    dpacct: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(workers, "results", stop_after(4))
        stopped = dpacct(SMALL, "-o a.csv")
    assert stopped.code == 130
    assert "4 of 6 rows are kept: the same with --resume goes on (-o a.csv)." in stopped.err
    assert names() == ["a.csv.part"]
    assert_refused(dpacct(SMALL, "-o a.csv"), "an unfinished sweep", "--resume continues it")
    # A crash in the middle of a row leaves a part of it, which is cut off.
    with Path("a.csv.part").open("ab") as stream:
        stream.write(b'{"index": 5, "row": {"noise_mul')
    asked: list[int] = []
    computed = workers.results

    def results(tasks: list[Task], jobs: int) -> Iterator[Done]:
        asked.extend(task.place for task in tasks)
        return computed(tasks, jobs)

    monkeypatch.setattr(workers, "results", results)
    assert dpacct(SMALL, "-o a.csv --resume").text == ""
    assert asked == [4, 5]
    resumed = Path("a.csv").read_bytes()
    assert dpacct(SMALL, "-o a.csv --force").text == ""
    assert Path("a.csv").read_bytes() == resumed
    assert names() == ["a.csv"]


def test_a_sweep_that_ends_before_its_first_row_leaves_nothing(
    dpacct: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(workers, "results", stop_after(0))
        stopped = dpacct(SMALL, "-o a.csv")
    assert (stopped.code, stopped.err) == (130, "dpacct: interrupted. No row was ready.\n")
    assert names() == []

    def full(_file: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("dpacct_cli.explore.journal.os.write", full)
        assert_refused(dpacct(SMALL, "-o a.csv"), "No space left on device")
    assert names() == []


def test_rows_of_another_sweep_are_never_taken(
    dpacct: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(workers, "results", stop_after(2))
        dpacct(SMALL, "-o a.csv")
    assert_refused(dpacct(SMALL, "--delta 1e-6 -o a.csv --resume"), "another sweep")
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "__version__", "0.0.1")
        assert_refused(dpacct(SMALL, "-o a.csv --resume"), "another version")
    lines = Path("a.csv.part").read_text(encoding="utf-8").splitlines()
    for damaged in ("{", "[]", '{"index": 9, "row": {}}', '{"index": 1, "row": {"rounds": 3}}'):
        Path("a.csv.part").write_text("\n".join([*lines, damaged, ""]), encoding="utf-8")
        assert_refused(dpacct(SMALL, "-o a.csv --resume"), "a.csv.part is damaged")
    assert dpacct(SMALL, "-o a.csv --force").text == ""
    assert names() == ["a.csv"]


def test_a_full_disk_leaves_whole_rows(dpacct: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write, writes = os.write, 0

    def full(file: int, data: bytes) -> int:
        nonlocal writes
        writes += 1
        if writes == 4:
            write(file, data[:20])
            raise OSError(28, "No space left on device")
        return write(file, data)

    with monkeypatch.context() as patch:
        patch.setattr("dpacct_cli.explore.journal.os.write", full)
        result = dpacct(SMALL, "-o a.csv")
    assert_refused(result, "-o is 'a.csv'; it cannot be written (No space left on device)")
    lines = Path("a.csv.part").read_bytes().split(b"\n")
    assert lines[-1] == b""
    assert len(lines) == 4
    assert dpacct(SMALL, "-o a.csv --resume").text == ""
    assert len(read("a.csv")) == 6


def tasks(count: int) -> list[Task]:
    typed = MechanismOptions(noise=f"9..{8 + count}", rounds="3", sampling="full")
    return sweep.read_tasks(typed, "1e-5", "tight")


def test_a_process_that_dies_costs_its_row_alone_and_others_find_what_one_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "MOMENT", 0.0)
    worker_of = workers.Worker
    first: list[int] = []

    def start(task: Task) -> workers.Worker:
        worker = worker_of(task)
        if not first:
            first.append(task.place)
            worker.process.kill()
        return worker

    monkeypatch.setattr(workers, "Worker", start)
    found = {done.place: done.row for done in workers.results(tasks(3), 1 + 1)}
    assert set(found) == {0, 1, 2}
    alone = {done.place: done.row for done in workers.results(tasks(3), 1)}
    assert all(found[place] == alone[place] for place in found if place not in first)
    failed = [index for index, row in found.items() if row["error"]]
    assert failed == first
    assert "its process ended with code -9" in found[first[0]]["error"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_ctrl_c_at_a_terminal_says_one_line_and_keeps_the_rows() -> None:
    words = "explore --noise 1..9/0.01 --rounds 100..900/10 --q 0.1 -o a.csv --jobs 2"
    process = subprocess.Popen(
        [sys.executable, "-m", "dpacct_cli", *words.split()],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where tests run in the background it is ignored, and what they start inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads
    )
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if Path("a.csv.part").exists() and Path("a.csv.part").read_bytes().count(b"\n") > 3:
            break
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, "")
    assert err.startswith("dpacct: interrupted. ")
    assert err.count("\n") == 1
    assert Path("a.csv.part").read_bytes().endswith(b"\n")


def test_the_examples_of_its_help_run(dpacct: Any) -> None:
    found = examples(dpacct("explore --help").text)
    assert len(found) == 2
    for example in found:
        assert dpacct(example.removeprefix("dpacct ")).code == 0
    assert len(read("sweep.csv")) == 6
