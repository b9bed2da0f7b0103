"""Every command is documented, and the examples in its --help run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dpacct as library
from dpacct_cli.app import ENTRIES, ROOT, load
from tests.claims.test_files import GOOD

COMMANDS = [
    "calibrate", "epsilon", "delta", "risk", "rdp", "compare", "explore", "train", "audit",
    "attack", "reproduce", "ledger", "report", "claims", "certify", "plot",
    "app",
]  # fmt: skip
GROUPS = {
    "ledger": ["init", "show", "verify", "report", "remaining", "charge", "finish", "export",
               "grant", "quota", "request", "approve"],
    "claims": ["check", "list"],
    "plot": ["eps", "delta", "tradeoff", "rdp", "schedule", "compare", "samplings", "ledger",
             "train", "landscape", "spectrum", "norms"],
}  # fmt: skip
DOORS = [f"{name} {below}".strip() for name in COMMANDS for below in GROUPS.get(name, [""])]
# These train, draw and judge for a minute, serve a page, or need a database.
LONG = (
    "train", "audit", "attack", "reproduce", "compare", "claims list", "plot compare",
    "plot samplings", "app", "ledger grant", "ledger quota", "ledger request", "ledger approve",
)  # fmt: skip


def examples(text: str) -> list[str]:
    return [line.rstrip() for line in re.findall(r"^ +(dpacct .*)$", text, flags=re.MULTILINE)]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    # Examples stay on their line.
    monkeypatch.setenv("COLUMNS", "160")


def test_the_commands_are_those_documented() -> None:
    assert list(ENTRIES) == COMMANDS
    for name, below in GROUPS.items():
        assert list(load(name, ENTRIES[name]).commands) == below
    reference = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"
    for part, place in ((GROUPS["ledger"][:8], "FILE"), (GROUPS["ledger"][8:], "ADDRESS")):
        commands = r"\|".join(part)
        assert f"`ledger {commands} {place}`" in reference.read_text(encoding="utf-8")


def test_the_readme_has_a_row_for_every_command() -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in readme.splitlines() if line.startswith("| `dpacct")]
    assert sorted(re.findall(r"`(?:dpacct )?(\w+)`", "".join(rows))) == sorted(COMMANDS)


def test_overall_help_lists_every_command(dpacct: Any) -> None:
    text = dpacct("--help").text
    for command in COMMANDS:
        assert re.search(rf"^│ {command} +\S", text, flags=re.MULTILINE)
    assert "dpacct calibrate --eps 8 --rounds 300 --q 0.1" in text
    assert dpacct().text.strip() == text.strip()


@pytest.mark.needs("matplotlib", "plotext", "flint", "torch")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("door", [door for door in DOORS if door not in LONG])
def test_help_has_examples_that_run(
    dpacct: Any, door: str, schedule_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpacct.interop.installed_peers", lambda: ())
    monkeypatch.chdir(Path(schedule_file).parent)
    with library.Ledger.open("census.ledger", library.Budget(8, 1e-5)) as ledger:
        if door in ("certify", "ledger finish", "plot ledger"):
            plan = 9 * library.Round(9.0)
            ledger.start_run("training", plan).reserve(library.Round(9.0)).commit()
    report = '{"epsilon_upper": 2.0, "test_accuracy": 0.5, "delta": 1e-5}\n'
    for name in ("one", "two"):
        Path(f"{name}.report.jsonl").write_text(report, encoding="utf-8")
    Path("paper.toml").write_text(GOOD, encoding="utf-8")
    if door in ("plot landscape", "plot spectrum", "plot norms"):
        assert dpacct("train dp-fedavg --eps 8 --rounds 1 --clients 40 --q 0.5").code == 0
    found = examples(dpacct(door, "--help").text)
    assert found
    for example in found:
        if door == "ledger init":
            for file in Path().glob("census.ledger*"):
                file.unlink()
        program, _, words = example.partition(" ")
        assert program == "dpacct"
        assert words.startswith(f"{door} ")
        # At epsilon 2 the rounds of the file are refuted.
        assert dpacct(words).code == (words == "certify rounds.toml --eps 2 --json"), words


@pytest.mark.parametrize("door", DOORS)
def test_help_explains_every_option(dpacct: Any, door: str) -> None:
    name, _, below = door.partition(" ")
    text = dpacct(door, "--help-all").text
    command = load(name, ENTRIES[name])
    for param in (command.commands[below] if below else command).params:
        assert param.help
        for option in param.opts:
            assert option in text or not option.startswith("-")
    assert "--json" in text or door == "app"
    assert "\\" not in text


def test_help_shows_at_most_a_dozen_options_and_help_all_the_rest(dpacct: Any) -> None:
    for command in (*COMMANDS[:7], "ledger charge"):
        shown = re.findall(r"^│ +(--\S+)", dpacct(command, "--help").text, flags=re.MULTILINE)
        every = re.findall(r"^│ +(--\S+)", dpacct(command, "--help-all").text, flags=re.MULTILINE)
        assert len([option for option in shown if option != "--help"]) <= 12, (command, shown)
        assert set(shown) < set(every)
        assert shown[-2:] == ["--help-all", "--help"]


def test_help_is_printed_as_it_is_written(dpacct: Any) -> None:
    """No emoji for a letter between colons, no markup, and the terminal alone breaks lines."""
    texts = {door: dpacct(door, "--help").text for door in DOORS}
    for text in texts.values():
        assert set(re.sub("[─│╭╮╰╯]", "", text)) <= set(map(chr, range(32, 127))) | {"\n"}
    assert "dirichlet:A: simulated" in " ".join(texts["train"].replace("│", "").split())
    assert "the limits of attacks. Then" in texts["report"]


@pytest.mark.parametrize("command", ["", *COMMANDS, "ledger init", "ledger remaining"])
def test_help_fits_the_terminal(dpacct: Any, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (80, 128):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = dpacct(command, "--help").text
        # Examples are to be copied, and stay on their line.
        prose = [line for line in text.splitlines() if not line.startswith("   dpacct ")]
        assert max(map(len, prose)) <= columns
    assert dpacct(command, "-h").text == text


def test_version(dpacct: Any) -> None:
    assert dpacct("--version").text == f"dpacct {library.__version__}\n"


def test_the_overall_help_and_a_refusal_import_no_numpy() -> None:
    code = "import sys\nfrom dpacct_cli.app import app\ntry:\n    app(sys.argv[1:])\n"
    code += "except SystemExit: print('numpy' in sys.modules, file=sys.stderr)"
    for words in (["--help"], ["--version"], ["zebra"]):
        ran = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
        )
        assert ran.stderr.splitlines()[-1] == "False"


def completed(words: str) -> list[str]:
    """The proposals of a shell, as Click finds them."""
    *given, last = words.split()
    command: Any = ROOT
    context = command.make_context("dpacct", [], resilient_parsing=True)
    for word in given[:1]:
        command = command.get_command(context, word)
        context = command.make_context(word, given[1:], parent=context, resilient_parsing=True)
    return [item.value for item in command.shell_complete(context, last)]


def test_completion_knows_commands_options_and_values() -> None:
    assert "calibrate" in completed("cal")
    assert "--eps" in completed("calibrate --ep")
    assert "--accountant" in completed("calibrate --acc")
    sampling = next(p for p in load("epsilon", ENTRIES["epsilon"]).params if p.name == "sampling")
    context = ROOT.make_context("dpacct", [], resilient_parsing=True)
    assert [item.value for item in sampling.shell_complete(context, "uni")] == ["uniform"]
    typed = {"COMP_WORDS": "dpacct train dp-feds", "COMP_CWORD": "2"}
    ran = subprocess.run(
        [sys.executable, "-m", "dpacct_cli"],
        env=os.environ | {"_DPACCT_COMPLETE": "complete_bash"} | typed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "dp-fedsam" in ran.stdout.split()
