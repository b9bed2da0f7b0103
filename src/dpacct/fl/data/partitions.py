"""Who holds which example: iid, by label ratios (Dirichlet), or by the data's own owners.

A partition is part of a simulation, not of a mechanism: it stands for who the clients are. So its
seed is public, and nothing here is private randomness.

Rule 1: every example belongs to exactly one client.
Rule 2: every client has at least one example.
Rule 3: the same arguments give the same partition, on every machine with the same numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpacct import validate
from dpacct.errors import InvalidParameter

Indices = NDArray[np.int64]

# Ratios of a Dirichlet distribution underflow below, and are all equal above.
CONCENTRATION_RANGE = (1e-3, 1e6)


@dataclass(frozen=True, eq=False)
class Partition:
    """Client i holds the examples ``order[bounds[i]:bounds[i + 1]]``.

    Args:
        order: the indices 0, ..., n - 1, each exactly once; shape (n,).
        bounds: rising from 0 to n; shape (clients + 1,).

    Raises:
        InvalidParameter: an example that belongs to nobody or to several, or an empty client.
    """

    order: Indices
    bounds: Indices

    def __post_init__(self) -> None:
        total = len(self.order)
        if total == 0 or not np.array_equal(np.sort(self.order), np.arange(total)):
            raise InvalidParameter("order", total, "each example belongs to exactly one client")
        ends = self.bounds
        if len(ends) < 2 or ends[0] != 0 or ends[-1] != total or np.any(np.diff(ends) < 1):
            raise InvalidParameter("bounds", len(ends), "each client has at least one example")

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, client: int) -> Indices:
        position = client + len(self) if client < 0 else client
        if not 0 <= position < len(self):
            raise IndexError(f"there are {len(self)} clients, and no client {client}")
        return self.order[self.bounds[position] : self.bounds[position + 1]]

    def __iter__(self) -> Iterator[Indices]:
        return (self[client] for client in range(len(self)))

    @property
    def sizes(self) -> Indices:
        """How many examples each client has; shape (clients,)."""
        return np.diff(self.bounds)


def iid(num_examples: int, num_clients: int, *, seed: int = 0) -> Partition:
    """All examples shuffled and dealt out; sizes differ by at most one.

    Raises:
        InvalidParameter: a value out of range, or more clients than examples.
    """
    examples, clients = _counts(num_examples, num_clients)
    order = _generator(seed).permutation(examples)
    return Partition(order, _even_bounds(examples, clients))


def dirichlet(
    labels: Sequence[int] | NDArray[Any], num_clients: int, concentration: float, *, seed: int = 0
) -> Partition:
    """Clients of equal size whose label ratios are drawn from a Dirichlet distribution.

    Client i draws its ratios p_i ~ Dirichlet(A, ..., A), one A for each label that occurs. Then the
    examples are handed out one by one in a random order of clients: client i draws a label from
    p_i, restricted to the labels of which examples are left, and receives one of those at random.
    So every example is used, sizes differ by at most one, and the last examples handed out follow
    p_i less closely. Small A: few labels for each client; large A: the ratios of an iid partition
    of balanced data. (Where a paper writes Dirichlet(A p) with p summing to one, its A is ours
    times the number of labels.)

    Args:
        labels: the label of each example, whole numbers; shape (n,).
        num_clients: how many clients, at most n.
        concentration: A, in [1e-3, 1e6].
        seed: public.

    Raises:
        InvalidParameter: a value out of range, or more clients than examples.
    Source: label ratios as in Hsu, Qi, Brown 2019, arXiv:1909.06335, section 3.
    """
    low, high = CONCENTRATION_RANGE
    rule = f"the concentration of a Dirichlet partition lies in [{low:g}, {high:g}]"
    strength = validate.real("concentration", concentration, rule)
    if not low <= strength <= high:
        raise InvalidParameter("concentration", concentration, rule)
    known, which = np.unique(_whole(labels, "labels"), return_inverse=True)
    examples, clients = _counts(len(which), num_clients)
    random = _generator(seed)
    ratios = random.dirichlet(np.full(len(known), strength), size=clients)
    bounds = _even_bounds(examples, clients)
    stock = [random.permutation(np.flatnonzero(which == label)) for label in range(len(known))]
    order = np.empty(examples, np.int64)
    filled = bounds[:-1].copy()
    turns = random.permutation(np.repeat(np.arange(clients), np.diff(bounds)))
    for client, label in zip(turns, _draw_labels(turns, ratios, stock, random), strict=True):
        order[filled[client]] = label
        filled[client] += 1
    return Partition(order, bounds)


def natural(owners: Sequence[int] | NDArray[Any]) -> Partition:
    """One client for each owner that occurs, in rising order of the owners' numbers.

    Args:
        owners: the owner of each example, whole numbers; shape (n,).

    Raises:
        InvalidParameter: no examples, or owners that are not whole numbers.
    """
    holders = _whole(owners, "owners")
    if len(holders) == 0:
        raise InvalidParameter("owners", 0, "a partition has at least one example")
    _, sizes = np.unique(holders, return_counts=True)
    order = np.argsort(holders, kind="stable")
    return Partition(order, np.concatenate([[0], np.cumsum(sizes)]))


def divided(partition: Partition, share: float, *, seed: int = 0) -> tuple[Indices, Indices]:
    """Clients who take part, and a random share of all who do not; rising numbers.

    A coin that knows nothing of the data makes both sides alike, as an attack on the model needs.

    Args:
        partition: of all clients. share: of those who take no part, in (0, 1).
        seed: public.
    Raises:
        InvalidParameter: a share out of range, or one that leaves nobody on a side.
    """
    rule = "the share of clients that take no part lies in (0, 1)"
    part = validate.real("hold_out", share, rule)
    if not 0.0 < part < 1.0:
        raise InvalidParameter("hold_out", share, rule)
    apart = round(part * len(partition))
    if not 0 < apart < len(partition):
        rule = f"of {len(partition)} clients some take part and some do not"
        raise InvalidParameter("hold_out", share, rule)
    order = _generator(seed).permutation(len(partition))
    return np.sort(order[apart:]), np.sort(order[:apart])


def of_clients(partition: Partition, clients: Indices) -> tuple[Indices, Partition]:
    """The examples that some clients hold, and who of them holds which of those."""
    parts = [partition[int(client)] for client in clients]
    rows = np.concatenate(parts)
    bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    return rows, Partition(np.arange(len(rows)), bounds)


def _draw_labels(
    turns: Indices, ratios: NDArray[np.float64], stock: list[Indices], random: np.random.Generator
) -> Iterator[int]:
    """The example that each turn receives."""
    left = np.array([len(examples) for examples in stock])
    draws = random.random(len(turns))
    edges = _edges(ratios, left)
    for turn, draw in enumerate(draws.tolist()):
        # The last edge is one exactly, and a draw is below one.
        row: NDArray[np.float64] = edges[turns[turn]]
        label = int(np.searchsorted(row, float(draw), side="right"))
        left[label] -= 1
        yield int(stock[label][left[label]])
        if left[label] == 0 and left.any():
            edges = _edges(ratios, left)


def _edges(ratios: NDArray[np.float64], left: Indices) -> NDArray[np.float64]:
    """Cumulated ratios of the labels that are left; other clients take any of them."""
    open_labels = left > 0
    kept = np.where(open_labels, ratios, 0.0)
    without = kept.sum(axis=1) < 1e-12
    kept[without] = left / left.sum()
    edges = np.cumsum(kept / kept.sum(axis=1, keepdims=True), axis=1)
    edges[:, np.flatnonzero(open_labels)[-1] :] = 1.0
    return edges


def _even_bounds(examples: int, clients: int) -> Indices:
    return np.arange(clients + 1, dtype=np.int64) * examples // clients


def _counts(num_examples: int, num_clients: int) -> tuple[int, int]:
    examples = validate.count("num_examples", num_examples, "the number of examples")
    clients = validate.count("num_clients", num_clients, "the number of clients")
    if clients > examples:
        rule = f"each client holds at least one of the {examples} examples"
        raise InvalidParameter("num_clients", clients, rule)
    return examples, clients


def _whole(values: Sequence[int] | NDArray[Any], name: str) -> Indices:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        rule = f"{name} are whole numbers in one row"
        raise InvalidParameter(name, f"{array.dtype} of shape {array.shape}", rule)
    return array.astype(np.int64)


def _generator(seed: int) -> np.random.Generator:
    rule = "a public seed is a whole number of at least 0"
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InvalidParameter("seed", seed, rule)
    return np.random.default_rng(seed)
