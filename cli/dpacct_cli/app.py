"""The application: runs the command that is named; an error is one line and an exit code."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from dpacct import __version__
from dpacct.errors import DpacctError
from dpacct_cli import errors, words
from dpacct_cli.command import options_below
from dpacct_cli.commands_table import all_commands
from dpacct_cli.parameters import Parameter

# Set by the scripts of --show-completion, which then pass the words typed so far.
COMPLETING = "_DPACCT_COMPLETE"
SHELLS = ("bash", "zsh", "fish")

ROOT = all_commands(
    (
        Parameter(
            "flag", ("--version",), "", "Print the version and exit.", name="version"
        ),
        Parameter(
            "text", ("--show-completion",), "|".join(SHELLS),
            "Print a script that completes commands, options and values in that shell.",
            name="show_completion",
        ),
    )
)  # fmt: skip


def app(typed: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit with 0, 1, 2 or 130."""
    given = list(sys.argv[1:] if typed is None else typed)
    words.forget()
    try:
        _run(given)
    except DpacctError as error:
        errors.print_line(errors.line(error))
        sys.exit(errors.exit_code(error))
    sys.exit(0)


def _run(given: list[str]) -> None:
    shell = os.environ.get(COMPLETING)
    if shell in SHELLS:
        from dpacct_cli.completion import print_completions

        print_completions(ROOT, shell, given)
        return
    values, rest = ROOT.read(given, _elsewhere)
    if values["version"]:
        print(f"dpacct {__version__}")
    elif values["show_completion"] is not None:
        from dpacct_cli.completion import print_script

        print_script(values["show_completion"])
    elif values["help"] or not given:
        print(ROOT.help())
    else:
        ROOT.run_named(rest, _elsewhere)


def _elsewhere() -> Mapping[str, Sequence[str]]:
    return options_below(ROOT)
