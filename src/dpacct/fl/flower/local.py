"""A SuperLink in one process: Flower's own messages, serialized and read again, and no network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from dpacct.errors import DpacctError, Unsupported

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
