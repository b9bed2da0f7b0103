"""The application: Typer commands, imported when they run, and errors in one line.

Rule 1: `dpacct --help` imports no command, and a command imports only the modules that it runs.
Rule 2: an error is one line that names the option as it was typed, and an exit code: 2 for bad
input, else 1.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any, NamedTuple, NoReturn, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from dpacct import __version__
from dpacct.errors import DpacctError
from dpacct_cli import INTERRUPTED, UNREAD, errors, words
from dpacct_cli.waiting import waiting

# The base of all of Click's complaints, wherever this version of Typer keeps Click.
UsageError: Any = typer.BadParameter.__mro__[1]
SETTINGS: dict[str, Any] = {"help_option_names": ["--help", "-h"], "max_content_width": 100}
ACCOUNTING, RUNNING, RECORDS = "Accounting", "Training and testing", "Records and reports"
# As in the options, which load numpy. This module does not.
OUTPUT = "Output"
# The key of --help-all in the context of a command.
ALL = "dpacct.help_all"


class Entry(NamedTuple):
    """A command, or a group of commands, that is imported when it is used."""

    module: str  # Holds a function of the command's name, or ``COMMANDS`` of a group
    panel: str  # The heading in the help
    summary: str  # The first sentence of its help


SPEND = "commands.spend"
ENTRIES = {
    "calibrate": Entry("commands.calibrate", ACCOUNTING,
        "Find the noise multiplier that meets a privacy budget."),
    "epsilon": Entry(SPEND, ACCOUNTING, "Compute the epsilon of a training run."),
    "delta": Entry(SPEND, ACCOUNTING, "Compute the delta of a training run."),
    "risk": Entry("commands.risk", ACCOUNTING, "Translate a guarantee into attack success rates."),
    "rdp": Entry(SPEND, ACCOUNTING, "Compute Renyi divergences."),
    "compare": Entry("commands.compare", ACCOUNTING, "Compare accountants and other libraries."),
    "explore": Entry("commands.explore", ACCOUNTING,
        "Sweep over noise, rounds, sampling rate and delta."),
    "train": Entry("train.command", RUNNING, "Train a model with differential privacy."),
    "audit": Entry("commands.audit", RUNNING, "Test a training run for privacy bugs."),
    "attack": Entry("commands.attack", RUNNING,
        "Run membership-inference attacks on a trained model."),
    "reproduce": Entry("commands.reproduce", RUNNING,
        "Repeat the runs of a paper's table, and compare with its values."),
    "ledger": Entry("commands.ledger", RECORDS, "Track the privacy budget of a data set."),
    "report": Entry("commands.report", RECORDS, "Write a privacy report for reviewers."),
    "claims": Entry("commands.claims", RECORDS, "Check published privacy claims."),
    "certify": Entry("commands.certify", RECORDS,
        "Prove an epsilon a second time, independently of the accountants."),
    "plot": Entry("commands.plot", RECORDS,
        "Draw charts: text by default, or PNG, SVG or PDF by -o."),
    "app": Entry("commands.app", RECORDS, "Open a page with a calculator, ledgers and sweeps."),
}  # fmt: skip


class Command(TyperCommand):
    """A command that knows how its options were typed, and shows progress."""

    examples: tuple[str, ...] = ()  # Command lines for its help
    advanced: tuple[Any, ...] = ()  # The options that --help leaves to --help-all

    def get_help_option(self, ctx: Any) -> Any:
        """Return --help, which stands among the options about output."""
        option: Any = super().get_help_option(ctx)
        option.rich_help_panel = OUTPUT
        return option

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, and examples that are never wrapped, so that they can be copied."""
        for parameter in self.advanced:
            parameter.hidden = ALL not in ctx.meta
        super().format_help(ctx, formatter)
        for parameter in self.advanced:
            parameter.hidden = False
        if self.examples:
            print("\n".join([" Examples:", *(f"   {line}" for line in self.examples), ""]))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Record the typed words, then parse them."""
        words.record(args, self.params)
        if "--help-all" in args:
            ctx.meta[ALL] = True
            args = ["--help"]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the function."""
        gc.enable()
        try:
            with waiting(ctx.command_path):
                return super().invoke(ctx)
        except BrokenPipeError:
            # Click would exit with 1, which says that a ledger is damaged.
            raise SystemExit(UNREAD) from None


class Root(TyperGroup):
    """The group of `ENTRIES`."""

    summarizing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help."""
        return list(ENTRIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command. For the help its summary is enough."""
        entry = ENTRIES.get(cmd_name)
        if entry is None:
            return None
        if self.summarizing:
            summary = unmarked(entry.summary)
            return TyperCommand(cmd_name, help=summary, rich_help_panel=entry.panel)
        return load(cmd_name, entry)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help from the summaries."""
        self.summarizing = True
        super().format_help(ctx, formatter)
        self.summarizing = False
        print(" dpacct COMMAND --help-all lists all options of a command.\n")


def load(name: str, entry: Entry) -> Any:
    """Import a command or a group of commands, and return it for Typer."""
    module = import_module(f"dpacct_cli.{entry.module}")
    from dpacct_cli.options import expanded

    members: Mapping[str, Any] | None = getattr(module, "COMMANDS", None)
    functions = members or {name: getattr(module, name)}
    group = typer.Typer(
        help=entry.summary if members else None, no_args_is_help=True, add_completion=False,
        rich_markup_mode="rich", context_settings=SETTINGS,
    )  # fmt: skip
    examples: dict[str, tuple[str, ...]] = {}
    helps: dict[str, dict[str, Any]] = {}
    for member, function in functions.items():
        text, _, lines = cleandoc(function.__doc__ or "").partition("\n\nExample")
        # The terminal breaks lines, the source does not.
        text = re.sub(r"(?<!\n)\n(?!\n)", " ", text)
        examples[member] = tuple(line.strip() for line in lines.splitlines()[1:])
        made = group.command(member, cls=Command, help=text, context_settings=SETTINGS)
        full = expanded(function)
        helps[member] = {name: get_args(kind)[1] for name, kind in full.__annotations__.items()}
        made(full)
    command: Any = typer.main.get_command(group)
    for member, loaded in getattr(command, "commands", {name: command}).items():
        loaded.examples = examples[member]
        loaded.help = unmarked(loaded.help or "")
        for each in loaded.params:
            # A Typer that is older than 0.26 loses the help of arguments beside Click 8.5.
            each.help = unmarked(each.help or helps[member][each.name].help)
        loaded.advanced = tuple(each for each in loaded.params if each.hidden)
        for each in loaded.advanced:
            # --help hides them, completion does not.
            each.hidden = False
    return command


def unmarked(text: str) -> str:
    """Return a text that Rich prints as it is: no markup in brackets, no emoji between colons."""
    return text.replace("[", r"\[").replace(":", "[none]:[/]")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"dpacct {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True,
            show_default=False,
        ),
    ] = False,
) -> None:  # fmt: skip
    """Differential privacy accounting with proven bounds.

    Start with: dpacct calibrate --eps 8 --rounds 300 --q 0.1
    """
    del version


_app = typer.Typer(
    name="dpacct", cls=Root, no_args_is_help=True, rich_markup_mode="rich",
    context_settings=SETTINGS, pretty_exceptions_enable=False,
)  # fmt: skip
_app.callback()(_root)
ROOT: Any = typer.main.get_command(_app)


def app(typed: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit with 0, 1, 2 or 130."""
    given = sys.argv[1:] if typed is None else list(typed)
    try:
        code = ROOT.main(given, prog_name="dpacct", standalone_mode=False)
    except DpacctError as error:
        errors.print_line(errors.line(error))
        sys.exit(errors.exit_code(error))
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.exit(0)
        errors.print_line(usage_line(error, given))
        sys.exit(2)
    except typer.Abort:
        code = INTERRUPTED
    finally:
        words.forget()
    if code == INTERRUPTED:
        errors.print_line("interrupted.")
    sys.exit(code if isinstance(code, int) else 0)


def usage_line(error: Any, given: Sequence[str]) -> str:
    """Return one line for a complaint of Click, with a suggestion where one is near."""
    program, command = "dpacct", ROOT
    if error.ctx is not None:
        program, command = error.ctx.command_path, error.ctx.command
    known = [name for each in command.params for name in each.opts if name.startswith("-")]
    kind, message = type(error).__name__, error.message
    if kind == "NoSuchOption":
        # Click reports a mistyped cluster such as -eps by its first letter.
        name = next((w for w in given if w.partition("=")[0] == error.option_name), None)
        name = name or next((w for w in given if w.startswith(error.option_name)), "")
        return errors.unknown_option(name.partition("=")[0], program, known)
    if kind == "MissingParameter" and error.param is not None:
        name = error.param.metavar or error.param.opts[0]
        return f"{name} is missing. {program} --help shows its arguments."
    if kind == "BadOptionUsage":
        needs = "takes no value." if "take a value" in message else "needs a value."
        return f"{error.option_name} {needs}"
    if "unexpected extra" in message:
        stray = message.rpartition("(")[2].rstrip(")").split(" ")[0]
        return f"'{stray}' stands where {program} expects an option. {program} --help lists all."
    if "No such command" in message:
        name = message.partition("'")[2].partition("'")[0]
        return errors.unknown_command(name, program, command.list_commands(error.ctx))
    return f"{program}: {message}"
