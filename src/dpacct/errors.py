"""Every error that dpacct raises on purpose. A leaf: it imports nothing of the package.

Rule: a message is one line of printable text, and not long. It may quote a file, a name or a
message of somebody else, and a log or a terminal shows it as it is.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

_LONGEST, _LONGEST_MESSAGE = 200, 4000


def escaped(words: str) -> str:
    r"""Return text in which each character that is not printable is an escape, as ``\x1b``."""
    if words.isprintable():
        return words
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in words
    )


def line(words: str, longest: int = _LONGEST) -> str:
    """Return foreign text on one line: white space is a blank, and long text is cut."""
    cut = words if len(words) <= longest else f"{words[:longest]}... ({len(words)} characters)"
    return escaped(" ".join(cut.split()))


class DpacctError(Exception):
    """Base of all errors raised by dpacct."""

    def __init__(self, message: str = "") -> None:
        super().__init__(line(message, _LONGEST_MESSAGE))


class InvalidParameter(DpacctError, ValueError):
    """A parameter lies outside its range, or contradicts another one.

    Attributes:
        name: the parameter as the library spells it, e.g. ``sampling_rate``.
        value: the given value.
        rule: the allowed range, as a clause: ``a sampling rate lies in (0, 1]``.
        hint: a way out, or an empty string.
    """

    def __init__(self, name: str, value: object, rule: str, hint: str = "") -> None:
        self.name, self.value, self.rule, self.hint = name, value, rule, hint
        super().__init__(self.describe(name))

    def describe(self, label: str) -> str:
        """Return the message with the parameter called ``label`` (``--q`` on a command line)."""
        sentence = f"{label} is {shown(self.value)}; {self.rule}."
        return f"{sentence} {self.hint}" if self.hint else sentence


def shown(value: object) -> str:
    """Return a value as it is typed, cut if it is long."""
    if isinstance(value, int) and abs(value) >= 10**100:
        return "an integer of more than 100 digits"
    if isinstance(value, int | float):
        return str(value)
    try:
        typed = repr(value[:_LONGEST] if isinstance(value, str | bytes) else value)
    except (ValueError, RecursionError):
        # Python does not print integers of thousands of digits, nor lists nested too deep.
        return f"a {type(value).__name__}"
    return typed if len(typed) <= _LONGEST else f"{typed[:_LONGEST]}..."


@contextmanager
def located(name: str, where: str = "", file: str | None = None) -> Generator[None]:
    """Add a place in a file to an `InvalidParameter`, and at last the file itself.

    A parameter without a value is named in its rule, and is not repeated, nor is the file.
    """
    try:
        yield
    except InvalidParameter as error:
        if file is not None and error.value == file:
            raise
        fault = error.rule
        if error.value is not None:
            fault = f"{error.name} is {shown(error.value)}: {fault}"
        raise InvalidParameter(name, file, f"{where}{fault}", error.hint) from None


class Unsupported(DpacctError):
    """A combination for which no bound is proven here, or a package is missing."""


class WrongAccountant(InvalidParameter, Unsupported):
    """The chosen accountant has no bound for these rounds, and another one has."""


class NotConverged(DpacctError):
    """A solver ended without an answer. The message has the best bounds that it found."""


class BudgetExceeded(DpacctError):
    """A round does not fit into the remaining budget."""


class LedgerError(DpacctError):
    """A ledger file is damaged, foreign, or used against its rules."""
