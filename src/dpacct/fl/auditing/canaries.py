"""Canaries: contributions of the largest size, each in a direction of its own, in or out by a coin.

Directions share no coordinate, so that each shows in the release by itself: canary i has some
coordinates of the model, chosen at random, with random signs. They cross all layers, so that a
bound that is applied layer by layer shows as a longer contribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpacct.errors import InvalidParameter, Unsupported

# Of a canary's raw update, in clip norms: its bound has something to do.
_LENGTH = 100.0
# One direction without a canary for each with one, where each still has so many coordinates; else
# one for four.
_WIDE, _SHARE = 4, 4


@dataclass(frozen=True, slots=True, eq=False)
class Directions:
    """Unit vectors that share no coordinate.

    Attributes:
        owners: int64 [d], the direction that has each coordinate; -1 for none.
        signs: [d], 1 or -1. count: how many directions. size: coordinates of each.
    """

    owners: Tensor
    signs: Tensor
    count: int
    size: int

    @classmethod
    def draw(cls, coordinates: int, count: int) -> Directions:
        """Directions in a model of so many coordinates.

        Raises:
            InvalidParameter: there are more of them than coordinates.
        """
        size = coordinates // count
        if size < 1:
            rule = f"the model has {coordinates} coordinates, and directions share none"
            raise InvalidParameter("canaries", count, rule)
        owners = torch.full((coordinates,), -1, dtype=torch.int64)
        owners[torch.randperm(coordinates)[: size * count]] = torch.arange(count).repeat(size)
        signs = torch.randint(2, (coordinates,)) * 2.0 - 1.0
        return cls(owners, signs, count, size)

    def row(self, number: int) -> Tensor:
        """One of them [d], of length 1."""
        return torch.where(self.owners == number, self.signs, 0.0) / self.size**0.5

    def project(self, vector: Tensor, weights: Tensor) -> Tensor:
        """Inner products [n] with vectors of the same coordinates as these.

        Args:
            vector: [d]. weights: [d], at each coordinate that of the vector that has it.
        """
        owned = self.owners >= 0
        products = vector.double() * weights.double()
        sums = torch.zeros(self.count, dtype=torch.float64)
        return sums.index_add_(0, self.owners[owned], products[owned])


class Canaries:
    """Canaries, each in or out by a fair coin of its own.

    Args:
        count: how many.

    Attributes:
        coins: bool [m], which of them are in.
    """

    def __init__(self, count: int) -> None:
        self.coins = torch.rand(count) < 0.5
        self._factor, self._length = 0.0, 0.0
        self._directions: Directions | None = None

    def __len__(self) -> int:
        return len(self.coins)

    def aim(self, coordinates: int, clip_norm: float, *, replaced: bool) -> Directions:
        """Give each canary a direction, once it is known what is trained, and by what bound.

        Args:
            coordinates: of the model. clip_norm: of the run's bound.
            replaced: out means the opposite update, and not none.
        Raises:
            InvalidParameter: the model has too few coordinates for so many canaries.
        """
        count = len(self.coins)
        most = coordinates * _SHARE // (_SHARE + 1)
        if count > most:
            rule = f"a model of {coordinates} parameters has room for at most {most}"
            raise InvalidParameter("canaries", count, rule)
        empty = count if coordinates >= 2 * count * _WIDE else -(-count // _SHARE)
        self._directions = Directions.draw(coordinates, count + empty)
        self._length, self._factor = _LENGTH * clip_norm, -1.0 if replaced else 0.0
        return self._directions

    def raw(self, number: int) -> Tensor:
        """The update [d] of a canary that is in, before any bound.

        Raises:
            Unsupported: nobody has aimed yet.
        """
        return self._length * self.directions.row(number)

    def sent(self, number: int) -> Tensor:
        """The update [d] that a canary sends, as its coin decides."""
        return (1.0 if self.coins[number] else self._factor) * self.raw(number)

    def nothing(self) -> Tensor:
        """The update [d] of somebody who is silent."""
        return self.directions.signs * 0.0

    @property
    def directions(self) -> Directions:
        """Of canaries, and behind them those that no canary has.

        Raises:
            Unsupported: nobody has aimed yet.
        """
        if self._directions is None:
            raise Unsupported("canaries have no direction before the run is known")
        return self._directions
