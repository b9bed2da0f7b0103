"""The words of a command line, told apart: options with their texts, flags, and the argument.

Rule 1: an option may be given twice only with the same text, unless it is one of several.
Rule 2: a line that contradicts itself or says what nobody asked is refused before anything runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dpacct_cli import suggestions, words
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.parameters import Parameter

Elsewhere = Callable[[], Mapping[str, Sequence[str]]]


class Grammar(NamedTuple):
    """What one command, or the group of commands, understands.

    Attributes:
        path: how it is called: ``dpacct ledger show``.
        parameters: of it.
        elsewhere: names of the options of other commands, by command.
        until_name: what follows the first word that is no option belongs to a command below.
    """

    path: str
    parameters: Sequence[Parameter]
    elsewhere: Elsewhere
    until_name: bool = False

    @property
    def names(self) -> dict[str, Parameter]:
        """Its options by each of their names."""
        return {name: found for found in self.parameters for name in found.opts}

    def read(self, typed: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """The values by the names of the function's parameters, and the words that are left.

        Raises:
            OptionConflict: an option is unknown, lacks a value or contradicts another.
        """
        options, rest = self._split(typed)
        known = self.names
        documented = {name: found.opts[0] for name, found in known.items()}
        words.remember(words.Typed(tuple(typed), tuple(options), documented))
        values = {found.name: found.default for found in self.parameters}
        first: dict[str, words.Option] = {}
        for one in options:
            found = known[one.spelling]
            before = first.setdefault(one.names[0], one)
            if before.text != one.text and not one.repeatable:
                raise conflict(str(one), str(before))
            if found.kind == "texts":
                values[found.name] = [*(values[found.name] or ()), one.text]
            else:
                values[found.name] = True if one.text is None else one.text
        if not self.until_name:
            rest = self._arguments(values, rest)
        return values, rest

    def _arguments(self, values: dict[str, Any], rest: list[str]) -> list[str]:
        wanted = [found for found in self.parameters if found.is_argument]
        for found, text in zip(wanted, rest, strict=False):
            values[found.name] = text
        stray = rest[len(wanted) :]
        if stray and not values.get("help"):
            names = list(self.names)
            raise OptionConflict(suggestions.stray_word(stray[0], self.path, names))
        return []

    def _split(self, typed: Sequence[str]) -> tuple[list[words.Option], list[str]]:
        left, known = deque(typed), self.names
        options: list[words.Option] = []
        rest: list[str] = []
        while left:
            word = left.popleft()
            if word == "--":
                rest += left
                break
            if not word.startswith("-") or word == "-":
                rest.append(word)
                if self.until_name:
                    rest += left
                    break
                continue
            spelled, equals, text = word.partition("=")
            if spelled in known:
                found = known[spelled]
                value = text if equals else None
                options.append(_option(found, spelled, value, left, known))
            else:
                options += self._letters(word, left)
        return options, rest

    def _letters(self, word: str, left: deque[str]) -> list[words.Option]:
        """Several letters behind one hyphen: flags, the last one perhaps with its text."""
        found: list[words.Option] = []
        known = self.names
        for place, letter in enumerate(word[1:], start=1):
            parameter = known.get(f"-{letter}")
            if parameter is None or word.startswith("--"):
                raise self._unknown(word.partition("=")[0])
            behind = "" if parameter.is_flag else word[place + 1 :]
            found.append(_option(parameter, f"-{letter}", behind or None, left, known))
            if not parameter.is_flag:
                break
        return found

    def _unknown(self, name: str) -> OptionConflict:
        own = list(self.names)
        return OptionConflict(suggestions.unknown_option(name, self.path, own, self.elsewhere()))


def _option(
    parameter: Parameter,
    spelled: str,
    text: str | None,
    left: deque[str],
    known: Mapping[str, Parameter],
) -> words.Option:
    if parameter.is_flag:
        if text is not None:
            raise OptionConflict(f"{spelled} takes no value.")
    elif text is None:
        if not left:
            raise OptionConflict(f"{spelled} needs a value.")
        text = left.popleft()
        if text in known:
            raise OptionConflict(f"{spelled} needs a value; {text} is an option.")
    return words.Option(parameter.opts, spelled, text, repeatable=parameter.kind == "texts")
