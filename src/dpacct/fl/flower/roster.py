"""The client of each node, under any ids that Flower gives nodes.

Rule 1: A client's number stays its own. A node's id may change whenever it starts again. No node
    takes the number of a node that is online, because a client's memory is sent to that number.
Rule 2: A node is rejected if its client trains by another method or bound than the server's. At the
    start this is an error. Later the node is left out.
Rule 3: Which clients are asked depends on the nodes online, never on data.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from dpacct import __version__
from dpacct.errors import InvalidParameter
from dpacct.fl.flower import wire

_LOG = logging.getLogger("flwr")


class Roster:
    """The nodes that are online, by client. ``nodes`` has the node id of each client that answered.

    ``clip_norm`` is None if it changes from round to round.
    """

    def __init__(self, num_clients: int, method: str, clip_norm: float | None) -> None:
        self._num_clients, self._method, self._clip_norm = num_clients, method, clip_norm
        self._asked: dict[str, int] = {}
        self._known: set[int] = set()
        self._failing: dict[int, str] = {}
        self.nodes: dict[int, int] = {}

    def gather(self, grid: Grid, enough: int, patience: float, poll: float) -> None:
        """Wait until ``count`` clients have answered, and check them."""
        deadline = time.monotonic() + patience
        while True:
            for node, reply in self._replies(grid):
                client = self._client_of(node, reply)
                if self.nodes.setdefault(client, node) != node:
                    rule = f"nodes {self.nodes[client]} and {node} both have it. Each is one client"
                    raise InvalidParameter("partition-id", client, rule)
            if len(self.nodes) >= enough:
                break
            if time.monotonic() > deadline:
                rule = f"{enough} clients answer within {patience:g} s"
                hint = "Start more SuperNodes, or set PrivateStrategy(min_clients=...)."
                raise InvalidParameter("clients", len(self.nodes), rule, hint)
            self._ask(grid)
            time.sleep(poll)
        # Otherwise each round would be charged, and none would hold an update.
        if self.nodes and self._failing.keys() >= self.nodes.keys():
            client, kind = min(self._failing.items())
            rule = f"model and loss take synthetic examples (client {client}: {kind})"
            hint = "The log of a SuperNode has the whole error. Nothing was charged."
            raise InvalidParameter("clients", "none can train", rule, hint)

    def refresh(self, grid: Grid) -> None:
        """Add nodes that are new or came back under another id, without waiting."""
        self._ask(grid)
        for node, reply in self._replies(grid):
            try:
                client = self._client_of(node, reply)
            except InvalidParameter as refusal:
                _LOG.warning("node %s is left out: %s", node, refusal)
                continue
            if self.nodes.setdefault(client, node) != node:
                # It is asked again until the other node is offline.
                self._known.discard(node)

    def _ask(self, grid: Grid) -> None:
        """Ask nodes which client they are. A node that comes back is asked again."""
        online = set(grid.get_node_ids())
        self._known &= online
        self.nodes = {client: node for client, node in self.nodes.items() if node in online}
        for node in sorted(online - self._known):
            content = RecordDict({wire.SIGN: wire.sign(ask=wire.HELLO)})
            message = Message(content, dst_node_id=node, message_type="train")
            for number in grid.push_messages([message]):
                if number:
                    self._asked[number] = node
                    self._known.add(node)

    def _replies(self, grid: Grid) -> Iterator[tuple[int, Message]]:
        if not self._asked:
            return
        for reply in list(grid.pull_messages(list(self._asked))):
            node = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                yield node, reply

    def _client_of(self, node: int, reply: Message) -> int:
        """Return the client that a node is, if it trains as the server charges for. Rule 2."""
        if reply.has_error():
            rule = f"it did not answer which client it is ({(reply.error.reason or '')[-300:]})"
            hint = "Does its ClientApp have the mod? See dpacct.fl.flower.private_mod, client_app."
            raise InvalidParameter("node", node, rule, hint)
        facts = reply.content.config_records.get(wire.SIGN)
        if facts is None or "client" not in facts:
            rule = "its ClientApp trains without the mod of dpacct"
            hint = "Use dpacct.fl.flower.client_app, or private_mod() as the first of its mods."
            raise InvalidParameter("node", node, rule, hint)
        wire.check_protocol(facts)
        client = facts["client"]
        if facts.get("version") != __version__:
            rule = f"the server has dpacct {__version__}"
            hint = "Install the same dpacct on the server and on all clients."
            raise InvalidParameter("version", f"{facts.get('version')} on node {node}", rule, hint)
        if facts.get("missing"):
            raise InvalidParameter("node", node, str(facts["missing"]))
        if type(client) is not int or not 0 <= client < self._num_clients:
            rule = f"clients of this run are numbered from 0 to {self._num_clients - 1}"
            raise InvalidParameter("partition-id", f"{client!r:.40} on node {node}", rule)
        self._check_settings(facts, client)
        self._failing.pop(client, None)
        if facts.get("fails"):
            _LOG.warning("client %s cannot train: %s", client, facts["fails"])
            self._failing[client] = str(facts["fails"])
        return client

    def _check_settings(self, facts: ConfigRecord, client: int) -> None:
        """Check method and clip norm of a client against the server's."""

        def refuse(name: str, rule: str) -> InvalidParameter:
            return InvalidParameter(name, f"{facts.get(name)} on client {client}", rule)

        if facts.get("method") != self._method:
            raise refuse("method", f"the server's is {self._method}")
        norm, ours = facts.get("clip_norm"), self._clip_norm
        if norm and norm != ours:
            word = "changes from round to round" if ours is None else f"is {ours:g}"
            raise refuse("clip_norm", f"the norm that the server charges for {word}")


def exchange(
    grid: Grid, messages: Sequence[Message], timeout: float, poll: float
) -> Iterator[Message]:
    """Send messages, and yield one answer to each as it comes. Late answers are never fetched.

    Flower's own ``send_and_receive`` looks every three seconds, longer than a small round takes.
    The messages live for ``timeout`` seconds, the longest wait. ``poll`` is the time between looks.
    """
    end = time.monotonic() + timeout
    waiting: set[str] = set()
    for message in messages:
        # A client that begins later would train in vain.
        message.metadata.__dict__["_ttl"] = float(math.ceil(timeout) + 1)
        # Alone: whether it is too large for the network must not depend on how many there are.
        waiting |= {number for number in grid.push_messages([message]) if number}
    while waiting:
        for reply in list(grid.pull_messages(list(waiting))):
            if reply.metadata.reply_to_message_id in waiting:
                waiting.remove(reply.metadata.reply_to_message_id)
                yield reply
        if not waiting or time.monotonic() > end:
            return
        time.sleep(poll)
