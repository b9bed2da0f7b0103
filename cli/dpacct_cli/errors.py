"""Errors as one line on stderr, in the words of the library and with the names of the options.

Rule 1: one line that starts with ``dpacct:`` and names the option as it was typed, never a
traceback.
Rule 2: bad input ends with exit code 2, any other refusal of the library with 1.
Rule 3: a text that is no number is called that, before any range is mentioned.
"""

from __future__ import annotations

import math
import re
import sys

from dpacct.display import escaped
from dpacct.errors import DpacctError, InvalidParameter
from dpacct_cli import suggestions, waiting, words
from dpacct_cli.words import OptionConflict, conflict

__all__ = ["OptionConflict", "conflict", "exit_code", "line", "print_line"]

# The option of a parameter of the library, if it is not the name with dashes.
LABELS = {
    "epsilon": "--eps",
    "sampling_rate": "--q",
    "min_separation": "--separation",
    "groups": "--separation",
    "buffers": "--bands",
    "noise_multiplier": "--noise",
    "claims": "FILE",
    "report": "FILE",
    "path": "FILE",
    "cohort_size": "--cohort",
    "num_clients": "--clients",
    "clip_norm": "--clip",
    "concentration": "--partition",
    "method": "METHOD",
    "lr": "--local-lr",
    "steps": "--local-steps",
    "epochs": "--local-epochs",
    "num_epochs": "--epochs",
    "total_lr": "--local-total-lr",
    "server_optimizer": "--server",
    "checkpoint": "--resume",
    "max_cohort": "--max-cohort",
    "best_of": "--best-of",
    "partitions": "--partition",
}
SAME_NAMES = {
    "accountant", "adjacency", "advantage", "bands", "batch_size", "canaries", "claim",
    "confidence", "correlated", "participations", "records", "steps",
    "config", "data", "data_dir", "delta", "device", "error", "eval_every", "fpr", "gap",
    "hold_out", "ledger", "lr_decay", "model", "momentum", "name", "orders", "others",
    "partition", "preset", "prior", "project", "promised_delta", "public_seed", "public_size",
    "resume", "rounds", "run",
    "sampling", "schedule", "schema", "seed", "server_lr", "single_round", "solve",
    "tpr", "unit", "vectorize",
    "weight_decay",
}  # fmt: skip
# Parameters with numbers as values. The kind of number helps to guess the intended option.
SHARES = {
    "sampling_rate", "hold_out", "delta", "advantage", "tpr", "fpr", "prior", "momentum",
    "error", "confidence",
}  # fmt: skip
WHOLE = {
    "bands", "buffers", "min_separation", "participations",
    "rounds", "cohort_size", "num_clients", "public_size", "steps", "epochs", "batch_size",
    "seed", "public_seed", "eval_every", "canaries", "single_round",
}  # fmt: skip
REALS = {
    "epsilon", "claim", "noise_multiplier", "num_epochs", "orders", "clip_norm", "lr",
    "weight_decay", "lr_decay", "server_lr",
}  # fmt: skip
LISTS = {"orders", "fpr"}


def line(error: DpacctError) -> str:
    """Describe the invalid input in one line without the name of the program."""
    if not isinstance(error, InvalidParameter):
        return str(error)
    name, value, hint = error.name, error.value, error.hint
    same = f"--{name.replace('_', '-')}" if name in SAME_NAMES else name
    label = words.spelling(LABELS.get(name, same))
    if label == "FILE" and isinstance(value, str):
        label = words.spelling_of_file(value) or label
    hint = hint.replace("public_size=", "--public-size")
    if value is None:
        rule = error.rule.removeprefix("it has to be a number, not nothing: ")
        return f"{label} is missing; {words.in_units(rule)}."
    text = words.text_of(label)
    typed = None if text is None else _typed_part(text, value)
    if isinstance(value, str) and name in SHARES | WHOLE | REALS:
        if value.strip():
            shown = f"{words.quoted(value)}, which is not a number"
        elif (text or "").strip():
            shown = f"{words.quoted(text or '')}, where a number is missing"
        else:
            shown = "empty"
        hint = _meant(name, value, text) or hint
    elif isinstance(value, int | float) and typed is not None:
        shown = f"{words.shortened(typed)}{_beyond(typed, value)}"
    else:
        if isinstance(value, str) and not hint:
            hint = suggestions.meant_value(value, error.rule)
        return InvalidParameter(label, value, error.rule, hint).describe(label)
    # That it is no number has been said.
    rule = error.rule.removeprefix("it has to be a number, not text: ")
    return f"{label} is {shown}; {words.in_units(rule)}. {hint}".rstrip()


def _typed_part(text: str, value: object) -> str | None:
    """Return the text of a value, or of one in a list with commas. NaN equals NaN here."""
    for part in (text, *text.split(",")):
        number: object = words.number(part.strip())
        if number == value or (number != number and value != value):  # noqa: PLR0124 - NaN
            return part.strip()
    return None


def _beyond(text: str, value: float) -> str:
    """Describe the rounding of a number that no floating-point number is near."""
    if value == 0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        return ", which is so small that it is read as 0"
    if math.isinf(value) and "inf" not in text.lower():
        return ", which is so large that it is read as infinite"
    return ""


def _meant(name: str, value: str, text: str | None) -> str:
    if name in LISTS and (found := suggestions.meant_numbers(value)):
        return found
    # A part of a list cannot hold the comma that it was split at.
    return suggestions.meant_number(
        value if name in LISTS or text is None else text, share=name in SHARES, whole=name in WHOLE
    )


def exit_code(error: DpacctError) -> int:
    """Return 2 if the input is at fault, else 1."""
    return 2 if isinstance(error, InvalidParameter | OptionConflict) else 1


def print_line(message: str) -> None:
    """Write one line of printable text to stderr."""
    waiting.end()
    whole = escaped(" ".join(message.split()))
    shown = re.sub(rf"[^\s;']{{{words.LONGEST},}}", lambda word: words.shortened(word[0]), whole)
    print(f"dpacct: {shown}", file=sys.stderr)
