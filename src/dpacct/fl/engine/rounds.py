"""The rounds of a run, wherever its clients train: ledger, engine and model in one order.

Rule 1: a round is reserved before anything is drawn. Rule 2: cohorts come from secret randomness.
Rule 3: the model is the one that was charged for. What happens in a round: `open_round`.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dpacct.accountant import spend
from dpacct.budget import Budget, Spent
from dpacct.errors import InvalidParameter
from dpacct.fl.data.dataset import PartitionedClients
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.open_round import OpenRound
from dpacct.fl.engine.plan import RunPlan
from dpacct.fl.engine.states import TrainingState, on_host
from dpacct.fl.layout import State
from dpacct.fl.privacy.account import Account
from dpacct.fl.surroundings import undisturbed
from dpacct.ledger import Event, Ticket
from dpacct.ledger.record.plans import Plan
from dpacct.rounds import Round, Schedule


def bytes_for_client_states(device: torch.device) -> int:
    """Return how much memory clients' states may take on a device."""
    if device.type == "cuda":
        return int(0.4 * torch.cuda.mem_get_info(device)[0])
    return 0 if device.type == "cpu" else 1 << 30


class Rounds:
    """The rounds of one run.

    Args:
        engine: its parts, with noise and sampling of the next round. plan: of all rounds.
        account: its ledger. state: where it stands. model: receives each round's parameters.
        name: of the run in the ledger. accountant: that charges the plan.
        limit: the budget that noise was given with, or None.
        calibrated: whether the noise was found for the budget.
        not_private_because: for reports; None if the run is private.

    Attributes:
        planned: number of rounds; fewer than asked for if the budget allows no more.
        first_bound: of the first round.
    """

    def __init__(
        self,
        engine: Engine,
        plan: RunPlan,
        account: Account,
        state: TrainingState,
        model: nn.Module,
        *,
        name: str,
        accountant: str,
        limit: Budget | None,
        calibrated: bool,
        not_private_because: str | None,
    ) -> None:
        self.engine = engine
        self.plan = plan
        self.account = account
        self.state = state
        self.model = model
        self.name = name
        self.accountant = accountant
        self.limit = limit
        self.calibrated = calibrated
        self.not_private_because = not_private_because
        self.planned = plan.schedule.rounds
        self.first_bound = state.bound
        self._left: Ticket | None = None
        self._on_device: bool | None = None

    def begin(self) -> None:
        """Register the run in the ledger with its plan, unless it goes on.

        Raises:
            BudgetExceeded: not one round fits, or not the plan.
        """
        if self.account.begun or self.state.round >= self.planned:
            return
        event = self.event()
        self.planned = self.account.affordable(event, self.planned, self.limit)
        details: dict[str, Any] = {"setting": self.setting()}
        if isinstance(self.engine.clients, PartitionedClients):
            # Whether epsilon is about the owners of the data or about simulated clients.
            details["simulated_clients"] = self.engine.clients.simulated
        plan = Plan(self.charged()).first(self.planned)
        self.account.start(self.name, event, plan, details)

    def planned_epsilon(self) -> Spent:
        """Return what the whole plan costs if cohorts and noise are secret."""
        plan = Plan(self.charged()).first(self.planned)
        return spend(plan, self.account.delta, self.accountant)

    def charged(self) -> Schedule:
        """Return all rounds of the plan as the ledger charges them."""
        bound, noise = self.state.bound, self.engine.noise
        return self.plan.charged(lambda plan: plan.event(bound, noise, {}).charged)

    def advance(self, position: int | None = None) -> None:
        """Give the engine noise, sampling and clip norm of the next round.

        Args:
            position: of the round in the plan, from 0; default the ledger's next one.
        """
        if not self.plan.constant:
            at = self.account.position if position is None else position
            self.engine = replace(self.engine, plan=self.plan.at(at))
        self.state.bound = self.plan.bound(self.state.bound, self.state.round + 1)

    def event(self) -> Event:
        """The next round as it will be charged, read from the objects that run."""
        engine, bound = self.engine, self.state.bound
        return engine.plan.event(bound, engine.noise, self._details())

    def still(self, event: Event) -> bool:
        """Return whether the bound of the next round is that of this event."""
        return self.engine.plan.charged_for(event, self.state.bound)

    def _details(self) -> dict[str, Any]:
        engine, bound = self.engine, self.state.bound
        return {
            "round": self.state.round + 1,
            "method": engine.method.name or type(engine.method).__name__,
            "bound": type(bound).__name__,
            "clip_norm": bound.clip_norm,
            "cohort_size": engine.plan.cohort_size,
        }

    @undisturbed()
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
        left, self._left = self._left, None
        ticket = left if left and left.event == self.event() else None
        if ticket is None:
            self.advance()
        event = self.event()
        ticket = ticket or self.account.reserve(event)
        charging = time.perf_counter() - began
        # From here on randomness is drawn: the round stays spent, whatever happens.
        ticket.draw()
        # Rule 2.
        return OpenRound(self, ticket, event, began, charging)

    def take_over(self) -> None:
        """Open the next round in the place of one that was reserved, and never released."""
        self.advance(max(self.account.position - 1, 0))
        self._left = self.account.take_over(self.event())
        if self._left is None:
            self.advance()

    def setting(self) -> str:
        """What must not change when a run goes on, in words."""
        engine = self.engine
        return (
            f"{engine.method!r}, {engine.local!r}, {self.plan.words()}, "
            f"{type(engine.noise).__name__}, {engine.plan.public}, "
            f"{engine.layout.size} parameters, "
            f"server_lr={engine.server_lr!r}"
            + ("" if self.plan.clip_norms is None else f", clip_norms={self.plan.clip_norms!r}")
            + ("" if engine.server is None else f", server={engine.server!r}")
        )

    def keep(self, memories: dict[int, State]) -> dict[int, State]:
        """Return clients' memories as they are kept between rounds.

        They stay on the device if those of all clients fit there, else they go to the CPU. No
        bit of a release depends on it.
        """
        device = self.engine.device
        if self._on_device is None and memories:
            largest = max(sum(v.nbytes for v in own.values()) for own in memories.values())
            room = bytes_for_client_states(device)
            self._on_device = self.engine.num_clients * largest <= room
        if self._on_device or device.type == "cpu":
            return memories
        return {client: on_host(own) for client, own in memories.items()}

    def take_noise(self, noise_multiplier: float) -> None:
        """Use the noise of a checkpoint if it differs by less than a calibration promises.

        Another version may have found the noise for the same budget in other last digits.
        """
        own = self.engine.plan.noise_multiplier
        if self.plan.constant and math.isclose(noise_multiplier, own, rel_tol=1e-5):
            [(round_, count)] = self.plan.schedule
            found = count * Round(noise_multiplier, round_.sampling, round_.adjacency)
            self.plan = replace(self.plan, schedule=found)
            self.engine = replace(self.engine, plan=self.plan.at(0))

    def write_model(self) -> None:
        """Copy the released parameters into the model."""
        # Looking each of them up by its name takes longer than the copies.
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, value in self.state.params.items():
                own[name].copy_(value)

    def _check_model(self) -> None:
        """Refuse a model that cannot take up the next release."""
        own = {name: value.shape for name, value in self.model.named_parameters()}
        for name, value in self.state.params.items():
            if own.get(name) != value.shape:
                rule = f"its parameter {name} of shape {tuple(value.shape)} is trained"
                found = "another shape" if name in own else f"without {name}"
                raise InvalidParameter("model", found, rule)
