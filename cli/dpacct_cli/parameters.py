"""What a command takes: texts, flags and one argument, declared where they are read.

Rule 1: every value stays the text that was typed; the library judges it.
Rule 2: a declaration says what help and completion need, so that both follow from one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

# A command with fewer options lists them in one piece.
PANELS_FROM = 13


Kind = Literal["text", "texts", "flag", "argument"]


class Parameter(NamedTuple):
    """An option, or the argument of a command.

    Attributes:
        kind: what is typed for it.
        opts: its names, the documented one first; none for an argument.
        metavar: what stands for its value; ``a|b`` where it is one of a few.
        help: a sentence or two.
        panel: the heading below which a long help lists it.
        known: values that it may have, where neither a name nor the metavar says them.
        name: of the parameter of the function.
        default: what the function gets where nothing was typed.
    """

    kind: Kind
    opts: tuple[str, ...]
    metavar: str
    help: str
    panel: str = ""
    known: Callable[[], Iterable[str]] | None = None
    name: str = ""
    default: Any = None

    @property
    def is_flag(self) -> bool:
        """It has no value."""
        return self.kind == "flag"

    @property
    def is_argument(self) -> bool:
        """It has no name."""
        return self.kind == "argument"

    @property
    def spelled(self) -> str:
        """How help writes it: short names first, then what stands for the value."""
        if self.is_argument:
            return self.metavar
        names = ", ".join(sorted(self.opts, key=lambda name: name.startswith("--")))
        return names if self.is_flag else f"{names} {self.metavar}"

    def values(self) -> tuple[str, ...]:
        """What may be typed for it, as far as that is known; patterns and files are left out."""
        if self.known is not None:
            return tuple(self.known())
        choices = self.metavar.split("|")
        return tuple(c for c in choices if c == c.lower()) if len(choices) > 1 else ()


def option(
    *names: str,
    metavar: str,
    help: str,  # noqa: A002 - the text of --help
    panel: str = "",
    known: Callable[[], Iterable[str]] | None = None,
) -> Parameter:
    """An option with a text."""
    return Parameter("text", names, metavar, help, panel, known)


def repeated(*names: str, metavar: str, help: str, panel: str = "") -> Parameter:  # noqa: A002 - the text of --help
    """An option that may be given several times, each with a text."""
    return Parameter("texts", names, metavar, help, panel)


def flag(*names: str, help: str, panel: str = "") -> Parameter:  # noqa: A002 - the text of --help
    """An option without a value."""
    return Parameter("flag", names, "", help, panel)


def argument(
    *,
    metavar: str,
    help: str,  # noqa: A002 - the text of --help
    known: Callable[[], Iterable[str]] | None = None,
) -> Parameter:
    """What is typed without a name; in brackets where it may be left out."""
    return Parameter("argument", (), metavar, help, known=known)


def parameters_of(function: Callable[..., object]) -> tuple[Parameter, ...]:
    """What the annotations of a function declare, in its order."""
    hints: Mapping[str, Any] = get_type_hints(function, include_extras=True)
    hints = {name: hint for name, hint in hints.items() if name != "return"}
    defaults = function.__defaults__ or ()  # pyright: ignore[reportFunctionMemberAccess]
    missing = len(hints) - len(defaults)
    return tuple(
        get_args(hint)[-1]._replace(
            name=name, default=None if place < missing else defaults[place - missing]
        )
        for place, (name, hint) in enumerate(hints.items())
    )
