"""A training loop of the user's own: what it is shown, and how far it has moved the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch import Tensor

from dpacct.errors import InvalidParameter
from dpacct.fl.flower import wire
from dpacct.fl.flower.wire import Assignment
from dpacct.fl.layout import Layout, State, check_tensors

Handler = Callable[[Message, Context], Message]


@dataclass(frozen=True, slots=True, eq=False)
class Displacement:
    """What a training loop of the user's own ends with."""

    row: Tensor

    def remember(self, bounded: Tensor) -> State | None:
        """Nothing."""
        del bounded
        return None


def displacement(
    given: Assignment, message: Message, context: Context, call_next: Handler
) -> Displacement:
    """Let the user's loop train, and see how far the parameters have moved."""
    layout = Layout.of(given.params)
    record = wire.arrays_of(given.params)
    config = ConfigRecord({"server-round": given.number, **_plain(given)})
    message.content = RecordDict({wire.ARRAYS: record, "config": config})
    reply = call_next(message, context)
    if reply.has_error():
        raise RuntimeError(f"training failed: {reply.error.reason}")
    found = list(reply.content.array_records.values())
    if len(found) != 1 or sorted(found[0]) != sorted(layout.names):
        rule = f"a train function returns one ArrayRecord of {', '.join(layout.names)}"
        names = ", ".join(name for record in found for name in record)
        raise InvalidParameter("arrays", names or "none", rule)
    moved = _ordered(found[0], layout)
    check_tensors(moved, layout, "arrays")
    end = layout.flatten(moved)
    return Displacement((end - layout.flatten(given.params)).unsqueeze(0))


def _plain(given: Assignment) -> Mapping[str, Any]:
    """Local settings that a loop may follow."""
    local, number = given.local, given.number
    steps = {"steps": local.steps, "epochs": local.epochs, "batch-size": local.batch_size}
    return {"lr": local.learning_rate(number)} | {k: v for k, v in steps.items() if v is not None}


def _ordered(record: ArrayRecord, layout: Layout) -> dict[str, Tensor]:
    found = wire.tensors_of(record)
    return {name: found[name] for name in layout.names}
