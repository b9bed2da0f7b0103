"""Every command is documented, and the examples in its --help run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dpacct as library
from dpacct_cli.app import ROOT
from dpacct_cli.help import summary

COMMANDS = [
    "calibrate",
    "epsilon",
    "delta",
    "risk",
    "rdp",
    "compare",
    "report",
    "explore",
    "train",
    "audit",
    "attack",
    "ledger",
    "claims",
    "plot",
]
# Training takes other options and longer, and groups have commands of their own, whose tests check
# their examples.
OTHERS = ("report", "explore", "train", "audit", "attack", "ledger", "claims", "plot")
ACCOUNTING = [command for command in COMMANDS if command not in OTHERS]
COMMON = ["--json", "--quiet", "--sampling", "--cohort", "--clients", "--adjacency", "--schedule"]


def examples(text: str) -> list[str]:
    return re.findall(r"^\s+(dpacct .*)$", text, flags=re.MULTILINE)


def test_the_commands_are_those_documented() -> None:
    group: Any = ROOT
    assert list(group) == COMMANDS


def test_the_readme_has_a_row_for_every_command() -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in readme.splitlines() if line.startswith("| `dpacct")]
    assert sorted(re.findall(r"`dpacct (\w+)`", "".join(rows))) == sorted(COMMANDS)


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
    group: Any = ROOT
    text = dpacct(command, "--help").text
    for param in group[command].params:
        assert param.help
        for option in param.opts:
            assert option in text
    for option in COMMON if command in ACCOUNTING else COMMON[:-1]:
        assert option in text
    assert "\\" not in text


@pytest.mark.parametrize("columns", [1, 40, 80, 128])
@pytest.mark.parametrize("command", ["", *COMMANDS, "ledger init", "ledger remaining"])
def test_help_fits_the_terminal_and_breaks_no_name(
    dpacct: Any, command: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    names = set(re.findall(r"\w[\w]*(?:-\w+)+", dpacct(command, "--help").text))
    monkeypatch.setenv("COLUMNS", str(columns))
    text = dpacct(command, "--help").text
    # Examples are to be copied, and stay as they are.
    prose = [line for line in text.splitlines() if not line.strip().startswith("dpacct ")]
    assert max(map(len, prose)) <= max(columns, 40)
    if columns >= 40:
        assert not [line for line in prose if re.search(r"\w-$", line)]
        assert names <= set(re.findall(r"\w[\w]*(?:-\w+)+", text))


@pytest.mark.parametrize("command", ["", *COMMANDS, "ledger show"])
def test_a_short_h_helps_as_well(dpacct: Any, command: str) -> None:
    assert dpacct(command, "-h").text == dpacct(command, "--help").text
    assert "-h, --help" in dpacct(command, "-h").text


def test_version(dpacct: Any) -> None:
    assert dpacct("--version").text == f"dpacct {library.__version__}\n"


def test_the_sentences_of_the_overall_help_are_those_of_the_commands() -> None:
    for name in ROOT:
        assert ROOT.summary(name) == summary(ROOT[name].text)


def test_the_overall_help_and_a_refusal_import_no_numpy() -> None:
    code = "import sys\nfrom dpacct_cli.app import app\ntry:\n    app(sys.argv[1:])\n"
    code += "except SystemExit: print('numpy' in sys.modules, file=sys.stderr)"
    for words in (["--help"], ["--version"], ["zebra"], ["--show-completion", "bash"]):
        ran = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
        )
        assert ran.stderr.splitlines()[-1] == "False"


def test_many_options_stand_in_panels(dpacct: Any) -> None:
    for command in ("train", "calibrate", "epsilon", "plot eps"):
        headings = re.findall(r"^(\S.*):$", dpacct(command, "--help").text, flags=re.MULTILINE)
        assert len(headings) > 2
        assert headings[-1] == "Options"
    assert re.findall(r"^(\S.*):$", dpacct("ledger verify -h").text, flags=re.MULTILINE) == [
        "Arguments",
        "Options",
    ]
