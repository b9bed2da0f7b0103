"""The application: registers the commands and turns errors into one line and an exit code."""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import dpacct
from dpacct.errors import DpacctError
from dpacct_cli import calibrate, compare, delta, epsilon, errors, ledger, rdp, risk, train


def _keep_text(param: Any) -> Callable[[Any, object], Any]:
    """A stand-in for the parameter's own conversion that keeps text as text.

    Every option here is text or a flag, and the library judges the text. Typer's conversion
    would import pydantic for that, which takes longer than numpy.
    """

    def process_value(ctx: Any, value: object) -> Any:
        # Lists are options that may be given several times.
        text = isinstance(value, str | bool) or type(value) in (list, tuple)
        kept = value if text else None
        return kept if param.callback is None else param.callback(ctx, param, kept)

    return process_value


class TextCommand(TyperCommand):
    """A command whose options are text or flags."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A line with \b alone keeps the lines below it as they are.
        self.help = (self.help or "").replace("\n\nExample", "\n\n\b\nExample")

    def get_params(self, ctx: Any) -> list[Any]:
        """The options, with conversions switched off."""
        params: list[Any] = super().get_params(ctx)
        for param in params:
            param.process_value = _keep_text(param)
        return params


class OneLineGroup(TyperGroup):
    """The group of all commands; its errors are one line each."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options before the command, with conversions switched off."""
        params: list[Any] = super().get_params(ctx)
        for param in params:
            param.process_value = _keep_text(param)
        return params

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run a command line and exit with 0, 1 or 2."""
        words = list(sys.argv[1:] if args is None else args)
        extra |= {"prog_name": errors.PROGRAM, "standalone_mode": False}
        try:
            result = super().main(words or ["--help"], *rest, **extra)
        except DpacctError as error:
            errors.print_line(errors.line(error))
            sys.exit(errors.exit_code(error))
        except errors.UsageError as error:
            errors.print_line(errors.usage_line(error))
            sys.exit(2)
        except typer.Abort:
            sys.exit(130)
        sys.exit(result if isinstance(result, int) else 0)


app = typer.Typer(
    cls=OneLineGroup,
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


for _command in (
    calibrate.calibrate,
    epsilon.epsilon,
    delta.delta,
    risk.risk,
    rdp.rdp,
    compare.compare,
    train.train,
):
    app.command(cls=TextCommand)(_command)

ledger_group = typer.Typer(
    help="The durable record of what was spent on a data set.", rich_markup_mode=None
)
for _name, _command in ledger.COMMANDS.items():
    ledger_group.command(_name, cls=TextCommand)(_command)
app.add_typer(ledger_group, name="ledger")


def main() -> None:
    """The entry point of the console script."""
    app()
