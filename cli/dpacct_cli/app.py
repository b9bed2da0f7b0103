"""The application: registers the commands and turns errors into one line and an exit code."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import dpacct
from dpacct.errors import DpacctError
from dpacct_cli import errors, words
from dpacct_cli.commands_table import Commands
from dpacct_cli.text_commands import TextGroup


class OneLineGroup(TextGroup):
    """The group of all commands; its errors are one line each."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands = Commands()

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run a command line and exit with 0, 1, 2 or 130."""
        typed = list(sys.argv[1:] if args is None else args)
        extra |= {"prog_name": errors.PROGRAM, "standalone_mode": False}
        words.forget()
        try:
            result = super().main(typed or ["--help"], *rest, **extra)
        except DpacctError as error:
            errors.print_line(errors.line(error))
            sys.exit(errors.exit_code(error))
        except errors.UsageError as error:
            errors.print_line(errors.usage_line(error))
            sys.exit(2)
        except typer.Abort:
            sys.exit(130)
        sys.exit(result if isinstance(result, int) else 0)


HELP_NAMES = {"help_option_names": ["--help", "-h"]}

app = typer.Typer(
    cls=OneLineGroup,
    context_settings=HELP_NAMES,
    help=(
        "Differential privacy accounting for federated learning: every upper bound is proven.\n\n"
        "\b\nExample:\n  dpacct calibrate --eps 8 --rounds 300 --q 0.1\n\n"
        "Every command takes --help (with an example) and --json."
    ),
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool | None) -> None:
    if wanted:
        typer.echo(f"dpacct {dpacct.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options that stand before a command."""
