"""Clients and their broadcast with twice the digits, for telling rounding from a difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from dpacct.fl.clients import ClientData
from dpacct.fl.trainers.tasks import Broadcast, Task


def doubled(tasks: Sequence[Task], broadcast: Broadcast) -> tuple[list[Task], Broadcast]:
    """The same tasks and broadcast with every floating-point tensor in float64."""
    anchor, server = _values(broadcast.anchor), _values(broadcast.server_state)
    wide = [
        replace(
            task,
            data=ClientData(_value(task.data.inputs), _value(task.data.targets)),
            state=None if task.state is None else _values(task.state),
        )
        for task in tasks
    ]
    return wide, replace(broadcast, anchor=anchor, server_state=server)


def _value(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def _values(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: _value(value) for name, value in values.items()}
