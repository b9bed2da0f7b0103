"""Which node is which client, whatever ids Flower gives them.

Rule 1: a client's number is its own and stays; a node's id may change whenever it starts again.
Nobody takes the place of a node that is there: a memory would be sent to whoever says its number.
Rule 2: a node whose client trains by something else than the server is refused: at the start with
an error, later by leaving it out. Rule 3: who is asked depends on who is there, never on data.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from dpacct import __version__
from dpacct.errors import InvalidParameter
from dpacct.fl.flower import wire

_LOG = logging.getLogger("flwr")


@dataclass(frozen=True, slots=True)
class Expected:
    """What a client has to say of itself.

    Attributes:
        num_clients: of the run. method: in words. clip_norm: of the next round; None where it
            changes from round to round.
        shares: where clients add the noise, how many shares make it up, and the noise multiplier.
        cohort: the most clients that a round can hold.
    """

    num_clients: int
    method: str
    clip_norm: float | None
    shares: tuple[int, float] | None = None
    cohort: int | None = None


class Roster:
    """The nodes that are there, by client.

    Attributes:
        nodes: node id of each client that answered.
        least: clients that each of them asks a hidden sum to hold, as it said last.
        signed: whether they sign keys.
    """

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self._asked: dict[str, int] = {}
        self._known: set[int] = set()
        self._failing: dict[int, str] = {}
        self.nodes: dict[int, int] = {}
        self.least: dict[int, int] = {}
        self.signed: bool | None = None

    def gather(self, grid: Grid, enough: int, patience: float, poll: float) -> None:
        """Wait until so many clients have said who they are.

        Raises:
            InvalidParameter: one of them does not fit, two are the same, or too few answer.
        """
        deadline = time.monotonic() + patience
        while True:
            for node, reply in self._replies(grid):
                client = self._client_of(node, reply)
                if client in self.nodes and self.nodes[client] != node:
                    rule = f"nodes {self.nodes[client]} and {node} both say so; each is one client"
                    raise InvalidParameter("partition-id", client, rule)
                self.nodes[client] = node
            if len(self.nodes) >= enough:
                self._check_trials()
                return
            if time.monotonic() > deadline:
                rule = f"{enough} clients answer within {patience:g} s"
                hint = "Start more SuperNodes, or set PrivateStrategy(min_clients=...)."
                raise InvalidParameter("clients", len(self.nodes), rule, hint)
            self._ask(grid)
            time.sleep(poll)

    def refresh(self, grid: Grid) -> None:
        """Take up who came since, and who came back under another id; waits for nobody."""
        self._ask(grid)
        for node, reply in self._replies(grid):
            try:
                client = self._client_of(node, reply)
            except InvalidParameter as refusal:
                _LOG.warning("node %s is left out: %s", node, refusal)
                continue
            if self.nodes.setdefault(client, node) != node:
                # Until the other one is gone it is asked again.
                self._known.discard(node)

    def _check_trials(self) -> None:
        """Somebody can train: else each round would be charged, and none would hold anything."""
        if self.nodes and self._failing.keys() >= self.nodes.keys():
            client, kind = min(self._failing.items())
            rule = f"on no client do model and loss take made-up examples (client {client}: {kind})"
            hint = "The log of a SuperNode has the whole error. Nothing was charged."
            raise InvalidParameter("clients", "none can train", rule, hint)

    def _ask(self, grid: Grid) -> None:
        there = set(grid.get_node_ids())
        # Who goes is asked again when it comes back.
        self._known &= there
        self.nodes = {client: node for client, node in self.nodes.items() if node in there}
        for node in sorted(there - self._known):
            message = Message(wire.hello(), dst_node_id=node, message_type="train")
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
        """The client that a node is.

        Raises:
            InvalidParameter: it trains by something else than the server charges for.
        """
        if reply.has_error():
            rule = f"it did not say who it is ({(reply.error.reason or 'no reason')[-300:]})"
            hint = "Does its ClientApp have the mod? See dpacct.fl.flower.private_mod, client_app."
            raise InvalidParameter("node", node, rule, hint)
        facts = reply.content.config_records.get(wire.SIGN)
        if facts is None or "client" not in facts:
            rule = "its ClientApp trains without the mod of dpacct"
            hint = "Use dpacct.fl.flower.client_app, or private_mod() as the first of its mods."
            raise InvalidParameter("node", node, rule, hint)
        version = str(facts.get("version", ""))
        wire.check_protocol(facts.get("protocol"), version)
        expected, client = self._expected, facts["client"]
        if version != __version__:
            rule = f"the server has dpacct {__version__}"
            hint = "Install the same dpacct on the server and on all clients."
            raise InvalidParameter("version", f"{version} on node {node}", rule, hint)
        if facts.get("missing"):
            raise InvalidParameter("node", node, f"it says: {facts['missing']}")
        if type(client) is not int or not 0 <= client < expected.num_clients:
            rule = f"clients of this run are numbered from 0 to {expected.num_clients - 1}"
            raise InvalidParameter("partition-id", f"{client!r:.40} on node {node}", rule)
        if facts.get("method") != expected.method:
            rule = f"the server's is {expected.method}"
            raise InvalidParameter("method", f"{facts.get('method')} on client {client}", rule)
        norm = facts.get("clip_norm")
        if norm and (expected.clip_norm is None or norm != expected.clip_norm):
            ours = "changes from round to round" if expected.clip_norm is None else "is "
            ours += "" if expected.clip_norm is None else f"{expected.clip_norm:g}"
            rule = f"the norm that the server charges for {ours}"
            raise InvalidParameter("clip_norm", f"{norm} on client {client}", rule)
        self._check_shares(facts, client)
        if facts.get("fails"):
            _LOG.warning("client %s cannot train: %s", client, facts["fails"])
            self._failing[client] = str(facts["fails"])
        else:
            self._failing.pop(client, None)
        return client

    def _check_shares(self, facts: ConfigRecord, client: int) -> None:
        """A client hides its update, and adds its share, where the server counts on it alone."""
        minimum, least = self._expected.shares or (0, 0.0)
        if facts.get("minimum") != minimum:
            theirs = facts.get("minimum")
            rule = "the server adds the noise"
            if minimum:
                rule = f"sums are hidden, and hold at least {minimum} shares of noise"
            hint = "HiddenSum(minimum) on clients is that of fl.NoiseShares(minimum) on the server."
            raise InvalidParameter("minimum", f"{theirs} on client {client}", rule, hint)
        if not minimum:
            return
        asked = facts.get("noise_multiplier")
        if not (isinstance(asked, float) and asked <= least):
            rule = f"the server charges for {least:g}"
            raise InvalidParameter("noise_multiplier", f"{asked} on client {client}", rule)
        together, most = facts.get("roster"), self._expected.cohort
        if type(together) is not int or (most is not None and together > most):
            rule = f"a round holds at most {most} clients"
            raise InvalidParameter("roster", f"{together!r:.40} on client {client}", rule)
        signs = facts.get("signs")
        if type(signs) is not bool or self.signed not in (None, signs):
            word = "signed" if self.signed else "not signed"
            rule = f"those of the clients before it are {word}, and members are summed among them"
            hint = "Give HiddenSum(membership=...) to all clients, or to none."
            raise InvalidParameter("keys", f"{signs!r:.40} on client {client}", rule, hint)
        self.least[client], self.signed = together, signs
