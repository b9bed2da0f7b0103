"""The records of Flower's messages: which client a node is, and parts of other messages as bytes.

Nothing in a record is trusted: `dpacct.fl.training.messages` reads the bytes. `LocalGrid` is a
SuperLink in one process: Flower's own messages, serialized and read again, and no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from dpacct import __version__
from dpacct.errors import DpacctError, InvalidParameter, Unsupported
from dpacct.fl.training.messages import PROTOCOL, check_protocol

# The record that marks a message as ours, and that of its bytes.
SIGN, BYTES = "dpacct", "dpacct.bytes"
# What a message asks for: which client a node is, or the update of a round.
HELLO, ROUND = "hello", "round"


def signed(message: Message) -> ConfigRecord:
    """Return the record that marks a message of this version, or reject the message."""
    if message.has_error():
        hint = "Is its ClientApp that of dpacct.fl.flower.client_app?"
        raise InvalidParameter("message", "an error", (message.error.reason or "")[-300:], hint)
    # Nothing is of its type on trust.
    content: object = message.content
    record = content.get(SIGN) if isinstance(content, RecordDict) else None
    if not isinstance(record, ConfigRecord):
        rule = "it is of no client_app of dpacct, and of no strategy"
        hint = "Use dpacct.fl.flower.PrivateStrategy on the server, client_app on clients."
        raise InvalidParameter("message", "without a sign", rule, hint)
    check_protocol(record)
    return record


def sign(**entries: Any) -> ConfigRecord:
    """Return the record that marks a message of this version, with these entries."""
    return ConfigRecord({"protocol": PROTOCOL, "version": __version__, **entries})


def message_of(facts: ConfigRecord, **parts: bytes) -> RecordDict:
    """Return the content of a message. Flower sends equal parts of several messages once."""
    arrays = {name: Array("uint8", (len(part),), BYTES, part) for name, part in parts.items()}
    return RecordDict({SIGN: facts, BYTES: ArrayRecord(arrays)})


def bytes_of(message: Message, *parts: str) -> bytes:
    """Return parts of a signed message, one behind the other."""
    signed(message)
    record: object = message.content.get(BYTES)
    pieces: list[bytes] = []
    for part in parts:
        array: object = record.get(part) if isinstance(record, ArrayRecord) else None
        data: object = array.data if isinstance(array, Array) else None
        if not isinstance(data, bytes):
            raise InvalidParameter("message", f"without {part!r}", "it holds the bytes of one")
        pieces.append(data)
    return b"".join(pieces)


def arrays_of(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return tensors by name as a record of Flower."""
    arrays = {name: np.asarray(t.detach().cpu().numpy(), order="C") for name, t in tensors.items()}
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


_RUN = 7


def carried(message: Message) -> Message:
    """Return a message as it arrives at the other end."""
    objects = {number: obj.deflate() for number, obj in get_all_nested_objects(message).items()}
    message_read: Any = inflate_object_from_contents(message.object_id, objects)
    message_read.metadata.__dict__["_message_id"] = message.object_id
    return message_read


class LocalGrid(Grid):
    """Nodes of one process, which answer as soon as they are asked: for audits, and to try an app.

    Args:
        apps: of clients 0, 1, ...
    """

    def __init__(self, apps: Iterable[ClientApp]) -> None:
        # Messages name their sender. A process that has an identity keeps it.
        for name, number in {"run_id": _RUN, "node_id": 1, "task_id": 3}.items():
            try:
                getattr(TaskIdentity, name)
            except RuntimeError:
                setattr(TaskIdentity, name, number)
        self._apps = dict(enumerate(apps, start=1000))
        self._replies: list[Message] = []
        # A node keeps its state from message to message.
        self._contexts = {
            node: Context(_RUN, node, {"partition-id": client}, RecordDict(), {})
            for client, node in enumerate(self._apps)
        }

    def _missing(self, *_: Any, **__: Any) -> Any:
        """Raise Unsupported: `PrivateStrategy` needs none of these methods."""
        raise Unsupported("the nodes of one process belong to no run of a SuperLink")

    @property
    def run(self) -> Any:
        """Raise Unsupported."""
        return self._missing()

    create_message = send_and_receive = set_run = _missing

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self._apps)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Ask nodes. An error of dpacct becomes an answer. Any other error of an app raises."""
        numbers: list[str] = []
        for message in messages:
            arrived = carried(message)
            numbers.append(arrived.metadata.message_id)
            node = message.metadata.dst_node_id
            try:
                reply = carried(self._apps[node](arrived, self._contexts[node]))
            except DpacctError as error:
                reply = Message(Error(code=0, reason=repr(error)), reply_to=arrived)
            self._replies.append(reply)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers to these messages, once."""
        asked = set(message_ids)
        answers = [r for r in self._replies if r.metadata.reply_to_message_id in asked]
        self._replies = [r for r in self._replies if r.metadata.reply_to_message_id not in asked]
        return answers
