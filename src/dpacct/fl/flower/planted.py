"""Canaries of an audit beside a training loop of the user's own."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ArrayRecord, Context, Message, RecordDict

from dpacct.fl.clients import Canary, Population
from dpacct.fl.flower import wire
from dpacct.fl.flower.clients import Mod, partition_id
from dpacct.fl.flower.own_loop import Handler
from dpacct.fl.layout import Layout


def planted_mod(people: Population, *, client: Callable[[Context], int] = partition_id) -> Mod:
    """The mod, behind `private_mod`, that moves the parameters by what a canary sends.

    ``ClientApp(mods=[private_mod(), planted_mod(people)])``; the train function is called for all
    who are no `Canary`.

    Args:
        people: as `dpacct.fl.audit_server` gives them. client: which client a node is.
    """

    def mod(message: Message, context: Context, call_next: Handler) -> Message:
        data = people[client(context)]
        if not isinstance(data, Canary) or wire.ARRAYS not in message.content.array_records:
            return call_next(message, context)
        params = wire.tensors_of(message.content.array_records[wire.ARRAYS])
        update = Layout.of(params).unflatten(data.update)
        moved = {name: value + update[name].to(value) for name, value in params.items()}
        content = RecordDict({wire.ARRAYS: ArrayRecord(moved)})
        return Message(content, reply_to=message)

    return mod
