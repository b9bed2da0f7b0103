"""The state of a run as plain dictionaries of tensors, numbers and strings, and back.

Rule: whatever stands in a file is judged before it is used: names, types, shapes, ranges. A tensor
is as large as what holds it, so that nothing huge is unfolded.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from dpacct.errors import InvalidParameter
from dpacct.fl.engine.memories import fetched
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.layout import Layout, State, trainable
from dpacct.fl.privacy.account import Saved, relabeled
from dpacct.fl.privacy.bounds import AdaptiveClip, Bound
from dpacct.fl.training.choose import TrainingPlan
from dpacct.ledger import Position

_NOISE = re.compile(r"(?<=noise_multiplier=)[^,)]+(?=, cohort_size=)")


@dataclass(frozen=True, slots=True)
class Expected:
    """What the state of a run has to fit.

    Attributes:
        path: of the checkpoint, for messages.
        setting: of the run that goes on, in words.
        layout, bound, device: of that run.
        clients: how many there are.
        memory: a client's state before its first round; None where clients have none.
    """

    path: str
    setting: str
    layout: Layout
    bound: Bound
    device: torch.device
    clients: int
    memory: State | None


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What a checkpoint holds, checked.

    Attributes:
        state: of the training.
        randomness: of a seeded run's generator.
        training: how clients were trained; None if that was not chosen, or by an older version.
    """

    state: TrainingState
    randomness: str | None
    training: TrainingPlan | None


def pack(
    state: TrainingState,
    setting: str,
    saved: Saved | None,
    randomness: str | None,
    training: TrainingPlan | None,
) -> dict[str, Any]:
    """What a checkpoint keeps.

    Args:
        state: after a round. setting: what must not differ when the run goes on, as text.
        saved: where the run stands in its ledger. randomness: of a seeded run's generator.
        training: how clients are trained; public.
    """
    return {
        "setting": setting,
        "round": state.round,
        "params": {name: value.cpu() for name, value in state.params.items()},
        "server_state": _to_cpu(state.server_state),
        "client_states": fetched(state.client_states),
        "bound": type(state.bound).__name__,
        "clip_norm": state.bound.clip_norm,
        "released": None if state.released is None else state.released.cpu(),
        "run": None if saved is None else saved.run,
        "charged": 0 if saved is None else saved.charged,
        "committed": 0 if saved is None else saved.committed,
        "ledger": None if saved is None else asdict(saved.position),
        "randomness": randomness,
        "training": None if training is None else training.plain(),
    }


def noise_of(content: dict[str, Any]) -> float | None:
    """The noise multiplier that the setting of a checkpoint names."""
    setting = content.get("setting")
    found = _NOISE.search(setting) if isinstance(setting, str) else None
    try:
        return None if found is None else float(found[0])
    except ValueError:
        return None


def saved_in(content: dict[str, Any], path: str) -> Saved | None:
    """Where the run of a checkpoint stood in its ledger; None before it was started.

    Raises:
        InvalidParameter: the checkpoint does not say so.
    """
    return _Reader(content, path).saved()


def load_parameters(content: dict[str, Any], path: str, model: nn.Module) -> None:
    """Give a model the trained parameters of a checkpoint.

    Args:
        content: of the checkpoint. path: of it, for messages.
        model: changed in place.
    Raises:
        InvalidParameter: it holds those of another model.
    """
    shapes = {name: value.shape for name, value in trainable(model).items()}
    found = _Reader(content, path).tensors("params", shapes)
    with torch.no_grad():
        for name, value in found.items():
            model.get_parameter(name).copy_(value)


def unpack(content: dict[str, Any], expected: Expected) -> Snapshot:
    """What `pack` wrote, checked against the run that goes on.

    Raises:
        InvalidParameter: it belongs to another setting, or something in it is not what it says.
    """
    reader = _Reader(content, expected.path)
    reader.setting(expected.setting)
    layout, device = expected.layout, expected.device
    params = reader.tensors("params", dict(zip(layout.names, layout.shapes, strict=True)))
    released = reader.released(layout.size)
    state = TrainingState(
        reader.count("round"),
        {name: params[name].to(device) for name in layout.names},
        {name: value.to(device) for name, value in reader.tensors("server_state", None).items()},
        # Memories may be many; they come to the device with their client.
        reader.memories(expected.clients, expected.memory),
        reader.bound(expected.bound),
        None if released is None else released.to(device),
    )
    return Snapshot(state, reader.randomness(), reader.training())


class _Reader:
    """Takes a checkpoint apart; whatever does not fit is refused with the file's name."""

    def __init__(self, content: dict[str, Any], path: str) -> None:
        self._content = content
        self._path = path

    def refuse(self, rule: str) -> NoReturn:
        """The file's name and what is wrong with it."""
        raise InvalidParameter("checkpoint", self._path, rule)

    def setting(self, ours: str) -> None:
        theirs = self._content.get("setting")
        if not isinstance(theirs, str) or relabeled(theirs) != ours:
            shown = theirs if isinstance(theirs, str) else type(theirs).__name__
            self.refuse(f"it was written by a run of another setting ({shown}, and this is {ours})")

    def count(self, key: str, least: int = 0) -> int:
        value = self._content.get(key)
        if type(value) is not int or not least <= value < 2**63:
            self.refuse(f"its {key} is {_shown(value)}, and is a whole number of {least} or more")
        return value

    def saved(self) -> Saved | None:
        """Where the run stood in its ledger."""
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

    def tensors(self, key: str, shapes: dict[str, torch.Size] | None) -> State:
        """A dictionary of tensors, of these shapes where they are known."""
        return self._state(self._content.get(key), f"its {key}", shapes)

    def released(self, size: int) -> Tensor | None:
        value = self._content.get("released")
        if value is None:
            return None
        shape = torch.Size([size])
        return self._state({"vector": value}, "its latest release", {"vector": shape})["vector"]

    def randomness(self) -> str | None:
        found = self._content.get("randomness")
        if found is not None and not isinstance(found, str):
            self.refuse("its randomness is no text")
        return found

    def training(self) -> TrainingPlan | None:
        try:
            return TrainingPlan.of(self._content.get("training"))
        except InvalidParameter as error:
            self.refuse(f"its training plan is damaged ({error.value})")

    def memories(self, clients: int, memory: State | None) -> dict[int, State]:
        found = self._content.get("client_states")
        if not isinstance(found, dict) or (found and memory is None):
            self.refuse("its client_states are not those of the method")
        shapes = None if memory is None else {name: value.shape for name, value in memory.items()}
        memories: dict[int, State] = {}
        for client, value in cast("dict[Any, Any]", found).items():
            if type(client) is not int or not 0 <= client < clients:
                self.refuse(
                    f"it has a client {_shown(client)}, and clients are numbered from 0 to "
                    f"{clients - 1}"
                )
            memories[client] = self._state(value, f"the state of client {client}", shapes)
        return memories

    def bound(self, bound: Bound) -> Bound:
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

    def _state(self, found: Any, what: str, shapes: dict[str, torch.Size] | None) -> State:
        if not isinstance(found, dict):
            self.refuse(f"{what} is no dictionary of tensors")
        state = cast("dict[Any, Any]", found)
        if shapes is not None and state.keys() != shapes.keys():
            names = ", ".join(shapes) or "none"
            self.refuse(f"{what} has other tensors than {names}")
        for name, value in state.items():
            plain = isinstance(name, str) and type(value) is Tensor
            if not plain or value.layout is not torch.strided or value.is_meta:
                self.refuse(f"{what} holds {_shown(name)}, which is no plain tensor")
            if shapes is not None and (
                value.shape != shapes[name] or not value.is_floating_point()
            ):
                form = f"{value.dtype} {str(tuple(value.shape))[:60]}"
                self.refuse(f"{what} holds {name} as {form}, of shape {tuple(shapes[name])} here")
            if value.numel() * value.element_size() > value.untyped_storage().nbytes():
                self.refuse(f"{what} holds {name} larger than its values")
        return state


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, int | float | str) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:60]}..."


def _to_cpu(state: State) -> State:
    return {name: value.cpu() for name, value in state.items()}
