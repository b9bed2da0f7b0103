"""Several processes that train one model: rank 0 keeps the ledger, all ranks train.

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
from typing import Any, NoReturn, TypeVar, cast

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

Sent = TypeVar("Sent")
Made = TypeVar("Made")
Held = TypeVar("Held", TrainingState, Collected)


@dataclass(frozen=True, slots=True)
class Begin:
    """The run that rank 0 is about to register: noise, setting in words, clients, training."""

    plan: RunPlan
    setting: str
    versions: str
    num_clients: int
    training: TrainingPlan | None

    @classmethod
    def of(cls, rounds: Rounds, training: TrainingPlan | None) -> Begin:
        """Describe the rounds of this process."""
        versions = f"dpacct {__version__}, torch {torch.__version__}"
        setting = f"{rounds.setting()}, {rounds.first_bound!r}"
        return cls(rounds.plan, setting, versions, rounds.engine.num_clients, training)


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
    """What rank 0 has made for all ranks outside the rounds of a run."""

    made: Any


@dataclass(frozen=True, slots=True)
class Stop:
    """No more rounds follow; ``reason`` is empty at the end of the plan."""

    reason: str
    budget: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """An error in words, sent in place of a rank's part."""

    words: str


Message = Begin | Start | Work | Done | Agreed | Stop


class Ranks:
    """The processes of a run, as one of them sees them.

    Attributes:
        rank, size: number of this process, and how many there are. over: whether a run has ended.

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

    def tell(self, message: Message) -> None:
        """Send a message from rank 0 to all other ranks."""
        self.over = isinstance(message, Stop)
        with self._talking():
            distributed.broadcast_object_list([message], src=0, group=self._group)

    def hear(self, *kinds: type[Message]) -> Any:
        """Wait for a message of one of these kinds from rank 0.

        Raises:
            BudgetExceeded, Unsupported: rank 0 has stopped.
        """
        said: list[Any] = [None]
        with self._talking():
            distributed.broadcast_object_list(said, src=0, group=self._group)
        self.over = isinstance(said[0], Stop)
        if kinds and not isinstance(said[0], kinds):
            _refuse(said[0])
        return said[0]

    def hand_out(self, memories: Sequence[dict[int, State]] | None) -> dict[int, State]:
        """Send the memories of each rank's clients from rank 0, and return those of this rank."""
        own: list[Any] = [None]
        parts = None if memories is None else list(memories)
        with self._talking():
            distributed.scatter_object_list(own, parts, src=0, group=self._group)
        return own[0]

    def collect(self, own: Sent | Failed) -> list[Sent]:
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

    def __init__(self, ranks: Ranks, *loop: Any) -> None:
        super().__init__(*loop)
        self._ranks = ranks

    def begin(self) -> None:
        """Try the run here and on every rank, then register it; see `RoundLoop.begin`.

        Raises:
            Unsupported: a rank has another setting, or cannot train; nothing is charged.
        """
        self.prepare()
        training = None if self.choice is None else self.choice.plan
        self._ranks.tell(Begin.of(self.rounds, training))
        self._ranks.collect(None)
        self.rounds.begin()
        start = Start(self.rounds.planned, _public(self.state), self.account.budget)
        self._ranks.tell(start)

    def play(self) -> Report:
        """Play one round, each rank with its share of the cohort; see `RoundLoop.play`.

        Raises:
            Unsupported: a rank has failed; nothing is released.
        """
        ranks = self._ranks
        try:
            opened = self.open()
        except BudgetExceeded as refusal:
            ranks.tell(Stop(str(refusal), budget=True))
            raise
        known = self.state.client_states
        ranks.tell(Work(opened.draw, bool(known), self.engine.plan))
        shares = [opened.draw.share(rank, ranks.size) for rank in range(ranks.size)]
        if known:
            own_parts = [{c: known[c] for c in s.workers if c in known} for s in shares]
            ranks.hand_out([cast("dict[int, State]", _on(part, _HOST)) for part in own_parts])
        own = None
        try:
            own = self.collect(shares[0])
        finally:
            parts = ranks.collect(own or Failed(_words_of(sys.exception())))
        for part in parts:
            opened.merge(moved(part, self.engine.device))
        report = opened.release()
        ranks.tell(Done(replace(report, spent=_spent_elsewhere), _public(self.state)))
        return report

    def agree(self, make: Callable[[], Made]) -> Made:
        """Make something, and send it to all ranks; an error here stops them."""
        made: Agreed | None = None
        try:
            found = make()
            made = Agreed(found)
            return found
        finally:
            self._ranks.tell(made or Stop(_words_of(sys.exception())))

    @contextmanager
    def to_the_end(self) -> Generator[None]:
        """End the run on all ranks, however it ends inside."""
        try:
            yield
        finally:
            if not self._ranks.over:
                with suppress(ConnectionError):
                    self._ranks.tell(Stop(_words_of(sys.exception())))


class Follower(RoundLoop):
    """A rank other than 0. It has no ledger, draws nothing and adds no noise."""

    def __init__(self, ranks: Ranks, *loop: Any) -> None:
        super().__init__(*loop)
        self._ranks = ranks
        self._budget: Budget | None = None

    @property
    def account(self) -> Account:
        """Rank 0 has the ledger.

        Raises:
            Unsupported: always.
        """
        raise Unsupported(f"rank {self._ranks.rank} keeps no ledger: rank 0 knows what is spent")

    @property
    def budget(self) -> Budget | None:
        """The budget of rank 0, None until it has begun."""
        return self._budget

    def begin(self) -> None:
        """Wait for the run of rank 0, and try it; see `RoundLoop.begin`.

        Raises:
            InvalidParameter: rank 0 has another setting.
            Unsupported: rank 0 has stopped, or its training is not possible here.
        """
        message: Begin = self._ranks.hear(Begin)
        tried: Failed | None = Failed("")
        try:
            self._try(message)
            tried = None
        finally:
            self._ranks.collect(tried and Failed(_words_of(sys.exception())))
        start: Start = self._ranks.hear(Start)
        self._take(start.state)
        self._budget = start.budget
        self.rounds.planned = start.rounds

    def _try(self, message: Begin) -> None:
        self.rounds.plan = message.plan
        self.rounds.engine = replace(self.engine, plan=message.plan.at(0))
        ours = Begin.of(self.rounds, message.training)
        if ours != message:
            rule = f"rank 0 trains {message.setting} with {message.versions}"
            raise InvalidParameter("distributed", f"{ours.setting}, {ours.versions}", rule)
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
        work: Work = ranks.hear(Work)
        self.rounds.engine = replace(self.engine, plan=work.plan)
        self.state.client_states = ranks.hand_out(None) if work.memories else {}
        part = None
        try:
            part = moved(self.collect(work.draw.share(ranks.rank, ranks.size)), _HOST)
        finally:
            ranks.collect(part or Failed(_words_of(sys.exception())))
        done: Done = ranks.hear(Done)
        self._take(done.state)
        return done.report

    def agree(self, make: Callable[[], Made]) -> Made:
        """Return what rank 0 has made.

        Raises:
            Unsupported: it has stopped.
        """
        del make
        return self._ranks.hear(Agreed).made

    @contextmanager
    def to_the_end(self) -> Generator[None]:
        """Tell rank 0 that this rank has left, as long as rank 0 counts on it."""
        try:
            yield
        finally:
            left = Failed("it has left the run")
            with suppress(ConnectionError):
                while not self._ranks.over:
                    match self._ranks.hear():
                        case Work(memories=memories):
                            if memories:
                                self._ranks.hand_out(None)
                            self._ranks.collect(left)
                        case Begin():
                            self._ranks.collect(left)
                        case _:
                            pass

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
        return RoundLoop(rounds, chooser, preflight, example)
    if ranks.rank == 0:
        return Leader(ranks, rounds, chooser, preflight, example)
    return Follower(ranks, rounds, chooser, False, example)  # noqa: FBT003 - in their order


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
    """Return a value with its tensors, and those that it contains, on a device."""
    match value:
        case Tensor():
            return value.to(device)
        case dict():
            entries = cast("dict[Any, Any]", value)
            return {key: _on(entry, device) for key, entry in entries.items()}
        case list():
            return [_on(entry, device) for entry in cast("list[Any]", value)]
        case _:
            return value


def _refuse(message: object) -> NoReturn:
    """Raise because rank 0 has stopped, or sent something unexpected."""
    stop = message if isinstance(message, Stop) else Stop(f"it said {message!r} out of turn")
    if stop.budget:
        raise BudgetExceeded(stop.reason)
    raise Unsupported(f"rank 0 has stopped: {stop.reason or 'it plays no more rounds'}")


def _words_of(error: BaseException | None) -> str:
    """Return an error in one line; empty for none."""
    if isinstance(error, GeneratorExit):
        return "its loop was left before the end"
    return "" if error is None else f"{type(error).__name__}: {error}".partition("\n")[0]


def _spent_elsewhere() -> Spent:
    """Raise instead of reading epsilon on a rank without a ledger."""
    raise Unsupported("this rank keeps no ledger: rank 0 knows what is spent")


def _public(state: TrainingState) -> TrainingState:
    """Return what every rank may know: all but the memories of clients."""
    return replace(state, client_states={})
