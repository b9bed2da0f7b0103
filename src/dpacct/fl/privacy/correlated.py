"""Correlated noise in training: its rows, one at a time, and their one charge.

Round t releases G_t + s W_t. G_t is the sum of bounded contributions, s the standard deviation z
times the clip norm, and W = C^{-1} Z for the strategy C and independent standard Gaussian rows Z.
Multiplied by C, all releases are the Gaussian mechanism C G + s Z: one release of its sensitivity.

Rule 1: row t of Z is a function of a secret seed and t. The checkpoint keeps the seed and as many
of the last rows of W as the strategy needs. It is as secret as the data.
Rule 2: the ledger gives out each row once (`dpacct.ledger.run.Run.take_row`). A row whose round was
lost is never released with another sum. The next rows still continue it.
Rule 3: all rows are charged before the first one is released, and nothing of it is given back.
Rule 4: the cohort of a row keeps the promised separation and participations (`cohorts`).
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

from dpacct.correlated import Correlated, Strategy
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.privacy.cohorts import Cohorts
from dpacct.fl.privacy.noise import Limits, Noise
from dpacct.fl.privacy.randomness import Randomness, normals
from dpacct.fl.public import HasRate
from dpacct.rounds import Adjacency, Full, Poisson, Sampling

_SEED = 32


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

    They are float64, in units of the standard deviation of Z.

    Args:
        strategy: of the noise. seed: 32 secret bytes.
        size: number of parameters. device: of the rows. row, memory: of a checkpoint.
    Attributes:
        row: the number of rows that were made.
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
                "is next: another round was opened meanwhile, and this one releases nothing"
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
        """Return the stream of a checkpoint of the same run.

        Raises:
            InvalidParameter: it does not fit the strategy or the model.
        """
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
    found = np.zeros(row + strategy.bands)
    diagonals = strategy.diagonals
    for at in range(row, -1, -1):
        column = diagonals if strategy.is_toeplitz else diagonals[:, at]
        rest = float(column[1:] @ found[at + 1 : at + strategy.bands])
        found[at] = ((at == row) - rest) / float(column[0])
    return math.sqrt(float(found @ found))
