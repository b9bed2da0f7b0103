"""The words of a command line: which spelling was typed, with which text, and how to show it again.

Rule 1: an option is called what the user called it.
Rule 2: a value is shown as it was typed, in full while that is short.
Rule 3: nothing that was typed reaches a screen, or a command to paste, but as printable text.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple

from dpacct.errors import DpacctError

# Letters of a value, and of a name.
SHOWN = 40
LONGEST = 300


class OptionConflict(DpacctError, ValueError):
    """Options that contradict each other, lack something or mean nothing."""


def conflict(one: str, other: str, why: str = "") -> OptionConflict:
    """Return the refusal of two options that cannot both hold."""
    reason = f" ({why})" if why else ""
    return OptionConflict(f"{one} contradicts {other}{reason}. Drop one of them.")


class Option(NamedTuple):
    """An option that was typed.

    Attributes:
        names: all that it has, the documented one first.
        spelling: the one that was used.
        text: its value, None for a flag.
        repeatable: several values of it do not contradict each other.
    """

    names: tuple[str, ...]
    spelling: str
    text: str | None
    repeatable: bool = False

    def __str__(self) -> str:
        return self.spelling if self.text is None else f"{self.spelling} {self.text}"


class Typed(NamedTuple):
    """What a command line says to its command.

    Attributes:
        words: all of them.
        options: those that were understood, in their order.
        documented: the first name of each option of the command, by each of its names.
        by_example: examples are what is counted, whatever was typed.
    """

    words: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    documented: Mapping[str, str] = MappingProxyType({})
    by_example: bool = False

    def last(self, name: str) -> Option | None:
        """The option called ``name``, as it was typed last."""
        return next((o for o in reversed(self.options) if name in o.names), None)


_typed: ContextVar[Typed | None] = ContextVar("_typed", default=None)


def current() -> Typed:
    """What was typed to the command that runs, nothing where none does."""
    return _typed.get() or Typed()


def forget() -> None:
    """Begin a new command line."""
    _typed.set(None)


def record(args: Sequence[str], parameters: Sequence[Any]) -> None:
    """Record which options were typed, and how.

    Args:
        args: the words behind the name of the command. parameters: what the command takes.
    Raises:
        OptionConflict: an option has two values, or another option as its value.
    """
    known = {name: found for found in parameters for name in found.opts if name.startswith("-")}
    options: list[Option] = []
    left = list(args)
    while left and (word := left.pop(0)) != "--":
        spelled, equals, text = word.partition("=")
        if word[:1] == "-" and word[:2] != "--" and word[:2] in known:
            spelled, text = word[:2], word[2:]
        found = known.get(spelled)
        if found is None:
            continue
        names = tuple(found.opts)
        if found.is_flag:
            options.append(Option(names, spelled, None))
        elif text or equals or left:
            value = text if text or equals else left.pop(0)
            if value in known and not equals:
                raise OptionConflict(f"{spelled} needs a value; {value} is an option.")
            options.append(Option(names, spelled, value, found.multiple))
    first: dict[str, Option] = {}
    for one in options:
        before = first.setdefault(one.names[0], one)
        if before.text != one.text and not one.repeatable:
            raise conflict(str(one), str(before))
    documented = {name: found.opts[0] for name, found in known.items()}
    _typed.set(Typed(tuple(args), tuple(options), documented))


def spelling(name: str) -> str:
    """What the user calls the option ``name``; what the help calls it where it was not typed."""
    typed = current()
    option = typed.last(name)
    return typed.documented.get(name, name) if option is None else option.spelling


# What is said in place of an option where models are trained centrally.
BY_EXAMPLE = {"--clients": "--examples", "--cohort": "--batch"}


def about_examples() -> None:
    """Examples are what the command that runs counts, as a file of settings says."""
    _typed.set(current()._replace(by_example=True))


def unit() -> str:
    """Whose data one neighbor differs by: an example where options were typed that say so."""
    said = {*BY_EXAMPLE.values(), "--epochs"}
    return (
        "example"
        if current().by_example or any(o.spelling in said for o in current().options)
        else "client"
    )


def called(name: str) -> str:
    """As `spelling`; beside options about examples what was not typed is called as they are."""
    typed = current().last(name)
    if typed is None and unit() == "example":
        return BY_EXAMPLE.get(name, name)
    return spelling(name)


def in_units(text: str) -> str:
    """Words about clients, about examples where that is what is counted."""
    if unit() == "client":
        return text
    return text.replace("a client", "an example").replace("client", "example")


def text_of(name: str) -> str | None:
    """What was typed as the value of an option, None where it was not."""
    option = current().last(name)
    return None if option is None else option.text


def number(text: str | None) -> int | float | str | None:
    """The number that was typed, or the text as it is for the library to refuse."""
    if text is None:
        return None
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    return text


def shortened(text: str, most: int = SHOWN) -> str:
    """``text``, or its beginning and how long it is."""
    return text if len(text) <= most else f"{text[: most // 2]}... ({len(text)} characters)"


def quoted(text: str, most: int = SHOWN) -> str:
    """A text that is no number, so that one sees where it begins and ends."""
    if len(text) <= most:
        return repr(text)
    return f"{text[: most // 2]!r}... ({len(text)} characters)"


def pasted(text: str) -> str:
    """``text`` as one word of a command that a person can paste into a shell."""
    if text.isprintable():
        return shlex.quote(text)
    # What bash, zsh and ksh read as escapes; undecodable bytes of a file name are bytes again.
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    shown = "".join(
        letter
        if letter.isprintable()
        else "".join(f"\\{byte:03o}" for byte in letter.encode("utf-8", "surrogateescape"))
        for letter in escaped
    )
    return f"$'{shown}'"
