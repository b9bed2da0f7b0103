"""What counts as an answer: to this process, this round, of the client that its node is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from flwr.app import Message

from dpacct.errors import InvalidParameter
from dpacct.fl.flower.hidden_wire import Key, MaskedRow, unpack_key, unpack_masked
from dpacct.fl.flower.wire import Answer, unpack_answer

_LOG = logging.getLogger("flwr")
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Judge:
    """Of the answers to one round.

    Attributes:
        tag: of the server's process. number: of the round. nodes: node of each client.
        clip_norm: of the round. size: of an update.
    """

    tag: str
    number: int
    nodes: Mapping[int, int]
    clip_norm: float
    size: int

    def answer(self, reply: Message) -> Answer:
        """A bounded update.

        Raises:
            InvalidParameter: it is none, or not to what its node was asked. So do the others.
        """
        _refuse_error(reply)
        found = unpack_answer(reply.content)
        self._check_origin(reply, found.run, found.number, found.client)
        self._check_norm(found.clip_norm)
        self._check_size(len(found.row))
        return found

    def key(self, reply: Message) -> Key:
        """The public key of a client that waits with its update."""
        _refuse_error(reply)
        found = unpack_key(reply.content)
        self._check_origin(reply, found.about.run, found.about.number, found.about.client)
        self._check_norm(found.clip_norm)
        return found

    def masked(self, reply: Message) -> MaskedRow:
        """A noisy update behind masks."""
        _refuse_error(reply)
        found = unpack_masked(reply.content)
        self._check_origin(reply, found.about.run, found.about.number, found.about.client)
        self._check_size(len(found.row))
        return found

    def _check_origin(self, reply: Message, run: str, number: int, client: int) -> None:
        if (run, number) != (self.tag, self.number):
            rule = f"round {self.number} of this process is open"
            raise InvalidParameter("answer", f"to round {number}", rule)
        node = self.nodes.get(client)
        if node != reply.metadata.src_node_id:
            rule = f"node {node} is client {client}"
            raise InvalidParameter("answer", f"of node {reply.metadata.src_node_id}", rule)

    def _check_norm(self, found: float) -> None:
        if found != self.clip_norm:
            rule = f"the clip norm of the round is {self.clip_norm:g}"
            raise InvalidParameter("clip_norm", found, rule)

    def _check_size(self, found: int) -> None:
        if found != self.size:
            raise InvalidParameter("answer", found, f"an update holds {self.size} values")


def _refuse_error(reply: Message) -> None:
    if reply.has_error():
        raise InvalidParameter("answer", "an error", (reply.error.reason or "")[-300:])


def judged(replies: Iterable[Message], read: Callable[[Message], _Found]) -> Iterator[_Found]:
    """Those of the replies that count; of the others the log says why they do not."""
    for reply in replies:
        try:
            found = read(reply)
        except InvalidParameter as refusal:
            say_why(reply, refusal)
            continue
        yield found


def say_why(reply: Message, refusal: InvalidParameter) -> None:
    """Log that a reply does not count."""
    node = reply.metadata.src_node_id
    _LOG.warning("an answer of node %s does not count: %s", node, refusal)
