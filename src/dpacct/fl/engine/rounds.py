"""The rounds of a run, wherever its clients train: ledger, engine and model in one order.

    reserve -> draw -> bound and add -> noise -> commit -> model and memories -> next round

Rule 1: a round is reserved before anything is drawn. Rule 2: a contribution belongs to the draw
that it was bounded for and to a client of that draw, and counts once, from any thread. Rule 3:
model, bound and noise are those that were charged, and clients were shown the released values. Rule
4: the round is committed before anything is released, and before clients' memories change.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from functools import cached_property
from hashlib import blake2b
from numbers import Integral
from secrets import token_bytes
from threading import RLock
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from dpacct import validate
from dpacct.accountant import spend
from dpacct.budget import Budget, Spent
from dpacct.errors import BudgetExceeded, InvalidParameter, Unsupported
from dpacct.fl.data.dataset import PartitionedClients
from dpacct.fl.engine.setup import Parts
from dpacct.fl.engine.states import Collected, Contributions, Draw, Released, diagnose, together
from dpacct.fl.layout import State, copies
from dpacct.fl.local.losses import LocalLoss, LossFunction
from dpacct.fl.privacy.account import Account, RowTicket
from dpacct.fl.privacy.allocation import rounds_of
from dpacct.fl.privacy.bounds import check_limits
from dpacct.fl.privacy.correlated import CorrelatedNoise
from dpacct.fl.privacy.noise import SharesElsewhere, drawn_std
from dpacct.fl.report import RoundReport
from dpacct.fl.tensors import check_shape, undisturbed
from dpacct.fl.training.choose import TrainingMode
from dpacct.fl.training.local_run import LocalRun
from dpacct.fl.training.messages import Answer, Assignment, check_sent, words_of
from dpacct.fl.training.tasks import Broadcast, check_unwritten
from dpacct.ledger import Event, Plan, Ticket, noise_of
from dpacct.rounds import AccountantName, Schedule


class OpenRound:
    """One round: reserved and drawn, then filled with contributions, then released once.

    The cohort is secret, as amplification by sampling needs. A round that is never released stays
    spent.

    Attributes:
        number: 1, 2, ...
        draw: the secret cohort. settled: whether the round is over. Then nothing is added any more.
        released: the noised mean, public. None before the release or if nothing may leave.
    """

    def __init__(
        self,
        run: Rounds,
        ticket: Ticket | RowTicket,
        event: Event,
        began: float,
        draw: Draw | None = None,
    ) -> None:
        self._run, self._engine, self._state = run, run.engine, run.state
        self._ticket, self._event, self._began = ticket, event, began
        # Of two additions at once one would be lost in part: who is there would remove others.
        self._turn = RLock()
        self._answered: set[int] = set()
        self._added = set[bytes]()
        self._committed = False
        self._shared = b""
        self.settled = False
        self.released, self._row = cast("Released | None", None), getattr(ticket, "row", None)
        self.draw: Draw = draw or run.engine.draw(self._row)
        self.number = run.round + 1
        self._found: Collected | None = None

    @cached_property
    def broadcast(self) -> Broadcast:
        """The public values that all clients receive, in storage of their own."""
        sent = self._engine.broadcast(self._state)
        return replace(sent, anchor=copies(sent.anchor), server_state=copies(sent.server_state))

    @property
    def found(self) -> Collected:
        """The sums so far. Private."""
        with self._turn:
            if self._found is None:
                self._found = self._engine.open(self._state, self.draw)
            return self._found

    @property
    def cohort(self) -> Sequence[int]:
        """The clients with summed contributions, ascending. Secret."""
        return self.draw.members

    @property
    def workers(self) -> Sequence[int]:
        """The clients that train: the cohort, or all clients if the method asks for it."""
        return self.draw.workers

    def memory(self, client: int) -> State | None:
        """Return a copy of a client's memory on the device, or None for clients without memory."""
        [client] = _listed([client])
        own, device = self._engine.memory(client, self._state), self._engine.device
        return None if own is None else copies({n: v.to(device) for n, v in own.items()})

    def bound(self, rows: Tensor) -> Contributions:
        """Mask and bound raw updates [c, d] as `Method.local_update` returns them.

        Raises:
            InvalidParameter: they have another shape.
        """
        check_shape("rows", rows, None, self._engine.layout.size)
        rows = rows.detach().to(self._engine.device, copy=True)
        return self._marked(self._engine.bound(self.found, rows))

    def check(self, rows: Tensor, below: Tensor) -> Contributions:
        """Hold updates [c, k] that clients have masked and bounded to the same limits.

        Args:
            rows: over the coordinates of the mask.
            below: bool [c], whether each was within the clip norm before it was bounded.
        Raises:
            InvalidParameter: they have another shape.
        """
        collected, device = self.found, self._engine.device
        check_shape("rows", rows, None, collected.layout.size)
        check_shape("below", below, len(rows))
        if below.dtype != torch.bool or not rows.is_floating_point():
            rule = "rows are reals, and below is true or false, as bool"
            raise InvalidParameter("below", f"{below.dtype}, and rows {rows.dtype}", rule)
        rows, below = rows.detach().to(device), below.to(device)
        return self._marked(self._engine.check(collected, rows, below))

    def _marked(self, bounded: Contributions) -> Contributions:
        """Return contributions with a token of their own, which begins with that of the draw."""
        return replace(bounded, token=self.draw.token + token_bytes(8))

    @contextmanager
    def local(
        self, client: int, loss: LossFunction | None = None, *, steps: int | None = None
    ) -> Generator[LocalRun]:
        """Train a client here by a loop of your own: ``with opened.local(client, loss) as local``.

        At the end of the block its update is added, and its memory kept. An error goes up, and
        nothing is added. Arguments are those of `LocalRun`.

        Raises:
            InvalidParameter: a client that is not in the round or came before, or ``steps``.
            Unsupported: another block is open, or the run's own model was written to.
        """
        given, own = self._assigned(client), self._run.objective(loss)
        with LocalRun(given, own, method=self._engine.method, steps=steps) as local:
            yield local
        # A loop may have moved the model itself.
        model, known = self._run.model, self._run.state.params
        held = dict(model.named_parameters()) | dict(model.named_buffers())
        check_unwritten((held, own.constants | known))
        contributions = self.bound(cast("Tensor", local.update).unsqueeze(0))
        memory = local.remember(contributions.rows[0])
        self._take(given.client, contributions, memory)

    def assignment(self, client: int) -> bytes:
        """Return the message to a client from which its `LocalRun` trains, with its memory.

        Raises:
            InvalidParameter: a client that is not in the round, or came before.
        """
        return b"".join(self.assignment_parts(client))

    def assignment_parts(self, client: int) -> tuple[bytes, bytes]:
        """Return the parts of `assignment`: the client's own, and that of all clients."""
        check_sent(self._engine.method, self._state.bound)
        given = self._assigned(client)
        self._shared = self._shared or given.of_round()
        return given.of_client(), self._shared

    def receive(self, answer: bytes) -> None:
        """Add the update of a `LocalRun.answer`, and keep the client's memory.

        Raises:
            InvalidParameter: it does not answer an assignment of this round, or cannot be read.
        """
        size, device = self.found.layout.size, self._engine.device
        read = Answer.read(answer, device, self._key, self.memory, size)
        checked = self.check(read.row.unsqueeze(0), torch.tensor([read.below]))
        self._take(read.client, checked, read.memory)

    def add(self, clients: Sequence[int], contributions: Contributions) -> None:
        """Add contributions, one for each client. Workers outside the cohort contribute nothing.

        Raises:
            InvalidParameter: a client that is not in the round, or came before, or contributions
                that were bounded for another round, or were added before. Nothing is added.
        """
        if not isinstance(contributions, Contributions):
            rule = "contributions are what bound() or check() of the round returned"
            raise InvalidParameter("contributions", type(contributions).__name__, rule)
        self._require_ours("contributions", contributions.token)
        clients = _listed(clients)
        if isinstance(self._engine.noise, SharesElsewhere):
            self._engine.noise.encode(contributions.rows, (), 0.0)
        if len(clients) != len(contributions):
            rule = f"there are {len(contributions)} contributions, one of each client"
            raise InvalidParameter("clients", len(clients), rule)
        with self._turn:
            answered = self._with_answered(clients)
            if contributions.token in self._added:
                rule = "each of them counts once"
                raise InvalidParameter("contributions", "of other clients", rule)
            self._answered = answered
            self._added.add(contributions.token)
            self._engine.add(self.found, clients, contributions)

    def commit(self) -> None:
        """Commit the round ahead of its release, for sums that arrive with their noise.

        Raises:
            Unsupported: the bound or the noise has changed since the round was reserved.
            LedgerError: the ledger cannot be written. Nothing may be asked for.
        """
        self._require_open()
        self._check_unchanged()
        if not self._committed:
            self._ticket.commit()
        self._committed = True

    def add_sum(self, clients: Sequence[int], total: Tensor) -> None:
        """Add the sum of updates and noise shares of clients, formed by a secure aggregator.

        Args:
            clients: the contributors, each once.
            total: sum of their rows by `dpacct.fl.privacy.noise.with_share`, modulo 2^64,
                int64 [k].
        Raises:
            InvalidParameter: a client that is not in the round, or came before, or another shape.
            Unsupported: the noise is added here, or the round is not committed, although its
                sum can be read by now.
        """
        self._require_open()
        clients = _listed(clients)
        noise, own = self._engine.noise, self.found.total
        if not isinstance(noise, SharesElsewhere):
            raise Unsupported(f"a sum that has its noise: this run adds {noise.name} noise")
        if not self._committed:
            raise Unsupported(
                "the sum can be read before the round is committed. Call commit() first"
            )
        check_shape("total", total, len(own))
        if total.dtype != torch.int64:
            raise InvalidParameter("total", str(total.dtype), "whole numbers, as int64")
        with self._turn:
            self._answered = self._with_answered(clients)
            self.found.clients.extend(clients)
            self.found.arrived += len(clients)
            own.add_(total.to(self._engine.device))

    def remember(self, client: int, memory: State) -> None:
        """Take a client's memory after the round. It is kept once the round is committed.

        Raises:
            InvalidParameter: it is not in the round, or its clients have other memories.
        """
        self._require_open()
        [client] = _listed([client])
        if client not in self.draw.workers:
            raise InvalidParameter("client", client, f"it is not in round {self.number}")
        self.found.memories[client] = self._checked(client, memory)

    def _checked(self, client: int, memory: State) -> State:
        """Return a copy of a memory, or reject one that is not of its client's kind."""
        before = self._engine.memory(client, self._state) or {}
        if not isinstance(memory, Mapping) or not all(map(torch.is_tensor, memory.values())):
            rule = "it is a dictionary of tensors"
            raise InvalidParameter("memory", f"of client {client}", rule)
        kinds = {name: (value.shape, value.dtype) for name, value in before.items()}
        same = {name: (value.shape, value.dtype) for name, value in memory.items()} == kinds
        if not same or not all(bool(torch.isfinite(value).all()) for value in memory.values()):
            rule = f"it holds finite tensors {', '.join(kinds) or '(none)'} of their kinds"
            raise InvalidParameter("memory", f"of client {client}", rule)
        return copies(memory)

    def _take(self, client: int, contributions: Contributions, memory: State | None) -> None:
        """Add one client's contribution with its memory, or neither of them."""
        kept = None if memory is None else self._checked(client, memory)
        self.add([client], contributions)
        if kept is not None:
            self.found.memories[client] = kept

    def _key(self, client: int) -> str:
        """Return the words that only the receiver of an assignment knows."""
        return blake2b(b"%d" % client, key=self.draw.token, digest_size=16).hexdigest()

    def _assigned(self, client: int) -> Assignment:
        """Return the assignment of a client that has not answered."""
        [client] = _listed([client])
        self._with_answered([client])
        bound, sent, method = self._state.bound, self.broadcast, self._engine.method
        return Assignment(
            client=client,
            key=self._key(client),
            seed=self.draw.seed_of(client),
            memory=self.memory(client),
            broadcast=replace(sent, local=sent.local.of_round(self.number)),
            bound=bound,
            kept=self.found.kept,
            method=words_of(method),
            contributions=self._engine.plan.contributions,
        )

    def merge(self, part: Collected) -> None:
        """Add the sums of a `Draw.share` of the round, from another process.

        Raises:
            InvalidParameter: it belongs to another round, or holds a client that came before.
        """
        self._require_open()
        if not isinstance(part, Collected):
            rule = "a part of a round is what its engine collects"
            raise InvalidParameter("part", type(part).__name__, rule)
        self._require_ours("part", part.token)
        with self._turn:
            self._answered = self._with_answered(part.clients)
            if self._found is None:
                # Of a share only some are members, and of the round all of them.
                self._found = replace(part, members=frozenset(self.draw.members))
            else:
                self._found.merge(part)

    @undisturbed()
    def release(self) -> RoundReport:
        """Add the noise, commit, and move the model, for any number of contributions.

        Raises:
            Unsupported: the bound or the noise has changed since the round was reserved.
            LedgerError: the ledger cannot be written. Nothing leaves.
        """
        with self._turn:
            self._require_open()
            self.settled = True
        run, engine, state, collected = self._run, self._engine, self._state, self.found
        self._check_unchanged()
        bound, (down, up) = state.bound, engine.traffic(state, collected)
        release = engine.release(state, collected, self._row)
        std = drawn_std(engine.noise, engine.plan.update_std(bound), collected.arrived) or 0.0
        charged = noise_of(self._event.charged) if engine.plan.noise_multiplier else 0.0
        if state.noise is not None and self._row is not None:
            std, charged = std * state.noise.std(self._row), engine.plan.noise_multiplier
        if release is not None:
            if engine.method.as_printed:
                std = release.mean.std * engine.plan.cohort_size
            if not self._committed:  # Rule 4.
                self._ticket.commit()
            # Memories of all clients may be too many for a device.
            state.client_states |= {c: together(own) for c, own in collected.memories.items()}
            run.state = engine.apply(state, release)
            run.write_model()
            self.released = release
        else:
            # Nothing is released, but the round was charged.
            state.round += 1
        run.advance()
        return RoundReport(
            round=run.round,
            rounds=run.rounds,
            spent=run.account.spent_so_far(),
            not_private_because=run.not_private_because,
            noise_multiplier=charged,
            noise_std=std,
            clip_norm=bound.clip_norm,
            released=release is not None,
            bytes_down=down,
            bytes_up=up,
            unit=run.account.unit,
            adjacency=str(engine.plan.adjacency),
            diagnostics=diagnose(collected, std),
            seconds=time.perf_counter() - self._began,
        )

    def _check_unchanged(self) -> None:
        """Check that bound and noise are those that were charged. Rule 3."""
        run, engine, state = self._run, self._engine, self._state
        check_limits(state.bound, self.found.layout)
        same = run.engine is engine and run.state is state
        if not same or not engine.plan.charged_for(self._event, state.bound):
            raise Unsupported("the bound or the noise changed while clients trained: no release")
        if "broadcast" in vars(self):
            shown, own = self.broadcast, engine.broadcast(state)
            public = (shown.anchor, own.anchor), (shown.server_state, own.server_state)
            check_unwritten(*public)

    def _require_open(self) -> None:
        if self.settled:
            raise Unsupported(f"round {self.number} was released. No update can be added to it")

    def _require_ours(self, name: str, token: bytes) -> None:
        if not token.startswith(self.draw.token):
            rule = f"round {self.number} takes only contributions that were bounded for it"
            raise InvalidParameter(name, "of another round", rule)

    def _with_answered(self, clients: Sequence[int]) -> set[int]:
        """Return the clients that have answered, with these, or reject one. Rule 2."""
        self._require_open()
        workers, answered = set(self.draw.workers), set(self._answered)
        for client in clients:
            if client not in workers or client in answered:
                fault = "has contributed to" if client in answered else "is not in"
                rule = f"it {fault} round {self.number}, whose clients count once"
                raise InvalidParameter("clients", client, rule)
            answered.add(client)
        return answered


def _listed(clients: Sequence[int]) -> list[int]:
    listed = validate.several("clients", clients, "numbers of clients")
    if not all(isinstance(client, Integral) for client in listed):
        raise InvalidParameter("clients", clients, "clients are whole numbers")
    return [int(cast("int", client)) for client in listed]


def no_ledger() -> NoReturn:
    """Raise instead of reading a ledger that another rank keeps."""
    raise Unsupported("this rank keeps no ledger: rank 0 has the spent budget")


class Rounds:
    """The rounds of one run.

    Attributes:
        model: receives each release. training: how clients are trained, once that is chosen.
        rounds: planned number, fewer than asked for if the budget allows no more.
        budget: of a new ledger. None on a rank that follows until rank 0 has begun.
        follows: True on a rank other than 0, which has no ledger.
        Others: see `Parts`.
    """

    follows = False

    def __init__(self, model: nn.Module, parts: Parts) -> None:
        self.model = model
        self.engine, self.plan, self._account, self.state = parts[:4]
        self.name, self.limit, self.not_private_because = parts[5:]
        self.accountant: AccountantName = parts.accountant
        self.training: TrainingMode | None = None
        self.budget: Budget | None = self._account.budget
        self.rounds = self.plan.rounds
        self.first_bound = self.state.bound
        self._objective: tuple[Any, LocalLoss] | None = None
        # A bound or noise that cannot be charged for in some round is refused here.
        check_limits(self.first_bound, self.engine.layout)
        self.charged()

    @property
    def account(self) -> Account:
        """The run in its ledger. A rank other than 0 has none."""
        return no_ledger() if self.follows else self._account

    @property
    def round(self) -> int:
        """The number of finished rounds."""
        return self.state.round

    def register(self) -> None:
        """Register the run in the ledger with its plan, unless it goes on.

        Raises:
            BudgetExceeded: not one round fits, or not the plan.
        """
        if self.account.begun or self.round >= self.rounds:
            return
        event, planned, engine = self.event(), self.rounds, self.engine
        if engine.plan.correlation is None:
            each = rounds_of(event.charged)
            planned = each * self.account.affordable(event, planned // each, self.limit)
        elif self.limit is not None and self.spent_by(planned).upper > self.limit.epsilon:
            rule = "correlated noise is charged for all its rounds"
            raise BudgetExceeded(f"the plan exceeds {self.limit}, and {rule}")
        details: dict[str, Any] = {"setting": self.setting}
        if self.not_private_because is not None:
            details["not_private_because"] = self.not_private_because
        if isinstance(engine.clients, PartitionedClients):
            # Whether epsilon is about the owners of the data or about simulated clients.
            details["simulated_clients"] = engine.clients.simulated
        # A seed belongs to one run. Drawn earlier, it could come into a second run: by a
        # checkpoint that was saved ahead of the first round, or by a fork of the process.
        noise, allocator = self.state.noise, engine.allocator
        noise = None if noise is None else noise.afresh(engine.source)
        allocator = None if allocator is None else allocator.afresh(engine.source)
        self.account.start(self.name, event, self._planned_charge(planned), details)
        # Nothing is kept of a run that the ledger has refused: it may be tried again.
        self.rounds, self.state.noise = planned, noise
        self.engine = replace(engine, allocator=allocator)

    def spent_by(self, rounds: int) -> Spent:
        """Return the epsilon of so many planned rounds if cohorts and noise are secret."""
        return spend(self._planned_charge(rounds), self.account.delta, self.accountant)

    def _planned_charge(self, rounds: int) -> Schedule:
        """Return so many planned rounds as they are charged: an epoch is one release."""
        charged = self.charged()
        return Plan(charged).first(rounds // rounds_of(charged.phases[0].round))

    def charged(self) -> Schedule:
        """Return all rounds of the plan as the ledger charges them."""
        bound, noise, correlation = self.state.bound, self.engine.noise, self.plan.noise.correlation
        if correlation is not None:
            return correlation.releases * self.event().charged
        return self.plan.charged(lambda plan: plan.event(bound, noise, {}).charged)

    def advance(self) -> None:
        """Give the engine noise, sampling and clip norm of the next round."""
        if not self.plan.constant:
            self.engine = replace(self.engine, plan=self.plan.at(self.account.position))
        self.state.bound = self.plan.bound(self.state.bound, self.round + 1)

    def event(self) -> Event:
        """Return the next round as it will be charged, read from the objects that run."""
        engine, bound = self.engine, self.state.bound
        details = {
            "method": engine.method.name or type(engine.method).__name__,
            "bound": type(bound).__name__,
            "clip_norm": bound.clip_norm,
            "cohort_size": engine.plan.cohort_size,
        }
        return engine.plan.event(bound, engine.noise, details)

    @undisturbed()
    def open(self) -> OpenRound:
        """Reserve the next round, and draw its cohort.

        Raises:
            BudgetExceeded: it does not fit. Nothing was drawn.
        """
        began = time.perf_counter()
        correlation, stream = self.engine.plan.correlation, self.state.noise
        if correlation is not None and stream is not None:
            event = self.event()
            rows = correlation.strategy.rounds
            ticket = self.account.take_row(event, correlation.releases, rows)
            stream.skip_to(ticket.row)
        elif self.engine.allocator is not None:
            event = self.event()
            steps = rounds_of(event.charged)
            ticket = self.account.take_step(event, steps, self.rounds, self.round)
        else:
            self.advance()
            event = self.event()
            ticket = self.account.reserve(event)  # Rule 1.
            # From here on randomness is drawn: the round stays spent, whatever happens.
            ticket.draw()
        return OpenRound(self, ticket, event, began)

    @property
    def setting(self) -> str:
        """The settings common to clients, checkpoints and the ledger's run, in words."""
        engine, norms = self.engine, self.plan.clip_norms
        noise = engine.noise
        source = repr(noise) if isinstance(noise, CorrelatedNoise) else type(noise).__name__
        # A bound of the caller may have no stable form.
        bound = self.first_bound
        told = repr(bound) if is_dataclass(bound) else type(bound).__name__
        return (
            f"{words_of(engine.method)}, {engine.local!r}, {self.plan.words()}, "
            f"{source}, {engine.plan.public}, "
            f"{engine.layout.size} parameters, server_lr={engine.server_lr!r}, bound={told}"
            + ("" if norms is None else f", clip_norms={norms!r}")
            + ("" if engine.server is None else f", server={engine.server!r}")
            + ("" if engine.average is None else f", average={engine.average!r}")
        )

    def objective(self, loss: LossFunction | None) -> LocalLoss:
        """Return a loss with a copy of the model, made once."""
        if self._objective is None or self._objective[0] is not loss:
            names, precision = self.engine.layout.names, self.engine.local.precision
            self._objective = loss, LocalLoss.of_copies(self.model, loss, names, precision)
        return self._objective[1]

    def write_model(self) -> None:
        """Copy the released parameters into the model."""
        # One dictionary: finding each parameter by its name takes longer than the copies.
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, value in self.state.params.items():
                own[name].copy_(value)
