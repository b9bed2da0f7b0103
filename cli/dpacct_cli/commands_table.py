"""All commands, each imported when it is looked up: a cold start pays for what it runs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
import typer.main

from dpacct_cli.text_commands import TextCommand, TextGroup

# Of each command the module and the function.
COMMANDS = {
    "calibrate": ("dpacct_cli.commands.calibrate", "calibrate"),
    "epsilon": ("dpacct_cli.commands.spend", "epsilon"),
    "delta": ("dpacct_cli.commands.delta", "delta"),
    "risk": ("dpacct_cli.commands.risk", "risk"),
    "rdp": ("dpacct_cli.commands.rdp", "rdp"),
    "compare": ("dpacct_cli.commands.compare", "compare"),
    "report": ("dpacct_cli.commands.report", "report"),
    "explore": ("dpacct_cli.explore.command", "explore"),
    "train": ("dpacct_cli.train.command", "train"),
    "attack": ("dpacct_cli.attack.command", "attack"),
}
# Of each group the module with its commands, and its help.
GROUPS = {
    "ledger": ("dpacct_cli.ledger.command", "The durable record of what was spent on a data set."),
    "claims": ("dpacct_cli.claims.command", "What publications promise, against what is proven."),
    "plot": ("dpacct_cli.plot.command", "Pictures: PNG, SVG or PDF by -o, else as text."),
}


class Commands(dict[str, Any]):
    """The commands by their names, in the order of the help."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys([*COMMANDS, *GROUPS]))

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if found is None:
            found = self[name] = _group(name) if name in GROUPS else _command(name)
        return found

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict."""
        return self[key] if key in self else default  # noqa: SIM401 - that is this function

    def items(self) -> Any:
        """As of a dict; imports all."""
        return {name: self[name] for name in self}.items()

    def values(self) -> Any:
        """As of a dict; imports all."""
        return {name: self[name] for name in self}.values()


def _command(name: str) -> Any:
    module, function = COMMANDS[name]
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, cls=TextCommand)(getattr(import_module(module), function))
    return typer.main.get_command(alone)


def _group(name: str) -> Any:
    module, help_ = GROUPS[name]
    group = typer.Typer(
        name=name, cls=TextGroup, help=help_, add_completion=False, rich_markup_mode=None
    )
    for below, function in import_module(module).COMMANDS.items():
        group.command(below, cls=TextCommand)(function)
    return typer.main.get_command(group)
