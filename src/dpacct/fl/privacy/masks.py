"""Which coordinates of an update are sent. A mask is public: it never depends on private values.

The noise goes to the kept coordinates only, so a mask lowers the total noise. It is drawn from a
public seed, or read from an earlier release, and is the same for all clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpacct import validate
from dpacct.fl.layout import Layout


class Mask(Protocol):
    """A public choice of coordinates, one for the whole cohort."""

    def select(self, layout: Layout, round_number: int, released: Tensor | None) -> Tensor | None:
        """Return the kept coordinates, int64 [k] ascending on the CPU, or None for all.

        Args:
            layout: of the full vector.
            round_number: 1, 2, ...
            released: `Noised.vector` [d] of the round before, None in the first round.
        """
        ...


@dataclass(frozen=True, slots=True)
class Dense:
    """All coordinates."""

    def select(self, layout: Layout, round_number: int, released: Tensor | None) -> Tensor | None:
        """Return None: all coordinates."""
        del layout, round_number, released
        return None


@dataclass(frozen=True, slots=True)
class RandomK:
    """A random share of the coordinates of each tensor, new in each round, from a public seed.

    Args:
        fraction: share kept, in (0, 1], with at least one coordinate of each tensor.
        seed: public, part of the method's settings.
    """

    fraction: float
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", fraction_kept(self.fraction))

    def select(self, layout: Layout, round_number: int, released: Tensor | None) -> Tensor | None:
        """Return coordinates drawn from (seed, round) alone."""
        del released
        if self.fraction == 1:
            return None
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + round_number)
        chosen = [
            start
            + torch.randperm(stop - start, generator=generator)[: kept(stop - start, self.fraction)]
            for start, stop in layout.segments
        ]
        return torch.cat(chosen).sort().values


@dataclass(frozen=True, slots=True)
class PublicTopK:
    """The largest coordinates of each tensor in the aggregate released the round before.

    Args:
        fraction: share kept, in (0, 1]. The first round, with nothing released yet, keeps all.
        refresh: rounds between those that keep all coordinates, to change the mask. 0: never.
    """

    fraction: float
    refresh: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", fraction_kept(self.fraction))
        if self.refresh:
            count = validate.count("refresh", self.refresh, "the rounds between refreshes")
            object.__setattr__(self, "refresh", count)

    def select(self, layout: Layout, round_number: int, released: Tensor | None) -> Tensor | None:
        """Return coordinates read from the last release."""
        whole = bool(self.refresh) and (round_number - 1) % self.refresh == 0
        if self.fraction == 1 or released is None or whole:
            return None
        size = released.abs().cpu()
        chosen = [
            start + size[start:stop].topk(kept(stop - start, self.fraction)).indices
            for start, stop in layout.segments
        ]
        return torch.cat(chosen).sort().values


def reads_release(mask: Mask) -> bool:
    """Return whether a mask may read the last release, which a checkpoint then keeps for it."""
    return type(mask) not in (Dense, RandomK)


def kept(size: int, fraction: float) -> int:
    """Return the number of coordinates that a share of a tensor is, rounded up."""
    return math.ceil(fraction * size - 1e-9)


def fraction_kept(value: object) -> float:
    """Return a share in (0, 1]."""
    return validate.positive_probability("fraction", value, "the share of coordinates kept")
