"""Several processes that train one model: rank 0 keeps the ledger, all ranks train.

    rank 0 sends: begin -> start -> work -> done -> work -> done -> ... -> Stop
    all ranks answer: "begin" by whether they can train so, "work" by the sums of their shares

Rule 1: rank 0 alone reserves, draws, adds noise, commits and writes files. Other ranks receive the
draw of a round after it was reserved. Rule 2: a rank sends the sum of its share of the cohort, and
its clients' memories, to rank 0. Sums are exact in any order, so the model does not depend on the
number of ranks. Rule 3: every rank tries the run on synthetic clients before the first charge, and
a rank of another setting or version is refused. Rule 4: an error on one rank ends the run on all.
Its round stays spent.

Messages are neither encrypted nor authenticated: ranks are processes of one owner.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed

from dpacct import __version__
from dpacct.budget import Spent
from dpacct.errors import BudgetExceeded, InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.engine.loop import RoundLoop
from dpacct.fl.engine.plan import RunPlan
from dpacct.fl.engine.rounds import OpenRound, Rounds
from dpacct.fl.engine.states import Collected, TrainingState
from dpacct.fl.layout import State
from dpacct.fl.privacy.account import Account
from dpacct.fl.report.reports import Report
from dpacct.fl.settings import LocalSettings
from dpacct.fl.training.choose import TrainerChooser, TrainingPlan
from dpacct.validate import NOISE_MULTIPLIER_RANGE

Made = TypeVar("Made")
Held = TypeVar("Held", TrainingState, Collected)


@dataclass(frozen=True, slots=True)
class Message:
    """A value of rank 0 for all ranks. ``kind`` is begin, start, work, done or agreed."""

    kind: str
    value: Any


@dataclass(frozen=True, slots=True)
class Stop:
    """No more rounds follow. ``reason`` is empty at the end of the plan."""

    reason: str
    budget: bool = False

    @classmethod
    def now(cls) -> Stop:
        """Describe the error that is being handled, in one line."""
        error = sys.exception()
        if error is None:
            return cls("")
        if isinstance(error, BudgetExceeded):
            return cls(str(error), budget=True)
        if isinstance(error, GeneratorExit):
            return cls("its loop was left before the end")
        return cls(f"{type(error).__name__}: {error}".partition("\n")[0])


class Ranks:
    """The connections of this process to the other processes of a run.

    Attributes:
        rank, size: number of this process, and of all. over: whether a run has ended.

    Raises:
        InvalidParameter: ``torch.distributed`` is not initialized.
    """

    def __init__(self) -> None:
        if not (distributed.is_available() and distributed.is_initialized()):
            rule = "each process calls torch.distributed.init_process_group() before"
            hint = "torchrun starts them."
            raise InvalidParameter(name="distributed", value=True, rule=rule, hint=hint)
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        # Messages are objects on the CPU, wherever the tensors of the model are.
        self._group = None
        if distributed.get_backend() != "gloo":
            self._group = cast("Any", distributed).new_group(backend="gloo")
        self.over = False

    def send(self, message: Message | Stop) -> None:
        """Send a message from rank 0 to all other ranks."""
        self.over = isinstance(message, Stop)
        with self._talking():
            distributed.broadcast_object_list([message], src=0, group=self._group)

    def receive(self) -> Message | Stop:
        """Wait for a message from rank 0."""
        box: list[Any] = [None]
        with self._talking():
            distributed.broadcast_object_list(box, src=0, group=self._group)
        self.over = isinstance(box[0], Stop)
        return box[0]

    def scatter(self, memories: Sequence[dict[int, State]] | None) -> dict[int, State]:
        """Send the memories of each rank's clients from rank 0, and return those of this rank."""
        own: list[Any] = [None]
        parts = None if memories is None else list(memories)
        with self._talking():
            distributed.scatter_object_list(own, parts, src=0, group=self._group)
        return own[0]

    def gather(self, own: object) -> list[Any]:
        """Return all ranks' answers on rank 0, and an empty list on the other ranks.

        An answer that is a `Stop` is the error of its rank, and raised on rank 0.
        """
        parts: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with self._talking():
            distributed.gather_object(own, parts, dst=0, group=self._group)
        for rank, part in enumerate(parts or ()):
            if isinstance(part, Stop) and rank:
                raise Unsupported(f"rank {rank} of {self.size} failed: {part.reason}")
        return parts or []

    def answer(self, make: Callable[[], object]) -> list[Any]:
        """Make this rank's answer and `gather` it, or the error that was raised."""
        own: object = None
        try:
            own = make()
        finally:
            parts = self.gather(Stop.now() if own is None else own)
        return parts

    @contextmanager
    def _talking(self) -> Generator[None]:
        try:
            yield
        except RuntimeError as error:
            self.over = True
            line = str(error).strip().partition("\n")[0]
            raise ConnectionError(
                f"rank {self.rank} of {self.size} has lost the others ({line[:200]}). A round that "
                "was reserved stays spent. The run goes on from its checkpoint"
            ) from error


class RankedLoop(RoundLoop):
    """The loop of one of several processes.

    A rank other than 0 has no ledger, draws nothing and adds no noise.
    """

    def __init__(
        self,
        ranks: Ranks,
        rounds: Rounds,
        chooser: TrainerChooser,
        *,
        preflight: bool,
        example: ClientData | None,
    ) -> None:
        first = ranks.rank == 0
        super().__init__(rounds, chooser, preflight=preflight and first, example=example)
        self._ranks, self._first = ranks, first
        if not first:
            self.budget = None

    @property
    def account(self) -> Account:
        """The run in its ledger, which rank 0 has."""
        if self._first:
            return self.rounds.account
        raise Unsupported(f"rank {self._ranks.rank} keeps no ledger: rank 0 has the spent budget")

    def agree(self, make: Callable[[], Made]) -> Made:
        """Return rank 0's result of a function on all ranks. An error there stops all ranks."""
        return self._share("agreed", make)

    def _share(self, kind: str, make: Callable[[], Made]) -> Made:
        if not self._first:
            message = self._ranks.receive()
            if isinstance(message, Message) and message.kind == kind:
                return message.value
            if isinstance(message, Message):
                raise Unsupported(f"rank 0 has stopped: it sent {message!r} out of turn")
            if message.budget:
                raise BudgetExceeded(message.reason)
            raise Unsupported(f"rank 0 has stopped: {message.reason or 'it has no more rounds'}")
        sent: Message | None = None
        try:
            made = make()
            sent = Message(kind, made)
            return made
        finally:
            self._ranks.send(sent or Stop.now())

    def begin(self) -> None:
        """Try the run of rank 0 on every rank, then register it. Rule 3.

        A rank of another setting, or one that cannot train, ends the run before it is charged.
        """

        def tried() -> tuple[RunPlan, str, TrainingPlan | None]:
            self.prepare()
            training = None if self.choice is None else self.choice.plan
            return self.rounds.plan, _described(self.rounds), training

        def start() -> Any:
            self.rounds.begin()
            # Client memories stay on rank 0.
            public = replace(self.state, client_states={})
            return self.rounds.planned, public, self.account.budget

        plan, setting, training = self._share("begin", tried)
        self._ranks.answer(lambda: self._first or self._follow(plan, setting, training))
        planned, state, budget = self._share("start", start)
        if not self._first:
            self._take(state)
            self.rounds.planned, self.budget = planned, budget

    def _follow(self, plan: RunPlan, setting: str, training: TrainingPlan | None) -> bool:
        """Try the run of rank 0 on another rank."""
        self.rounds.plan = plan
        self.rounds.engine = replace(self.engine, plan=plan.at(0))
        ours = _described(self.rounds)
        if ours != setting:
            raise InvalidParameter("distributed", ours, f"rank 0 trains {setting}")
        self.trained_before = training
        self.prepare()
        choice = self.choice
        if choice is not None and training is not None and not choice.plan.trains_like(training):
            raise Unsupported(f"clients cannot be trained as on rank 0: {choice.note}")
        return True

    def play(self) -> Report:
        """Run one round, each rank with its share of the cohort. Rules 1, 2, 4.

        All ranks return the report of rank 0, which alone reads its epsilon.
        """
        opened: list[OpenRound] = []
        reports: list[Report] = []

        def reserve() -> Any:
            opened.append(self.open())
            return opened[0].draw, self.engine.plan, bool(self.state.client_states)

        def release() -> Any:
            for part in parts:
                opened[0].merge(_moved(part, self.engine.device))
            reports.append(opened[0].release())
            report = replace(reports[0], spent=_spent_elsewhere)
            return report, replace(self.state, client_states={})

        ranks = self._ranks
        draw, plan, remembering = self._share("work", reserve)
        shares = [draw.share(rank, ranks.size) for rank in range(ranks.size)]
        if not self._first:
            self.rounds.engine = replace(self.engine, plan=plan)
            self.state.client_states = ranks.scatter(None) if remembering else {}
        elif remembering:
            known = self.state.client_states
            own = [{c: known[c] for c in share.workers if c in known} for share in shares]
            ranks.scatter([_on(part, _HOST) for part in own])
        parts = ranks.answer(lambda: _moved(self.collect(shares[ranks.rank]), _HOST))
        report, state = self._share("done", release)
        if self._first:
            return reports[0]
        self._take(state)
        return report

    @contextmanager
    def to_the_end(self) -> Generator[None]:
        """End the run on all ranks, however it ends inside. Rule 4.

        A rank that has left answers rank 0 as long as rank 0 counts on it.
        """
        ranks = self._ranks
        try:
            yield
        finally:
            with suppress(ConnectionError):
                if self._first and not ranks.over:
                    ranks.send(Stop.now())
                while not ranks.over:
                    message = ranks.receive()
                    if isinstance(message, Message) and message.kind in ("begin", "work"):
                        if message.kind == "work" and message.value[2]:
                            ranks.scatter(None)
                        ranks.gather(Stop("it has left the run"))

    def save(self, path: Path) -> None:
        """Write a checkpoint on rank 0."""
        if self._first:
            super().save(path)

    def resume(self, path: Path) -> None:
        """Read a checkpoint on rank 0, which sends the state when the run begins."""
        if self._first:
            super().resume(path)

    def finish(self) -> None:
        """Finish the run in the ledger of rank 0."""
        if self._first:
            super().finish()

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


_HOST = torch.device("cpu")


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


def _spent_elsewhere() -> Spent:
    """Raise instead of reading epsilon on a rank without a ledger."""
    raise Unsupported("this rank keeps no ledger: rank 0 has the spent budget")
