"""`dpacct ledger show` of a part of a plan, and of words that nobody would be allowed to type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpacct import Budget, Ledger, Round
from dpacct.display import up
from forgeries import Row, read, write

ROUND = Round(9.0)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Ten of thirty planned rounds."""
    monkeypatch.chdir(tmp_path)
    with Ledger.open("census.ledger", Budget(8, 1e-5)) as ledger:
        run = ledger.start_run("training", 30 * ROUND)
        for _ in range(10):
            run.reserve(ROUND).commit()
        run.finish()
    return "census.ledger"


def test_the_number_alone_is_the_one_that_holds_in_any_case(dpacct: Any, file: str) -> None:
    data = dpacct("ledger show", file, "--json").json
    whole, part = data["epsilon_any_stop"], data["epsilon"]["upper"]
    assert whole > 1.5 * part
    assert dpacct("ledger show", file, "-q").text == f"{whole!r}\n"
    lines = dpacct("ledger show", file).text.splitlines()
    assert up(whole) in lines[1]
    assert "even if results influenced when to stop" in lines[1]
    assert up(part) in lines[2]
    assert "only if stopping here was decided" in lines[2]
    assert any("10 of 30 planned rounds" in line for line in lines)
    (run,) = (line for line in lines if line.startswith("  1 "))
    assert run.index(up(whole)) < run.index(up(part))
    assert "decided in advance" in run


def test_verify_says_what_it_cannot_verify(dpacct: Any, file: str) -> None:
    data = dpacct("ledger verify", file, "--json").json
    assert data["sound"]
    assert any("names" in what for what in data["unverified"])


def test_no_control_character_reaches_the_terminal(dpacct: Any, file: str) -> None:
    evil = "\x1b[31mred\x07\ud800\u202e" * 1000
    rows = [Row(json.loads(json.dumps(row.content)), row.closes) for row in read(Path(file))]
    for row in rows:
        data = row.content["data"]
        for key in {"name", "unit", "software"} & set(data):
            data[key] = evil
        if "details" in data:
            data["details"] = {evil: evil}
    write(Path(file), rows)
    for command in ("show", "verify", "report", "export", "remaining --noise 9 --sampling full"):
        name, _, options = command.partition(" ")
        for style in ("", "--json"):
            ran = dpacct(f"ledger {name}", file, options, style)
            assert ran.code == 0, ran.err
            for text in (ran.out, ran.err):
                assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert max(map(len, dpacct("ledger show", file).text.splitlines())) < 250
    rows[1].content["data"]["plan"] = evil
    write(Path(file), rows)
    ran = dpacct("ledger show", file)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert ran.err.strip().isprintable()
