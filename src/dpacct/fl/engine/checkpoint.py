"""The file of a checkpoint: a run writes one after a round, and goes on from it.

Rule 1: a file under its final name is complete. Rule 2: it is read by ``torch.load`` with
``weights_only=True``, so it can hold no code, and each value is of its kind: somebody else may have
written it. A run goes on only from a checkpoint of its own setting, model and ledger.
Rule 3: the generator's state is kept for seeded runs alone. A private run draws again, so that
noise is never used twice. Correlated noise needs its seed and its last rows: the ledger gives out
each row once. Random allocation needs its seed for the rest of an epoch. Rule 4: a checkpoint with
client memories holds private values, one with noise unveils the sums, one with an allocation the
cohorts. They are readable by their owner alone (mode 0600). Guard them like the data.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypedDict, cast, get_args, get_origin, get_type_hints, is_typeddict

import torch
from torch import Tensor, nn

from dpacct.errors import InvalidParameter
from dpacct.files import write_file
from dpacct.fl.layout import Params, trainable
from dpacct.fl.privacy.account import Saved
from dpacct.fl.tensors import load_saved
from dpacct.fl.training.choose import TrainingMode
from dpacct.ledger import Position

VERSION = 3


class _Noise(TypedDict):
    """The state of correlated noise."""

    seed: str
    row: int
    memory: list[Tensor]


class _Content(TypedDict):
    """The values of a checkpoint and their kinds."""

    version: int
    setting: str
    round: int
    params: dict[str, Tensor]
    server_state: dict[str, Tensor]
    client_states: dict[int, dict[str, Tensor]]
    num_clients: int | None
    clip_norm: float | int
    released: Tensor | None
    run: int | None
    charged: int
    committed: int
    ledger: Position | None
    randomness: str | None
    training: TrainingMode | None
    noise: _Noise | None
    allocation: str | None


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value that was read is of a kind, and its parts are of theirs."""
    parts = get_args(kind)
    if get_origin(kind) is UnionType:
        return any(_fits(value, part) for part in parts)
    if get_origin(kind) is list:
        return type(value) is list and all(_fits(one, *parts) for one in cast("list[Any]", value))
    if get_origin(kind) is dict:
        return type(value) is dict and all(
            _fits(key, parts[0]) and _fits(one, parts[1])
            for key, one in cast("dict[Any, Any]", value).items()
        )
    if kind is Tensor:
        # A view of one number may be of any size, until something fills it.
        dense = isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta
        return dense and value.untyped_storage().nbytes() >= value.nbytes
    if is_dataclass(kind) or is_typeddict(kind):
        kinds = get_type_hints(kind)
        same = type(value) is dict and value.keys() == kinds.keys()
        return same and all(_fits(value[name], of) for name, of in kinds.items())
    return type(value) is kind and (kind is not int or value >= 0)


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write the content of a checkpoint completely, or not at all."""
    versioned = {"version": VERSION} | content
    write_file(
        path,
        lambda stream: torch.save(versioned, stream),
        name="checkpoint",
        replace=True,
        owner_only=any(content.get(key) for key in ("client_states", "noise", "allocation")),
    )


def read_checkpoint(path: Path, device: torch.device | str) -> dict[str, Any]:
    """Return the content that `write_checkpoint` wrote, with its tensors on the device.

    A missing file, and one that is no checkpoint of this version, is an InvalidParameter.
    """
    loaded = load_saved("checkpoint", path, "a checkpoint", device)
    content = cast("dict[str, Any]", loaded)
    if not isinstance(loaded, dict) or "version" not in content:
        raise InvalidParameter("checkpoint", str(path), "it cannot be read as a checkpoint")
    version = content["version"]
    if type(version) is not int or version != VERSION:
        rule = f"it is of version {version!r:.20}, and this dpacct reads version {VERSION}"
        raise InvalidParameter("checkpoint", str(path), rule)
    for name, kind in get_type_hints(_Content).items():
        if name not in content or not _fits(content[name], kind):
            raise InvalidParameter("checkpoint", str(path), f"its {name} is of another kind")
    return content


def saved_in(content: dict[str, Any]) -> Saved | None:
    """Return the position of a checkpoint's run in its ledger, or None before it was started."""
    if content["run"] is None or content["ledger"] is None:
        return None
    position = Position(**content["ledger"])
    return Saved(content["run"], content["charged"], content["committed"], position)


def load_parameters(content: dict[str, Any], path: Path, model: nn.Module) -> None:
    """Copy the trained parameters of a checkpoint into the model that they belong to."""
    params = tensors_of(content["params"], trainable(model), path)
    with torch.no_grad():
        for name, value in params.items():
            model.get_parameter(name).copy_(value)


def tensors_of(values: Params, like: Params, path: Path) -> Params:
    """Return parameters with the names and shapes of the model here."""
    theirs = {name: tuple(value.shape) for name, value in values.items()}
    ours = {name: tuple(value.shape) for name, value in like.items()}
    if theirs != ours:
        rule = f"its params are {theirs}, and the model here has {ours}"
        raise InvalidParameter("checkpoint", str(path), rule[:500])
    return values
