"""Random allocation: in every epoch each client (or example) takes part in one random step.

Rule 1: the allocation of an epoch is a function of a secret seed and the number of the epoch. The
seed is kept in the checkpoint, so an epoch that goes on after a crash goes on with the same
allocation. It is never drawn again once a step was released.
Rule 2: a whole epoch is charged before its first step. A part of it is post-processing of the
whole, so an epoch that breaks off costs no more, and nothing is given back.
Rule 3: each step of an epoch is given out once (`dpacct.ledger.run.Run.take_row`). A step that was
lost stays lost, and its clients take part in the next epoch.
Rule 4: the divisor is public: the public number of clients / steps.
Rule 5: nothing about an allocation follows the releases. Steps and passes are fixed before the run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpacct import validate
from dpacct.epochs import Epoch
from dpacct.errors import InvalidParameter
from dpacct.fl.privacy.randomness import Randomness
from dpacct.rounds import Adjacency, Release, Round, Sampling

_SEED = 32
_WORDS = 2**64


@dataclass(frozen=True, slots=True)
class Allocation:
    """Each client takes part in one random step of every epoch, the same one in all its passes.

    The sampler of a run and its event: `epoch` is the charge.

    Args:
        steps: of one pass. A batch has num_clients / steps members on average.
        passes: how often an epoch goes through its steps with one allocation.
    Raises:
        InvalidParameter: a value out of range.
    """

    steps: int
    passes: int = 1

    name = "allocation"

    def __post_init__(self) -> None:
        for name, noun in (("steps", "the steps of a pass"), ("passes", "the passes of an epoch")):
            object.__setattr__(self, name, validate.count(name, getattr(self, name), noun))

    @property
    def sampling_rate(self) -> float:
        """The probability with which a client is in a step."""
        return 1.0 / self.steps

    @property
    def rounds(self) -> int:
        """The number of training rounds of an epoch."""
        return self.steps * self.passes

    def epoch(self, noise_multiplier: float, adjacency: Adjacency) -> Epoch:
        """Return an epoch as it is charged."""
        return Epoch(noise_multiplier, self.steps, passes=self.passes, adjacency=adjacency)

    def epochs_of(self, rounds: int) -> int:
        """Return the number of epochs of a run, which has whole epochs."""
        count, rest = divmod(rounds, self.rounds)
        if rest or not count:
            rule = f"an epoch has {self.rounds} rounds, and is charged as a whole"
            whole = max(1, round(rounds / self.rounds)) * self.rounds
            raise InvalidParameter("rounds", rounds, rule, f"For example {whole}.")
        return count


def sampling_of(item: Release) -> Sampling | Allocation:
    """Return the sampling of a round, or the allocation of an epoch."""
    if isinstance(item, Epoch):
        return Allocation(item.steps, item.passes)
    if not isinstance(item, Round):
        rule = "a run trains by rounds, or by epochs of random allocation"
        raise InvalidParameter("schedule", item, rule, "Charge other releases to the ledger.")
    return item.sampling


def rounds_of(item: Release) -> int:
    """Return the number of training rounds that a charge covers."""
    return item.steps * item.passes if isinstance(item, Epoch) else 1


class Allocator:
    """The allocations of all epochs of a run. A secret, without ``repr``."""

    def __init__(self, allocation: Allocation, seed: bytes) -> None:
        self._allocation, self._seed = allocation, seed

    @classmethod
    def start(cls, allocation: Allocation, source: Randomness) -> Allocator:
        """Return allocations from a fresh secret seed."""
        return cls(allocation, source.take(_SEED))

    def afresh(self, source: Randomness) -> Allocator:
        """Return allocations of the same kind from another fresh secret seed."""
        return Allocator.start(self._allocation, source)

    def members(self, row: int, num_clients: int) -> list[int]:
        """Return the clients of a training round, ascending. Rows count from 0 over all epochs."""
        epoch, place = divmod(row, self._allocation.rounds)
        order, ends = _drawn(self._seed, epoch, self._allocation.steps, num_clients)
        step = place % self._allocation.steps
        return order[ends[step] : ends[step + 1]].tolist()

    def save(self) -> str:
        """Return the seed for a checkpoint. Secret."""
        return self._seed.hex()

    def restored(self, saved: object) -> Allocator:
        """Return the allocations of a checkpoint."""
        if not isinstance(saved, str) or len(saved) != 2 * _SEED:
            raise InvalidParameter("checkpoint", None, "it holds the seed of its allocation")
        return Allocator(self._allocation, bytes.fromhex(saved))


@lru_cache(maxsize=1)
def _drawn(
    seed: bytes, epoch: int, steps: int, num_clients: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the clients sorted by step, and the places where steps begin. Shapes [n], [steps + 1].

    Each client's step is uniform: 64 bits of SHAKE-256 modulo the steps, drawn again from the last
    incomplete multiple on.
    """
    words, limit, more = np.empty(0, dtype=np.uint64), _WORDS // steps * steps, 0
    while len(words) < num_clients:
        label = f"dpacct allocation, epoch {epoch}, part {more}"
        missing = 8 * (num_clients - len(words))
        fresh = np.frombuffer(hashlib.shake_256(seed + label.encode()).digest(missing), "<u8")
        words = np.concatenate([words, fresh[fresh <= np.uint64(limit - 1)]])
        more += 1
    drawn = (words % np.uint64(steps)).astype(np.int64)
    order = np.argsort(drawn, kind="stable")
    return order, np.searchsorted(drawn[order], np.arange(steps + 1))
