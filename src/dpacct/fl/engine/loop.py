"""The rounds of a run with clients in this process, or in several processes: `RoundLoop`.

Rule 1: everything is tried on synthetic clients before the first charge. Rule 2: the population is
the one that was charged. `dpacct.fl.engine.rounds` has the order of a round.

Several processes train one model: rank 0 keeps the ledger, all ranks train.

    rank 0 sends: the plan -> the registered run -> (a draw -> a report and the next state) x rounds

Rule 3: rank 0 alone reserves, draws, adds noise, commits and writes files. Other ranks receive the
draw of a round after it was reserved. Rule 4: a rank sends the sum of its share of the cohort, and
its clients' memories, to rank 0. Sums are exact in any order, so the model does not depend on the
number of ranks. Rule 5: every rank tries the run on synthetic clients before the first charge, and
a rank of another setting or version is refused on all of them.

An error on one rank ends its process, and ``torchrun`` ends the others. A round that was reserved
stays spent. Messages are neither encrypted nor authenticated: ranks are processes of one owner.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import Tensor, distributed

from dpacct import __version__
from dpacct.budget import Budget
from dpacct.errors import BudgetExceeded, InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData, check_population
from dpacct.fl.engine.checkpoint import resume, save
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.rehearsal import Rehearsal
from dpacct.fl.engine.rounds import OpenRound, Rounds
from dpacct.fl.engine.states import Collected, Draw, TrainingState
from dpacct.fl.layout import set_training_mode
from dpacct.fl.privacy.account import Account
from dpacct.fl.report.reports import Report
from dpacct.fl.settings import LocalSettings
from dpacct.fl.tensors import arithmetic, forked_generators, seed_generators, undisturbed
from dpacct.fl.training.choose import Choice, TrainerChooser, TrainingPlan
from dpacct.validate import NOISE_MULTIPLIER_RANGE

Made = TypeVar("Made")
Held = TypeVar("Held", TrainingState, Collected)
_HOST = torch.device("cpu")


class RoundLoop:
    """One run in progress.

    Attributes:
        choice: how clients are trained, once that is chosen.
        trained_before: how they were trained before the run was resumed, or on rank 0.
        budget: of a new ledger. None on another rank until rank 0 has begun.
    """

    def __init__(
        self, rounds: Rounds, chooser: TrainerChooser, *, example: ClientData | None
    ) -> None:
        self.rounds, self.chooser = rounds, chooser
        self.choice: Choice | None = None
        self.trained_before: TrainingPlan | None = None
        self.budget: Budget | None = rounds.account.budget
        self._example = example

    @property
    def engine(self) -> Engine:
        """The parts of the run, with noise and sampling of the next round."""
        return self.rounds.engine

    @property
    def account(self) -> Account:
        """The run in its ledger."""
        return self.rounds.account

    @property
    def state(self) -> TrainingState:
        """The state after the finished rounds."""
        return self.rounds.state

    def begin(self) -> None:
        """Try all of it on synthetic clients, then register the run in the ledger with its plan."""
        self.prepare()
        self.rounds.begin()

    @undisturbed()
    def prepare(self) -> None:
        """Try everything on synthetic clients, and choose how clients are trained. Rule 1."""
        self._check_population()
        if self.choice is None and self.state.round < self.rounds.planned:
            self._rehearse()

    def _rehearse(self) -> Choice:
        engine, state = self.engine, self.state
        with forked_generators(), self._settled(0):
            rehearsal = Rehearsal(engine, self.chooser, state, self._example, self.trained_before)
            choice = rehearsal.run()
        self.choice = choice
        return choice

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint, by `dpacct.fl.engine.checkpoint`."""
        self._check_population()
        self.trained_before = resume(self.rounds, path)

    def save(self, path: Path) -> None:
        """Write a checkpoint of the last finished round."""
        save(self.rounds, path, self.trained_before if self.choice is None else self.choice.plan)

    def finish(self) -> None:
        """Finish the run in the ledger."""
        self.account.finish()

    def agree(self, make: Callable[[], Made]) -> Made:
        """Return the result of a function, which other ranks would receive."""
        return make()

    def play(self) -> Report:
        """Run one round.

        A round that does not fit, or another population or model, raises before anything is
        charged. If code of a client reached past the bound, nothing leaves.
        """
        opened = self.open()
        opened.merge(self.collect(opened.draw))
        return opened.release()

    def open(self) -> OpenRound:
        """Reserve the next round, and draw its cohort (see `Rounds.open`)."""
        self._check_population()
        return self.rounds.open()

    @undisturbed()
    def collect(self, draw: Draw) -> Collected:
        """Train the workers of a draw, or of a share of it, and sum their contributions."""
        choice = self.choice or self._rehearse()
        with forked_generators(), self._settled(draw.seed):
            return self.engine.collect(self.state, draw, choice.trainer, choice.plan.chunk)

    def _check_population(self) -> None:
        """Check that the population is the one that was planned. Rule 2."""
        check_population(self.engine.clients, self.engine.num_clients)

    @contextmanager
    def _settled(self, seed: int) -> Generator[None]:
        """Prepare model, precision and seed for training."""
        seed_generators(seed, self.engine.device)
        with arithmetic(self.engine.local.precision):
            set_training_mode(self.chooser.model)
            yield


class Ranks:
    """The connections of process ``rank`` to the other ones of a run, ``size`` in all."""

    def __init__(self) -> None:
        if not (distributed.is_available() and distributed.is_initialized()):
            rule = "each process calls torch.distributed.init_process_group() before"
            hint = "torchrun starts them."
            raise InvalidParameter(name="distributed", value=True, rule=rule, hint=hint)
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.first = self.rank == 0
        # Messages are objects on the CPU, wherever the tensors of the model are.
        self._group = None
        if distributed.get_backend() != "gloo":
            self._group = cast("Any", distributed).new_group(backend="gloo")

    def share(self, value: Any = None) -> Any:
        """Return rank 0's value on all ranks."""
        box = [value]
        distributed.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def gather(self, own: object) -> list[Any]:
        """Return the values of all ranks, on all ranks."""
        parts: list[Any] = [None] * self.size
        cast("Any", distributed).all_gather_object(parts, own, group=self._group)
        return parts


def join_torchrun() -> bool:
    """Join the processes that torchrun has started, and return whether this is rank 0.

    Each process takes a GPU of its own, if there are enough.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    distributed.init_process_group("gloo")
    return distributed.get_rank() == 0


class RankedLoop(RoundLoop):
    """The loop of one of several processes.

    A rank other than 0 has no ledger, draws nothing and adds no noise.
    """

    def __init__(
        self, ranks: Ranks, rounds: Rounds, chooser: TrainerChooser, *, example: ClientData | None
    ) -> None:
        super().__init__(rounds, chooser, example=example)
        self._ranks = ranks
        if not ranks.first:
            self.budget = None

    @property
    def account(self) -> Account:
        """The run in its ledger, which rank 0 has."""
        if self._ranks.first:
            return self.rounds.account
        raise Unsupported(f"rank {self._ranks.rank} keeps no ledger: rank 0 has the spent budget")

    def agree(self, make: Callable[[], Made]) -> Made:
        """Return rank 0's result of a function on all ranks."""
        return self._ranks.share(make() if self._ranks.first else None)

    def begin(self) -> None:
        """Try the run of rank 0 on every rank, then register it. Rule 5."""
        ranks, rounds = self._ranks, self.rounds

        def tried() -> Any:
            self.prepare()
            return rounds.plan, self.choice and self.choice.plan

        def begun() -> Any:
            rounds.begin()
            return rounds.planned, self._public_state(), self.account.budget

        plan, training = self.agree(tried)
        if not ranks.first:
            rounds.plan = plan
            rounds.engine = replace(self.engine, plan=plan.at(0))
            self.trained_before = training
            self.prepare()
        ours = _described(rounds)
        for theirs in ranks.gather(ours):
            if theirs != ours:
                raise InvalidParameter("distributed", ours, f"another rank trains {theirs}")
        planned, state, budget = self.agree(begun)
        if not ranks.first:
            self._take(state)
            rounds.planned, self.budget = planned, budget

    def play(self) -> Report:
        """Run one round, each rank with its share of the cohort. Rules 3, 4.

        All ranks return the report of rank 0, which alone reads its epsilon.
        """
        ranks = self._ranks
        if ranks.first:
            try:
                opened = self.open()
            except BudgetExceeded as refusal:
                ranks.share(str(refusal))
                raise
            known = self.state.client_states
            memories = {c: _on(known[c], _HOST) for c in opened.draw.workers if c in known}
            ranks.share((opened.draw, self.engine.plan, memories))
            for part in ranks.gather(_moved(self.collect(opened.draw.share(0, ranks.size)), _HOST)):
                opened.merge(_moved(part, self.engine.device))
            report = opened.release()
            ranks.share((replace(report, spent=_spent_elsewhere), self._public_state()))
            return report
        message = ranks.share()
        if isinstance(message, str):
            raise BudgetExceeded(message)
        draw, plan, self.state.client_states = message
        self.rounds.engine = replace(self.engine, plan=plan)
        ranks.gather(_moved(self.collect(draw.share(ranks.rank, ranks.size)), _HOST))
        report, state = ranks.share()
        self._take(state)
        return report

    def save(self, path: Path) -> None:
        """Write a checkpoint on rank 0."""
        if self._ranks.first:
            super().save(path)

    def resume(self, path: Path) -> None:
        """Read a checkpoint on rank 0, which sends the state when the run begins."""
        if self._ranks.first:
            super().resume(path)

    def finish(self) -> None:
        """Finish the run in the ledger of rank 0."""
        if self._ranks.first:
            super().finish()

    def _public_state(self) -> TrainingState:
        """Return the state without the clients' memories, which stay on rank 0."""
        return _moved(replace(self.state, client_states={}), _HOST)

    def _take(self, state: TrainingState) -> None:
        self.rounds.state = _moved(state, self.engine.device)
        self.rounds.write_model()


def follower_settings(settings: LocalSettings) -> LocalSettings:
    """Return settings for a rank other than 0, which receives the noise from rank 0."""
    # The least noise: a bound may refuse more of it than rank 0 has.
    noise = NOISE_MULTIPLIER_RANGE[0] if settings.schedule is None else None
    return replace(
        settings, ledger=None, checkpoint=None, budget=None, delta=None, noise_multiplier=noise
    )


def _moved(held: Held, device: torch.device) -> Held:
    """Return a copy with its tensors on a device."""
    content = {field.name: _on(getattr(held, field.name), device) for field in fields(held)}
    return replace(held, **content)


def _on(value: Any, device: torch.device) -> Any:
    """Return a value with its tensors, and the tensors in its containers, on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return {key: _on(entry, device) for key, entry in entries.items()}
    if isinstance(value, list):
        return [_on(entry, device) for entry in cast("list[Any]", value)]
    return value


def _described(rounds: Rounds) -> str:
    """Return settings and versions, which are the same on all ranks."""
    return (
        f"{rounds.setting()}, {rounds.first_bound!r}, "
        f"{rounds.engine.num_clients} clients with dpacct {__version__}, torch {version('torch')}"
    )


def _spent_elsewhere() -> NoReturn:
    """Raise instead of reading epsilon on a rank without a ledger."""
    raise Unsupported("this rank keeps no ledger: rank 0 has the spent budget")
