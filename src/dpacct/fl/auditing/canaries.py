"""Canaries: contributions of the largest size, each in a direction of its own, in or out by a coin.

Rule 1: coins and directions come from the operating system, or from a generator that is given, and
never from torch's global one: a run draws what it draws without an audit, and whoever seeds it does
not choose its canaries.

Directions share no coordinate, so that each shows in the release by itself: canary i has some
coordinates of the model, chosen at random, with random signs. They cross all layers, so that a
bound that is applied layer by layer shows as a longer contribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.privacy.randomness import secret_generator

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
    def draw(cls, coordinates: int, count: int, generator: torch.Generator) -> Directions:
        """Directions in a model of so many coordinates.

        Raises:
            InvalidParameter: there are more of them than coordinates.
        """
        size = coordinates // count
        if size < 1:
            rule = f"the model has {coordinates} coordinates, and directions share none"
            raise InvalidParameter("canaries", count, rule)
        owners = torch.full((coordinates,), -1, dtype=torch.int64)
        places = torch.randperm(coordinates, generator=generator)[: size * count]
        owners[places] = torch.arange(count).repeat(size)
        signs = torch.randint(2, (coordinates,), generator=generator) * 2.0 - 1.0
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
        count: how many. generator: of coins and directions, on the CPU; default one whose whole
            state comes from the operating system.

    Attributes:
        coins: bool [m], which of them are in. asked: how often one was asked what it sends.

    Raises:
        InvalidParameter: the generator is none, torch's global one, or one of another device.
    """

    def __init__(self, count: int, generator: torch.Generator | None = None) -> None:
        if generator is not None and (
            not isinstance(generator, torch.Generator) or generator.device.type != "cpu"
        ):
            found = getattr(generator, "device", type(generator).__name__)
            raise InvalidParameter("generator", str(found), "it is a torch.Generator on the CPU")
        if generator is torch.default_generator:
            rule = "the run draws from it too, and canaries must not follow from what it draws"
            raise InvalidParameter("generator", "torch's global one", rule)
        # Rule 1.
        self._generator = generator or secret_generator(torch.device("cpu"))
        self.coins = torch.rand(count, generator=self._generator) < 0.5
        self.asked = 0
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
        self._directions = Directions.draw(coordinates, count + empty, self._generator)
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
        self.asked += 1
        return (1.0 if self.coins[number] else self._factor) * self.raw(number)

    @property
    def drawn(self) -> tuple[Tensor, Directions]:
        """Coins and directions, for a process that shares them."""
        return self.coins, self.directions

    def adopt(self, drawn: tuple[Tensor, Directions]) -> None:
        """Take those of another process."""
        self.coins, self._directions = drawn

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
