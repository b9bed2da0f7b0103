"""Nodes of one process that come, go and make mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from dpacct.fl.flower import LocalGrid, wire
from dpacct.fl.flower.wire import carried

# What becomes of a client's replies: (client, message, replies) -> replies that arrive.
Fault = Callable[[int, Message, list[Message]], list[Message]]


class FakeGrid(LocalGrid):
    """A `LocalGrid` whose nodes join and leave.

    Attributes:
        nodes: of each node id the client number and its app. sent: all messages of rounds.
    """

    def __init__(self, apps: Iterable[ClientApp], fault: Fault | None = None) -> None:
        super().__init__([])
        self.nodes: dict[int, tuple[int | None, ClientApp]] = {}
        self.sent: list[tuple[int | None, Message]] = []
        self.fault = fault
        self._next = 1000
        for client, app in enumerate(apps):
            self.join(client, app)

    def join(self, client: int | None, app: ClientApp) -> int:
        """A SuperNode starts; its id is new each time."""
        self._next += 7
        self.nodes[self._next] = (client, app)
        return self._next

    def node_of(self, client: int) -> int:
        return next(node for node, (number, _) in self.nodes.items() if number == client)

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
            config = {} if client is None else {"partition-id": client}
            context = self._contexts.setdefault(node, Context(7, node, config, RecordDict(), {}))
            try:
                replies = [carried(app(arrived, context))]
            except Exception as error:  # noqa: BLE001 - as Flower's own runtime does
                replies = [Message(Error(code=0, reason=repr(error)), reply_to=arrived)]
            if wire.BYTES in message.content.array_records:
                self.sent.append((client, message))
                if self.fault is not None:
                    replies = self.fault(client, arrived, replies)
            self._replies.extend(replies)
        return numbers
