"""One round: reserved and drawn, then filled with contributions, then released once.

Rule 1: a contribution belongs to the draw that it was bounded for and to a client of that draw, and
counts once. Rule 2: model, bound and noise are those that were charged.
Rule 3: committed before anything is released, and before clients' memories change.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.states import Collected, Contributions, Draw, Released, TrainingState
from dpacct.fl.layout import State, copies
from dpacct.fl.privacy.account import Account
from dpacct.fl.privacy.bounds import Bound, SmoothedNormalization, check_limits
from dpacct.fl.privacy.noise import SharesElsewhere, drawn_std, grid_exponent
from dpacct.fl.report.reports import Diagnostics, Report, Timing
from dpacct.fl.surroundings import undisturbed
from dpacct.fl.tensors import norm, numbers
from dpacct.fl.training.tasks import Broadcast
from dpacct.ledger import Event, Ticket


class RunInProgress(Protocol):
    """What a round uses of `dpacct.fl.engine.rounds.Rounds`."""

    engine: Engine
    account: Account
    state: TrainingState
    planned: int
    not_private_because: str | None

    def still(self, event: Event) -> bool:
        """Return whether the next round would be charged as this event."""
        ...

    def keep(self, memories: dict[int, State]) -> dict[int, State]:
        """Return clients' memories as they are kept between rounds."""
        ...

    def advance(self) -> None:
        """Go on to noise, sampling and clip norm of the next round."""
        ...

    def write_model(self) -> None:
        """Copy the released parameters into the model."""
        ...


class OpenRound:
    """One round: reserved and drawn, then filled with contributions, then released once.

    The cohort is secret, as amplification by sampling needs. A round that is never released stays
    spent.

    Attributes:
        number: 1, 2, ...
        draw: the cohort; secret. broadcast: the values that all clients receive; public.
        settled: whether the round is over; nothing is added any more.
        released: the noised mean, None before the release or if nothing may leave; public.
    """

    def __init__(
        self, rounds: RunInProgress, ticket: Ticket, event: Event, began: float, charging: float
    ) -> None:
        engine, state = rounds.engine, rounds.state
        self._rounds, self._engine, self._state = rounds, engine, state
        self._ticket, self._event, self._began, self._charging = ticket, event, began, charging
        self._came: set[int] = set()
        self._committed = False
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
            self._found.token = self.draw.token
        return self._found

    @property
    def cohort(self) -> Sequence[int]:
        """The clients whose contributions are summed, ascending. Secret."""
        return self.draw.members

    @property
    def workers(self) -> Sequence[int]:
        """The clients that train: the cohort, or all clients if the method asks for it."""
        return self.draw.workers

    def memory(self, client: int) -> State | None:
        """Return a copy of a client's memory; None for clients without memory."""
        own = self._engine.memory(client, self._state)
        return None if own is None else copies(own)

    def bound(self, rows: Tensor) -> Contributions:
        """Mask and bound raw updates [c, d] as `Method.local_update` returns them.

        Raises:
            InvalidParameter: they have another shape.
        """
        _check_shape("rows", rows, len(rows), self._engine.layout.size)
        rows = rows.detach().to(self._engine.device, copy=True)
        found = self._engine.bound(self._state, self.found.kept, rows)
        return replace(found, token=self.draw.token)

    def check(self, rows: Tensor, below: Tensor) -> Contributions:
        """Hold updates [c, k] that clients have masked and bounded to the same limits.

        Args:
            rows: over the coordinates of the mask.
            below: bool [c], whether each was within the clip norm before it was bounded.
        Raises:
            InvalidParameter: they have another shape.
        """
        kept, device = self.found.kept, self._engine.device
        _check_shape("rows", rows, len(rows), self._engine.kept_layout(kept).size)
        _check_shape("below", below, len(rows))
        rows, below = rows.detach().to(device), below.to(device)
        found = self._engine.check(self._state, kept, rows, below)
        return replace(found, token=self.draw.token)

    def add(self, clients: Sequence[int], contributions: Contributions) -> None:
        """Add contributions, one for each client; workers outside the cohort contribute nothing.

        Raises:
            InvalidParameter: a client that is not in the round, or came before, or contributions
                that were bounded for another round; nothing is added.
        """
        self._require_open()
        self._require_ours("contributions", contributions.token)
        if isinstance(self._engine.noise, SharesElsewhere):
            self._engine.noise.encode(contributions.bounded.rows, (), 0.0)
        if len(clients) != len(contributions):
            rule = f"there are {len(contributions)} contributions, one of each client"
            raise InvalidParameter("clients", len(clients), rule)
        self._came = self._came_with(clients)
        self.found.clients.extend(clients)
        members = set(self.draw.members)
        ours = [place for place, client in enumerate(clients) if client in members]
        self._engine.add(self._state, self.found, contributions.take(ours))

    def commit(self) -> None:
        """Commit the round ahead of its release, for sums that arrive with their noise.

        Raises:
            Unsupported: the bound or the noise has changed since the round was reserved.
            LedgerError: the ledger cannot be written; nothing may be asked for.
        """
        self._require_open()
        self._check_unchanged()
        if not self._committed:
            self._ticket.commit()
        self._committed = True

    def add_sum(self, clients: Sequence[int], total: Tensor) -> None:
        """Add the sum of updates and noise shares of clients, formed by a secure aggregator.

        Args:
            clients: whose updates and shares it holds, all of them, each once.
            total: of their rows by `dpacct.fl.privacy.noise.with_share`, modulo 2^64,
                int64 [k].
        Raises:
            InvalidParameter: a client that is not in the round, or came before, or another shape.
            Unsupported: the noise is added here; or the round is not committed, although its
                sum can be read by now.
        """
        self._require_open()
        noise = self._engine.noise
        if not isinstance(noise, SharesElsewhere):
            raise Unsupported(f"a sum with noise in it: {noise.name} noise is added here")
        if not self._committed:
            raise Unsupported("the sum can be read before the round is committed; commit() first")
        if total.shape != self.found.total.shape:
            rule = f"a sum holds {len(self.found.total)} numbers"
            raise InvalidParameter("total", f"of shape {tuple(total.shape)}", rule)
        if total.dtype != torch.int64:
            raise InvalidParameter("total", str(total.dtype), "whole numbers, as int64")
        self._came = self._came_with(clients)
        self.found.clients.extend(clients)
        self.found.arrived += len(clients)
        self.found.total.add_(total.to(self._engine.device))

    def remember(self, client: int, memory: State) -> None:
        """Take a client's memory after the round; it is kept once the round is committed.

        Raises:
            InvalidParameter: it is not in the round, or its clients have other memories.
        """
        self._require_open()
        if client not in set(self.draw.workers):
            raise InvalidParameter("client", client, f"it is not in round {self.number}")
        before = self._engine.memory(client, self._state) or {}
        shapes = {name: (value.shape, value.dtype) for name, value in before.items()}
        if {n: (value.shape, value.dtype) for n, value in memory.items()} != shapes or not all(
            bool(torch.isfinite(value).all()) for value in memory.values()
        ):
            rule = f"it holds finite tensors {', '.join(shapes) or '(none)'} of their kinds"
            raise InvalidParameter("memory", f"of client {client}", rule)
        self.found.memories[client] = copies(memory)

    def merge(self, part: Collected) -> None:
        """Add what another process collected from a `Draw.share` of the round.

        Raises:
            InvalidParameter: it belongs to another round, or holds a client that came before.
        """
        self._require_open()
        self._require_ours("part", part.token)
        self._came = self._came_with(part.clients)
        if self._found is not None:
            self._found.merge(part)
        self._found = self._found or part

    @undisturbed()
    def release(self) -> Report:
        """Add the noise, commit, and move the model, for any number of contributions.

        Raises:
            Unsupported: the bound or the noise has changed since the round was reserved.
            LedgerError: the ledger cannot be written; nothing leaves.
        """
        self._require_open()
        self.settled = True
        before = time.perf_counter()
        rounds, engine, state, found = self._rounds, self._engine, self._state, self.found
        bound, layout = state.bound, engine.kept_layout(found.kept)
        self._check_unchanged()
        release = engine.release(state, found)
        std = drawn_std(engine.noise, engine.plan.update_std(bound), found.arrived)
        if release is not None:
            if not self._committed:  # Rule 3.
                self._ticket.commit()
            state.client_states.update(rounds.keep(found.memories))
            rounds.state = engine.apply(state, release)
            rounds.write_model()
            self.released = release
        else:
            # Nothing is released; the round was charged all the same.
            state.round += 1
        rounds.advance()
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

    def _check_unchanged(self) -> None:
        """Check that bound and noise are those that were charged. Rule 2."""
        rounds, engine, state = self._rounds, self._engine, self._state
        check_limits(state.bound, engine.kept_layout(self.found.kept))
        changed = rounds.engine is not engine or rounds.state is not state
        if changed or not rounds.still(self._event):
            raise Unsupported("the bound or the noise changed while clients trained: no release")

    def _require_open(self) -> None:
        if self.settled:
            raise Unsupported(f"round {self.number} was released; nothing is added to it any more")

    def _require_ours(self, name: str, token: bytes) -> None:
        if token != self.draw.token:
            rule = f"round {self.number} takes what was bounded or collected for it"
            raise InvalidParameter(name, "of another round", rule)

    def _came_with(self, clients: Sequence[int]) -> set[int]:
        """Return all contributors, with these clients. Rule 1."""
        workers, seen = set(self.draw.workers), set(self._came)
        for client in clients:
            if client not in workers or client in seen:
                found = "has contributed to" if client in seen else "is not in"
                rule = f"it {found} round {self.number}, whose clients count once"
                raise InvalidParameter("clients", client, rule)
            seen.add(client)
        return seen


def _check_shape(name: str, values: Tensor, *shape: int) -> None:
    """Refuse a shape that torch would broadcast."""
    if tuple(values.shape) != shape:
        rule = f"one row of {shape[1]} numbers a client" if len(shape) > 1 else "one a client"
        raise InvalidParameter(name, f"of shape {tuple(values.shape)}", rule)


_ROUNDING = 1e-5


def diagnose(
    found: Collected, bound: Bound, std: float, limits: list[tuple[int, int, float]]
) -> Diagnostics:
    """Return statistics of the raw updates of one round, which are not private.

    Args:
        found: the sums. bound: of the round. std: of the noise on the sum.
        limits: of one row, which fix the grid of whole-number sums.
    """
    total = found.total
    norms = torch.cat([total.new_zeros(0, dtype=torch.float64), *found.norms])
    dropped = torch.stack([total.new_zeros((), dtype=torch.int64), *found.dropped])
    few = [norm(total.double()), dropped.sum().double()]
    if len(norms):
        # What a method has projected onto the ball lies on its edge, up to rounding.
        over = norms > bound.clip_norm * (1 + _ROUNDING)
        few += [over.double().mean(), norms.mean(), norms.median(), norms.max()]
    # A device is waited for once.
    length, count, *about = numbers(torch.stack(few))
    scale = 1.0 if total.is_floating_point() else 2.0 ** grid_exponent(limits)
    signal, noise = length * scale, std * math.sqrt(max(len(total), 1))
    if not about:
        return Diagnostics(found.arrived, math.nan, math.nan, math.nan, math.nan, int(count), 0.0)
    clipped, mean, median, most = about
    return Diagnostics(
        cohort_size=found.arrived,
        clipped_fraction=0.0 if isinstance(bound, SmoothedNormalization) else clipped,
        norm_mean=mean,
        norm_median=median,
        norm_max=most,
        dropped_updates=int(count),
        # A round that releases nothing has no noise to compare with.
        signal_to_noise=signal / noise if noise else math.nan,
    )
