"""`PrivateRun`: the common part of a `Federation` and a `Server`, saved in a file and resumed."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import nn

from dpacct.budget import Spent
from dpacct.display import html_table, up
from dpacct.errors import BudgetExceeded, InvalidParameter
from dpacct.fl.engine.checkpoint import read_checkpoint, saved_in, tensors_of, write_checkpoint
from dpacct.fl.engine.rounds import Rounds
from dpacct.fl.engine.setup import Parts, has_memories
from dpacct.fl.engine.states import TrainingState, together
from dpacct.fl.postprocess import ServerState
from dpacct.fl.privacy.bounds import AdaptiveClip, Bound
from dpacct.fl.privacy.masks import reads_release
from dpacct.fl.privacy.randomness import SEEDED
from dpacct.fl.settings import Settings, checkpoint_file
from dpacct.fl.tensors import undisturbed
from dpacct.fl.training.choose import TrainingMode
from dpacct.ledger import Address, exposure
from dpacct.rounds import Schedule

Played = TypeVar("Played")


class PrivateRun(Rounds):
    """The common part of a `Federation` and a `Server`.

    Attributes:
        model: with the latest parameters.
        engine: the parts of the run, with noise and sampling of the next round.
        state: after the finished rounds.
        rounds: planned number, fewer than asked for if the budget allows no more.
        budget: of a new ledger. None on another rank until rank 0 has begun.
        not_private_because: why epsilon is infinite, None if it is not.
        stopped_because: why the run ended early, None if it did not.
    """

    def __init__(self, model: nn.Module, parts: Parts, settings: Settings) -> None:
        super().__init__(model, parts)
        self.stopped_because: str | None = None
        self._checkpoint = settings.checkpoint_path
        self._checkpoint_every = settings.checkpoint_every
        self._close = weakref.finalize(self, parts.account.close)

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        kind, schedule = type(self).__name__, self.schedule
        why = self.not_private_because
        plan = f"noise multiplier {up(self.noise_multiplier, 7)}, {schedule.adjacency}"
        rows = [(kind, f"{self.round} of {self.rounds} rounds", plan)]
        if why is None:
            planned = self.planned_epsilon
            rows.append(("epsilon", up(planned.upper), f"planned, at delta {planned.delta:g}"))
        rows.append(("not private" if why else "stopped", why or self.stopped_because or "no", ""))
        return html_table(rows)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {self.round} of {self.rounds} rounds>"

    @property
    def schedule(self) -> Schedule:
        """The planned rounds, with their noise and sampling. Correlated noise is one release."""
        correlation, noise = self.plan.noise.correlation, self.plan.noise.noise_multiplier
        if correlation is None:
            return self.plan.schedule
        return 1 * correlation.release(noise, self.plan.noise.adjacency)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the next round, calibrated or given."""
        return self.engine.plan.noise_multiplier

    @property
    def bound(self) -> Bound:
        """The bound of the next round."""
        return self.state.bound

    @property
    def ledger_path(self) -> Path | Address | None:
        """The ledger's file or address, or None for a temporary one."""
        return self.account.path

    @property
    def epsilon(self) -> Spent:
        """Achieved and proven epsilon of the released rounds, also when the run is closed.

        Infinite if the run is not private.
        """
        return self.account.epsilon()

    @property
    def planned_epsilon(self) -> Spent:
        """Epsilon of the whole plan if cohorts and noise are secret.

        Infinite if the method is not private, whatever the noise.
        """
        planned = self.spent_by(self.rounds)
        if not self.noise_multiplier and exposure(self.schedule) > planned.delta:
            return Spent(math.inf, math.inf, planned.delta)
        return planned if self.not_private_because in (None, SEEDED) else planned.without_privacy

    @property
    def has_private_checkpoint(self) -> bool:
        """True if checkpoints hold clients' memories, correlated noise or an allocation.

        Such a file is readable by its owner alone. Guard it like the data.
        """
        secrets = self.state.noise, self.engine.allocator
        return has_memories(self.engine.method) or any(secret is not None for secret in secrets)

    def averaged(self) -> nn.Module:
        """Return a copy of the model with the average of the released parameters.

        `dpacct.fl.models.save_parameters` writes it. Before the first release it is the model.

        Raises:
            InvalidParameter: the run has no ``average``.
        """
        average, model = self.engine.average, copy.deepcopy(self.model)
        if average is None:
            rule = "a run averages its released parameters if it is asked to"
            raise InvalidParameter("average", None, rule, "Give average=fl.Average(decay=0.9).")
        state = ServerState.of(self.state.server_state).average
        with torch.no_grad():
            for name, value in average.value(state).items():
                model.get_parameter(name).copy_(value)
        return model

    def save(self, path: str | Path | None = None) -> Path:
        """Write a checkpoint of the last finished round, atomically.

        Args:
            path: default the run's own.
        Raises:
            InvalidParameter: there is no path, or it is that of a ledger or a folder.
            OSError: the file cannot be written. The old file is untouched.
        """
        target = checkpoint_file(path, self._checkpoint)
        if self.follows:
            return target
        state, saved, allocator = self.state, self.account.saved(), self.engine.allocator
        released = state.released if reads_release(self.engine.method.mask) else None
        content = {
            "setting": self.setting,
            "round": state.round,
            "params": together(state.params),
            "server_state": together(state.server_state),
            "client_states": {client: together(own) for client, own in state.client_states.items()},
            # Memories belong to places among the clients. Without any, their number is not written.
            "num_clients": self.engine.num_clients if state.client_states else None,
            "clip_norm": state.bound.clip_norm,
            "released": None if released is None else released.cpu(),
            "run": None if saved is None else saved.run,
            "charged": 0 if saved is None else saved.charged,
            "committed": 0 if saved is None else saved.committed,
            "ledger": None if saved is None else asdict(saved.position),
            "randomness": self.engine.source.save(),
            "training": None if self.training is None else asdict(self.training),
            "noise": None if state.noise is None else state.noise.save(),
            "allocation": None if allocator is None else allocator.save(),
        }
        write_checkpoint(target, content)
        return target

    @undisturbed()
    def resume(self, path: str | Path | None = None) -> Self:
        """Go on from a checkpoint, written by a run of the same settings.

        Rounds that the ledger holds beyond the checkpoint stay spent. A private run draws fresh
        cohorts and noise. A seeded one goes on as if it had never stopped. Correlated noise goes
        on with the first row that no round has taken.

        Raises:
            InvalidParameter: the checkpoint is missing, damaged or of another setting, or the
                ledger of its run was not kept.
            LedgerError: the ledger is not that of the checkpoint, or has lost rounds.
        """
        target = checkpoint_file(path, self._checkpoint)
        if self.follows:
            # Rank 0 sends the state when the run begins.
            return self
        content, holder = read_checkpoint(target, torch.device("cpu")), f"the checkpoint {target}"
        saved = saved_in(content)
        if saved is not None:
            self.account.find(saved, holder)
        training, allocator = content["training"], self.engine.allocator
        try:
            state = self._read_state(content, target)
            training = None if training is None else TrainingMode(**training)
            if allocator is not None:
                allocator = allocator.restored(content["allocation"])
            self.engine.source.restore(content["randomness"])
        except InvalidParameter:
            raise
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            rule = f"its values are not those of a run ({type(error).__name__})"
            raise InvalidParameter("checkpoint", str(target), rule) from None
        if saved is not None:
            self.account.resume(self.event(), saved, self.setting, holder)
        self.state, self.training = state, training
        self.engine = replace(self.engine, allocator=allocator)
        self.advance()
        self.write_model()
        return self

    def _read_state(self, content: dict[str, Any], path: Path) -> TrainingState:
        """Return the training state of a checkpoint, checked against this run."""
        engine, number = self.engine, content["round"]

        def refuse(rule: str) -> InvalidParameter:
            return InvalidParameter("checkpoint", str(path), rule)

        if not 0 <= number <= self.plan.rounds:
            raise refuse(f"it is of round {number}, and the run has {self.plan.rounds}")
        bound = self.plan.bound(self.first_bound, number + 1)
        if isinstance(bound, AdaptiveClip):
            bound = replace(bound, clip_norm=content["clip_norm"])
        theirs, setting = content["setting"], self.setting
        if theirs != setting:
            raise refuse(
                f"it was written by a run of another setting ({theirs}, and this is {setting})"
            )
        memories, clients = content["client_states"], content["num_clients"]
        if memories and clients not in (None, engine.num_clients):
            raise refuse(
                f"it holds the memories of {clients} clients, and here are {engine.num_clients}: a "
                "memory would go to another client"
            )
        params = tensors_of(content["params"], self.state.params, path)
        device, released = engine.device, content["released"]
        stream, kept_noise = self.state.noise, content["noise"]
        if stream is not None and kept_noise is not None:
            stream = stream.restored(kept_noise)
        return TrainingState(
            number,
            {name: params[name].to(device) for name in engine.layout.names},
            {name: value.to(device) for name, value in content["server_state"].items()},
            # Memories may be many. They come to the device with their client.
            memories,
            bound,
            None if released is None else released.to(device),
            stream,
        )

    def close(self) -> None:
        """Close the ledger, if it was opened here."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def _each(self, play: Callable[[], Played]) -> Iterator[Played]:
        """Yield what ``play`` returns for each round that is left, or until the budget is spent."""
        while self.round < self.rounds:
            try:
                played = play()
            except BudgetExceeded as refusal:
                self.stopped_because = str(refusal)
                break
            yield played
        self._save_if_due(at_the_end=True)
        if self.round >= self.rounds and not self.follows:
            self.account.finish()

    def _save_if_due(self, *, at_the_end: bool = False) -> None:
        due = self.round % self._checkpoint_every == 0
        if self._checkpoint and due is not at_the_end:
            self.save()
