"""Errors as one line on stderr, in the words of the library and with the names of the options.

Rule 1: one line that starts with ``dpacct:`` and names the option as it was typed, never a
traceback.
Rule 2: bad input ends with exit code 2, any other refusal of the library with 1.
Rule 3: a text that is no number is called that, before any range is mentioned.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec

from dpacct.display import escaped
from dpacct.errors import DpacctError, InvalidParameter, Unsupported
from dpacct_cli import suggestions, waiting, words
from dpacct_cli.words import OptionConflict, conflict

__all__ = ["OptionConflict", "conflict", "exit_code", "line", "print_line", "require_torch"]

# The option of a parameter of the library, unless it is its name with dashes or the table of items
# has it.
LABELS = {
    "epsilon": "--eps",
    "groups": "--separation",
    "buffers": "--bands",
    "claims": "FILE",
    "report": "FILE",
    "path": "FILE",
    "clip_norms": "--clip-norm",
    "quantile": "--adaptive-clip",
    "indicator_noise": "the noise of the indicators of --adaptive-clip",
    "concentration": "--partition",
    "method": "METHOD",
    "lr": "--local-lr",
    "epochs": "--local-epochs",
    "num_epochs": "--epochs",
    "server_optimizer": "--server",
    "checkpoint": "--resume",
}
# How the library begins its rule for a text or for nothing where it takes a number.
# Of an address of a database, as it was typed.
_PASSWORD = re.compile(r"(postgres(?:ql)?://[^:/@#\s]*):[^@\s]*(?=@)|(?<=password=)[^&#\s]*")
NO_NUMBER, NOTHING = (f"it has to be a number, not {kind}: " for kind in ("text", "nothing"))


def line(error: DpacctError) -> str:
    """Describe the invalid input in one line without the name of the program."""
    if not isinstance(error, InvalidParameter):
        return str(error)
    value, hint = error.value, error.hint.replace("public_size=", "--public-size")
    label = words.spelling(_option_of(error.name, value))
    if label == "FILE" and isinstance(value, str):
        label = words.spelling_of_file(value) or label
    if value is None:
        return f"{label} is missing; {words.in_units(error.rule.removeprefix(NOTHING))}."
    text = words.text_of(label)
    rule = error.rule.removeprefix(NO_NUMBER)
    if isinstance(value, str) and rule != error.rule:
        shown = f"{words.quoted(value if value.strip() else text or value)}, which is not a number"
        hint = suggestions.meant_number(value if text is None else text, rule) or hint
    elif isinstance(value, int | float) and text and (typed := _typed_part(text, value)):
        shown = words.shortened(typed)
    else:
        if isinstance(value, str) and not hint:
            hint = suggestions.meant_value(value, rule)
        return InvalidParameter(label, value, rule, hint).describe(label)
    return f"{label} is {shown}; {words.in_units(rule)}. {hint}".rstrip()


def _option_of(name: str, value: object) -> str:
    """Return the option of a parameter. A name that no option has stays as it is."""
    from dpacct.items import OPTIONS

    if name in LABELS or not (name.isidentifier() and name.islower()):
        return LABELS.get(name, name)
    option = f"--{name.replace('_', '-')}"
    if name != "steps" and name in {*OPTIONS, "adjacency", "sampling", "schedule"}:
        option = OPTIONS[name].option.split()[0] if name in OPTIONS else option
        # What was not typed was computed, or is a default.
        return name if value is not None and words.text_of(option) is None else option
    if name == "steps":
        # The steps of an epoch, or those of a client in training.
        text = words.text_of(option)
        return option if text is not None and _typed_part(text, value) else "--local-steps"
    return option if words.has_option(option) else name


def _typed_part(text: str, value: object) -> str | None:
    """Return the text of a value, or of one in a list with commas. NaN equals NaN here."""
    for part in (text, *text.split(",")):
        number: object = words.number(part.strip())
        if number == value or (number != number and value != value):  # noqa: PLR0124 - NaN
            return part.strip()
    return None


def require_torch(what: str) -> None:
    """Refuse what needs PyTorch if it is missing, before anything is read."""
    if find_spec("torch") is None:
        from dpacct.packages import install_command

        raise Unsupported(f"{what} PyTorch, which is not installed: {install_command('fl')}")


def exit_code(error: DpacctError) -> int:
    """Return 2 if the input is at fault, else 1."""
    return 2 if isinstance(error, InvalidParameter | OptionConflict) else 1


def print_line(message: str) -> None:
    """Write one line of printable text to stderr."""
    waiting.end()
    whole = _PASSWORD.sub(r"\1", escaped(" ".join(message.split())))
    shown = re.sub(rf"[^\s;']{{{words.LONGEST},}}", lambda word: words.shortened(word[0]), whole)
    print(f"dpacct: {words.shortened(shown, words.LONGEST_LINE)}", file=sys.stderr)
