"""The rounds of a run, wherever its clients train: ledger, engine and model in one order.

Rule 1: a round is reserved before anything is drawn. Rule 2: cohorts come from secret randomness.
Rule 3: model, bound and noise are those that were charged for. Rule 4: committed before anything is
released, and before clients' memories change.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpacct.budget import Budget
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.engine.diagnosis import diagnose
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.states import Collected, Contributions, Draw, Released, TrainingState
from dpacct.fl.layout import State, copies
from dpacct.fl.privacy.account import Account
from dpacct.fl.privacy.bounds import check_limits
from dpacct.fl.privacy.noise import drawn_std
from dpacct.fl.report.reports import Report, Timing
from dpacct.fl.trainers.tasks import Broadcast
from dpacct.ledger import Event, Ticket


class Rounds:
    """The rounds of one run.

    Args:
        engine: its fixed parts. account: its ledger. state: where it stands.
        model: receives each round's parameters.
        not_private_because: for reports; None where the run is private.

    Attributes:
        planned: number of rounds, once the run has begun. first_bound: that it began with.
    """

    def __init__(
        self,
        engine: Engine,
        account: Account,
        state: TrainingState,
        model: nn.Module,
        not_private_because: str | None,
    ) -> None:
        self.engine = engine
        self.account = account
        self.state = state
        self.model = model
        self.planned = 0
        self._left: Ticket | None = None
        self.first_bound = state.bound
        self.not_private_because = not_private_because

    def begin(self, name: str, rounds: int, limit: Budget | None) -> int:
        """Register the run in the ledger with its plan, unless it goes on.

        Args:
            name: of the run. rounds: planned. limit: the budget that noise was given beside.
        Returns:
            The rounds that the budget has room for, at most those planned.
        Raises:
            BudgetExceeded: not one fits, or not the plan.
        """
        if not self.account.begun and self.state.round < rounds:
            event = self.event()
            rounds = self.account.affordable(event, rounds, limit)
            self.account.start(name, event, rounds, {"setting": self.setting()})
        self.planned = rounds
        return rounds

    def event(self) -> Event:
        """The next round as it will be charged, read from the objects that run."""
        engine, bound = self.engine, self.state.bound
        details: dict[str, Any] = {
            "round": self.state.round + 1,
            "method": engine.method.name or type(engine.method).__name__,
            "bound": type(bound).__name__,
            "clip_norm": bound.clip_norm,
            "cohort_size": engine.plan.cohort_size,
        }
        return engine.plan.event(bound, engine.noise, details)

    def open(self) -> OpenRound:
        """Reserve the next round, and draw who takes part in it.

        Raises:
            BudgetExceeded: it does not fit; nothing was drawn.
            InvalidParameter: the model has changed; nothing is charged.
        """
        began = time.perf_counter()
        # Rule 3.
        self._check_model()
        # Rule 1.
        event = self.event()
        left, self._left = self._left, None
        ticket = left if left and left.event == event else self.account.reserve(event)
        charging = time.perf_counter() - began
        # From here on randomness is drawn: the round stays spent, whatever happens.
        ticket.draw()
        # Rule 2.
        return OpenRound(self, ticket, event, began, charging)

    def take_over(self) -> None:
        """Open the next round in the place of one that was reserved, and never released."""
        self._left = self.account.take_over(self.event())

    def setting(self) -> str:
        """What must not change when a run goes on, in words."""
        engine = self.engine
        plan = repr(engine.plan).removeprefix("Noise")  # its name in checkpoints so far
        return (
            f"{engine.method!r}, {engine.local!r}, {plan}, {type(engine.noise).__name__}, "
            f"{engine.num_clients} clients, {engine.layout.size} parameters, "
            f"server_lr={engine.server_lr!r}"
            + ("" if engine.server is None else f", server={engine.server!r}")
        )

    def write_model(self) -> None:
        """Copy the released parameters into the model."""
        with torch.no_grad():
            for name, value in self.state.params.items():
                self.model.get_parameter(name).copy_(value)

    def _check_model(self) -> None:
        """Refuse a model that cannot take up the next release."""
        own = {name: value.shape for name, value in self.model.named_parameters()}
        for name, value in self.state.params.items():
            if own.get(name) != value.shape:
                rule = f"its parameter {name} of shape {tuple(value.shape)} is trained"
                found = "another shape" if name in own else f"without {name}"
                raise InvalidParameter("model", found, rule)


class OpenRound:
    """One round: reserved and drawn, then filled with contributions, then released once.

    The cohort is secret: whoever learns it, beside the server and its members, learns what sampling
    is charged for. A round that is never released stays spent.

    Attributes:
        number: 1, 2, ...
        draw: who takes part. broadcast: what all clients are told; public.
        settled: whether it is over; nothing is added any more.
        released: what left, None before that and where nothing may; public.
    """

    def __init__(
        self, rounds: Rounds, ticket: Ticket, event: Event, began: float, charging: float
    ) -> None:
        engine, state = rounds.engine, rounds.state
        self._rounds, self._engine, self._state = rounds, engine, state
        self._ticket, self._event, self._began, self._charging = ticket, event, began, charging
        self._came: set[int] = set()
        self.settled = False
        self.released: Released | None = None
        self.draw: Draw = engine.draw()
        self.number = state.round + 1
        self._found: Collected | None = None
        self.broadcast: Broadcast = engine.broadcast(state)

    @property
    def found(self) -> Collected:
        """The sums so far. Private."""
        if self._found is None:
            self._found = self._engine.open(self._state)
        return self._found

    @property
    def cohort(self) -> Sequence[int]:
        """Whose contributions are summed, ascending. Secret."""
        return self.draw.members

    @property
    def workers(self) -> Sequence[int]:
        """Who trains: the cohort, or everybody where the method asks for it."""
        return self.draw.workers

    def memory(self, client: int) -> State | None:
        """A copy of what a client remembers; None where clients remember nothing."""
        own = self._engine.memory(client, self._state)
        return None if own is None else copies(own)

    def bound(self, rows: Tensor) -> Contributions:
        """Mask and bound raw updates [c, d] as `Method.local_update` returns them."""
        rows = rows.detach().to(self._engine.device, copy=True)
        return self._engine.bound(self._state, self.found.kept, rows)

    def check(self, rows: Tensor, below: Tensor) -> Contributions:
        """Updates [c, k] that clients have masked and bounded, held to the same limits.

        Args:
            rows: over the coordinates of the mask.
            below: bool [c], whether each was within the clip norm before it was bounded.
        """
        kept, device = self.found.kept, self._engine.device
        return self._engine.check(self._state, kept, rows.detach().to(device), below.to(device))

    def add(self, clients: Sequence[int], contributions: Contributions) -> None:
        """Add contributions, one of each client; those of workers outside the cohort count nothing.

        Raises:
            InvalidParameter: a client that is not in the round, or came before; nothing is added.
        """
        self._require_open()
        if len(clients) != len(contributions):
            rule = f"there are {len(contributions)} contributions, one of each client"
            raise InvalidParameter("clients", len(clients), rule)
        workers, seen = set(self.draw.workers), set(self._came)
        for client in clients:
            if client not in workers or client in seen:
                found = "has contributed to" if client in seen else "is not in"
                rule = f"it {found} round {self.number}, whose clients count once"
                raise InvalidParameter("clients", client, rule)
            seen.add(client)
        self._came = seen
        members = set(self.draw.members)
        ours = [place for place, client in enumerate(clients) if client in members]
        self._engine.add(self._state, self.found, contributions.take(ours))

    def remember(self, client: int, memory: State) -> None:
        """A client's memory after the round; it is kept once the round is committed.

        Raises:
            InvalidParameter: its clients have other memories.
        """
        self._require_open()
        before = self._engine.memory(client, self._state) or {}
        shapes = {name: (value.shape, value.dtype) for name, value in before.items()}
        if {n: (value.shape, value.dtype) for n, value in memory.items()} != shapes or not all(
            bool(torch.isfinite(value).all()) for value in memory.values()
        ):
            rule = f"it holds finite tensors {', '.join(shapes) or '(none)'} of their kinds"
            raise InvalidParameter("memory", f"of client {client}", rule)
        self.found.memories[client] = copies(memory)

    def merge(self, part: Collected) -> None:
        """Add what was collected elsewhere from a `Draw.share` of the round."""
        self._require_open()
        if self._found is not None:
            self._found.merge(part)
        self._found = self._found or part

    def release(self) -> Report:
        """Add the noise, commit, and move the model; whoever came, nobody included.

        Raises:
            Unsupported: the bound or the noise has changed since the round was reserved.
            LedgerError: the ledger cannot be written; nothing leaves.
        """
        self._require_open()
        self.settled = True
        before = time.perf_counter()
        rounds, engine, state, found = self._rounds, self._engine, self._state, self.found
        bound = state.bound
        layout = engine.kept_layout(found.kept)
        # Rule 3.
        check_limits(bound, layout)
        changed = rounds.engine is not engine or rounds.state is not state
        if changed or rounds.event() != self._event:
            raise Unsupported("the bound or the noise changed while clients trained: no release")
        release = engine.release(state, found)
        std = drawn_std(engine.noise, engine.plan.update_std(bound), found.arrived)
        if release is not None:
            # Rule 4.
            self._ticket.commit()
            for client, memory in found.memories.items():
                state.client_states[client] = {n: v.detach().cpu() for n, v in memory.items()}
            rounds.state = engine.apply(state, release)
            rounds.write_model()
            self.released = release
        else:
            # Nothing is released; the round was charged all the same.
            state.round += 1
        now = time.perf_counter()
        privacy = self._charging + found.privacy_seconds + now - before
        return Report(
            round=rounds.state.round,
            rounds=rounds.planned,
            spent=rounds.account.spent_so_far(),
            not_private_because=rounds.not_private_because,
            noise_multiplier=self._event.charged.noise_multiplier,
            noise_std=std or 0.0,
            clip_norm=bound.clip_norm,
            released=release is not None,
            unit=rounds.account.unit,
            adjacency=str(engine.plan.adjacency),
            diagnostics=diagnose(found, bound, std or 0.0, list(bound.limits(layout))),
            timing=Timing(found.local_seconds, privacy, now - self._began),
        )

    def _require_open(self) -> None:
        if self.settled:
            raise Unsupported(f"round {self.number} was released; nothing is added to it any more")
