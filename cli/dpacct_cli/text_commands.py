"""Commands whose options are text or flags, and the group of them; Typer does the rest.

Rule 1: every value stays the text that was typed; the library judges it.
Rule 2: a line that contradicts itself or lacks something is refused before anything is computed.
Rule 3: help fits the terminal, and breaks no name of an option or a method.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from dpacct_cli import suggestions, words
from dpacct_cli.errors import OptionConflict, conflict, print_line
from dpacct_cli.terminal import INTERRUPTED
from dpacct_cli.waiting import waiting

WIDEST = 80
NARROWEST = 24
# Looks like a hyphen, and no line ends at it.
UNBREAKABLE = "\u2011"

if TYPE_CHECKING:

    class _Formatter:
        width: int

        def __init__(self, *, width: int) -> None: ...
        def write(self, string: str) -> None: ...
        def write_text(self, text: str) -> None: ...
        def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30) -> None: ...

else:
    # That of whichever click Typer runs on.
    _Formatter = typer.Context.formatter_class


class HelpFormatter(_Formatter):
    """Help as wide as the terminal, within reason."""

    def __init__(self, **_settings: object) -> None:
        import shutil

        columns = shutil.get_terminal_size().columns
        super().__init__(width=max(min(columns, WIDEST) - 2, NARROWEST))

    def write(self, string: str) -> None:
        """Write text that was wrapped, with its hyphens as they were."""
        super().write(string.replace(UNBREAKABLE, "-"))

    def write_text(self, text: str) -> None:
        """Wrap paragraphs."""
        super().write_text(_unbreakable(text))

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30) -> None:
        """Wrap what stands beside names."""
        # Some releases of Typer escape "[required]" for Rich, whether or not Rich prints it.
        texts = [_unbreakable(text.replace("\\[", "[")) for _, text in rows]
        beside = [
            (_folded(name, self.width), text) for (name, _), text in zip(rows, texts, strict=True)
        ]
        super().write_dl(beside, min(col_max, self.width // 3))


def _folded(name: str, width: int) -> str:
    """A list of alternatives as long as the terminal is wide, line by line."""
    option, _, choices = name.rpartition(" ")
    lines = [f"{option} ".lstrip()]
    for choice in re.findall(r"[^|]+\|?", choices):
        if len(lines[-1]) + len(choice) > width - 2 and lines[-1].strip():
            lines.append(" " * (len(option) + 1))
        lines[-1] += choice
    return "\n  ".join(lines)


def _unbreakable(text: str) -> str:
    return re.sub(r"(?<=\w)-(?=\w)", UNBREAKABLE, text)


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


def _kept_as_text(params: list[Any]) -> list[Any]:
    for param in params:
        param.process_value = _keep_text(param)
    return params


def _restore_help(params: list[Any], command: Any) -> None:
    """Give arguments the help they were declared with: click 8.5 drops that of older Typer's."""
    lost = [param for param in params if not getattr(param, "help", None)]
    if lost:
        declared = get_type_hints(command, include_extras=True)
        for param in lost:
            param.help = get_args(declared[param.name])[-1].help


class TextCommand(TyperCommand):
    """A command whose options are text or flags."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _restore_help(self.params, self.callback)
        # A line with \b alone keeps the lines below it as they are.
        self.help = (self.help or "").replace("\n\nExample", "\n\n\b\nExample")

    def get_params(self, ctx: Any) -> list[Any]:
        """The options, with conversions switched off."""
        return _kept_as_text(super().get_params(ctx))

    def get_help(self, ctx: Any) -> str:
        """Help for the width of this terminal."""
        ctx.formatter_class = HelpFormatter
        return super().get_help(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words, and refuse those that contradict each other."""
        _refuse_contradictions(words.read(self.get_params(ctx), args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and tell whoever waits for it that it runs."""
        try:
            with waiting(ctx.command_path):
                return super().invoke(ctx)
        except KeyboardInterrupt:
            print_line("interrupted.")
            raise typer.Exit(INTERRUPTED) from None


def _refuse_contradictions(typed: words.Typed) -> None:
    before: dict[str, words.Option] = {}
    for option in typed.options:
        if (
            option.text in typed.documented
            and f"{option.spelling}={option.text}" not in typed.words
        ):
            raise OptionConflict(f"{option.spelling} needs a value; {option.text} is an option.")
        first = before.setdefault(option.names[0], option)
        if first.text != option.text and not option.repeatable:
            raise conflict(str(option), str(first))


class TextGroup(TyperGroup):
    """A group of such commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options before the command, with conversions switched off."""
        return _kept_as_text(super().get_params(ctx))

    def get_help(self, ctx: Any) -> str:
        """Help for the width of this terminal."""
        ctx.formatter_class = HelpFormatter
        return super().get_help(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant, or what it was mistaken for."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            known = self.list_commands(ctx)
            raise OptionConflict(suggestions.unknown_command(name, ctx.command_path, known))
        return super().resolve_command(ctx, args)
