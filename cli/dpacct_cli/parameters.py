"""How commands declare their options: thin wrappers around Typer's.

Rule: every value stays the text that was typed. The library judges it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import typer


def option(
    *names: str,
    metavar: str,
    help: str,  # noqa: A002 - the text of --help
    panel: str = "",
    known: Callable[[], Iterable[str]] | None = None,
    advanced: bool = False,
) -> Any:
    """Declare an option with a value.

    Args:
        names: the documented name first.
        metavar: stands for the value in the help; ``a|b`` lists all values.
        help: a sentence or two.
        panel: the heading of its group in the help.
        known: the values, for completion, if the metavar does not list them.
        advanced: shown by --help-all only.
    """
    return typer.Option(
        *names,
        metavar=metavar,
        help=help,
        rich_help_panel=panel or None,
        show_default=False,
        autocompletion=_completion(metavar, known),
        hidden=advanced,
    )


def flag(*names: str, help: str, panel: str = "", advanced: bool = False) -> Any:  # noqa: A002 - the text of --help
    """Declare an option without a value."""
    return typer.Option(
        *names, help=help, rich_help_panel=panel or None, show_default=False, hidden=advanced
    )


# An option that may be given several times. Its function takes a list of texts.
repeated = option


def argument(
    *,
    metavar: str,
    help: str,  # noqa: A002 - the text of --help
    known: Callable[[], Iterable[str]] | None = None,
) -> Any:
    """Declare a value without a name, with its metavar in brackets if it is optional."""
    return typer.Argument(
        metavar=metavar, help=help, show_default=False, autocompletion=_completion(metavar, known)
    )


def _completion(
    metavar: str, known: Callable[[], Iterable[str]] | None
) -> Callable[[str], list[str]] | None:
    """Return what completes a value: the part behind the last comma, if there are several."""
    listed = [value for value in metavar.split("|") if value == value.lower()]
    if known is None and len(listed) < 2:
        return None

    def complete(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",")
        values = listed if known is None else known()
        return [f"{before}{comma}{value}" for value in values if value.startswith(begun)]

    return complete
