"""Runs that protect single examples: what is not typed for them, and what makes no sense there.

Rule: an example takes one step in a round, whose length the server's rate decides. Options of local
training are refused, not ignored.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpacct_cli.errors import OptionConflict, conflict

Values = Mapping[str, str]

FOR_CLIENTS: Mapping[str, str] = {
    "clients": "every example counts by itself",
    "partition": "with --examples no client holds the examples",
    "local_lr": "--server-lr is the learning rate",
    "local_total_lr": "--server-lr is the learning rate",
    "local_epochs": "an example takes one step in a round; --epochs says how long all of it takes",
    "local_steps": "an example takes one step in a round",
    "batch_size": "--batch says how many examples a round has",
    "momentum": "an example takes one step in a round; --server momentum remembers",
    "weight_decay": "it would be clipped with each example's gradient",
    "lr_decay": "it would be clipped with each example's gradient",
}

COMMON: Values = {
    "data": "digits",
    "model": "logistic",
    "rounds": "200",
    "q": "0.05",
    "eps": "8",
    "clip_norm": "1",
    "server_lr": "1",
    "device": "auto",
    "public_seed": "0",
}

_IMAGES: Values = {"rounds": "300", "q": "0.01", "server_lr": "2"}

DEFAULTS: Mapping[str, Values] = {
    "digits": {},
    "mnist": _IMAGES,
    "fashion-mnist": _IMAGES,
    "cifar10": _IMAGES | {"model": "cnn-small", "server_lr": "0.5"},
    "femnist": _IMAGES,
    "shakespeare": {"model": "lstm-small"},
    "adult": {},
}


def refuse(examples: str | None, typed: Values, written: Values, preset: str | None) -> None:
    """Options that have no meaning for the unit that is protected.

    Args:
        examples: whether single examples are. typed, written: on the command line, in a file.
        preset: name of published settings.
    Raises:
        OptionConflict: there is one.
    """
    for layer, dashes in ((typed, "--"), (written, "")):
        for key, why in FOR_CLIENTS.items():
            if examples and layer.get(key):
                name = dashes + (key.replace("_", "-") if dashes else key)
                raise conflict(f"{name} {layer[key]}", "--examples", why)
        if not examples and layer.get("epochs"):
            raise OptionConflict(
                f"{dashes}epochs {layer['epochs']} needs --examples: passes over all of them. "
                "--local-epochs are a client's own."
            )
    if examples and preset is not None:
        why = "presets are for clients"
        raise conflict(f"--preset {preset}", "--examples", why)
