"""Errors as one line on stderr, in the words of the library and with the names of the options.

Rule 1: one line that starts with ``dpacct:`` and names the option as it was typed, never a
traceback.
Rule 2: bad input ends with exit code 2, any other refusal of the library with 1.
Rule 3: a text that is no number is called that, before any range is mentioned.
Rule 4: a suggestion, for a name that no command knows or a text that is no number, is a synonym, or
a name with nearly the same spelling. If neither is near, there is none, and the line names --help
instead.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from importlib.util import find_spec

from dpacct.display import escaped
from dpacct.errors import DpacctError, InvalidParameter, Unsupported
from dpacct.synonyms import ELSEWHERE, bare, meant_name
from dpacct_cli import waiting, words
from dpacct_cli.words import OptionConflict, conflict

# Names of other libraries for options that the table of items does not name.
MEANINGS = {
    "maxgradnorm": "--clip-norm", "clipping": "--clip-norm", "l2normclip": "--clip-norm",
    "file": "--schedule", "method": "--accountant", "accounting": "--accountant",
    "alpha": "--orders", "alphas": "--orders", "lr": "--local-lr", "learningrate": "--local-lr",
    "silent": "--quiet", "out": "--output",
}  # fmt: skip


def meant_value(text: str, rule: str) -> str:
    """Return which of the words after ``one of`` in a broken rule is meant, as a question."""
    _, listed, words = rule.partition("one of ")
    choices = [word.strip() for word in words.split(",")] if listed else []
    same = [choice for choice in choices if bare(choice) == bare(text)]
    # fedavg is dp-fedavg before it is fedavg-smoothed.
    same += [choice for choice in choices if choice == f"dp-{text.lower()}"]
    begun = [choice for choice in choices if len(text) > 2 and choice.startswith(text.lower())]
    meant = next(iter([*same, *begun]), "") or meant_name(text, choices)
    return f"Did you mean {meant}?" if meant else ""


def meant_number(text: str, rule: str) -> str:
    """Return a question on per cents or a decimal comma, or an empty text."""
    typed = text.strip()
    percent = _number(typed.removesuffix("%").strip())
    if typed.endswith("%") and percent is not None and re.search(r"lies in [(\[]0, 1[)\]]", rule):
        return f"Did you mean {float(percent / 100):.12g} ({float(percent):.12g} %)?"
    point = typed.replace(",", ".")
    if point != typed and "a whole number" not in rule and _number(point) is not None:
        return f"Did you mean {point}? Decimals follow a point."
    return ""


def _number(text: str) -> Decimal | None:
    try:
        decimal = Decimal(text)
    except InvalidOperation:
        return None
    return decimal if decimal.is_finite() else None


def unknown_option(name: str, program: str, known: Sequence[str]) -> str:
    """Return the sentences for an option that a command does not have."""
    from dpacct.items import OPTIONS

    # The names that other libraries have for a key, by the option of the key.
    named = {OPTIONS[key].option.split()[0]: key for key in ELSEWHERE if key in OPTIONS}
    named |= {"--eps": "epsilon"} | {f"--{key}": key for key in ELSEWHERE}
    names = {named.get(word, word): word for word in known}
    option = MEANINGS.get(bare(name), "")
    meant = option if option in known else names.get(meant_name(name.lstrip("-"), names), "")
    meant = meant or meant_name(name, known)
    more = f"Did you mean {meant}?" if meant else f"{program} --help lists all options."
    return f"{name} is not an option of {program}. {more}"


def unknown_command(name: str, program: str, known: Sequence[str]) -> str:
    """Return the sentences for a command that does not exist."""
    meant = meant_name(name, known) or next((one for one in known if name.startswith(one)), "")
    more = f"Did you mean {program} {meant}?" if meant else f"{program} --help lists all commands."
    return f"{name!r} is not a command of {program}. {more}"


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
        hint = meant_number(value if text is None else text, rule) or hint
    elif isinstance(value, int | float) and text and (typed := _typed_part(text, value)):
        shown = words.shortened(typed)
    else:
        if isinstance(value, str) and not hint:
            hint = meant_value(value, rule)
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
