"""Completion in bash, zsh and fish: of commands, options, and the values that are known.

A shell runs `dpacct` with `_DPACCT_COMPLETE` set to its name and with the words up to the cursor,
the last of them unfinished, and reads one line for each way to go on: ``file`` or ``dir`` (the
shell knows its files best), or ``plain``, a value and, behind tabs, what it means.

Rule: nothing is computed, and words that make no sense complete to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpacct.errors import InvalidParameter
from dpacct_cli.command import Command, Group
from dpacct_cli.parameters import Parameter

BASH = """\
_dpacct_completion() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case "$line" in
            file) compopt -o default ;;
            dir) compopt -o dirnames ;;
            plain*) line="${line#plain$'\\t'}"; COMPREPLY+=("${line%%$'\\t'*}") ;;
        esac
    done < <(_DPACCT_COMPLETE=bash "$1" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o nosort -F _dpacct_completion dpacct
"""
ZSH = """\
#compdef dpacct
_dpacct_completion() {
    local line value meaning
    local -a found
    local -a typed=("${(@)words[2,CURRENT]}")
    for line in "${(@f)$(_DPACCT_COMPLETE=zsh ${words[1]} "${typed[@]}" 2>/dev/null)}"; do
        case "$line" in
            file) _files ;;
            dir) _files -/ ;;
            plain*)
                line="${line#plain$'\\t'}"
                value="${line%%$'\\t'*}"
                meaning="${line#*$'\\t'}"
                found+=("${value//:/\\\\:}${meaning:+:$meaning}") ;;
        esac
    done
    if (( $#found )); then _describe -V dpacct found; fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _dpacct_completion "$@"
else
    compdef _dpacct_completion dpacct
fi
"""
FISH = """\
function __dpacct_completion
    set -l typed (commandline -opc) (commandline -ct)
    for line in (env _DPACCT_COMPLETE=fish $typed[1] $typed[2..-1] 2>/dev/null)
        switch $line
            case file
                __fish_complete_path (commandline -ct)
            case dir
                __fish_complete_directories (commandline -ct)
            case 'plain*'
                string replace -r '^plain\\t' '' -- $line
        end
    end
end
complete --command dpacct --no-files --arguments '(__dpacct_completion)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
FILE, FOLDER = "file", "dir"


@dataclass(frozen=True, slots=True)
class Completion:
    """One way to go on.

    Attributes:
        value: the whole word.
        meaning: a few words for the shells that show them.
    """

    value: str
    meaning: str = ""

    def line(self) -> str:
        """As the scripts read it."""
        return f"plain\t{self.value}\t{self.meaning}"


def print_script(shell: str) -> None:
    """Print what a shell reads when it starts.

    Raises:
        InvalidParameter: there is no script for it.
    """
    if shell not in SCRIPTS:
        rule = f"a shell is one of {', '.join(SCRIPTS)}"
        raise InvalidParameter("--show-completion", shell, rule)
    print(SCRIPTS[shell], end="")


def print_completions(root: Group, shell: str, typed: Sequence[str]) -> None:
    """Answer a script; ``typed`` ends with the word that is unfinished."""
    for found in completions(root, typed or [""], by_parts=shell == "bash"):
        print(found if isinstance(found, str) else found.line())


def completions(
    root: Group, typed: Sequence[str], *, by_parts: bool = False
) -> Iterator[Completion | str]:
    """All ways to finish the last word: what is known, `FILE` or `FOLDER`.

    Args:
        root: the program.
        typed: behind its name; the last word is the one to finish, and may be empty.
        by_parts: the shell takes ``--option=value`` for three words.
    """
    command, before = _command(root, typed[:-1])
    word = typed[-1]
    if by_parts and word == "=":
        before, word = [*before, word], ""
    waiting = _waiting(command, before)
    if waiting is not None:
        yield from _values(waiting, word, "")
        return
    name, equals, begun = word.partition("=")
    option = {name: each for each in command.params for name in each.opts}.get(name)
    if equals and option is not None:
        yield from _values(option, begun, f"{name}=")
        return
    if word.startswith("-"):
        yield from _options(command, before, word)
    elif isinstance(command, Group):
        for name in command:
            if name.startswith(word):
                yield Completion(name, command.summary(name))
    else:
        arguments = [each for each in command.params if each.is_argument]
        for each in arguments:
            yield from _values(each, word, "")
        if not arguments and not word:
            yield from _options(command, before, word)


def _command(root: Group, typed: Sequence[str]) -> tuple[Command | Group, list[str]]:
    """The command that the words name, and those behind it."""
    found: Command | Group = root
    words = list(typed)
    while words and isinstance(found, Group) and words[0] in found:
        found = found[words.pop(0)]
    return found, words


def _waiting(command: Command | Group, before: Sequence[str]) -> Parameter | None:
    """The option whose value comes next."""
    words = [word for word in before if word != "="]
    known = {name: each for each in command.params for name in each.opts}
    last = known.get(words[-1]) if words else None
    return None if last is None or last.is_flag else last


def _options(command: Command | Group, before: Sequence[str], word: str) -> Iterator[Completion]:
    used = {word.partition("=")[0] for word in before}
    for each in command.params:
        again = each.kind == "texts" or not used & set(each.opts)
        begun = [name for name in each.opts if name.startswith(word)]
        # The documented name, unless another one was begun.
        if begun and again:
            yield Completion(begun[0], each.help)


def _values(parameter: Parameter, word: str, lead: str) -> Iterator[Completion | str]:
    several = parameter.metavar.endswith(",...")
    done, comma, begun = word.rpartition(",") if several else ("", "", word)
    for value in parameter.values():
        if value.startswith(begun):
            yield Completion(f"{lead}{done}{comma}{value}")
    if "FILE" in parameter.metavar:
        yield FILE
    if parameter.metavar == "DIR":
        yield FOLDER
