"""Texts that somebody else wrote: read or rejected in one line, in a time that grows with them.

Sizes are such that a time that grows with their square is minutes, and memory that does is more
than a machine has.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dpacct.claims import load_claims
from dpacct.errors import DpacctError
from dpacct.pictures.records import read_run
from dpacct.reproduce import load_table
from dpacct.schedules import load_schedule
from dpacct_cli.commands.source import read_source
from dpacct_cli.options import MechanismOptions
from dpacct_cli.train.settings import load, read_toml
from hostile import in_time

MANY = 100_000
PHASE = "rounds = 600000000000\nnoise_multiplier = 1e6\n"
TEXTS = {
    "digits and a letter": (".csv", f"rounds,noise_multiplier\n1,{'1' * MANY}x\n"),
    "digits": (".json", f'{{"phase": [{{"rounds": {"1" * MANY}}}]}}'),
    "a tiny exponent": (".csv", "rounds,noise_multiplier\n1,1e-999999999999\n"),
    "keys": (".json", "{" + ",".join(f'"k{n}": 1' for n in range(MANY)) + "}"),
    "keys of a table": (".toml", "[[phase]]\n" + "\n".join(f"k{n} = 1" for n in range(20_000))),
    "a key of many parts": (".toml", ".".join("a" * MANY) + " = 1"),
    "quoted parts": (".toml", '."\\"=".'.join(["a", *["'b'"] * MANY]) + " = 1"),
    "a table of many parts": (".toml", f"[ {' . '.join('a' * MANY)} ]\n" + "b.c = 1\n" * 99),
    "tables of many parts": (".toml", f"[[{'.'.join('a' * MANY)}]]\n" * 2),
    "brackets": (".json", "[" * MANY),
    "braces": (".json", '{"a":' * MANY),
    "nested": (".json", '{"a":' * 900 + "1" + "}" * 900),
    "tables in tables": (".toml", "a = " + "{a = " * MANY),
    "one word": (".yaml", "a" * MANY),
    "words": (".yaml", "a " * MANY),
    "a word and blanks": (".yaml", ("a" + " " * 300) * 300),
    "quotes": (".yaml", "a'" * MANY),
    "more epochs than numbers": (".yaml", "sigma: 1\nq: 1e-300\nepochs: 1e300\nepochs: 1e999"),
    "different rounds": (
        ".csv",
        "rounds,noise_multiplier\n" + "\n".join(f"1,{1 + n / 1e6}" for n in range(10_001)),
    ),
    "more rounds than there are": (".toml", f"[[phase]]\n{PHASE}" * 2),
    "nested repetitions": (
        ".json",
        '{"phase": ['
        + '{"repeat": 2, "schedule": [' * 200
        + '{"rounds": 1, "noise_multiplier": 2.0}'
        + "]}" * 200
        + "]}",
    ),
    "claims": (".toml", "[source]\nname = 'a'\n" + "[[claim]]\nid = 'a'\n" * 2000),
    "events": (
        ".json",
        '{"class_name": "SelfComposedDpEvent", "count": 1, "event": ' * 300
        + '{"class_name": "NoOpDpEvent"}' + "}" * 300,
    ),
    "an event of events": (".json", '{"class_name": "ComposedDpEvent", "events": {"a": []}}'),
    "a name of many letters": (".json", f'{{"class_name": "{"a " * MANY}"}}'),
    "control characters": (".toml", "adjacency = '\x1b]0;a\x07'"),
    "no numbers": (
        ".jsonl",
        '{"round": [1], "rounds": 1, "private": true, "epsilon_lower": 0, "epsilon_upper": NaN}',
    ),
    "an infinite number": (
        ".jsonl",
        '{"round":1,"rounds":1,"private":true,"epsilon_lower":0,"delta":0.1,"epsilon_upper":1e999}',
    ),
}  # fmt: skip
READERS: dict[str, Callable[[Path], object]] = {
    "schedule": load_schedule,
    "claims": load_claims,
    "tables": load_table,
    "report": read_run,
    "config": lambda file: read_toml("config", file),
    "settings": load,
    "source": lambda file: read_source(str(file), MechanismOptions()),
}


def said(reader: str, file: Path) -> str:
    """The error of a reader, or nothing."""
    with in_time():
        try:
            READERS[reader](file)
        except DpacctError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("reader", READERS)
def test_any_text_is_read_or_rejected_in_one_line(tmp_path: Path, reader: str) -> None:
    for name, (suffix, text) in TEXTS.items():
        file = tmp_path / f"{name}{suffix}"
        file.write_text(text, encoding="utf-8")
        found = said(reader, file)
        assert found.isprintable(), name
        assert len(found) < 2000, name


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, reader: str) -> None:
    os.mkfifo(tmp_path / "a.json")
    (tmp_path / "b.json").symlink_to("/dev/zero")
    (tmp_path / "c.json").symlink_to(tmp_path / "c.json")
    for name in "abc":
        with in_time(), pytest.raises(DpacctError):
            READERS[reader](tmp_path / f"{name}.json")


def test_one_phase_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(f"[[phase]]\n{PHASE}", encoding="utf-8")
    assert load_schedule(tmp_path / "one.toml").rounds == 600_000_000_000
