"""A SuperLink in one process: Flower's own messages, written out and read again, and no network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from dpacct.fl.flower.local import carried

# What becomes of a client's replies: (client, message, replies) -> replies that arrive.
Fault = Callable[[int, Message, list[Message]], list[Message]]


class FakeGrid(Grid):
    """Nodes that answer as soon as they are asked.

    Attributes:
        nodes: of each node id the client number and its app. sent: all training messages.
        config: of all nodes, beside the client's number.
    """

    def __init__(self, apps: Iterable[ClientApp], fault: Fault | None = None) -> None:
        self.config: dict[str, Any] = {}
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 3
        self.nodes: dict[int, tuple[int, ClientApp]] = {}
        self.sent: list[tuple[int, Message]] = []
        self.fault = fault
        self._next = 1000
        self._replies: list[Message] = []
        # A node keeps its state from message to message.
        self._contexts: dict[int, Context] = {}
        for client, app in enumerate(apps):
            self.join(client, app)

    def join(self, client: int | None, app: ClientApp) -> int:
        """A SuperNode starts; its id is new each time."""
        self._next += 7
        self.nodes[self._next] = (client, app)
        return self._next

    def node_of(self, client: int) -> int:
        return next(node for node, (number, _) in self.nodes.items() if number == client)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **options: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **options: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers: list[str] = []
        for message in messages:
            arrived = carried(message)
            node = message.metadata.dst_node_id
            numbers.append(arrived.metadata.message_id)
            if node not in self.nodes:
                continue
            client, app = self.nodes[node]
            config = self.config | ({} if client is None else {"partition-id": client})
            context = self._contexts.setdefault(node, Context(7, node, config, RecordDict(), {}))
            try:
                replies = [carried(app(arrived, context))]
            except Exception as error:  # noqa: BLE001 - as Flower's own runtime does
                replies = [Message(Error(code=0, reason=repr(error)), reply_to=arrived)]
            if "arrays" in message.content.array_records:
                self.sent.append((client, message))
                if self.fault is not None:
                    replies = self.fault(client, arrived, replies)
            self._replies.extend(replies)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = set(message_ids)
        found = [r for r in self._replies if r.metadata.reply_to_message_id in asked]
        self._replies = [r for r in self._replies if r.metadata.reply_to_message_id not in asked]
        return found
