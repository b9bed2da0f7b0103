"""Errors as one line on stderr, in the words of the library and with the names of the options.

Rule 1: one line that starts with ``dpacct:`` and names the option, never a traceback.
Rule 2: bad input ends with exit code 2, any other refusal of the library with 1.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import cast

import typer

from dpacct.errors import DpacctError, InvalidParameter

PROGRAM = "dpacct"

LABELS = {
    "epsilon": "--eps",
    "delta": "--delta",
    "rounds": "--rounds",
    "sampling_rate": "--q",
    "noise_multiplier": "--noise",
    "schedule": "--schedule",
    "solve": "--solve",
    "sampling": "--sampling",
    "cohort_size": "--cohort",
    "num_clients": "--clients",
    "adjacency": "--adjacency",
    "accountant": "--accountant",
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
    "model": "--model",
    "method": "METHOD",
    "preset": "--preset",
    "config": "--config",
    "lr": "--local-lr",
    "steps": "--local-steps",
    "epochs": "--local-epochs",
    "batch_size": "--batch-size",
    "momentum": "--momentum",
    "weight_decay": "--weight-decay",
    "lr_decay": "--lr-decay",
    "server_lr": "--server-lr",
    "ledger": "--ledger",
    "resume": "--resume",
    "run": "--run",
    "name": "--name",
    "checkpoint": "--resume",
    "device": "--device",
    "seed": "--seed",
    "public_seed": "--public-seed",
    "vectorize": "--vectorize",
    "eval_every": "--eval-every",
}

# Typer re-exports BadParameter alone; its base is the usage error of whichever click Typer
# runs on (the click package, or the copy inside newer releases of Typer).
UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])


class OptionConflict(DpacctError, ValueError):
    """Options that contradict each other, or of which one is missing."""


def conflict(one: str, other: str, why: str = "") -> OptionConflict:
    """The refusal of two options that cannot both hold."""
    reason = f" ({why})" if why else ""
    return OptionConflict(f"{one} contradicts {other}{reason}. Drop one of them.")


def line(error: DpacctError) -> str:
    """What is wrong with the input, in one line without the name of the program."""
    if not isinstance(error, InvalidParameter):
        return str(error)
    label = LABELS.get(error.name, error.name)
    if error.value is None:
        return f"{label} is missing; {error.rule}."
    return error.describe(label)


def exit_code(error: DpacctError) -> int:
    """2 where the input is at fault, else 1."""
    return 2 if isinstance(error, InvalidParameter | OptionConflict) else 1


def usage_line(error: Exception) -> str:
    """The line for what the parser of options refuses: unknown names and missing values."""
    context = getattr(error, "ctx", None)
    command = PROGRAM if context is None else str(context.command_path)
    option: str | None = getattr(error, "option_name", None)
    if option is not None and not hasattr(error, "possibilities"):
        return f"{option} needs a value."
    if option is not None:
        message = f"{option} is not an option of {command}."
        known: list[str] = list(getattr(error, "possibilities", None) or ())
        near: list[str] = get_close_matches(option, known, n=1, cutoff=0.7)
        if near:
            return f"{message} Did you mean {near[0]}?"
    else:
        text = str(getattr(error, "message", error)).strip()
        message = text[:1].lower() + text[1:]
        if message.endswith("?"):
            return message
        message = message.rstrip(".") + "."
    return f"{message} {command} --help lists what there is."


def print_line(message: str) -> None:
    """Write one line to stderr, whatever the message contains."""
    typer.echo(f"{PROGRAM}: {' '.join(message.split())}", err=True)
