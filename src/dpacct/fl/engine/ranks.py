"""Several processes that train one model: rank 0 keeps the ledger, all of them train.

Rule 1: rank 0 alone reserves, draws, adds noise, commits and writes. What the others hear of a
round they hear after it was reserved. Rule 2: a rank sends the sum of its share of the cohort, and
what its clients remember, to rank 0. Sums are exact, in any order: the model does not depend on how
many ranks there are. Rule 3: what fails on one rank ends the run on all; its round stays spent.

What is sent is not encrypted, and who sends it is not asked: ranks are processes of one owner.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed

from dpacct import __version__
from dpacct.budget import Budget
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.engine.plan import RunPlan
from dpacct.fl.engine.rounds import Rounds
from dpacct.fl.engine.states import Collected, Draw, TrainingState
from dpacct.fl.layout import State
from dpacct.fl.privacy.account import NoisePlan
from dpacct.fl.report.reports import Report
from dpacct.fl.training.choose import TrainingPlan

Sent = TypeVar("Sent")


@dataclass(frozen=True, slots=True)
class Begin:
    """What is about to run: the noise that rank 0 has found, the setting in words, the clients."""

    plan: RunPlan
    setting: str
    versions: str
    num_clients: int

    @classmethod
    def of(cls, rounds: Rounds) -> Begin:
        """What these rounds are."""
        versions = f"dpacct {__version__}, torch {torch.__version__}"
        setting = f"{rounds.setting()}, {rounds.first_bound!r}"
        return cls(rounds.plan, setting, versions, rounds.engine.num_clients)


@dataclass(frozen=True, slots=True)
class Offer:
    """How rank 0 trains clients, None if it need not: every rank compares that way here."""

    training: TrainingPlan | None


@dataclass(frozen=True, slots=True)
class Start:
    """The run is registered: how many rounds, from where, on what."""

    rounds: int
    state: TrainingState
    budget: Budget


@dataclass(frozen=True, slots=True)
class Work:
    """A round is reserved: who takes part in it, with what noise and sampling.

    Attributes:
        memories: whether clients have any.
    """

    draw: Draw
    memories: bool
    plan: NoisePlan


@dataclass(frozen=True, slots=True)
class Done:
    """A round is over: what it said, and what follows."""

    report: Report
    state: TrainingState


@dataclass(frozen=True, slots=True)
class Agreed:
    """What rank 0 has made for all, beside the rounds of a run."""

    made: Any


@dataclass(frozen=True, slots=True)
class Stop:
    """No more rounds. ``reason``: in words; none at the end of the plan."""

    reason: str
    budget: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """What a rank sends instead of its part."""

    words: str


Message = Begin | Offer | Start | Work | Done | Agreed | Stop


class Ranks:
    """The processes of a run, as one of them sees them.

    Attributes:
        rank, size: this one's number, and how many there are. over: whether a run has ended.

    Raises:
        InvalidParameter: ``torch.distributed`` is not initialized.
    """

    def __init__(self) -> None:
        if not (distributed.is_available() and distributed.is_initialized()):
            rule = "each process calls torch.distributed.init_process_group() before"
            raise InvalidParameter(
                name="distributed", value=True, rule=rule, hint="torchrun starts them."
            )
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        # Messages are objects on the CPU, whatever the tensors of the model are on.
        self._group = None if distributed.get_backend() == "gloo" else _new_group()
        self.over = False

    def tell(self, message: Message) -> None:
        """Rank 0 says something to all others."""
        self.over = isinstance(message, Stop)
        with self._talking():
            distributed.broadcast_object_list([message], src=0, group=self._group)

    def hear(self) -> Message:
        """Another rank waits for what rank 0 says."""
        said: list[Any] = [None]
        with self._talking():
            distributed.broadcast_object_list(said, src=0, group=self._group)
        self.over = isinstance(said[0], Stop)
        return cast("Message", said[0])

    def hand_out(self, memories: Sequence[dict[int, State]] | None) -> dict[int, State]:
        """What the clients of each rank's share remember, from rank 0; returns one's own."""
        own: list[Any] = [None]
        parts = None if memories is None else list(memories)
        with self._talking():
            distributed.scatter_object_list(own, parts, src=0, group=self._group)
        return own[0]

    def collect(self, own: Sent | Failed) -> list[Sent]:
        """All ranks' parts, on rank 0; nothing on the others.

        Raises:
            Unsupported: a rank has failed; its words are told.
        """
        parts: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with self._talking():
            distributed.gather_object(own, parts, dst=0, group=self._group)
        for rank, part in enumerate(parts or ()):
            if isinstance(part, Failed) and rank:
                raise Unsupported(f"rank {rank} of {self.size} failed: {part.words}")
        return parts or []

    @contextmanager
    def to_the_end(self) -> Generator[None]:
        """However the run ends on rank 0 inside, it ends on all ranks."""
        try:
            yield
        finally:
            if not self.over:
                with suppress(ConnectionError):
                    self.tell(Stop(words_of(sys.exception())))

    def leave(self) -> None:
        """Another rank takes no further part; rank 0 hears of it where it still counts on it."""
        with suppress(ConnectionError):
            while not self.over:
                message = self.hear()
                if isinstance(message, Work):
                    if message.memories:
                        self.hand_out(None)
                    self.collect(Failed("it has left the run"))
                elif isinstance(message, Begin | Offer):
                    self.collect(Failed("it has left the run"))

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


def words_of(error: BaseException | None) -> str:
    """An error in one line; empty for none."""
    if isinstance(error, GeneratorExit):
        return "its loop was left before the end"
    return "" if error is None else f"{type(error).__name__}: {error}".partition("\n")[0]


Held = TypeVar("Held", TrainingState, Collected)


def moved(held: Held, device: torch.device) -> Held:
    """The same with its tensors on a device."""
    content = {field.name: _on(getattr(held, field.name), device) for field in fields(held)}
    return replace(held, **content)


def _on(value: Any, device: torch.device) -> Any:
    """Tensors of a value, and of what it holds, on a device."""
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


def _new_group() -> Any:
    return cast("Any", distributed).new_group(backend="gloo")
