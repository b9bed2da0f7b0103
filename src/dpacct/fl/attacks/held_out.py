"""People whom the model never saw: what an attack's false alarms are counted on.

Rule: an example that is also a member's is not held out, whatever it is called. It is left out; and
where most are of that kind, the data are not what they were taken for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpacct.errors import InvalidParameter
from dpacct.fl.clients import ClientData

_MOST = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Held-out clients.

    Attributes:
        clients: with the examples that no member has.
        left_out: how many examples were left out, because a member has the same.
    """

    clients: list[ClientData]
    left_out: int


def without_members(members: Iterable[ClientData], nonmembers: Sequence[ClientData]) -> HeldOut:
    """The held-out clients without examples that members have too, bit for bit.

    Args:
        members, nonmembers: clients, with inputs as the model sees them.
    Raises:
        InvalidParameter: more than half of the examples are members', or there are none.
    """
    seen = {mark for data in members for mark in _marks(data)}
    kept: list[ClientData] = []
    total = left_out = 0
    for data in nonmembers:
        fresh = [place for place, mark in enumerate(_marks(data)) if mark not in seen]
        total += len(data)
        left_out += len(data) - len(fresh)
        if len(fresh) == len(data):
            kept.append(data)
        elif fresh:
            rows = torch.tensor(fresh, device=data.inputs.device)
            kept.append(ClientData(data.inputs[rows], data.targets[rows]))
    if not total:
        rule = "an attack needs examples that the model was not trained on"
        raise InvalidParameter("nonmembers", 0, rule)
    if left_out > _MOST * total:
        rule = (
            f"{left_out:,} of these {total:,} held-out examples are among those the model was "
            "trained on, so that nobody can say how often an attack errs"
        )
        hint = "Hold out people whom no run has seen."
        raise InvalidParameter("nonmembers", f"{total} examples", rule, hint)
    return HeldOut([data for data in kept if len(data)], left_out)


def _marks(data: ClientData) -> list[bytes]:
    """A digest of each example."""
    inputs, targets = _rows(data.inputs), _rows(data.targets)
    return [
        hashlib.blake2b(one + b"|" + other, digest_size=16).digest()
        for one, other in zip(inputs, targets, strict=True)
    ]


def _rows(values: Tensor) -> list[bytes]:
    array = values.detach().cpu().contiguous().flatten(1) if values.ndim > 1 else values.cpu()
    return [row.tobytes() for row in array.numpy()]
