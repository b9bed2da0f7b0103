"""The page of all commands, from what each says of itself under --help.

`python -m website.commands` writes docs/reference/commands.md; a test compares.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer.main

from dpacct_cli.app import app
from website.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "commands.md"
HEAD = """\
# Every command and option

What `dpacct COMMAND --help` says, all on one page, made by `make reference`. What the options mean
together, exit codes and the keys of the JSON are on the page [command line](command-line.md).
"""


def commands() -> Iterator[tuple[str, Any, Any]]:
    """Each command as (what is typed, the command, its context), groups before their members."""
    program = typer.main.get_command(app)
    top = _context(program, "dpacct", None)
    yield from _below("dpacct", program, top)


def _context(command: Any, name: str, parent: Any) -> Any:
    return command.context_class(command, info_name=name, parent=parent, **command.context_settings)


def _below(typed: str, group: Any, context: Any) -> Iterator[tuple[str, Any, Any]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command.hidden:
            continue
        here = _context(command, name, context)
        yield f"{typed} {name}", command, here
        if hasattr(command, "list_commands"):
            yield from _below(f"{typed} {name}", command, here)


def _cell(text: str) -> str:
    """A line that a table can hold, code as code and nothing else as markup."""
    return re.sub(r"([|*_<>`\[\]\\])", r"\\\1", " ".join(text.split()))


def _description(command: Any) -> str:
    """The help text: paragraphs as they are, and what is not to be wrapped as a block."""
    parts: list[str] = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "").partition("\f")[0]):
        if part.startswith("\b"):
            parts.append("```text\n" + part.removeprefix("\b").strip("\n") + "\n```")
        else:
            parts.append(_cell(part).replace("\\`", "`"))
    return "\n\n".join(filter(None, parts))


def section(typed: str, command: Any, context: Any) -> str:
    """The section of one command."""
    usage = " ".join([typed, *command.collect_usage_pieces(context)])
    parts = [f"## {typed}", f"```text\n{usage}\n```", _description(command)]
    records = [param.get_help_record(context) for param in command.get_params(context)]
    rows = [
        f"| `{names.replace('|', chr(92) + '|')}` | {_cell(text)} |"
        for names, text in filter(None, records)
    ]
    if rows:
        parts.append("\n".join(["| option | |", "|---|---|", *rows]))
    if hasattr(command, "list_commands"):
        below = [command.get_command(context, name) for name in command.list_commands(context)]
        rows = [f"| `{each.name}` | {_cell(each.get_short_help_str(200))} |" for each in below]
        parts.append("\n".join(["| command | |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def text() -> str:
    """The whole page."""
    return "\n\n".join([HEAD.strip(), *(section(*each) for each in commands())]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
