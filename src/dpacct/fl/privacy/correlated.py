"""Correlated noise in training: its cohorts, its rows, one at a time, and their one charge.

Round t releases G_t + s W_t. G_t is the sum of bounded contributions, s the standard deviation z
times the clip norm, and W = C^{-1} Z for the strategy C and independent standard Gaussian rows Z.
Multiplied by C, all releases are the Gaussian mechanism C G + s Z: one release of its sensitivity.

Rule 1: row t of Z is a function of a secret seed and t. The checkpoint keeps the seed and as many
of the last rows of W as the strategy needs. It is as secret as the data.
Rule 2: the ledger gives out each row once (`dpacct.ledger.run.Run.take_row`). A row whose round was
lost is never released with another sum. The next rows still continue it.
Rule 3: all rows are charged before the first one is released, and nothing of it is given back.
Rule 4: a cohort is a function of the row of noise and of the number of clients alone. So no
dropout, failure or restart brings a client back too early, and an absent client has used its turn.
The promise (the least separation and the most participations) is checked for every client before
anything is charged. The rule is public and amplifies nothing, except for secret draws within a
group.
Rule 5: one clip norm and one noise multiplier hold for all rows.
Proofs: docs/derivations/correlated-training.md.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from dpacct import validate
from dpacct.correlated import Correlated, Strategy
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.privacy.noise import Limits, Noise
from dpacct.fl.privacy.randomness import Randomness, draw_below, normals
from dpacct.fl.public import HasRate
from dpacct.rounds import Adjacency, Full, Poisson, Sampling

_SEED = 32


@dataclass(frozen=True, slots=True)
class Cyclic:
    """Groups of clients that take turns: client i takes part in the rounds i, i + groups, ...

    Args:
        groups: the number of groups, at most that of the clients.
        sampling_rate: if given, each client of the group joins with this probability only, in
            secret. This amplifies privacy for strategies of at most ``groups`` bands.
    Raises:
        InvalidParameter: a value out of range.
    """

    groups: int
    sampling_rate: float | None = None

    def __post_init__(self) -> None:
        count = validate.count("groups", self.groups, "the number of groups")
        object.__setattr__(self, "groups", count)
        if self.sampling_rate is not None:
            object.__setattr__(self, "sampling_rate", validate.sampling_rate(self.sampling_rate))

    name = "cyclic"

    def participation(self, rounds: int, num_clients: int) -> tuple[int, int]:
        """Return a client's least separation and most participations, or reject the settings."""
        if self.groups > num_clients:
            rule = f"{num_clients} clients make at most {num_clients} groups"
            raise InvalidParameter("groups", self.groups, rule)
        return self.groups, -(-rounds // self.groups)

    def cohort_size(self, num_clients: int) -> float:
        """Return the planned cohort size, by which sums are divided."""
        rate = 1.0 if self.sampling_rate is None else self.sampling_rate
        return rate * num_clients / self.groups

    def members(self, row: int, num_clients: int, source: Randomness) -> Sequence[int]:
        """Return the clients of a row of noise, ascending."""
        group = range(row % self.groups, num_clients, self.groups)
        if self.sampling_rate is None:
            return group
        return [group[place] for place in draw_below(len(group), self.sampling_rate, source)]


@dataclass(frozen=True, slots=True)
class MinSeparation:
    """Cohorts of one size from a queue of all clients: those that have waited longest.

    Args:
        separation: the least number of rounds from one participation of a client to its next.
        participations: the most participations of a client.
        cohort: the number of clients in each round.
    Raises:
        InvalidParameter: a value out of range.
    """

    separation: int
    participations: int
    cohort: int

    # As for `Cyclic`: nothing is drawn.
    sampling_rate = None

    def __post_init__(self) -> None:
        for name, noun in (
            ("separation", "the least separation"),
            ("participations", "the number of participations"),
            ("cohort", "the cohort size"),
        ):
            object.__setattr__(self, name, validate.count(name, getattr(self, name), noun))

    def participation(self, rounds: int, num_clients: int) -> tuple[int, int]:
        """Return a client's least separation and most participations (see `Cyclic`)."""
        if self.separation * self.cohort > num_clients:
            rule = (
                f"{num_clients} clients in cohorts of {self.cohort} come back after "
                f"{num_clients // self.cohort} rounds"
            )
            raise InvalidParameter("separation", self.separation, rule)
        needed = -(-rounds * self.cohort // num_clients)
        if needed > self.participations:
            rule = (
                f"{rounds} rounds of {self.cohort} out of {num_clients} clients need {needed} "
                "participations of a client"
            )
            raise InvalidParameter("participations", self.participations, rule)
        return self.separation, min(self.participations, -(-rounds // self.separation))

    def cohort_size(self, num_clients: int) -> float:
        """Return the cohort size, by which sums are divided."""
        del num_clients
        return float(self.cohort)

    def members(self, row: int, num_clients: int, source: Randomness) -> Sequence[int]:
        """Return the clients of a row of noise, ascending."""
        del source
        return sorted((row * self.cohort + place) % num_clients for place in range(self.cohort))


Cohorts = Cyclic | MinSeparation


@dataclass(frozen=True, slots=True)
class CorrelatedNoise(Noise):
    """Gaussian noise that is correlated over the rounds, so that it cancels in the model.

    Added by the trusted server, in floating point like `GaussianNoise`. Memory: `Strategy.memory`
    rows of 8 bytes a parameter.

    Args:
        strategy: of as many rounds as the run (`dpacct.correlated`).
    Raises:
        InvalidParameter: it is not a strategy.
    """

    strategy: Strategy

    name = "correlated gaussian"

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, Strategy):
            rule = "a strategy is a Strategy of dpacct.correlated"
            hint = "For example square_root(rounds=100, bands=10)."
            raise InvalidParameter("strategy", self.strategy, rule, hint)

    def check(self, sampling: HasRate, adjacency: Adjacency, num_clients: int) -> NoReturn:
        """Reject a single release, whose noise would be correlated with nothing."""
        del sampling, adjacency, num_clients
        raise Unsupported(
            "correlated noise belongs to all rounds of a run: take fl.Federation or fl.Server"
        )

    def add(self, total: Tensor, limits: Limits, std: float, source: Randomness) -> NoReturn:
        """Reject noise without its place among the rows. `NoiseStream` has it."""
        del total, limits, std, source
        self.check(Full(), Adjacency.ZERO_OUT, 0)

    def __repr__(self) -> str:
        return f"CorrelatedNoise({self.strategy!r}, {self.strategy.fingerprint[:16]})"


@dataclass(frozen=True, slots=True)
class Correlation:
    """Strategy and cohorts of a run, from which its charge follows.

    Attributes:
        strategy: of the noise. cohorts: the rule for the cohorts. num_clients: a public number.

    Raises:
        InvalidParameter: the population cannot keep the promise of the cohorts, or the strategy
            has more bands than secret draws within groups allow.
    """

    strategy: Strategy
    cohorts: Cohorts
    num_clients: int

    def __post_init__(self) -> None:
        separation, _ = self.participation
        if self.cohorts.sampling_rate is not None and self.strategy.bands > separation:
            rule = (
                f"the noise of {self.strategy.bands} rounds is correlated, and draws within "
                f"{separation} groups amplify only if it is no more than {separation}"
            )
            hint = "Take a strategy of fewer bands, or leave out the sampling rate."
            raise InvalidParameter("strategy", self.strategy, rule, hint)

    @property
    def participation(self) -> tuple[int, int]:
        """The least separation, and the most participations of a client."""
        return self.cohorts.participation(self.strategy.rounds, self.num_clients)

    @property
    def cohort_size(self) -> float:
        """The planned cohort size."""
        return self.cohorts.cohort_size(self.num_clients)

    @property
    def sampling(self) -> Sampling:
        """The sampling of the releases that are charged."""
        rate = self.cohorts.sampling_rate
        return Full() if rate is None else Poisson(rate)

    @property
    def releases(self) -> int:
        """How many equal Gaussian releases the whole run is charged as.

        One of all participations, or with secret draws one for each turn of a group.
        """
        return 1 if self.cohorts.sampling_rate is None else self.participation[1]

    @property
    def sensitivity(self) -> float:
        """The proven norm by which one client moves such a release, over the clip norm."""
        separation, participations = self.participation
        alone = self.cohorts.sampling_rate is not None
        return self.strategy.sensitivity(separation, 1 if alone else participations).upper

    def charged(self, noise_multiplier: float) -> float:
        """Return the noise multiplier of such a release, rounded down."""
        return math.nextafter(noise_multiplier / self.sensitivity, 0.0)

    def release(self, noise_multiplier: float, adjacency: Adjacency) -> Correlated:
        """Return the whole run as a release of a schedule."""
        separation, participations = self.participation
        drawn = self.cohorts.sampling_rate is not None
        return Correlated(
            noise_multiplier,
            self.strategy,
            min_separation=separation,
            participations=None if drawn else participations,
            sampling=self.sampling,
            adjacency=adjacency,
        )

    def details(self) -> dict[str, Any]:
        """Return the public facts that the ledger records."""
        separation, participations = self.participation
        return {
            "strategy": self.strategy.name,
            "strategy_sha256": self.strategy.fingerprint,
            "rows": self.strategy.rounds,
            "bands": self.strategy.bands,
            "min_separation": separation,
            "participations": participations,
            "sensitivity": self.sensitivity,
            "cohorts": repr(self.cohorts),
        }


class _RowSource(Randomness):
    """The random bytes of one row, from the secret seed. Rule 1."""

    def __init__(self, seed: bytes, row: int) -> None:
        self._seed, self._row, self._taken = seed, row, 0

    def take(self, count: int) -> bytes:
        """Return further bytes: SHAKE-256 of the seed, the row, and the number of the call."""
        self._taken += 1
        label = f"dpacct correlated noise, row {self._row}, bytes {self._taken}"
        return hashlib.shake_256(self._seed + label.encode()).digest(count)


class NoiseStream:
    """The rows of C^{-1} Z of a run, in their order. A secret, without ``repr``.

    They are float64 [size], in units of the standard deviation of Z, and follow from a secret seed
    of 32 bytes. ``row`` is the number of rows that were made.
    """

    def __init__(
        self, strategy: Strategy, seed: bytes, size: int, device: torch.device,
        row: int = 0, memory: Sequence[Tensor] = (),
    ) -> None:  # fmt: skip
        self._strategy, self._seed = strategy, seed
        self._size, self._device = size, device
        self.row, self._memory = row, tuple(memory)

    @classmethod
    def start(
        cls, strategy: Strategy, source: Randomness, size: int, device: torch.device
    ) -> NoiseStream:
        """Return the rows of a fresh secret seed."""
        return cls(strategy, source.take(_SEED), size, device)

    def afresh(self, source: Randomness) -> NoiseStream:
        """Return all rows of the same noise from another fresh secret seed."""
        return self.start(self._strategy, source, self._size, self._device)

    def skip_to(self, row: int) -> None:
        """Make the rows before number ``row``, whose rounds were lost. Rule 2."""
        while self.row < row:
            self._next()

    def take(self, row: int) -> Tensor:
        """Return a row [size], not to be changed. Each row is returned once.

        Raises:
            Unsupported: it was made before, or earlier rows were not.
        """
        if row != self.row or row >= self._strategy.rounds:
            raise Unsupported(
                f"row {row + 1} of the noise where row {self.row + 1} of {self._strategy.rounds} "
                "is next: another round was opened in the meantime, so this one cannot be released"
            )
        return self._next()

    def std(self, row: int) -> float:
        """Return the standard deviation of a row."""
        return row_norm(self._strategy, row)

    def save(self) -> dict[str, Any]:
        """Return the state for a checkpoint. Secret."""
        rows = [part.cpu() for part in self._memory]
        return {"seed": self._seed.hex(), "row": self.row, "memory": rows}

    def restored(self, saved: dict[str, Any]) -> NoiseStream:
        """Return the stream of a checkpoint, if it fits the strategy and the model."""
        row, memory = saved["row"], tuple(part.to(self._device) for part in saved["memory"])
        most = self._strategy.memory
        kept = most * (row > 0) if self._strategy.buffers else min(row, most)
        if len(memory) != kept or any(part.shape != (self._size,) for part in memory):
            rule = f"{kept} rows of {self._size} numbers are kept behind row {row}"
            raise InvalidParameter("checkpoint", f"{len(memory)} rows of noise", rule)
        seed = bytes.fromhex(saved["seed"])
        return NoiseStream(self._strategy, seed, self._size, self._device, row, memory)

    def _next(self) -> Tensor:
        fresh = normals(_RowSource(self._seed, self.row), self._size, self._device)
        made, self._memory = self._strategy.noise_row(self.row, fresh, self._memory)
        self.row += 1
        return made


@lru_cache(maxsize=4096)
def row_norm(strategy: Strategy, row: int) -> float:
    """Return the norm of a row of C^{-1}, from 0: the standard deviation of its noise.

    The row x solves x C = e_row, from its last entry to its first.
    """
    inverse_row = np.zeros(row + strategy.bands)
    diagonals = strategy.diagonals
    for at in range(row, -1, -1):
        column = diagonals if strategy.is_toeplitz else diagonals[:, at]
        rest = float(column[1:] @ inverse_row[at + 1 : at + strategy.bands])
        inverse_row[at] = ((at == row) - rest) / float(column[0])
    return math.sqrt(float(inverse_row @ inverse_row))
