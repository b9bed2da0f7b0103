"""Canaries: known contributions of the largest size, and what releases show of them.

A canary takes part or not by a fair coin, and sends an update in a direction of its own. After a
run, the inner products of the releases with these directions show which of them took part.

Rule 1: coins and directions come from the operating system, or from a generator that is given, and
    never from torch's global one. A run draws what it draws without an audit, and the user who
    seeds it does not choose its canaries.
Rule 2: directions share no coordinate, so each shows in the release by itself. Canary i has some
    coordinates of the model, chosen at random, with random signs. They cross all layers, so a
    bound that is applied layer by layer shows as a longer contribution.
Rule 3: some directions have no canary. They show the noise alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from torch import Tensor

from dpacct.empirical.audits import Seen
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import Canary, ClientData, Population, checked
from dpacct.fl.examples import Examples
from dpacct.fl.privacy.randomness import secret_generator
from dpacct.fl.tensors import integers
from dpacct.ledger import Event
from dpacct.rounds import Adjacency

# Length of a canary's raw update in clip norms, so that the bound has something to do.
_LENGTH = 100.0
# One direction without a canary for each with one, if each still has so many coordinates; else
# one for four.
_WIDE, _SHARE = 4, 4
# Canaries that are bounded at a time.
_CHUNK = 64


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
        """Draw directions in a model of so many coordinates, at least ``count``."""
        size = coordinates // count
        owners = torch.full((coordinates,), -1, dtype=torch.int64)
        places = torch.randperm(coordinates, generator=generator)[: size * count]
        owners[places] = torch.arange(count).repeat(size)
        signs = torch.randint(2, (coordinates,), generator=generator) * 2.0 - 1.0
        return cls(owners, signs, count, size)

    def row(self, number: int) -> Tensor:
        """Return one of them [d], of length 1."""
        return torch.where(self.owners == number, self.signs, 0.0) / self.size**0.5

    def project(self, vector: Tensor, weights: Tensor) -> Tensor:
        """Return inner products [n] with vectors of the same coordinates as these.

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
        coins: bool [m], which of them are in. asked: how often the update of one was asked for.

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
        """Give each canary a direction, once model and bound are known.

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

    @property
    def directions(self) -> Directions:
        """Directions of canaries, and behind them those without a canary.

        Raises:
            Unsupported: `aim` was not called yet.
        """
        if self._directions is None:
            raise Unsupported("canaries have no direction before the run is known")
        return self._directions

    def raw(self, number: int) -> Tensor:
        """Return the update [d] of a canary that is in, before any bound."""
        return self._length * self.directions.row(number)

    def sent(self, number: int) -> Tensor:
        """Return the update [d] that a canary sends, as its coin decides."""
        self.asked += 1
        return (1.0 if self.coins[number] else self._factor) * self.raw(number)

    def nothing(self) -> Tensor:
        """Return the update [d] of a silent client."""
        return self.directions.signs * 0.0

    @property
    def drawn(self) -> tuple[Tensor, Directions]:
        """Coins and directions, for another process to `adopt`."""
        return self.coins, self.directions

    def adopt(self, drawn: tuple[Tensor, Directions]) -> None:
        """Take coins and directions of another process."""
        self.coins, self._directions = drawn


# Populations with canaries.


def with_canaries(clients: Population, canaries: Canaries, *, silent: bool) -> Population:
    """Return a population with canaries behind it.

    Canaries train on the data of the first client, and send what was decided beforehand.

    Args:
        clients: the others.
        silent: the others train, and send nothing. Privacy is promised against an attacker who
            knows what they send, so the audit may know it too.
    Raises:
        InvalidParameter: the population is empty, or none.
    """
    if not (hasattr(clients, "__len__") and hasattr(clients, "__getitem__")):
        rule = "a sequence of clients, each with its data"
        raise InvalidParameter("clients", type(clients).__name__, rule)
    if not len(clients):
        raise InvalidParameter("clients", 0, "a canary borrows the data of a client")
    if isinstance(clients, Examples):
        return CanaryExamples(clients, canaries, silent=silent)
    return CanaryClients(clients, canaries, silent=silent)


class CanaryClients(Sequence[ClientData]):
    """Clients with canaries behind them; see `with_canaries`."""

    def __init__(self, clients: Population, canaries: Canaries, *, silent: bool) -> None:
        self._clients, self._canaries, self._silent = clients, canaries, silent
        self._lent = checked(clients[0])

    def __len__(self) -> int:
        return len(self._clients) + len(self._canaries)

    @overload
    def __getitem__(self, index: int) -> ClientData: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ClientData]: ...
    def __getitem__(self, index: int | slice) -> ClientData | Sequence[ClientData]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        if place < len(self._clients):
            data = self._clients[place]
            if not self._silent:
                return data
            return Canary(data.inputs, data.targets, self._canaries.nothing())
        update = self._canaries.sent(place - len(self._clients))
        return Canary(self._lent.inputs, self._lent.targets, update)


class CanaryExamples(Examples):
    """Examples with canaries behind them; see `with_canaries`."""

    def __init__(self, examples: Examples, canaries: Canaries, *, silent: bool) -> None:
        super().__init__(_Lent(examples, len(canaries)), unit=examples.unit)
        self._others, self._canaries, self._silent = len(examples), canaries, silent

    def planted(self, row: int) -> Tensor | None:
        """Return the gradient that replaces that of a row; see `Examples`."""
        if row >= self._others:
            return self._canaries.sent(row - self._others)
        return self._canaries.nothing() if self._silent else None


class _Lent:
    """Examples, and the first of them again for each canary."""

    def __init__(self, examples: Examples, canaries: int) -> None:
        self._examples, self._canaries = examples, canaries

    def __len__(self) -> int:
        return len(self._examples) + self._canaries

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        others = len(self._examples)
        data = self._examples.batch([row if row < others else 0 for row in integers(rows)])
        return data.inputs, data.targets


# What releases show.


@dataclass(frozen=True, slots=True, eq=False)
class Aimed:
    """The bounded contributions of canaries to a round, if they take part.

    Attributes:
        weights: float64 [d], at each coordinate that of the bounded canary which has it, length 1.
        lengths: float64 [n], of the bounded canaries, and of what stands for directions without
            a canary. clip_norm: of the round.
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
        for start in range(0, directions.count, _CHUNK):
            numbers = range(start, min(start + _CHUNK, directions.count))
            rows = torch.stack([canaries.raw(number) for number in numbers]).to(like)
            whole += bounded(rows).sum(dim=0).double().cpu()
        lengths = directions.project(whole, whole).sqrt()
        shares = torch.where(lengths > 0, lengths, 1.0)[directions.owners.clamp(min=0)]
        return cls(whole / shares, lengths, clip_norm)


def projections(canaries: Canaries, released: Tensor, aimed: Aimed, number: int) -> Tensor:
    """Return what a release shows of each direction, in clip norms; float64 [n].

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
    """Return the noise multiplier of the sum of updates, also if other sums leave a round."""
    charged = event.releases[0] if event.releases else event.charged
    return charged.noise_multiplier


class Watch:
    """Collects what the releases of a run show.

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
        # Rule 3. A mask may leave a coordinate out, and so without noise.
        empty = (self._canaries.directions.owners >= len(self._canaries)) & (aimed.weights != 0)
        noise = released.cpu()[empty].double() / (aimed.clip_norm * updates_noise(event))
        parts = self._parts[empty]
        self._squares.index_add_(0, parts, noise**2)
        self._terms += torch.bincount(parts, minlength=len(self._terms))
        self.events.append(event)

    def seen(self) -> Seen:
        """Return all that was noted, at least one release."""
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
