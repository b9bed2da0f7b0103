"""Completion: what a shell asks while somebody types, asked as the shell asks it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dpacct_cli.app import ROOT
from dpacct_cli.completion import SCRIPTS, Completion, completions
from tests.cli.conftest import Ran

BASH, FISH, ZSH = (shutil.which(shell) or "" for shell in ("bash", "fish", "zsh"))


def ways(line: str, *, by_parts: bool = False) -> list[str]:
    """Each way to finish the last word of a line that begins behind `dpacct`."""
    found = completions(ROOT, line.split(" "), by_parts=by_parts)
    return [each.value if isinstance(each, Completion) else each for each in found]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cal", ["calibrate"]),
        ("ledger sh", ["show"]),
        ("plot t", ["tradeoff", "train"]),
        ("zebra", []),
        ("--v", ["--version"]),
        ("--show-completion ", ["bash", "zsh", "fish"]),
        ("calibrate --sampl", ["--sampling"]),
        ("calibrate --ba", ["--batch"]),
        ("calibrate --eps 8 --ep", ["--epochs"]),
        ("calibrate --sampling ", ["poisson", "uniform", "full"]),
        ("calibrate --sampling po", ["poisson"]),
        ("calibrate --sampling=po", ["--sampling=poisson"]),
        ("calibrate --adjacency re", ["replace-one"]),
        ("epsilon --accountant ", ["tight", "rdp", "closed-form", "gdp", "pairs"]),
        ("plot eps --accountant tight,r", ["tight,rdp"]),
        ("calibrate --solve d", ["delta"]),
        ("calibrate --eps ", []),
        ("calibrate --schedule ", ["file"]),
        ("train dp-fedp", ["dp-fedpgn", "dp-fedpgn-ls"]),
        ("train --data-dir ", ["dir"]),
        ("train dp-fedavg --data m", ["mnist", "file"]),
        ("train dp-fedavg --set rho=1 --sec", ["--secure-noise"]),
        ("train --partition ", ["iid", "natural"]),
        ("ledger show ", ["file"]),
        ("report --format m", ["md"]),
        ("claims check dp-fed-ls-t3-uniform", None),
    ],
)
def test_what_is_known_is_found(line: str, found: list[str] | None) -> None:
    if found is None:
        ids = ways(line)
        assert ids[-1] == "file"
        assert len(ids) > 1
        assert all(name.startswith(line.rpartition(" ")[2]) for name in ids[:-1])
    else:
        assert ways(line) == found


def test_a_line_that_ends_in_a_space_offers_all_commands() -> None:
    assert ways("") == list(ROOT)
    assert ways("ledger ") == list(ROOT["ledger"])


def test_bash_takes_an_option_and_its_value_for_three_words() -> None:
    assert ways("calibrate --sampling =", by_parts=True) == ["poisson", "uniform", "full"]
    assert ways("calibrate --sampling = f", by_parts=True) == ["full"]


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_a_shell_gets_lines_and_nothing_else(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_DPACCT_COMPLETE", shell)
    ran = Ran(["ledger", "rem"])
    assert (ran.code, ran.err) == (0, "")
    kind, value, meaning = ran.out.removesuffix("\n").split("\t")
    assert (kind, value) == ("plain", "remaining")
    assert meaning == "How many more rounds of a kind fit into the budget."
    assert Ran(["--eps", "8", "nonsense", "-"]).err == ""


def test_the_script_is_printed_and_a_shell_without_one_is_refused() -> None:
    for shell, script in SCRIPTS.items():
        assert Ran(["--show-completion", shell]).out == script
    ran = Ran(["--show-completion", "bsh"])
    assert ran.code == 2
    assert "--show-completion is 'bsh'; a shell is one of bash, zsh, fish." in ran.err
    assert "Did you mean bash?" in ran.err


TYPED = """\
{script}
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_dpacct_completion dpacct 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def program(tmp_path: Path) -> dict[str, str]:
    """An environment in which `dpacct` is this program."""
    start = tmp_path / "dpacct"
    start.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dpacct_cli "$@"\n')
    start.chmod(0o755)
    return os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.skipif(not BASH, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("dpacct calibrate --sampling p", ["poisson"]),
        ("dpacct calibrate --adjacency ''", ["add-remove", "replace-one", "zero-out"]),
    ],
)
def test_bash_completes(program: dict[str, str], words: str, found: list[str]) -> None:
    script = TYPED.format(script=SCRIPTS["bash"], words=words)
    done = subprocess.run(
        [BASH, "--norc", "-c", script],
        env=program,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout.split() == found


@pytest.mark.skipif(not FISH, reason="there is no fish")
def test_fish_completes(program: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "dpacct.fish"
    script.write_text(SCRIPTS["fish"])
    line = f"source {script}; complete -C 'dpacct calibrate --sampling p'"
    done = subprocess.run(
        [FISH, "--no-config", "-c", line],
        env=program,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout.split() == ["poisson"]


TYPED_IN_ZSH = """\
compdef() {{ }}
_describe() {{ print -rl -- "${{(@P)3}}"; }}
_files() {{ print files; }}
{script}
words=({words})
CURRENT=${{#words}}
_dpacct_completion
"""


@pytest.mark.skipif(not ZSH, reason="there is no zsh")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("dpacct calibrate --sampling p", ["poisson"]),
        ("dpacct ledger show ''", ["files"]),
        ("dpacct ledger in", ["init:Make the ledger of a data set, with its budget."]),
    ],
)
def test_zsh_completes(program: dict[str, str], words: str, found: list[str]) -> None:
    script = TYPED_IN_ZSH.format(script=SCRIPTS["zsh"], words=words)
    done = subprocess.run(
        [ZSH, "-f", "-c", script],
        env=program,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == found
