"""Canaries: known contributions of the largest size, planted among the clients of a run.

A canary takes part or not by a fair coin, and sends an update in a direction of its own. After a
run, the inner products of the releases with these directions show which canaries took part.

Rule 1: Coins and directions come from the operating system, or from a given generator, and never
    from torch's global one. A run draws the same numbers as without an audit, and its seed does not
    choose the canaries.
Rule 2: Directions share no coordinate, so each shows in the release separately. A canary has some
    coordinates of the model, chosen at random, with random signs. They cross all layers, so a
    bound that is applied layer by layer shows as a longer contribution.
Rule 3: Some directions have no canary. They show the noise alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import Canary, ClientData, Examples, LazyClients, Population, checked
from dpacct.fl.privacy.randomness import secret_generator

# Length of a canary's raw update in clip norms, so that the bound has something to do.
_LENGTH = 100.0
# One direction without a canary for each with one, if each still has this many coordinates.
# Otherwise one for four.
_WIDE, _SHARE = 4, 4
# Canaries that are bounded at a time.
_CHUNK = 64


class Canaries:
    """Canaries, each in or out by a fair coin of its own, with directions once `aim` was called.

    Args:
        count: how many. generator: of coins and directions, on the CPU. Default: a generator
            with its whole state from the operating system.

    Attributes:
        coins: bool [m], which of them are in. asked: how often the update of one was asked for.
        owners: int64 [d], the direction that has each coordinate, or -1 for none. Directions from m
            on have no canary.
        count: the number of directions.
    """

    def __init__(self, count: int, generator: torch.Generator | None = None) -> None:
        if generator is not None and (
            not isinstance(generator, torch.Generator) or generator.device.type != "cpu"
        ):
            device = getattr(generator, "device", type(generator).__name__)
            raise InvalidParameter("generator", str(device), "it is a torch.Generator on the CPU")
        if generator is torch.default_generator:
            rule = "the run draws from it too, and canaries must not follow from its draws"
            raise InvalidParameter("generator", "torch's global one", rule)
        # Rule 1.
        self._generator = generator or secret_generator(torch.device("cpu"))
        self.coins = torch.rand(count, generator=self._generator) < 0.5
        self.asked = self.count = 0
        self.owners = torch.empty(0, dtype=torch.int64)
        self._signs: Tensor | None = None
        self._scale = self._opposite = 0.0

    def __len__(self) -> int:
        return len(self.coins)

    def aim(self, coordinates: int, clip_norm: float, *, replaced: bool) -> None:
        """Draw a direction for each canary, once model and bound are known. Rules 2 and 3.

        If clients are ``replaced``, a canary that is out sends the opposite update, and not none.
        """
        canaries = len(self)
        most = coordinates * _SHARE // (_SHARE + 1)
        if canaries > most:
            rule = f"a model of {coordinates} parameters has room for at most {most}"
            raise InvalidParameter("canaries", canaries, rule)
        empty = canaries if coordinates >= 2 * canaries * _WIDE else -(-canaries // _SHARE)
        self.count = canaries + empty
        size = coordinates // self.count
        self.owners = torch.full((coordinates,), -1, dtype=torch.int64)
        places = torch.randperm(coordinates, generator=self._generator)[: size * self.count]
        self.owners[places] = torch.arange(self.count).repeat(size)
        self._signs = torch.randint(2, (coordinates,), generator=self._generator) * 2.0 - 1.0
        self._scale, self._opposite = _LENGTH * clip_norm / size**0.5, -1.0 if replaced else 0.0

    @property
    def signs(self) -> Tensor:
        """The sign of each coordinate, [d]."""
        if self._signs is None:
            raise Unsupported("canaries have no direction before the run is known")
        return self._signs

    def raw(self, direction: int) -> Tensor:
        """Return the update [d] along a direction, before any bound."""
        return torch.where(self.owners == direction, self._scale * self.signs, 0.0)

    def sent(self, number: int) -> Tensor:
        """Return the update [d] that a canary sends, as its coin decides."""
        self.asked += 1
        return (1.0 if self.coins[number] else self._opposite) * self.raw(number)

    def silence(self) -> Tensor:
        """Return the update [d] of a silent client."""
        return torch.zeros_like(self.signs)

    def project(self, vector: Tensor, weights: Tensor) -> Tensor:
        """Return the inner product of a vector [d] with each direction, float64 [count].

        ``weights`` [d] hold at each coordinate that of the direction that has it.
        """
        owned = self.owners >= 0
        products = vector.double() * weights.double()
        sums = torch.zeros(self.count, dtype=torch.float64)
        return sums.index_add_(0, self.owners[owned], products[owned])

    @property
    def drawn(self) -> tuple[Tensor, Tensor, Tensor]:
        """Coins and directions, for another process to `adopt`."""
        return self.coins, self.owners, self.signs

    def adopt(self, drawn: tuple[Tensor, Tensor, Tensor]) -> None:
        """Take coins and directions of another process, which aimed at the same model."""
        self.coins, self.owners, self._signs = drawn


@dataclass(frozen=True, slots=True, eq=False)
class Aimed:
    """The bounded contributions of canaries to a round, if they take part.

    Attributes:
        weights: float64 [d], at each coordinate that of the bounded canary which has it. The
            weights of a canary have length 1.
        lengths: float64 [n], of the bounded updates along each direction.
        carried: bool [d], whether the round's mask keeps a coordinate.
        clip_norm: of the round.
    """

    canaries: Canaries
    weights: Tensor
    lengths: Tensor
    carried: Tensor
    clip_norm: float

    @classmethod
    def of(
        cls,
        canaries: Canaries,
        bounded: Callable[[Tensor], Tensor],
        like: Tensor,
        carried: Tensor,
        clip_norm: float,
    ) -> Aimed:
        """Bound the update along each direction by ``bounded``, in dtype and device of ``like``."""
        whole = torch.zeros(len(canaries.owners), dtype=torch.float64)
        for start in range(0, canaries.count, _CHUNK):
            numbers = range(start, min(start + _CHUNK, canaries.count))
            rows = torch.stack([canaries.raw(number) for number in numbers]).to(like)
            whole += bounded(rows).sum(dim=0).double().cpu()
        lengths = canaries.project(whole, whole).sqrt()
        shares = torch.where(lengths > 0, lengths, 1.0)[canaries.owners.clamp(min=0)]
        return cls(canaries, whole / shares, lengths, carried.cpu(), clip_norm)

    def sent(self, *, replaced: bool) -> Tensor:
        """Return the sum of the canaries' contributions, float64 [d], if all take part."""
        sides = torch.zeros(self.canaries.count, dtype=torch.float64)
        coins = self.canaries.coins
        sides[: len(coins)] = torch.where(coins, 1.0, -1.0 if replaced else 0.0)
        # Coordinates of no direction have weight 0.
        return self.weights * (self.lengths * sides)[self.canaries.owners.clamp(min=0)]

    def shown(self, released: Tensor, number: int) -> Tensor:
        """Return the projections [n] of a noisy sum [d] on each direction, in clip norms."""
        if not bool(released.isfinite().all()):
            raise Unsupported(f"round {number} released numbers that are not finite")
        return self.canaries.project(released, self.weights) / self.clip_norm


def with_canaries(clients: Population, canaries: Canaries, *, silent: bool) -> Population:
    """Return a population with canaries behind it, which borrow the data of the first client.

    If the other clients are ``silent``, they train and send nothing. Privacy holds against an
    attacker with the updates of all other clients, so the audit may know them too.
    """
    if not (hasattr(clients, "__len__") and hasattr(clients, "__getitem__")):
        rule = "a sequence of clients, each with its data"
        raise InvalidParameter("clients", type(clients).__name__, rule)
    if not len(clients):
        raise InvalidParameter("clients", 0, "canaries copy the data of a client")
    if isinstance(clients, Examples):
        return _CanaryExamples(clients, canaries, silent=silent)
    return _CanaryClients(clients, canaries, silent=silent)


class _CanaryClients(LazyClients):
    """Clients with canaries behind them."""

    def __init__(self, clients: Population, canaries: Canaries, *, silent: bool) -> None:
        self._clients, self._canaries, self._silent = clients, canaries, silent
        self._lent = checked(clients[0])

    def __len__(self) -> int:
        return len(self._clients) + len(self._canaries)

    def client(self, place: int) -> ClientData:
        """Return a client or a canary."""
        if place >= len(self._clients):
            update = self._canaries.sent(place - len(self._clients))
            return Canary(self._lent.inputs, self._lent.targets, update)
        data = self._clients[place]
        if not self._silent:
            return data
        return Canary(data.inputs, data.targets, self._canaries.silence())


class _CanaryExamples(Examples):
    """Examples with canaries behind them. The data of a canary are those of the first example."""

    plants = True

    def __init__(self, examples: Examples, canaries: Canaries, *, silent: bool) -> None:
        self.unit, self.records = examples.unit, 1
        self._examples, self._canaries, self._silent = examples, canaries, silent

    def __len__(self) -> int:
        return len(self._examples) + len(self._canaries)

    def batch(self, rows: Sequence[int]) -> ClientData:
        """Return some examples together."""
        others = len(self._examples)
        return self._examples.batch([row if row < others else 0 for row in rows])

    def planted(self, row: int) -> Tensor | None:
        """Return the gradient that replaces that of a row in `Examples`."""
        if row >= len(self._examples):
            return self._canaries.sent(row - len(self._examples))
        return self._canaries.silence() if self._silent else None
