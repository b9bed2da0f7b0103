"""Several processes that train one model: rank 0 keeps the ledger, all ranks train.

    rank 0:  Begin -> (answers) -> Start -> Work -> memories -> (sums) -> Done -> Work ... -> Stop

Rule 1: rank 0 alone reserves, draws, adds noise, commits and writes files. Other ranks receive the
draw of a round after it was reserved. Rule 2: a rank sends the sum of its share of the cohort, and
its clients' memories, to rank 0. Sums are exact in any order, so the model does not depend on the
number of ranks. Rule 3: every rank tries the run on synthetic clients before the first charge, and
a rank of another setting or version is refused. Rule 4: an error on one rank ends the run on all;
its round stays spent.

Messages are neither encrypted nor authenticated: ranks are processes of one owner.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed

from dpacct import __version__
from dpacct.budget import Budget, Spent
from dpacct.errors import BudgetExceeded, InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.engine.loop import RoundLoop
from dpacct.fl.engine.plan import RunPlan
from dpacct.fl.engine.rounds import Rounds
from dpacct.fl.engine.states import Collected, Draw, TrainingState
from dpacct.fl.layout import State
from dpacct.fl.privacy.account import Account, NoisePlan
from dpacct.fl.report.reports import Report
from dpacct.fl.settings import LocalSettings
from dpacct.fl.training.choose import TrainerChooser, TrainingPlan

Made = TypeVar("Made")
Held = TypeVar("Held", TrainingState, Collected)


@dataclass(frozen=True, slots=True)
class Begin:
    """The run that rank 0 is about to register; ``setting`` holds settings and versions."""

    plan: RunPlan
    setting: str
    num_clients: int
    training: TrainingPlan | None


@dataclass(frozen=True, slots=True)
class Start:
    """The run is registered: number of rounds, first state, budget of the ledger."""

    rounds: int
    state: TrainingState
    budget: Budget


@dataclass(frozen=True, slots=True)
class Work:
    """A round is reserved: its draw and noise; ``memories``: whether clients have any."""

    draw: Draw
    memories: bool
    plan: NoisePlan


@dataclass(frozen=True, slots=True)
class Done:
    """A round is released: its report and the next state."""

    report: Report
    state: TrainingState


@dataclass(frozen=True, slots=True)
class Agreed:
    """A value that rank 0 has made for all ranks outside the rounds of a run."""

    made: Any


@dataclass(frozen=True, slots=True)
class Stop:
    """No more rounds follow; ``reason`` is empty at the end of the plan."""

    reason: str
    budget: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """An error in one line, sent in place of a rank's part."""

    words: str

    @classmethod
    def now(cls) -> Failed:
        """Describe the error that is being handled."""
        error = sys.exception()
        if error is None:
            return cls("")
        if isinstance(error, GeneratorExit):
            return cls("its loop was left before the end")
        return cls(f"{type(error).__name__}: {error}".partition("\n")[0])


Message = Begin | Start | Work | Done | Agreed | Stop


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

    def send(self, message: Message) -> None:
        """Send a message from rank 0 to all other ranks."""
        self.over = isinstance(message, Stop)
        with self._talking():
            distributed.broadcast_object_list([message], src=0, group=self._group)

    def receive(self, kind: type[Message] | None = None) -> Any:
        """Wait for a message from rank 0, of this kind if one is given.

        Raises:
            BudgetExceeded, Unsupported: rank 0 has stopped.
        """
        box: list[Any] = [None]
        with self._talking():
            distributed.broadcast_object_list(box, src=0, group=self._group)
        [message] = box
        self.over = isinstance(message, Stop)
        if kind is None or isinstance(message, kind):
            return message
        reason = message.reason if self.over else f"it sent {message!r} out of turn"
        if self.over and message.budget:
            raise BudgetExceeded(reason)
        raise Unsupported(f"rank 0 has stopped: {reason or 'it has no more rounds'}")

    def scatter(self, memories: Sequence[dict[int, State]] | None) -> dict[int, State]:
        """Send the memories of each rank's clients from rank 0, and return those of this rank."""
        own: list[Any] = [None]
        parts = None if memories is None else list(memories)
        with self._talking():
            distributed.scatter_object_list(own, parts, src=0, group=self._group)
        return own[0]

    def gather(self, own: Collected | Failed | None) -> list[Any]:
        """Return all ranks' parts on rank 0, and an empty list on the other ranks.

        Raises:
            Unsupported: a rank has failed; the message has its error.
        """
        parts: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with self._talking():
            distributed.gather_object(own, parts, dst=0, group=self._group)
        for rank, part in enumerate(parts or ()):
            if isinstance(part, Failed) and rank:
                raise Unsupported(f"rank {rank} of {self.size} failed: {part.words}")
        return parts or []

    @contextmanager
    def _talking(self) -> Generator[None]:
        try:
            yield
        except RuntimeError as error:
            self.over = True
            line = str(error).strip().partition("\n")[0]
            raise ConnectionError(
                f"rank {self.rank} of {self.size} has lost the others ({line[:200]}). A round that "
                "was reserved stays spent; the run goes on from its checkpoint"
            ) from error


class Leader(RoundLoop):
    """Rank 0 of a run."""

    def __init__(self, ranks: Ranks, rounds: Rounds, chooser: TrainerChooser, **loop: Any) -> None:
        super().__init__(rounds, chooser, **loop)
        self._ranks = ranks

    def begin(self) -> None:
        """Try the run here and on every rank, then register it; see `RoundLoop.begin`.

        Raises:
            Unsupported: a rank has another setting, or cannot train; nothing is charged.
        """
        self.prepare()
        self._ranks.send(_begin(self.rounds, None if self.choice is None else self.choice.plan))
        self._ranks.gather(None)
        self.rounds.begin()
        state = _without_memories(self.state)
        self._ranks.send(Start(self.rounds.planned, state, self.account.budget))

    def play(self) -> Report:
        """Run one round, each rank with its share of the cohort; see `RoundLoop.play`.

        Raises:
            Unsupported: a rank has failed; nothing is released.
        """
        ranks = self._ranks
        try:
            opened = self.open()
        except BudgetExceeded as refusal:
            ranks.send(Stop(str(refusal), budget=True))
            raise
        known = self.state.client_states
        ranks.send(Work(opened.draw, bool(known), self.engine.plan))
        shares = [opened.draw.share(rank, ranks.size) for rank in range(ranks.size)]
        if known:
            parts = [{c: known[c] for c in s.workers if c in known} for s in shares]
            ranks.scatter([_on(part, _HOST) for part in parts])
        own = None
        try:
            own = self.collect(shares[0])
        finally:
            parts = ranks.gather(own or Failed.now())
        for part in parts:
            opened.merge(moved(part, self.engine.device))
        report = opened.release()
        ranks.send(Done(replace(report, spent=_spent_elsewhere), _without_memories(self.state)))
        return report

    def agree(self, make: Callable[[], Made]) -> Made:
        """Make something, and send it to all ranks; an error here stops them."""
        message: Agreed | None = None
        try:
            made = make()
            message = Agreed(made)
            return made
        finally:
            self._ranks.send(message or Stop(Failed.now().words))

    @contextmanager
    def to_the_end(self) -> Generator[None]:
        """End the run on all ranks, however it ends inside."""
        try:
            yield
        finally:
            if not self._ranks.over:
                with suppress(ConnectionError):
                    self._ranks.send(Stop(Failed.now().words))


class Follower(RoundLoop):
    """A rank other than 0. It has no ledger, draws nothing and adds no noise."""

    def __init__(self, ranks: Ranks, rounds: Rounds, chooser: TrainerChooser, **loop: Any) -> None:
        super().__init__(rounds, chooser, **loop)
        self._ranks = ranks
        self.budget = None

    @property
    def account(self) -> Account:
        """Raise, since rank 0 has the ledger."""
        raise Unsupported(f"rank {self._ranks.rank} keeps no ledger: rank 0 knows what is spent")

    def begin(self) -> None:
        """Wait for the run of rank 0, and try it; see `RoundLoop.begin`.

        Raises:
            InvalidParameter: rank 0 has another setting.
            Unsupported: rank 0 has stopped, or its training is not possible here.
        """
        message: Begin = self._ranks.receive(Begin)
        tried = False
        try:
            self._try(message)
            tried = True
        finally:
            self._ranks.gather(None if tried else Failed.now())
        start: Start = self._ranks.receive(Start)
        self._take(start.state)
        self.budget = start.budget
        self.rounds.planned = start.rounds

    def _try(self, message: Begin) -> None:
        self.rounds.plan = message.plan
        self.rounds.engine = replace(self.engine, plan=message.plan.at(0))
        ours = _begin(self.rounds, message.training)
        if ours != message:
            raise InvalidParameter("distributed", ours.setting, f"rank 0 trains {message.setting}")
        self.trained_before = message.training
        self.prepare()
        choice, training = self.choice, message.training
        if choice is not None and training is not None and not choice.plan.trains_like(training):
            raise Unsupported(f"clients cannot be trained as on rank 0: {choice.note}")

    def play(self) -> Report:
        """Train this rank's share of a round.

        Returns:
            The report of rank 0, which knows its epsilon.
        Raises:
            BudgetExceeded: no round fits any more. Unsupported: rank 0, or another rank, stopped.
        """
        ranks = self._ranks
        work: Work = ranks.receive(Work)
        self.rounds.engine = replace(self.engine, plan=work.plan)
        self.state.client_states = ranks.scatter(None) if work.memories else {}
        part = None
        try:
            part = moved(self.collect(work.draw.share(ranks.rank, ranks.size)), _HOST)
        finally:
            ranks.gather(part or Failed.now())
        done: Done = ranks.receive(Done)
        self._take(done.state)
        return done.report

    def agree(self, make: Callable[[], Made]) -> Made:
        """Return the value that rank 0 has made.

        Raises:
            Unsupported: it has stopped.
        """
        del make
        return self._ranks.receive(Agreed).made

    @contextmanager
    def to_the_end(self) -> Generator[None]:
        """Answer rank 0 after this rank has left, as long as rank 0 counts on it."""
        try:
            yield
        finally:
            left = Failed("it has left the run")
            with suppress(ConnectionError):
                while not self._ranks.over:
                    message = self._ranks.receive()
                    if isinstance(message, Work) and message.memories:
                        self._ranks.scatter(None)
                    if isinstance(message, Work | Begin):
                        self._ranks.gather(left)

    def save(self, path: Path) -> None:
        """Leave checkpoints to rank 0."""

    def resume(self, path: Path) -> None:
        """Leave checkpoints to rank 0, which sends the state when the run begins."""

    def finish(self) -> None:
        """Leave the ledger to rank 0."""

    def _take(self, state: TrainingState) -> None:
        self.rounds.state = moved(state, self.engine.device)
        self.rounds.write_model()


def loop_of(
    ranks: Ranks | None,
    rounds: Rounds,
    chooser: TrainerChooser,
    *,
    preflight: bool,
    example: ClientData | None,
) -> RoundLoop:
    """Return the loop of a process; arguments as for `RoundLoop`."""
    if ranks is None:
        return RoundLoop(rounds, chooser, preflight=preflight, example=example)
    if ranks.rank == 0:
        return Leader(ranks, rounds, chooser, preflight=preflight, example=example)
    return Follower(ranks, rounds, chooser, preflight=False, example=example)


def follower_settings(settings: LocalSettings) -> LocalSettings:
    """Return settings for a rank other than 0, which receives the noise from rank 0."""
    noise = 1.0 if settings.schedule is None else None
    return replace(
        settings, ledger=None, checkpoint=None, budget=None, delta=None, noise_multiplier=noise
    )


def moved(held: Held, device: torch.device) -> Held:
    """Return a copy whose tensors are on a device."""
    content = {field.name: _on(getattr(held, field.name), device) for field in fields(held)}
    return replace(held, **content)


_HOST = torch.device("cpu")


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


def _begin(rounds: Rounds, training: TrainingPlan | None) -> Begin:
    """Describe the rounds of this process."""
    setting = (
        f"{rounds.setting()}, {rounds.first_bound!r} with dpacct {__version__}, "
        f"torch {torch.__version__}"
    )
    return Begin(rounds.plan, setting, rounds.engine.num_clients, training)


def _spent_elsewhere() -> Spent:
    """Raise instead of reading epsilon on a rank without a ledger."""
    raise Unsupported("this rank keeps no ledger: rank 0 knows what is spent")


def _without_memories(state: TrainingState) -> TrainingState:
    """Return the part of a state that every rank may know."""
    return replace(state, client_states={})
