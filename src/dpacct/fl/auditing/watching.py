"""What releases show of canaries: their projections on what each contributes if it is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpacct.empirical.one_run import Seen
from dpacct.errors import Unsupported
from dpacct.fl.auditing.canaries import Canaries
from dpacct.fl.local.batches import chunks
from dpacct.ledger import Event
from dpacct.rounds import Adjacency

# Canaries that are bounded at a time.
_CHUNK = 64


@dataclass(frozen=True, slots=True, eq=False)
class Aimed:
    """What canaries contribute to a round, if they take part.

    Attributes:
        weights: float64 [d], at each coordinate that of the bounded canary which has it, length 1.
        lengths: float64 [n], of the bounded canaries, and of those that stand for directions that
            no canary has. clip_norm: of the round.
    """

    weights: Tensor
    lengths: Tensor
    clip_norm: float

    @classmethod
    def of(
        cls,
        canaries: Canaries,
        bounded: Callable[[Tensor], Tensor],
        like: Tensor,
        clip_norm: float,
    ) -> Aimed:
        """Bound all of them.

        Args:
            bounded: updates [c, d] as the round bounds them, of dtype and device of ``like``.
        """
        directions = canaries.directions
        whole = torch.zeros(len(directions.owners), dtype=torch.float64)
        for numbers in chunks(range(directions.count), _CHUNK):
            rows = torch.stack([canaries.raw(number) for number in numbers]).to(like)
            whole += bounded(rows).sum(dim=0).double().cpu()
        lengths = directions.project(whole, whole).sqrt()
        shares = torch.where(lengths > 0, lengths, 1.0)[directions.owners.clamp(min=0)]
        return cls(whole / shares, lengths, clip_norm)


def projections(canaries: Canaries, released: Tensor, aimed: Aimed, number: int) -> Tensor:
    """What a release shows of each direction, in clip norms; float64 [n].

    Args:
        released: the noisy sum [d]. aimed: of its round. number: of the round.
    Raises:
        Unsupported: it is not finite.
    """
    sums = released.cpu()
    if not bool(sums.isfinite().all()):
        raise Unsupported(f"round {number} released numbers that are not finite")
    return canaries.directions.project(sums, aimed.weights) / aimed.clip_norm


def updates_noise(event: Event) -> float:
    """The noise multiplier of the sum of the updates, where other sums leave a round beside it."""
    charged = event.releases[0] if event.releases else event.charged
    return charged.noise_multiplier


class Watch:
    """What the releases of a run showed so far.

    Args:
        canaries: of the run, which have their directions.
        sampling_rate, adjacency: of its rounds.
        sizes: of the tensors that the flat vector is made of.

    Attributes:
        events: as which the releases were charged.
    """

    def __init__(
        self,
        canaries: Canaries,
        sampling_rate: float,
        adjacency: Adjacency,
        sizes: Sequence[int],
    ) -> None:
        self._canaries = canaries
        self._sampling_rate, self._adjacency = sampling_rate, adjacency
        self._projections: list[Tensor] = []
        self._shifts: list[Tensor] = []
        self._parts = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        self._squares = torch.zeros(len(sizes), dtype=torch.float64)
        self._terms = torch.zeros(len(sizes), dtype=torch.int64)
        self.events: list[Event] = []

    def see(self, released: Tensor, aimed: Aimed, event: Event) -> None:
        """Note a release.

        Args:
            released: the noisy sum [d]. aimed: of its round. event: as which it was charged.
        Raises:
            Unsupported: it is not finite.
        """
        number = len(self.events) + 1
        self._projections.append(projections(self._canaries, released, aimed, number))
        self._shifts.append(aimed.lengths / aimed.clip_norm)
        # A mask may leave a coordinate out, and so without noise.
        empty = (self._canaries.directions.owners >= len(self._canaries)) & (aimed.weights != 0)
        noise = released.cpu()[empty].double() / (aimed.clip_norm * updates_noise(event))
        parts = self._parts[empty]
        self._squares.index_add_(0, parts, noise**2)
        self._terms += torch.bincount(parts, minlength=len(self._terms))
        self.events.append(event)

    def seen(self) -> Seen:
        """All that was noted, at least one release."""
        count = len(self._canaries)
        projections = torch.stack(self._projections).numpy()
        lengths = torch.stack(self._shifts).numpy()
        return Seen(
            projections[:, :count],
            lengths[:, :count],
            self._canaries.coins.numpy(),
            # A mask may leave a direction without a coordinate, and so without noise.
            np.where(lengths > 0, projections, np.nan)[:, count:],
            np.array([updates_noise(event) for event in self.events]),
            self._sampling_rate,
            self._adjacency,
            self._squares.numpy(),
            self._terms.numpy(),
        )
