"""`PrivateStrategy`: `fl.Server` over Flower's messages.

Rule 1: clients are heard, and judged, before anything is charged. Rule 2: a round is reserved
before a message leaves, and committed before the model changes: `dpacct.fl.engine.rounds`. Rule 3:
of an answer counts what its node was asked for, once: this process, this round, this client. All
others, late ones among them, count as none. Rule 4: what clients say beside their bounded updates
(metrics, evaluations) is not asked for, as no noise covers it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.engine.open_round import OpenRound
from dpacct.fl.flower import wire
from dpacct.fl.flower.bounds import bound_to_json
from dpacct.fl.flower.exchange import exchange
from dpacct.fl.flower.hidden_round import Terms, sum_hidden
from dpacct.fl.flower.judging import Judge, say_why
from dpacct.fl.flower.roster import Expected, Roster
from dpacct.fl.flower.start_checks import check_start
from dpacct.fl.flower.versions import check_flower
from dpacct.fl.flower.wire import Assignment
from dpacct.fl.layout import trainable
from dpacct.fl.privacy.adaptive_clip import AdaptiveClip
from dpacct.fl.privacy.grid_shares import SharesElsewhere
from dpacct.fl.report.reports import Report
from dpacct.fl.server import Server

_LOG = logging.getLogger("flwr")


class PrivateStrategy(Strategy):
    """A Flower strategy that runs a `fl.Server`.

    Clients use `client_app` or `private_mod`. The noise, the cohorts, the ledger and the model are
    the server's: ``PrivateStrategy(server).start(grid)``.

    Args:
        server: the run. With a checkpoint, ``server.resume()`` goes on where it stands.
        min_clients: that have to answer before the first round; default all. Cohorts are drawn
            from all of them in any case.
        patience: seconds to wait for those. poll: seconds between looking for answers.
        on_round: called with each round's `Report`, of which only
            `dpacct.fl.report.reports.RELEASED` is private.

    Raises:
        Unsupported: Flower is too old, or clients cannot be told the bound.
    """

    def __init__(
        self,
        server: Server,
        *,
        min_clients: int | None = None,
        patience: float = 600.0,
        poll: float = 0.2,
        on_round: Callable[[Report], None] | None = None,
    ) -> None:
        check_flower()
        self.server = server
        engine, bound = server.engine, server.bound
        bound_to_json(bound)
        most = engine.num_clients
        least = most if min_clients is None else min_clients
        self._enough = validate.count("min_clients", least, "the clients to wait for")
        if self._enough > most:
            raise InvalidParameter("min_clients", min_clients, f"the run has {most} clients")
        self._patience = validate.above_zero("patience", patience, "the seconds to wait")
        self._poll = validate.above_zero("poll", poll, "the seconds between looks")
        self._on_round = on_round
        self._tag = secrets.token_hex(8)
        norm = None if isinstance(bound, AdaptiveClip) else bound.clip_norm
        noise = engine.noise
        self._shares: tuple[int, float] | None = None
        if isinstance(noise, SharesElsewhere):
            if self._enough < noise.minimum:
                rule = f"a sum holds at least {noise.minimum} shares"
                raise InvalidParameter("min_clients", min_clients, rule)
            self._shares = noise.minimum, engine.plan.update_std(bound)
        least = None if self._shares is None else (self._shares[0], server.noise_multiplier)
        cohort = engine.plan.contributions
        self._roster = Roster(Expected(most, repr(engine.method), norm, least, cohort))
        self._rounds: Iterator[OpenRound] | None = None
        self._opened: OpenRound | None = None
        self.last: Report | None = None

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
        """Play the rounds that are left, and return Flower's result.

        Args:
            grid: of the ServerApp.
            initial_arrays, num_rounds: the server's, and may be left out.
            timeout: seconds to wait for answers in each round; who is later counts as zero.
            train_config, evaluate_config: not used; local training is the server's.
            evaluate_fn: on public data, called with the round and the released parameters.
        Raises:
            InvalidParameter: a client does not fit, or too few answer; nothing is charged.
        """
        configured = bool(train_config or evaluate_config)
        check_start(self.server, initial_arrays, num_rounds, configured=configured)
        result = Result()
        # Rule 1.
        self._roster.gather(grid, self._enough, self._patience, self._poll)
        if evaluate_fn is not None and self.server.round == 0:
            self._evaluate(0, evaluate_fn, result)
        while True:
            messages = self._open_round(grid)
            if messages is None:
                break
            # One by one, as they come: nobody holds the updates of a whole cohort.
            replies = exchange(grid, messages, timeout, self._poll)
            if self._shares is not None and self._opened is not None:
                judge, asked = self._judge(self._opened), self._roster
                terms = Terms(self._shares[0], asked.least, signed=bool(asked.signed))
                sum_hidden(grid, self._opened, replies, judge, terms, timeout, self._poll)
                replies = ()
            arrays, metrics = self.aggregate_train(self.server.round + 1, replies)
            number = self.server.round
            if arrays is not None and metrics is not None:
                result.arrays = arrays
                result.train_metrics_clientapp[number] = metrics
            if evaluate_fn is not None:
                self._evaluate(number, evaluate_fn, result)
        result.arrays = self._arrays()
        if self.server.stopped_because:
            _LOG.info("the run ends: %s", self.server.stopped_because)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the next round, which is reserved by then; none where there is no more.

        ``arrays`` and ``config`` are the server's own, whatever is given.
        """
        del server_round, arrays, config
        return self._open_round(grid) or []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sum what counts, add the noise, commit, and move the model.

        Returns:
            The new parameters, and what the round has cost; None where nothing may be released.
        """
        del server_round
        opened, self._opened = self._opened, None
        if opened is None:
            return None, None
        # Where sums are hidden there are none: `start` has added the sum.
        for reply in replies:
            self._take(opened, reply)
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

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """None: what clients measure on their data would leave without noise. Rule 4."""
        del server_round, arrays, config, grid
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing, for the same reason."""
        del server_round, replies

    def summary(self) -> None:
        """Log what the run is."""
        server = self.server
        _LOG.info("%s, noise multiplier %.6g", server.setting, server.noise_multiplier)

    def _open_round(self, grid: Grid) -> list[Message] | None:
        """Reserve and draw a round; the messages for those of its workers who are there."""
        if self._rounds is None:
            self._rounds = iter(self.server)
        self._roster.refresh(grid)
        # Rule 2.
        self._opened = opened = next(self._rounds, None)
        if opened is None:
            return None
        nodes, told = self._roster.nodes, opened.broadcast
        shared = wire.shared_records(told.anchor, told.server_state, opened.found.kept)
        there = [client for client in opened.workers if client in nodes]
        return [self._message(opened, client, nodes[client], shared) for client in there]

    def _message(
        self, opened: OpenRound, client: int, node: int, shared: Mapping[str, ArrayRecord]
    ) -> Message:
        engine, bound, told = self.server.engine, self.server.bound, opened.broadcast
        assignment = Assignment(
            run=self._tag,
            number=opened.number,
            client=client,
            setting=self.server.setting,
            params=told.anchor,
            server_state=told.server_state,
            memory=opened.memory(client),
            local=told.local,
            bound=bound,
            counted=isinstance(bound, AdaptiveClip),
            kept=opened.found.kept,
            contributions=engine.plan.contributions,
            seed=opened.draw.seed_of(client),
            shares=self._shares,
        )
        content = wire.pack_assignment(assignment, shared)
        return Message(content, dst_node_id=node, message_type="train", group_id=str(opened.number))

    def _take(self, opened: OpenRound, reply: Message) -> None:
        """Add an answer, if it is one."""
        try:
            answer = self._judge(opened).answer(reply)
            below = torch.tensor([answer.below])
            opened.add([answer.client], opened.check(answer.row.unsqueeze(0), below))
            if answer.memory is not None:
                opened.remember(answer.client, answer.memory)
        except InvalidParameter as refusal:
            say_why(reply, refusal)

    def _judge(self, opened: OpenRound) -> Judge:
        """Rule 3."""
        norm, size = self.server.bound.clip_norm, len(opened.found.total)
        return Judge(self._tag, opened.number, self._roster.nodes, norm, size)

    def _arrays(self) -> ArrayRecord:
        return wire.arrays_of(trainable(self.server.model))

    def _evaluate(
        self,
        number: int,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None],
        result: Result,
    ) -> None:
        found = evaluate_fn(number, self._arrays())
        if found is not None:
            result.evaluate_metrics_serverapp[number] = found
