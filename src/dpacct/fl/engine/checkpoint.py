"""Checkpoints: a run writes one after a round, and goes on from it.

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

from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, TypedDict, cast, get_args, get_origin, get_type_hints, is_typeddict

import torch
from torch import Tensor, nn

from dpacct.errors import InvalidParameter
from dpacct.files import write_file
from dpacct.fl.engine.rounds import Rounds
from dpacct.fl.engine.states import TrainingState, on_host
from dpacct.fl.layout import Params, trainable
from dpacct.fl.privacy.account import Saved
from dpacct.fl.privacy.bounds import AdaptiveClip
from dpacct.fl.privacy.masks import reads_release
from dpacct.fl.tensors import load_saved, undisturbed
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


def save(rounds: Rounds, path: Path) -> None:
    """Write a checkpoint of the last finished round, atomically.

    Raises:
        OSError: the file cannot be written. The old file is untouched.
        InvalidParameter: the path is that of a ledger or a folder.
    """
    state, saved, allocator = rounds.state, rounds.account.saved(), rounds.engine.allocator
    training = rounds.training
    released = state.released if reads_release(rounds.engine.method.mask) else None
    content = {
        "setting": rounds.setting(),
        "round": state.round,
        "params": on_host(state.params),
        "server_state": on_host(state.server_state),
        "client_states": {client: on_host(own) for client, own in state.client_states.items()},
        # Memories belong to places among the clients. Without any, their number is not written.
        "num_clients": rounds.engine.num_clients if state.client_states else None,
        "clip_norm": state.bound.clip_norm,
        "released": None if released is None else released.cpu(),
        "run": None if saved is None else saved.run,
        "charged": 0 if saved is None else saved.charged,
        "committed": 0 if saved is None else saved.committed,
        "ledger": None if saved is None else asdict(saved.position),
        "randomness": rounds.engine.source.save(),
        "training": None if training is None else asdict(training),
        "noise": None if state.noise is None else state.noise.save(),
        "allocation": None if allocator is None else allocator.save(),
    }
    write_checkpoint(path, content)


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


@undisturbed()
def resume(rounds: Rounds, path: Path) -> None:
    """Go on from a checkpoint of a run of the same setting.

    The errors are those of `PrivateRun.resume`.
    """
    content, holder = read_checkpoint(path, torch.device("cpu")), f"the checkpoint {path}"
    saved = saved_in(content)
    if saved is not None:
        rounds.account.find(saved, holder)
    setting, training = rounds.setting(), content["training"]
    allocator = rounds.engine.allocator
    try:
        state = _state(content, path, rounds, setting)
        training = None if training is None else TrainingMode(**training)
        if allocator is not None:
            allocator = allocator.restored(content["allocation"])
        rounds.engine.source.restore(content["randomness"])
    except InvalidParameter:
        raise
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        rule = f"its values are not those of a run ({type(error).__name__})"
        raise InvalidParameter("checkpoint", str(path), rule) from None
    if saved is not None:
        rounds.account.resume(rounds.event(), saved, setting, holder)
    rounds.state = state
    rounds.engine = replace(rounds.engine, allocator=allocator)
    rounds.advance()
    rounds.write_model()
    rounds.training = training


def saved_in(content: dict[str, Any]) -> Saved | None:
    """Return the position of a checkpoint's run in its ledger, or None before it was started."""
    if content["run"] is None or content["ledger"] is None:
        return None
    position = Position(**content["ledger"])
    return Saved(content["run"], content["charged"], content["committed"], position)


def load_parameters(content: dict[str, Any], path: Path, model: nn.Module) -> None:
    """Copy the trained parameters of a checkpoint into the model that they belong to."""
    params = _tensors(content["params"], trainable(model), "params", path)
    with torch.no_grad():
        for name, value in params.items():
            model.get_parameter(name).copy_(value)


def _state(content: dict[str, Any], path: Path, rounds: Rounds, setting: str) -> TrainingState:
    """Return the training state of a checkpoint, checked against the run that goes on."""
    engine, ours, number = rounds.engine, rounds.state.params, content["round"]
    if not 0 <= number <= rounds.plan.rounds:
        rule = f"it is of round {number}, and the run has {rounds.plan.rounds}"
        raise InvalidParameter("checkpoint", str(path), rule)
    bound = rounds.plan.bound(rounds.first_bound, number + 1)
    if isinstance(bound, AdaptiveClip):
        bound = replace(bound, clip_norm=content["clip_norm"])
    theirs = content["setting"]
    if theirs != setting:
        rule = f"it was written by a run of another setting ({theirs}, and this is {setting})"
        raise InvalidParameter("checkpoint", str(path), rule)
    memories, clients = content["client_states"], content["num_clients"]
    if memories and clients not in (None, engine.num_clients):
        rule = (
            f"it holds the memories of {clients} clients, and here are {engine.num_clients}: a "
            "memory would go to another client"
        )
        raise InvalidParameter("checkpoint", str(path), rule)
    params = _tensors(content["params"], ours, "params", path)
    device, released = engine.device, content["released"]
    stream, kept_noise = rounds.state.noise, content["noise"]
    if stream is not None and kept_noise is not None:
        stream = stream.restored(kept_noise)
    return TrainingState(
        number,
        {name: params[name].to(device) for name in engine.layout.names},
        {name: value.to(device) for name, value in content["server_state"].items()},
        # Memories may be many. They come to the device with their client.
        memories,
        bound,
        None if released is None else released.to(device),
        stream,
    )


def _tensors(values: Params, like: Params, what: str, path: Path) -> Params:
    """Return tensors with the names and shapes of the model here."""
    theirs = {name: tuple(value.shape) for name, value in values.items()}
    ours = {name: tuple(value.shape) for name, value in like.items()}
    if theirs != ours:
        rule = f"its {what} are {theirs}, and the model here has {ours}"
        raise InvalidParameter("checkpoint", str(path), rule[:500])
    return values
