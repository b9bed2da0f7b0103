"""The rounds of a run with clients in this process, or in several: `LocalRounds`, `RankedRounds`.

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
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import Tensor, distributed

from dpacct import __version__
from dpacct.errors import BudgetExceeded, InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData, check_population
from dpacct.fl.engine.rehearsal import Rehearsal
from dpacct.fl.engine.rounds import OpenRound, Rounds
from dpacct.fl.engine.states import Collected, Draw, TrainingState
from dpacct.fl.layout import set_training_mode
from dpacct.fl.report.reports import RoundReport
from dpacct.fl.settings import LocalSettings
from dpacct.fl.tensors import arithmetic, forked_generators, seed_generators, undisturbed
from dpacct.fl.training.choose import Choice, TrainerChooser
from dpacct.validate import LEAST_NOISE

Made = TypeVar("Made")
Held = TypeVar("Held", TrainingState, Collected)
_HOST = torch.device("cpu")


class LocalRounds(Rounds):
    """The rounds of a run with clients in this process.

    Attributes:
        chooser: decides how clients are trained. example: a synthetic client to try, or None.
        choice: the trainer of the clients, once that is chosen.
    """

    chooser: TrainerChooser
    example: ClientData | None = None
    choice: Choice | None = None

    def begin(self) -> None:
        """Try all of it on synthetic clients, then register the run in the ledger with its plan."""
        self.prepare()
        super().begin()

    @undisturbed()
    def prepare(self) -> None:
        """Try everything on synthetic clients, and choose how clients are trained. Rule 1."""
        self._check_population()
        if self.choice is None and self.state.round < self.planned:
            self._rehearse()

    def _rehearse(self) -> Choice:
        with forked_generators(), self._settled(0):
            parts = self.engine, self.chooser, self.state, self.example, self.training
            choice = Rehearsal(*parts).run()
        self.choice, self.training = choice, choice.plan
        return choice

    def agree(self, make: Callable[[], Made]) -> Made:
        """Return the result of a function, which other ranks would receive."""
        return make()

    def play(self) -> RoundReport:
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
        return super().open()

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


class RankedRounds(LocalRounds):
    """The rounds of one of several processes.

    A rank other than 0 has no ledger, draws nothing and adds no noise.

    Attributes:
        ranks: the connections to the other processes.
    """

    ranks: Ranks

    @property
    def follows(self) -> bool:
        """True on a rank other than 0."""
        return not self.ranks.first

    def agree(self, make: Callable[[], Made]) -> Made:
        """Return rank 0's result of a function on all ranks."""
        return self.ranks.share(make() if self.ranks.first else None)

    def begin(self) -> None:
        """Try the run of rank 0 on every rank, then register it. Rule 5."""

        def tried() -> Any:
            self.prepare()
            return self.plan, self.training

        def begun() -> Any:
            super(RankedRounds, self).begin()
            return self.planned, self._public_state(), self.budget

        plan, training = self.agree(tried)
        if self.follows:
            self.plan, self.training = plan, training
            self.engine = replace(self.engine, plan=plan.at(0))
            self.prepare()
        ours = _described(self)
        for theirs in self.ranks.gather(ours):
            if theirs != ours:
                raise InvalidParameter("distributed", ours, f"another rank trains {theirs}")
        planned, state, budget = self.agree(begun)
        if self.follows:
            self._take(state)
            self.planned, self.budget = planned, budget

    def play(self) -> RoundReport:
        """Run one round, each rank with its share of the cohort. Rules 3, 4.

        All ranks return the report of rank 0, which alone reads its epsilon.
        """
        ranks = self.ranks
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
        self.engine = replace(self.engine, plan=plan)
        ranks.gather(_moved(self.collect(draw.share(ranks.rank, ranks.size)), _HOST))
        report, state = ranks.share()
        self._take(state)
        return report

    def _public_state(self) -> TrainingState:
        """Return the state without the clients' memories, which stay on rank 0."""
        return _moved(replace(self.state, client_states={}), _HOST)

    def _take(self, state: TrainingState) -> None:
        self.state = _moved(state, self.engine.device)
        self.write_model()


def follower_settings(settings: LocalSettings) -> LocalSettings:
    """Return settings for a rank other than 0, which receives the noise from rank 0."""
    # The least noise: a bound may refuse more of it than rank 0 has.
    noise = LEAST_NOISE if settings.schedule is None else None
    noise = 0.0 if settings.noise_multiplier == 0 else noise
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
