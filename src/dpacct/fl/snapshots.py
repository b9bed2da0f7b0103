"""The state of a run as plain dictionaries of tensors, numbers and strings, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dpacct.errors import InvalidParameter
from dpacct.fl.adaptive_clip import AdaptiveClip
from dpacct.fl.bounds import Bound
from dpacct.fl.engine import TrainingState
from dpacct.fl.layout import Layout, State, check_tensors


def pack(state: TrainingState, setting: str) -> dict[str, Any]:
    """What a checkpoint keeps of the training state.

    Args:
        state: after a round. setting: what must not differ when the run goes on, as text.
    """
    return {
        "setting": setting,
        "round": state.round,
        "params": {name: value.cpu() for name, value in state.params.items()},
        "server_state": _to_cpu(state.server_state),
        "client_states": {key: _to_cpu(value) for key, value in state.client_states.items()},
        "clip_norm": state.bound.clip_norm,
        "released": None if state.released is None else state.released.cpu(),
    }


def unpack(
    content: dict[str, Any], setting: str, layout: Layout, bound: Bound, device: torch.device
) -> TrainingState:
    """The training state that `pack` wrote.

    Args:
        content: of the checkpoint. setting: of the run that goes on.
        layout, bound: of that run. device: where it trains.
    Raises:
        InvalidParameter: the checkpoint belongs to another setting.
    """
    if content["setting"] != setting:
        rule = f"the checkpoint was written by a run of another setting ({content['setting']})"
        raise InvalidParameter("checkpoint", setting, rule)
    params = {name: content["params"][name].to(device) for name in content["params"]}
    check_tensors(params, layout, "checkpoint")
    if isinstance(bound, AdaptiveClip):
        bound = replace(bound, clip_norm=content["clip_norm"])
    released = content["released"]
    return TrainingState(
        int(content["round"]),
        params,
        {name: value.to(device) for name, value in content["server_state"].items()},
        # Memories may be many; they come to the device with their client.
        {key: _to_cpu(value) for key, value in content["client_states"].items()},
        bound,
        None if released is None else released.to(device),
    )


def _to_cpu(state: State) -> State:
    return {name: value.cpu() for name, value in state.items()}
