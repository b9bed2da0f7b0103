"""Suggestions: for a name that no command knows, and for a text that is no number.

Rule: a suggestion is a synonym, or a name with nearly the same spelling. If neither is near, there
is none, and the line names --help instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

from dpacct.synonyms import ELSEWHERE, bare, meant_name

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
    meant = meant_name(name, known)
    more = f"Did you mean {program} {meant}?" if meant else f"{program} --help lists all commands."
    return f"{name!r} is not a command of {program}. {more}"
