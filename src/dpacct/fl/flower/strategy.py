"""`PrivateStrategy`: `fl.Server` over Flower's messages.

Rule 1: Clients answer, and are checked, before anything is charged.
Rule 2: A round is reserved before a message leaves, and committed before the model changes.
Rule 3: An answer counts once, for the round and the client of its assignment. Any other answer does
    not count, and neither does a late one.
Rule 4: Clients are not asked for metrics and evaluations, as no noise covers them.
No message of a client ends the server's process, or keeps it busy for longer than its timeout.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import google.protobuf.message as protobuf
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dpacct import __version__, validate
from dpacct.display import line
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.engine.rounds import OpenRound
from dpacct.fl.flower import wire
from dpacct.fl.layout import trainable
from dpacct.fl.privacy.bounds import AdaptiveClip
from dpacct.fl.privacy.noise import SharesElsewhere
from dpacct.fl.report import RoundReport
from dpacct.fl.server import Server
from dpacct.fl.training.messages import check_sent, words_of

_LOG = logging.getLogger("flwr")


class Roster:
    """The client of each node that is online, under any ids that Flower gives nodes.

    Rule 5: A client's number stays its own. A node's id may change whenever it starts again. No
        node takes the number of a node that is online, because a client's memory is sent to that
        number.
    Rule 6: A node is left out if its client trains by another method or bound than the server's, or
        sends something else. At the start of a run that needs every client this is an error.
    Rule 7: Which clients are asked depends on the nodes online, never on data.

    ``nodes`` has the node id of each client that answered. ``clip_norm`` is None if it changes from
    round to round.
    """

    def __init__(self, num_clients: int, method: str, clip_norm: float | None) -> None:
        self._num_clients, self._method, self._clip_norm = num_clients, method, clip_norm
        self._asked: dict[str, int] = {}
        self._known: set[int] = set()
        self._failing: dict[int, str] = {}
        self.nodes: dict[int, int] = {}

    def gather(self, grid: Grid, enough: int, patience: float, poll: float) -> None:
        """Wait until ``enough`` clients have answered, and check them."""
        deadline, late = time.monotonic() + patience, False
        while True:
            # A run that needs every client cannot start with one that does not fit.
            self._take(grid, strict=enough == self._num_clients)
            if len(self.nodes) >= enough:
                break
            if late:
                rule = f"{enough} clients answer within {patience:g} s"
                hint = "Start more SuperNodes, or set PrivateStrategy(min_clients=...)."
                raise InvalidParameter("clients", len(self.nodes), rule, hint)
            self._ask(grid)
            time.sleep(poll)
            # Before a last look: a busy server may be late, and not the answers.
            late = time.monotonic() > deadline
        # Otherwise each round would be charged, and none would hold an update.
        if self.nodes and self._failing.keys() >= self.nodes.keys():
            client, kind = min(self._failing.items())
            rule = f"model and loss take synthetic examples (client {client}: {kind})"
            hint = "The log of a SuperNode has the whole error. Nothing was charged."
            raise InvalidParameter("clients", "none can train", rule, hint)

    def refresh(self, grid: Grid) -> None:
        """Add nodes that are new or came back under another id, without waiting."""
        self._ask(grid)
        self._take(grid, strict=False)

    def _take(self, grid: Grid, *, strict: bool) -> None:
        """Add the nodes that have answered. One that does not fit is left out, or an error."""
        for reply in pull(grid, list(self._asked)) if self._asked else ():
            node = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            try:
                self._add(node, self._client_of(node, reply))
            except InvalidParameter as refusal:
                if strict:
                    refusal.add_note(f"This is the answer of node {node}.")
                    raise
                _LOG.warning("node %s is left out: %s", node, refusal)

    def _add(self, node: int, client: int) -> None:
        other = self.nodes.setdefault(client, node)
        if other != node:
            # It is asked again until the other node is offline.
            self._known.discard(node)
            rule = f"nodes {other} and {node} both have it. Each is one client"
            raise InvalidParameter("partition-id", client, rule)

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

    def _client_of(self, node: int, reply: Message) -> int:
        """Return the client that a node is, if it trains as the server charges for. Rule 6."""
        facts = wire.signed(reply)
        if facts.get("missing"):
            raise InvalidParameter("node", node, str(facts["missing"]))
        client, ours = facts.get("client"), self._clip_norm
        if type(client) is not int or not 0 <= client < self._num_clients:
            rule = f"clients of this run are numbered from 0 to {self._num_clients - 1}"
            raise InvalidParameter("partition-id", f"{client!r:.40} on node {node}", rule)
        same = "Install the same dpacct on the server and on all clients."
        word = "changes from round to round" if ours is None else f"is {ours:g}"
        for name, right, rule, hint in (
            ("version", __version__, f"the server has dpacct {__version__}", same),
            ("method", self._method, f"the server's is {self._method}", ""),
            ("clip_norm", ours, f"the norm that the server charges for {word}", ""),
        ):
            stated = facts.get(name)
            # A client without a clip norm of its own takes that of the server.
            if stated != right and (stated or name != "clip_norm"):
                raise InvalidParameter(name, f"{stated} on client {client}", rule, hint)
        self._failing.pop(client, None)
        if facts.get("fails"):
            self._failing[client] = line(str(facts["fails"]))
            _LOG.warning("client %s cannot train: %s", client, self._failing[client])
        return client


# What Flower raises for a message that is none of its objects.
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, protobuf.Error)


def pull(grid: Grid, numbers: list[str]) -> list[Message]:
    """Return the replies to messages that have come. One that Flower cannot read is dropped."""
    try:
        return list(grid.pull_messages(numbers))
    except _UNREADABLE as error:
        if len(numbers) == 1:
            _LOG.warning("an answer cannot be read: %s", line(f"{type(error).__name__}: {error}"))
            return []
    # One of them stands in the way of the others.
    return [reply for number in numbers for reply in pull(grid, [number])]


def exchange(
    grid: Grid, messages: Sequence[Message], timeout: float, poll: float
) -> Iterator[Message]:
    """Send messages, and yield one answer to each as it comes. Late answers are never fetched.

    Flower's own ``send_and_receive`` looks every three seconds, longer than a small round takes.
    The messages live for ``timeout`` seconds, the longest wait. ``poll`` is the time between looks.
    """
    end, late = time.monotonic() + timeout, False
    waiting: set[str] = set()
    for message in messages:
        # A client that begins later would train in vain.
        message.metadata.__dict__["_ttl"] = float(math.ceil(timeout) + 1)
        # Alone: whether it is too large for the network must not depend on how many there are.
        waiting |= {number for number in grid.push_messages([message]) if number}
    while waiting:
        for reply in pull(grid, list(waiting)):
            if reply.metadata.reply_to_message_id in waiting:
                waiting.remove(reply.metadata.reply_to_message_id)
                yield reply
        if not waiting or late:
            return
        time.sleep(poll)
        late = time.monotonic() > end


class PrivateStrategy(Strategy):
    """A Flower strategy that runs a `fl.Server`.

    Clients use `client_app`. The noise, the cohorts, the ledger and the model are
    the server's: ``PrivateStrategy(server).start(grid)``.

    Args:
        server: the run. With a checkpoint, ``server.resume()`` goes on from it.
        min_clients: clients that have to answer before the first round. Default: all. Cohorts are
            drawn from all clients in any case.
        patience: seconds to wait for them. poll: seconds between looking for answers.
        on_round: called with each round's `RoundReport`, of which only
            `dpacct.fl.report.RELEASED` is private.

    Attributes:
        last: the report of the last round.

    Raises:
        InvalidParameter: a value out of range.
        Unsupported: clients cannot be sent the bound, or clients add the noise.
    """

    def __init__(
        self,
        server: Server,
        *,
        min_clients: int | None = None,
        patience: float = 600.0,
        poll: float = 0.2,
        on_round: Callable[[RoundReport], None] | None = None,
    ) -> None:
        self.server = server
        engine, bound = server.engine, server.bound
        check_sent(engine.method, bound)
        most = engine.num_clients
        least = most if min_clients is None else min_clients
        self._enough = validate.count("min_clients", least, "the clients to wait for")
        if self._enough > most:
            raise InvalidParameter("min_clients", min_clients, f"the run has {most} clients")
        self._patience = validate.above_zero("patience", patience, "the seconds to wait")
        self._poll = validate.above_zero("poll", poll, "the seconds between looks")
        self._on_round = on_round
        if isinstance(engine.noise, SharesElsewhere):
            raise Unsupported(
                "Flower brings updates to the server, which adds the noise. With noise shares a "
                "secure aggregator brings sums: see docs/how-to/flower.md."
            )
        norm = None if isinstance(bound, AdaptiveClip) else bound.clip_norm
        self._roster = Roster(most, words_of(engine.method), norm)
        self._rounds: Iterator[OpenRound] | None = None
        self._opened: OpenRound | None = None
        self.last: RoundReport | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds that are left, and return Flower's result.

        Args:
            grid: of the ServerApp.
            initial_arrays, num_rounds: the server's, and may be left out.
            timeout: seconds to wait for answers in each round. A later answer counts as zero.
            train_config, evaluate_config: must be empty. Local training is the server's.
            evaluate_fn: on public data, called with the round and the released parameters.
        Raises:
            InvalidParameter: a client does not fit, or too few answer. Nothing is charged.
        """
        self._check_start(initial_arrays, num_rounds, train_config, evaluate_config)
        result = Result()

        def evaluate() -> None:
            number = self.server.round
            evaluated = None if evaluate_fn is None else evaluate_fn(number, self._arrays())
            if evaluated is not None:
                result.evaluate_metrics_serverapp[number] = evaluated

        # Rule 1.
        self._roster.gather(grid, self._enough, self._patience, self._poll)
        if self.server.round == 0:
            evaluate()
        while (messages := self._open_round(grid)) is not None:
            # One by one, as they come: the updates of a whole cohort are never held at once.
            replies = exchange(grid, messages, timeout, self._poll)
            arrays, metrics = self.aggregate_train(self.server.round + 1, replies)
            if arrays is not None and metrics is not None:
                result.arrays = arrays
                result.train_metrics_clientapp[self.server.round] = metrics
            evaluate()
        result.arrays = self._arrays()
        if self.server.stopped_because:
            _LOG.info("the run ends: %s", self.server.stopped_because)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Reserve the server's next round, and return its messages, or none if it was the last."""
        del server_round, arrays, config
        return self._open_round(grid) or []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sum the answers that count, add the noise, commit, and move the model.

        Returns:
            The new parameters, and the privacy spent, or None if nothing may be released.
        """
        del server_round
        opened, self._opened = self._opened, None
        if opened is None:
            return None, None
        for reply in replies:
            try:
                opened.receive(wire.bytes_of(reply, "answer"))
            except InvalidParameter as refusal:
                node = reply.metadata.src_node_id
                _LOG.warning("an answer of node %s does not count: %s", node, refusal)
        report = opened.release()
        self.last = report
        spent = report.epsilon
        _LOG.info("round %s of %s: epsilon %.4f", report.round, report.rounds, spent.upper)
        if self._on_round is not None:
            self._on_round(report)
        metrics = MetricRecord(
            {"epsilon": spent.upper, "delta": spent.delta, "clip-norm": report.clip_norm}
        )
        return (self._arrays() if report.released else None), metrics

    def configure_evaluate(self, *_: Any, **__: Any) -> Iterable[Message]:
        """Return no messages. Rule 4."""
        return []

    def aggregate_evaluate(self, *_: Any, **__: Any) -> MetricRecord | None:
        """Return nothing. Rule 4."""

    def summary(self) -> None:
        """Log the run's setting."""
        server = self.server
        _LOG.info("%s, noise multiplier %.6g", server.setting, server.noise_multiplier)

    def _open_round(self, grid: Grid) -> list[Message] | None:
        """Reserve and draw a round, and return the messages for its online workers. Rule 2."""
        if self._rounds is None:
            self._rounds = iter(self.server)
        self._roster.refresh(grid)
        try:
            self._opened = opened = next(self._rounds, None)
        except BaseException:
            # An iterator that has raised would end without an error when it is asked again.
            self._rounds = None
            raise
        if opened is None:
            return None
        messages: list[Message] = []
        for client in opened.workers:
            if client in self._roster.nodes:
                own, shared = opened.assignment_parts(client)
                facts = wire.sign(ask=wire.ROUND, round=opened.number)
                messages.append(
                    Message(
                        wire.message_of(facts, client=own, round=shared),
                        dst_node_id=self._roster.nodes[client],
                        message_type="train",
                        group_id=str(opened.number),
                    )
                )
        return messages

    def _arrays(self) -> ArrayRecord:
        return wire.arrays_of(trainable(self.server.model))

    def _check_start(
        self,
        initial_arrays: ArrayRecord | None,
        num_rounds: int | None,
        *configurations: ConfigRecord | None,
    ) -> None:
        """Check that rounds, parameters and training are the server's."""
        if any(configurations):
            raise Unsupported(
                "a configuration of training or evaluation: local training is that of the server "
                "(fl.Server(local=...)), and clients evaluate nothing, as no noise would cover it"
            )
        if num_rounds not in (None, self.server.rounds):
            rule = f"the server plans {self.server.rounds} rounds, and charges for them"
            raise InvalidParameter("num_rounds", num_rounds, rule, "Leave it out.")
        if initial_arrays is not None:
            own, given = trainable(self.server.model), initial_arrays.to_torch_state_dict()
            if own.keys() != given.keys() or not all(
                torch.equal(own[name].detach().cpu(), given[name]) for name in own
            ):
                rule = "the server's model holds the parameters to begin with"
                raise InvalidParameter("initial_arrays", "other values", rule, "Leave them out.")
