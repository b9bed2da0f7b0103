"""The page of all commands, from what each says of itself under --help.

`python -m website.commands` writes docs/reference/commands.md; a test compares.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from dpacct_cli.app import ROOT as PROGRAM
from dpacct_cli.command import Command, Group, commands_below
from dpacct_cli.help import sections_of
from website.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "commands.md"
HEAD = """\
# Every command and option

What `dpacct COMMAND --help` says, all on one page, made by `make reference`. What the options mean
together, exit codes and the keys of the JSON are on the page [command line](command-line.md).
"""


def commands() -> Iterator[Command | Group]:
    """Each command, groups before their members."""
    yield from commands_below(PROGRAM)


def _cell(text: str) -> str:
    """A line that a table can hold, code as code and nothing else as markup."""
    return re.sub(r"([|*_<>`\[\]\\])", r"\\\1", " ".join(text.split()))


def _description(command: Command | Group) -> str:
    """The help text: paragraphs as they are, and what is not to be wrapped as a block."""
    parts: list[str] = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(command.text)):
        if re.match("Examples?:", part):
            parts.append(f"```text\n{part}\n```")
        else:
            parts.append(_cell(part).replace("\\`", "`"))
    return "\n\n".join(filter(None, parts))


def section(command: Command | Group) -> str:
    """The section of one command."""
    usage = f"{command.path} {command.usage}"
    parts = [f"## {command.path}", f"```text\n{usage}\n```", _description(command)]
    for heading, rows in sections_of(command.params):
        lines = [
            f"| `{names.replace('|', chr(92) + '|')}` | {_cell(said)} |" for names, said in rows
        ]
        if lines:
            parts.append("\n".join([f"| {heading.lower()} | |", "|---|---|", *lines]))
    if isinstance(command, Group):
        rows = [f"| `{name}` | {_cell(command.summary(name))} |" for name in command]
        parts.append("\n".join(["| command | |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def text() -> str:
    """The whole page."""
    return "\n\n".join([HEAD.strip(), *(section(each) for each in commands())]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
