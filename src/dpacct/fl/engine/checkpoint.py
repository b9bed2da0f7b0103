"""Checkpoints: a run writes one after a round, and goes on from it.

Rule 1: a file under its final name is complete. Rule 2: it is read by ``torch.load`` with
``weights_only=True``, so it can hold no code, and every value is judged before it is used: names,
types, shapes, ranges. Rule 3: the generator's state is kept for seeded runs alone; a private run
draws afresh, so that noise is never used twice. Rule 4: a checkpoint with client memories holds
private values. It is readable by its owner alone (mode 0600); guard it like the data.
"""

from __future__ import annotations

import math
import pickle
import re
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from dpacct.errors import InvalidParameter
from dpacct.fl.engine.rounds import Rounds
from dpacct.fl.engine.states import TrainingState, on_host
from dpacct.fl.layout import State, copies, trainable
from dpacct.fl.privacy.account import Saved, relabeled
from dpacct.fl.privacy.bounds import AdaptiveClip, Bound
from dpacct.fl.privacy.masks import reads_release
from dpacct.fl.surroundings import undisturbed
from dpacct.fl.training.choose import TrainingPlan
from dpacct.ledger import Position
from dpacct.ledger.disk.outputs import write_file

VERSION = 2

# What torch.load and its readers of zip files and pickles raise on a file that is something else.
_DAMAGED = (
    AssertionError,
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
_NOISE = re.compile(r"(?<=noise_multiplier=)[^,)]+(?=, cohort_size=)")


def save(rounds: Rounds, path: Path, training: TrainingPlan | None = None) -> None:
    """Write a checkpoint of the last finished round, atomically.

    Args:
        rounds: of the run. path: of the file. training: how clients are trained; public.
    Raises:
        OSError: the file cannot be written; the old one is untouched.
        InvalidParameter: there is a ledger in its place, or a folder.
    """
    state, saved = rounds.state, rounds.account.saved()
    released = state.released if reads_release(rounds.engine.method.mask) else None
    content = {
        "setting": rounds.setting(),
        "round": state.round,
        "params": on_host(state.params),
        "server_state": on_host(state.server_state),
        "client_states": {client: on_host(own) for client, own in state.client_states.items()},
        # Memories belong to places among the clients. Without any, their number is not written.
        "num_clients": rounds.engine.num_clients if state.client_states else None,
        "bound": type(state.bound).__name__,
        "clip_norm": state.bound.clip_norm,
        "released": None if released is None else released.cpu(),
        "run": None if saved is None else saved.run,
        "charged": 0 if saved is None else saved.charged,
        "committed": 0 if saved is None else saved.committed,
        "ledger": None if saved is None else asdict(saved.position),
        "randomness": rounds.engine.source.save(),
        "training": None if training is None else training.plain(),
    }
    write_checkpoint(path, content)


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write the content of a checkpoint whole, or not at all; raises as `save`."""
    whole = {"version": VERSION} | content
    write_file(
        path,
        lambda stream: torch.save(whole, stream),
        name="checkpoint",
        replace=True,
        owner_only=bool(content.get("client_states")),
    )


def read_checkpoint(path: Path, device: torch.device | str) -> dict[str, Any]:
    """Return what `write_checkpoint` wrote, with its tensors on the device.

    Raises:
        InvalidParameter: there is no such file, or it is no checkpoint of this version.
    """
    if not path.is_file():
        raise InvalidParameter("checkpoint", str(path), "there is no such file")
    try:
        with warnings.catch_warnings():
            # torch warns of a foreign pickle before it refuses it; the refusal says enough.
            warnings.simplefilter("ignore", UserWarning)
            loaded = torch.load(path, map_location=device, weights_only=True)
        content = cast("dict[str, Any]", loaded)
        version = content["version"]
    except _DAMAGED as error:
        rule = f"it cannot be read as a checkpoint ({type(error).__name__})"
        raise InvalidParameter("checkpoint", str(path), rule) from None
    if type(version) is not int or version != VERSION:
        shown = f"of version {version}" if type(version) is int else "no checkpoint"
        rule = f"it is {shown}, and this dpacct reads checkpoints of version {VERSION}"
        raise InvalidParameter("checkpoint", str(path), rule)
    return content


@undisturbed()
def resume(rounds: Rounds, path: Path) -> TrainingPlan | None:
    """Go on from a checkpoint.

    Args:
        rounds: of a run of the same setting. path: of the file.
    Returns:
        How clients were trained, None if that was not chosen.
    Raises:
        InvalidParameter: missing, damaged, or of another setting.
        LedgerError: the ledger is not that of the checkpoint, or has lost rounds.
    """
    content = read_checkpoint(path, torch.device("cpu"))
    reader, holder = _Reader(content, str(path)), f"the checkpoint {path}"
    saved = reader.saved()
    if saved is not None:
        rounds.account.find(saved, holder)
    found = noise_of(content)
    if rounds.calibrated and found is not None:
        rounds.take_noise(found)
    setting = rounds.setting()
    state, randomness = reader.state(rounds, setting), reader.text("randomness")
    training = reader.training()
    rounds.engine.source.restore(randomness)
    if saved is not None:
        rounds.account.resume(rounds.event(), saved, setting, holder)
    rounds.state = state
    if rounds.account.plan is not None and not rounds.plan.constant:
        rounds.plan = rounds.plan.as_registered(rounds.account.plan, calibrated=rounds.calibrated)
    rounds.advance()
    rounds.write_model()
    return training


def noise_of(content: dict[str, Any]) -> float | None:
    """Return the noise multiplier that the setting of a checkpoint names, None for a schedule."""
    setting = content.get("setting")
    found = _NOISE.search(setting) if isinstance(setting, str) else None
    try:
        return None if found is None else float(found[0])
    except ValueError:
        return None


def saved_in(content: dict[str, Any], path: str) -> Saved | None:
    """Return where the run of a checkpoint stood in its ledger; None before it was started.

    Raises:
        InvalidParameter: the checkpoint does not say so.
    """
    return _Reader(content, path).saved()


def load_parameters(content: dict[str, Any], path: str, model: nn.Module) -> None:
    """Copy the trained parameters of a checkpoint into a model.

    Raises:
        InvalidParameter: it holds those of another model.
    """
    shapes = {name: value.shape for name, value in trainable(model).items()}
    found = _Reader(content, path).tensors(content.get("params"), "its params", shapes)
    with torch.no_grad():
        for name, value in found.items():
            model.get_parameter(name).copy_(value)


class _Reader:
    """Takes a checkpoint apart, and refuses what does not fit with the file's name. Rule 2."""

    def __init__(self, content: dict[str, Any], path: str) -> None:
        self._content = content
        self._path = path

    def refuse(self, rule: str) -> NoReturn:
        raise InvalidParameter("checkpoint", self._path, rule)

    def state(self, rounds: Rounds, setting: str) -> TrainingState:
        """Return the training state, checked against the run that goes on."""
        theirs = self._content.get("setting")
        if not isinstance(theirs, str) or relabeled(theirs) != setting:
            shown = theirs if isinstance(theirs, str) else type(theirs).__name__
            words = f"it was written by a run of another setting ({shown}, and this is {setting})"
            self.refuse(words)
        engine, number = rounds.engine, self.count("round")
        layout, device = engine.layout, engine.device
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        params = self.tensors(self._content.get("params"), "its params", shapes)
        server = self.tensors(self._content.get("server_state"), "its server_state", None)
        released = self._content.get("released")
        if released is not None:
            shape = {"vector": torch.Size([layout.size])}
            found = self.tensors({"vector": released}, "its latest release", shape)
            released = found["vector"].to(device)
        return TrainingState(
            number,
            {name: params[name].to(device) for name in layout.names},
            {name: value.to(device) for name, value in server.items()},
            # Memories may be many; they come to the device with their client.
            self._memories(
                engine.num_clients, engine.method.init_client(copies(rounds.state.params))
            ),
            self._bound(rounds.plan.bound(rounds.first_bound, number + 1)),
            released,
        )

    def count(self, key: str, least: int = 0) -> int:
        value = self._content.get(key)
        if type(value) is not int or not least <= value < 2**63:
            self.refuse(f"its {key} is {_shown(value)}, and is a whole number of {least} or more")
        return value

    def text(self, key: str) -> str | None:
        found = self._content.get(key)
        if found is not None and not isinstance(found, str):
            self.refuse(f"its {key} is no text")
        return found

    def saved(self) -> Saved | None:
        """Return where the run stood in its ledger."""
        round_ = self.count("round")
        if self._content.get("run") is None:
            if round_:
                self.refuse(f"it holds {round_} rounds, and no run of a ledger that charged them")
            return None
        run = self.count("run", 1)
        charged, committed = self.count("charged"), self.count("committed")
        if not round_ <= charged or not committed <= charged:
            self.refuse(f"it holds {round_} rounds, and says that {charged} were charged")
        try:
            position = Position(**self._content["ledger"])
        except (InvalidParameter, KeyError, TypeError):
            self.refuse("it does not name its ledger")
        return Saved(run, charged, committed, position)

    def training(self) -> TrainingPlan | None:
        try:
            return TrainingPlan.of(self._content.get("training"))
        except InvalidParameter as error:
            self.refuse(f"its training plan is damaged ({error.value})")

    def _memories(self, clients: int, memory: State | None) -> dict[int, State]:
        found = self._content.get("client_states")
        if not isinstance(found, dict) or (found and memory is None):
            self.refuse("its client_states are not those of the method")
        theirs = self._content.get("num_clients", clients)
        if found and theirs != clients:
            self.refuse(
                f"it holds the memories of {_shown(theirs)} clients, and here are {clients}: a "
                "memory would go to another client"
            )
        shapes = None if memory is None else {name: value.shape for name, value in memory.items()}
        memories: dict[int, State] = {}
        for client, value in cast("dict[Any, Any]", found).items():
            if type(client) is not int or not 0 <= client < clients:
                self.refuse(
                    f"it has a client {_shown(client)}, and clients are numbered from 0 to "
                    f"{clients - 1}"
                )
            memories[client] = self.tensors(value, f"the state of client {client}", shapes)
        return memories

    def _bound(self, bound: Bound) -> Bound:
        norm, ours = self._content.get("clip_norm"), type(bound).__name__
        kind = self._content.get("bound", ours)
        if kind != ours:
            self.refuse(f"its bound is {_shown(kind)}, and here it is {ours}")
        if not isinstance(bound, AdaptiveClip):
            if isinstance(norm, float) and not math.isclose(norm, bound.clip_norm, rel_tol=1e-9):
                self.refuse(f"its clip norm is {_shown(norm)}, and here it is {bound.clip_norm!r}")
            return bound
        try:
            return replace(bound, clip_norm=cast("float", norm))
        except InvalidParameter as error:
            self.refuse(f"its clip_norm is {_shown(norm)}; {error.rule}")

    def tensors(self, found: Any, what: str, shapes: dict[str, torch.Size] | None) -> State:
        """Return a dictionary of plain tensors, of these shapes if they are known."""
        if not isinstance(found, dict):
            self.refuse(f"{what} is no dictionary of tensors")
        state = cast("dict[Any, Any]", found)
        if shapes is not None and state.keys() != shapes.keys():
            self.refuse(f"{what} has other tensors than {', '.join(shapes) or 'none'}")
        for name, value in state.items():
            plain = isinstance(name, str) and type(value) is Tensor
            if not plain or value.layout is not torch.strided or value.is_meta:
                self.refuse(f"{what} holds {_shown(name)}, which is no plain tensor")
            if shapes is not None and (
                value.shape != shapes[name] or not value.is_floating_point()
            ):
                form = f"{value.dtype} {str(tuple(value.shape))[:60]}"
                self.refuse(f"{what} holds {name} as {form}, of shape {tuple(shapes[name])} here")
            # A tensor is as large as its storage, so that nothing huge is unfolded.
            if value.numel() * value.element_size() > value.untyped_storage().nbytes():
                self.refuse(f"{what} holds {name} larger than its values")
        return state


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, int | float | str) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:60]}..."
