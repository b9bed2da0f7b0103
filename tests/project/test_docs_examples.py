"""Every example of README.md and docs/ does what the page says.

- ```python: a doctest where it holds ``>>>``, otherwise it just has to run. Names stay defined
  until the end of the page.
- ```console: each line that starts with ``$ `` runs in a shell in which ``dpacct`` is the installed
  one; the lines below it are what stdout and stderr show together. ``...`` stands for any text.
- ```toml file=plan.toml (any language): written to the folder in which the page's examples run.
- ```python skip="why": not run. A skip without a reason is an error.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "evidence").rglob("*.md")),
]
# Everyday runs take the first page that people see; `make docs` runs all of them.
QUICK = {"README.md"}
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`]*)$")
OPTION = re.compile(r"""(?P<name>\w+)(?:=(?:"(?P<quoted>[^"]*)"|(?P<bare>\S*)))?""")
# What takes longer hangs, on a slow and busy machine too.
COMMAND_SECONDS = 3600


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    options: dict[str, str]
    text: str


def read_blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page; ``line`` is that of the opening fence."""
    opening: re.Match[str] | None = None
    start, body = 0, list[str]()
    for number, line in enumerate(page.splitlines(), 1):
        fence = FENCE.match(line)
        if opening is None:
            opening, start, body = fence, number, []
        elif fence and not fence["info"].strip():
            language, _, options = opening["info"].strip().partition(" ")
            yield Block(start, language, read_options(options), "".join(body))
            opening = None
        else:
            body.append(line.removeprefix(opening["indent"]) + "\n")
    if opening is not None:
        raise ValueError(f"the block that starts in line {start} is not closed")


def read_options(text: str) -> dict[str, str]:
    return {
        match["name"]: match["quoted"] or match["bare"] or "" for match in OPTION.finditer(text)
    }


def run_python(block: Block, names: dict[str, Any]) -> str:
    """Run a block of Python; returns what went wrong, or nothing."""
    if ">>>" not in block.text:
        try:
            exec(compile(block.text, "example", "exec"), names)  # noqa: S102 - running examples is the point
        except BaseException:  # noqa: BLE001 - an example may fail in any way, and is reported
            return traceback.format_exc()
        return ""
    found: list[str] = []
    test = doctest.DocTestParser().get_doctest(block.text, names, "example", None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=found.append, clear_globs=False)
    names.update(test.globs)
    return "".join(found)


def read_commands(text: str) -> list[tuple[str, str]]:
    """Pairs of a command and the output below it."""
    commands: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], ""))
        elif commands:
            command, output = commands[-1]
            commands[-1] = (command, f"{output}{line}\n")
        elif line.strip():
            raise ValueError(f"output without a command: {line}")
    return commands


def tidy(text: str) -> str:
    """Without trailing spaces, and without empty lines at either end."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def matches(expected: str, actual: str) -> bool:
    """Compare; ``...`` stands for any text, and alone on a line for any lines or none."""
    pattern = "".join(
        "(?:.*\n)?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + "\n"
        for line in tidy(expected).split("\n")
    )
    return re.fullmatch(pattern, tidy(actual) + "\n", re.DOTALL) is not None


def run_console(block: Block, folder: Path) -> str:
    """Run a block of commands; returns what went wrong, or nothing."""
    scripts = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    complaints: list[str] = []
    for command, expected in read_commands(block.text):
        done = subprocess.run(
            ["bash", "-c", command],  # noqa: S607 - whichever shell the reader has
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS,
        )
        if not matches(expected, done.stdout):
            complaints.append(f"$ {command}\nexpected:\n{expected}\ngot:\n{done.stdout}")
    return "\n".join(complaints)


def run_block(block: Block, names: dict[str, Any], folder: Path) -> str:
    """What is wrong with one block, or nothing."""
    if "skip" in block.options:
        return "" if block.options["skip"] else 'a skipped block says why: skip="the reason"'
    if file := block.options.get("file"):
        (folder / file).write_text(block.text, encoding="utf-8")
        return ""
    match block.language:
        case "python" | "pycon" | "py":
            return run_python(block, names)
        case "console":
            return run_console(block, folder)
        case _ if re.search(r"^(\$ |>>> )", block.text, re.MULTILINE):
            return "examples stand in ```console or ```python blocks, where they are run"
        case _:
            return ""


def is_run(block: Block) -> bool:
    """Without PyTorch, pages are read for what they show of the accountant."""
    return find_spec("torch") is not None or not re.search(r"\bimport torch\b", block.text)


def complaints_about(page: str, folder: Path) -> list[str]:
    """Everything that is wrong with the examples of a page; they run in ``folder``."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with chdir(folder):
        return [
            f"block in line {block.line}: {complaint}"
            for block in read_blocks(page)
            if is_run(block) and (complaint := run_block(block, names, folder))
        ]


def listed(page: Path) -> Any:
    name = page.relative_to(ROOT).as_posix()
    return pytest.param(page, id=name, marks=[] if name in QUICK else [pytest.mark.slow])


@pytest.mark.parametrize("page", [listed(page) for page in PAGES])
def test_every_example_of_the_page_holds(page, tmp_path):
    complaints = complaints_about(page.read_text(encoding="utf-8"), tmp_path)
    assert not complaints, "\n\n".join(complaints)


WRONG = [
    "```python\n>>> 1 + 1\n3\n```\n",
    "```python\n1 / 0\n```\n",
    "```python\nraise SystemExit(0)\n```\n",
    "```python skip\n1 / 0\n```\n",
    "```python\na = 1\n```\n\n```python\nassert a == 2\n```\n",
    "```console\n$ dpacct --version\ndpacct 999\n```\n",
    "```console\n$ dpacct no-such-command\n```\n",
    "```console\n$ echo one; echo two\n...\none\n```\n",
    "```console\n$ echo one; echo two\none\n```\n",
    "```sh\n$ dpacct --version\n```\n",
]
RIGHT = [
    "```python\n>>> x = 1 / 3\n>>> x\n0.333...\n```\n",
    "```python\nx = 1\n```\n\ntext\n\n```python\n>>> x\n1\n```\n",
    '```python skip="needs a second machine"\n1 / 0\n```\n',
    "```console\n$ dpacct --version\ndpacct ...\n```\n",
    "```console\n$ echo one; echo two\n...\none\n...\ntwo\n...\n```\n",
    "```console\n$ echo one; echo two\none  \ntwo\n$ true\n```\n",
    "```toml file=a.toml\nx = 1\n```\n\n```console\n$ cat a.toml\nx = 1\n```\n",
    "1. item\n   ```python\n   if True:\n       y = 1\n   ```\n",
    "```sh\npip install dpacct\n```\n",
]


@pytest.mark.parametrize("page", [*WRONG, *RIGHT])
def test_a_wrong_example_is_found_and_a_right_one_passes(page, tmp_path):
    assert (complaints_about(page, tmp_path) == []) is (page in RIGHT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_the_page_lead_somewhere(page):
    prose = re.sub(
        r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", prose)]
    local = [target for target in targets if target and "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_an_open_block_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="line 2 is not closed"):
        complaints_about("text\n```python\n1\n", tmp_path)
