"""The page of all commands for the site, made from the help of each command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from dpacct_cli.app import ENTRIES, load

PAGE = "docs/reference/commands.md"
HEAD = """\
# Every command and option

The output of `dpacct COMMAND --help-all`, on one page. The page
[command line](command-line.md) explains shared
options, exit codes and JSON keys.
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command with its path, groups before their members."""
    for name, entry in ENTRIES.items():
        command = load(name, entry)
        yield f"dpacct {name}", command
        for below, member in getattr(command, "commands", {}).items():
            yield f"dpacct {name} {below}", member


def plain(text: str) -> str:
    """Return a help without Rich's markup, which a help has where Rich would see an emoji."""
    return Text.from_markup(text, emoji=False).plain


def _cell(text: str) -> str:
    """Return a line that a table can hold, in which nothing is markup."""
    return re.sub(r"([|*_<>`\[\]\\])", r"\\\1", " ".join(plain(text).split()))


def _table(heading: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| `{name.replace('|', chr(92) + '|')}` | {_cell(said)} |" for name, said in rows]
    return "\n".join([f"| {heading.lower()} | |", "|---|---|", *lines])


def section(path: str, command: Any) -> str:
    """Return the section of one command."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for found in command.params:
        names = sorted(found.opts, key=lambda name: name.startswith("--"))
        value = "" if getattr(found, "is_flag", False) else found.metavar or ""
        if not names[0].startswith("-"):
            names = []
        panel = found.rich_help_panel or ("Options" if names else "Arguments")
        panels.setdefault(panel, []).append((f"{', '.join(names)} {value}".strip(), found.help))
    parts = [f"## {path}", plain(command.help or "")]
    examples = getattr(command, "examples", ())
    if examples:
        parts.append("```text\n" + "\n".join(examples) + "\n```")
    parts += [_table(heading, rows) for heading, rows in panels.items()]
    below = getattr(command, "commands", {})
    if below:
        summaries = [(name, each.help.partition("\n\n")[0]) for name, each in below.items()]
        parts.append(_table("command", summaries))
    return "\n\n".join(parts)


def text() -> str:
    """Return the whole page."""
    return "\n\n".join([HEAD.strip(), *(section(*each) for each in commands())]) + "\n"
