"""Suggestions: for a name that no command knows, and for a text that is no number.

Rule: a suggestion is a synonym, or a name with nearly the same spelling. If neither is near, there
is none, and the line names --help instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

NEAR = 0.75

# Names of other libraries, by the intended option. The first one that the command has counts.
MEANINGS = {
    "--eps": "epsilon targetepsilon budget",
    "--delta": "targetdelta",
    "--epochs": "numepochs",
    "--rounds": "steps numsteps iterations numrounds epochs compositions",
    "--q": "samplingrate samplerate rate samplingprobability fraction",
    "--noise": "noisemultiplier sigma noisescale std",
    "--clip-norm": "maxgradnorm clipping l2normclip",
    "--batch": "batchsize lotsize",
    "--cohort": "cohortsize clientsperround batchsize lotsize",
    "--examples": "numexamples datasetsize samplesize",
    "--clients": "numclients population users numusers datasetsize",
    "--schedule": "file",
    "--accountant": "method accounting",
    "--orders": "alpha alphas",
    "--local-lr": "lr learningrate",
    "--quiet": "silent",
    "--output": "out",
}


def _bare(name: str) -> str:
    return re.sub(r"[-_\s]", "", name).lower()


def near(name: str, names: Sequence[str]) -> str:
    """Return the name with nearly the same spelling, or an empty text."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name.lower(), names, n=1, cutoff=NEAR)), "")


def meant_value(text: str, rule: str) -> str:
    """Return which of the words after ``one of`` in a broken rule is meant, as a question."""
    _, listed, words = rule.partition("one of ")
    choices = [word.strip() for word in words.split(",")] if listed else []
    same = [choice for choice in choices if _bare(choice) == _bare(text)]
    # fedavg is dp-fedavg before it is fedavg-smoothed.
    same += [choice for choice in choices if choice == f"dp-{text.lower()}"]
    begun = [choice for choice in choices if len(text) > 2 and choice.startswith(text.lower())]
    found = next(iter([*same, *begun]), "") or near(text, choices)
    return f"Did you mean {found}?" if found else ""


def meant_number(text: str, rule: str) -> str:
    """Return a question on per cents or a decimal comma, or an empty text."""
    bare = text.strip()
    percent = _number(bare.removesuffix("%").strip())
    if bare.endswith("%") and percent is not None and re.search(r"lies in [(\[]0, 1[)\]]", rule):
        return f"Did you mean {float(percent / 100):.12g} ({float(percent):.12g} %)?"
    point = bare.replace(",", ".")
    if point != bare and "a whole number" not in rule and _number(point) is not None:
        return f"Did you mean {point}? Decimals follow a point."
    return ""


def _number(text: str) -> Decimal | None:
    try:
        found = Decimal(text)
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


def unknown_option(name: str, program: str, known: Sequence[str]) -> str:
    """Return the sentences for an option that a command does not have."""
    bare = _bare(name)
    meant = [word for word in known if _bare(word) == bare and word.startswith("--")]
    meant += [word for word, others in MEANINGS.items() if bare in others.split() and word in known]
    found = next(iter(meant), "") or near(name, known)
    more = f"Did you mean {found}?" if found else f"{program} --help lists all options."
    return f"{name} is not an option of {program}. {more}"


def unknown_command(name: str, program: str, known: Sequence[str]) -> str:
    """Return the sentences for a command that does not exist."""
    found = near(name, known)
    more = f"Did you mean {program} {found}?" if found else f"{program} --help lists all commands."
    return f"{name!r} is not a command of {program}. {more}"
