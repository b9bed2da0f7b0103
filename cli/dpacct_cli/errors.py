"""Errors as one line on stderr, in the words of the library and with the names of the options.

Rule 1: one line that starts with ``dpacct:`` and names the option as it was typed, never a
traceback.
Rule 2: bad input ends with exit code 2, any other refusal of the library with 1.
Rule 3: a text that is no number is called that, before any range is spoken of.
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

PROGRAM = "dpacct"

LABELS = {
    "epsilon": "--eps",
    "delta": "--delta",
    "rounds": "--rounds",
    "sampling_rate": "--q",
    "noise_multiplier": "--noise",
    "schedule": "--schedule",
    "claims": "FILE",
    "claim": "--claim",
    "report": "FILE",
    "path": "FILE",
    "solve": "--solve",
    "sampling": "--sampling",
    "cohort_size": "--cohort",
    "num_clients": "--clients",
    "public_size": "--public-size",
    "adjacency": "--adjacency",
    "accountant": "--accountant",
    "gap": "--gap",
    "orders": "--orders",
    "advantage": "--advantage",
    "tpr": "--tpr",
    "fpr": "--fpr",
    "prior": "--prior",
    "clip_norm": "--clip",
    "data": "--data",
    "data_dir": "--data-dir",
    "partition": "--partition",
    "concentration": "--partition",
    "hold_out": "--hold-out",
    "model": "--model",
    "method": "METHOD",
    "preset": "--preset",
    "config": "--config",
    "lr": "--local-lr",
    "steps": "--local-steps",
    "epochs": "--local-epochs",
    "num_epochs": "--epochs",
    "batch_size": "--batch-size",
    "momentum": "--momentum",
    "weight_decay": "--weight-decay",
    "lr_decay": "--lr-decay",
    "total_lr": "--local-total-lr",
    "server_lr": "--server-lr",
    "server_optimizer": "--server",
    "ledger": "--ledger",
    "resume": "--resume",
    "run": "--run",
    "unit": "--unit",
    "name": "--name",
    "checkpoint": "--resume",
    "device": "--device",
    "seed": "--seed",
    "public_seed": "--public-seed",
    "vectorize": "--vectorize",
    "eval_every": "--eval-every",
    "canaries": "--canaries",
    "others": "--others",
    "error": "--error",
    "confidence": "--confidence",
}
# Parameters whose values are numbers, by what kind of number helps to guess what was meant.
SHARES = {
    "sampling_rate", "hold_out", "delta", "advantage", "tpr", "fpr", "prior", "momentum", "error",
    "confidence",
}  # fmt: skip
WHOLE = {
    "rounds", "cohort_size", "num_clients", "public_size", "steps", "epochs", "batch_size", "seed",
    "public_seed", "eval_every", "canaries",
}  # fmt: skip
REALS = {
    "epsilon", "claim", "noise_multiplier", "num_epochs", "orders", "clip_norm", "lr",
    "weight_decay", "lr_decay", "server_lr",
}  # fmt: skip
LISTS = {"orders", "fpr"}


def line(error: DpacctError) -> str:
    """What is wrong with the input, in one line without the name of the program."""
    if not isinstance(error, InvalidParameter):
        return str(error)
    label = words.spelling(LABELS.get(error.name, error.name))
    value, hint = error.value, error.hint.replace("public_size=", "--public-size")
    if value is None:
        rule = error.rule.removeprefix("it has to be a number, not nothing: ")
        return f"{label} is missing; {words.in_units(rule)}."
    typed = _typed(label, value)
    if isinstance(value, str) and error.name in SHARES | WHOLE | REALS:
        shown = _not_a_number(label, value)
        hint = _meant(error.name, value, words.text_of(label)) or hint
    elif isinstance(value, int | float) and typed is not None:
        shown = f"{words.shortened(typed)}{_beyond(typed, value)}"
    else:
        if isinstance(value, str) and not hint:
            hint = suggestions.meant_value(value, error.rule)
        return InvalidParameter(label, value, error.rule, hint).describe(label)
    # That it is no number has been said.
    rule = error.rule.removeprefix("it has to be a number, not text: ")
    sentence = f"{label} is {shown}; {words.in_units(rule)}."
    return f"{sentence} {hint}" if hint else sentence


def _typed(label: str, value: object) -> str | None:
    """The text, or the part of a list, that was typed for a value."""
    text = words.text_of(label)
    if text is None:
        return None
    parts = [part.strip() for part in (text, *text.split(","))]
    same = (part for part in parts if _same(words.number(part), value))
    return next(same, None)


def _beyond(text: str, value: float) -> str:
    """What became of a number that no floating-point number is near."""
    if value == 0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        return ", which is so small that it is read as 0"
    if math.isinf(value) and "inf" not in text.lower():
        return ", which is so large that it is read as infinite"
    return ""


def _not_a_number(label: str, value: str) -> str:
    if value.strip():
        return f"{words.quoted(value)}, which is not a number"
    whole = words.text_of(label) or ""
    return f"{words.quoted(whole)}, where a number is missing" if whole.strip() else "empty"


def _same(one: object, other: object) -> bool:
    return one == other or (one != one and other != other)  # noqa: PLR0124 - NaN, which is not its own equal


def _meant(name: str, value: str, text: str | None) -> str:
    if name in LISTS and (found := suggestions.meant_numbers(value)):
        return found
    # A part of a list cannot hold the comma that it was split at.
    return suggestions.meant_number(
        value if name in LISTS or text is None else text, share=name in SHARES, whole=name in WHOLE
    )


def exit_code(error: DpacctError) -> int:
    """2 where the input is at fault, else 1."""
    return 2 if isinstance(error, InvalidParameter | OptionConflict) else 1


def print_line(message: str) -> None:
    """Write one line to stderr, whatever the message contains."""
    waiting.end()
    whole = escaped(" ".join(message.split()))
    shown = re.sub(rf"[^\s;']{{{words.LONGEST},}}", lambda word: words.shortened(word[0]), whole)
    print(f"{PROGRAM}: {shown}", file=sys.stderr)
