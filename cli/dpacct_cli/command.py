"""A command: what it takes, what it says of itself, and how it is run; and groups of commands.

Rule: only what is invoked is built. A group knows the names of its commands, and imports the one
that is asked for; its help asks for all.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module
from typing import Any

from dpacct_cli import suggestions
from dpacct_cli.errors import OptionConflict, print_line
from dpacct_cli.parameters import Parameter, parameters_of
from dpacct_cli.parsing import Elsewhere, Grammar
from dpacct_cli.terminal import INTERRUPTED
from dpacct_cli.waiting import waiting

HELP = Parameter(
    "flag", ("--help", "-h"), "", "Show this message and exit.", name="help", default=False
)


class Command:
    """A function that a command line calls.

    Attributes:
        path: how it is called: ``dpacct ledger show``.
        function: it; what it takes stands in its annotations.
    """

    def __init__(self, path: str, function: Callable[..., object]) -> None:
        self.path, self.function = path, function

    @cached_property
    def params(self) -> tuple[Parameter, ...]:
        """What it takes, its help last."""
        return (*parameters_of(self.function), HELP)

    @property
    def text(self) -> str:
        """What it says of itself."""
        return self.function.__doc__ or ""

    @property
    def usage(self) -> str:
        """What may follow its name."""
        arguments = [found.metavar for found in self.params if found.is_argument]
        return " ".join(["[OPTIONS]", *arguments])

    def help(self) -> str:
        """Its help, as wide as the terminal."""
        from dpacct_cli.help import Help, sections_of, terminal_columns

        told = Help((self.path, self.usage), self.text, sections_of(self.params))
        return told.render(terminal_columns())

    def run(self, typed: Sequence[str], elsewhere: Elsewhere) -> None:
        """Read the words behind its name, and call the function.

        Raises:
            OptionConflict: the words are not understood. DpacctError: the function refuses.
        """
        values, _ = Grammar(self.path, self.params, elsewhere).read(typed)
        if values.pop("help"):
            print(self.help())
            return
        try:
            # Off while the program is imported.
            gc.enable()
            with waiting(self.path):
                self.function(**values)
        except KeyboardInterrupt:
            print_line("interrupted.")
            raise SystemExit(INTERRUPTED) from None


class Group(Mapping[str, "Command | Group"]):
    """Commands below one name, each made when it is asked for.

    Attributes:
        path: how it is called.
        text: what it says of itself.
        params: the options that stand before a command.

    What commands say of themselves in a sentence may be ``known`` without making them.
    """

    def __init__(
        self,
        path: str,
        text: str,
        makers: Mapping[str, Callable[[], Command | Group]],
        options: Sequence[Parameter] = (),
        known: Mapping[str, str] | None = None,
    ) -> None:
        self.path, self.text = path, text
        self.params = (*options, HELP)
        self._makers, self._known = makers, known or {}
        self._made: dict[str, Command | Group] = {}

    def __getitem__(self, name: str) -> Command | Group:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    @property
    def usage(self) -> str:
        """What may follow its name."""
        return "[OPTIONS] COMMAND [ARGS]..."

    def help(self) -> str:
        """Its help, as wide as the terminal."""
        from dpacct_cli.help import Help, sections_of, terminal_columns

        rows = [(name, self.summary(name)) for name in self]
        sections = [*sections_of(self.params), ("Commands", rows)]
        return Help((self.path, self.usage), self.text, sections).render(terminal_columns())

    def summary(self, name: str) -> str:
        """The first sentence of what a command says of itself."""
        from dpacct_cli.help import summary

        return self._known.get(name) or summary(self[name].text)

    def run(self, typed: Sequence[str], elsewhere: Elsewhere) -> None:
        """Run the command that the words name.

        Raises:
            OptionConflict, DpacctError: as for a command.
        """
        values, rest = self.read(typed, elsewhere)
        if values["help"]:
            print(self.help())
        else:
            self.run_named(rest, elsewhere)

    def read(self, typed: Sequence[str], elsewhere: Elsewhere) -> tuple[dict[str, Any], list[str]]:
        """The values of its own options, and the words from the name of a command on."""
        return Grammar(self.path, self.params, elsewhere, until_name=True).read(typed)

    def run_named(self, rest: Sequence[str], elsewhere: Elsewhere) -> None:
        """Run the command whose name comes first."""
        if not rest:
            way = f"{self.path} --help lists what there is."
            raise OptionConflict(f"missing command. {way}")
        name, *words = rest
        if name not in self:
            raise OptionConflict(suggestions.unknown_command(name, self.path, list(self)))
        self[name].run(words, elsewhere)


def options_below(group: Group) -> dict[str, list[str]]:
    """The names of the options of all commands of a group, by command."""
    found: dict[str, list[str]] = {}
    for below in group.values():
        if isinstance(below, Group):
            found |= options_below(below)
        else:
            found[below.path] = [name for each in below.params for name in each.opts]
    return found


def commands_below(group: Group) -> Iterator[Command | Group]:
    """All commands of a group, groups before their members."""
    for below in group.values():
        yield below
        if isinstance(below, Group):
            yield from commands_below(below)


def imported(path: str, module: str, function: str) -> Callable[[], Command]:
    """A command that a module has."""
    return lambda: Command(path, getattr(import_module(module), function))


def members(path: str, text: str, module: str) -> Callable[[], Group]:
    """A group whose commands a module lists in ``COMMANDS``, by their names."""

    def make() -> Group:
        listed: Mapping[str, Callable[..., object]] = import_module(module).COMMANDS
        return Group(
            path,
            text,
            {name: partial(Command, f"{path} {name}", each) for name, each in listed.items()},
        )

    return make
