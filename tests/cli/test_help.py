"""Every command is documented, and the examples in its --help run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

import dpacct as library
from dpacct_cli.app import app

COMMANDS = ["calibrate", "epsilon", "delta", "risk", "rdp", "compare", "train", "ledger"]
# Training takes other options and longer, and the ledger has commands of its own: test_train.py
# and test_ledger.py check their examples.
ACCOUNTING = [command for command in COMMANDS if command not in ("train", "ledger")]
COMMON = ["--json", "--quiet", "--sampling", "--cohort", "--clients", "--adjacency", "--schedule"]


def examples(text: str) -> list[str]:
    return re.findall(r"^\s+(dpacct .*)$", text, flags=re.MULTILINE)


def test_the_commands_are_those_documented() -> None:
    group: Any = typer.main.get_command(app)
    assert list(group.commands) == COMMANDS


def test_overall_help_lists_every_command(dpacct: Any) -> None:
    text = dpacct("--help").text
    for command in COMMANDS:
        assert re.search(rf"^  {command} +\S", text, flags=re.MULTILINE)
    assert examples(text)
    assert dpacct().text == text


@pytest.mark.parametrize("command", ACCOUNTING)
def test_help_has_an_example_that_runs(
    dpacct: Any, command: str, schedule_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpacct.interop.installed_peers", lambda: ())
    monkeypatch.chdir(Path(schedule_file).parent)
    found = examples(dpacct(command, "--help").text)
    assert found
    for example in found:
        program, _, words = example.partition(" ")
        assert program == "dpacct"
        assert words.startswith(f"{command} ")
        assert dpacct(words).text


@pytest.mark.parametrize("command", [*ACCOUNTING, "train"])
def test_help_explains_every_option(dpacct: Any, command: str) -> None:
    group: Any = typer.main.get_command(app)
    text = dpacct(command, "--help").text
    for param in group.commands[command].params:
        assert param.help
        for option in param.opts:
            assert option in text
    for option in COMMON if command in ACCOUNTING else COMMON[:-1]:
        assert option in text
    assert "\\" not in text


def test_version(dpacct: Any) -> None:
    assert dpacct("--version").text == f"dpacct {library.__version__}\n"
