"""The words of a command line: each typed spelling with its text, and its display in messages.

Rule 1: messages use the spelling of an option that the user typed.
Rule 2: a value is shown as it was typed, in full if it is short.
Rule 3: typed text reaches a screen, or a command to paste, only as printable text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple

from dpacct.errors import DpacctError

# Letters of a value, of a name, and of a message.
SHOWN = 40
LONGEST = 300
LONGEST_LINE = 4000
# The metavars of options that name a place, which an empty text cannot.
FILES = ("FILE", "FOLDER")
# The names of options in central training.
BY_EXAMPLE = {"--clients": "--examples", "--cohort": "--batch"}


class OptionConflict(DpacctError, ValueError):
    """Options that contradict each other, lack something or mean nothing."""


def conflict(one: str, other: str, why: str = "") -> OptionConflict:
    """Return the refusal of two options that cannot both hold."""
    reason = f" ({why})" if why else ""
    return OptionConflict(f"{one} contradicts {other}{reason}. Drop one of them.")


class Option(NamedTuple):
    """An option that was typed."""

    names: tuple[str, ...]  # All of its names, the documented one first
    spelling: str  # The one that was used
    text: str | None  # Its value, None for a flag

    def __str__(self) -> str:
        return self.spelling if self.text is None else f"{self.spelling} {self.text}"


class Typed(NamedTuple):
    """A command line."""

    options: tuple[Option, ...] = ()  # Those that were understood, in their order
    # The first name of each option of the command, by each of its names
    documented: Mapping[str, str] = MappingProxyType({})
    by_example: bool = False  # A file of settings counts examples, for any typed options
    words: tuple[str, ...] = ()  # All words, values behind = apart

    def last(self, name: str) -> Option | None:
        """Return the option called ``name``, as it was typed last."""
        return next((o for o in reversed(self.options) if name in o.names), None)


_NOTHING = Typed()
_typed: ContextVar[Typed] = ContextVar("_typed", default=_NOTHING)


def forget() -> None:
    """Begin a new command line."""
    _typed.set(_NOTHING)


def record(args: Sequence[str], parameters: Sequence[Any]) -> None:
    """Record which options were typed, and how."""
    known = {name: param for param in parameters for name in param.opts if name.startswith("-")}
    options: list[Option] = []
    first: dict[str, Option] = {}
    left = list(args)
    while left and (word := left.pop(0)) != "--":
        spelled, equals, text = word.partition("=")
        if word[:1] == "-" and word[:2] != "--" and word[:2] in known:
            spelled, text = word[:2], word[2:]
        param = known.get(spelled)
        value = None
        if param is None:
            continue
        if not param.is_flag:
            if not (text or equals or left):
                continue
            value = text if text or equals else left.pop(0)
            if not value.strip() and (param.metavar or "").startswith(FILES):
                raise OptionConflict(f"{spelled} is empty; it takes {param.metavar}.")
            if value in known and not equals:
                raise OptionConflict(f"{spelled} needs a value; {value} is an option.")
        option = Option(tuple(param.opts), spelled, value)
        before = first.setdefault(param.opts[0], option)
        if before.text != value and not param.multiple:
            raise conflict(str(option), str(before))
        options.append(option)
    documented = {name: param.opts[0] for name, param in known.items()}
    apart = (*args, *(word.partition("=")[2] for word in args))
    _typed.set(Typed(tuple(options), documented, words=apart))


def spelling(name: str) -> str:
    """Return the user's name for an option, or the documented name if it was not typed."""
    typed = _typed.get()
    option = typed.last(name)
    return typed.documented.get(name, name) if option is None else option.spelling


def was_typed(word: str) -> bool:
    """Return True if a word stands on the command line. Outside a command nothing is typed."""
    typed = _typed.get()
    return word in typed.words or typed is _NOTHING


def has_option(name: str) -> bool:
    """Return True if the running command has this option. Outside a command, any may be meant."""
    typed = _typed.get()
    return name in typed.documented or typed is _NOTHING


def spelling_of_file(file: str) -> str | None:
    """Return the option that names a file, as it was typed, or None if no option does."""
    spellings = (o.spelling for o in _typed.get().options if o.text == file)
    return next(spellings, None)


def text_of(name: str) -> str | None:
    """Return the text of an option, None if it was not typed."""
    option = _typed.get().last(name)
    return None if option is None else option.text


def about_examples() -> None:
    """Note that the running command counts examples, as a file of settings says."""
    _typed.set(_typed.get()._replace(by_example=True))


def unit() -> str:
    """Return the privacy unit: an example if the typed options choose it, else a client."""
    typed = _typed.get()
    said = {*BY_EXAMPLE.values(), "--epochs"}
    by_example = typed.by_example or any(o.spelling in said for o in typed.options)
    # With --records the unit is their owner.
    of_owners = typed.last("--records") is not None
    return "example" if by_example and not of_owners else "client"


def called(name: str) -> str:
    """Return `spelling`. With options about examples, the name is in their terms."""
    if _typed.get().last(name) is None and unit() == "example":
        return BY_EXAMPLE.get(name, name)
    return spelling(name)


def in_units(text: str) -> str:
    """Return words about clients, or about examples if these are counted."""
    if unit() == "client":
        return text
    return text.replace("a client", "an example").replace("client", "example")


def number(text: str | None) -> Any:
    """Return the number that was typed, or the text as it is for the library to refuse."""
    if text is None:
        return None
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    return text


def shortened(text: str, most: int = SHOWN) -> str:
    """Return ``text``, or its beginning and its length."""
    return text if len(text) <= most else f"{text[: most // 2]}... ({len(text)} characters)"


def quoted(text: str) -> str:
    """Return a text that is no number in quotes, so that one sees where it begins and ends."""
    if len(text) <= SHOWN:
        return repr(text)
    return f"{text[: SHOWN // 2]!r}... ({len(text)} characters)"
