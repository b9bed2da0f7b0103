"""Assign examples to clients: iid, by label ratios (Dirichlet), or by the data's own owners.

All seeds here are public.

Rule 1: every example belongs to exactly one client, and every client has at least one example.
Rule 2: the same arguments give the same partition, on every machine with the same numpy.
Rule 3: the place of an owner is a keyed hash of that owner's identity alone, in a natural
    partition and in every split (training against test, hold-out). If one owner leaves or is
    replaced, every other owner keeps its place and its examples.
Rule 4: `iid` and `dirichlet` deal out examples by their number and their labels, so one example
    less moves others between clients. Such a partition is a simulation: the guarantee is for a
    simulated client, and not for the person behind an example.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.packages import install_command

Indices = NDArray[np.int64]

# Ratios of a Dirichlet distribution underflow below, and are all equal above.
CONCENTRATION_RANGE = (1e-3, 1e6)
# A name with more digits than this is compared as text.
_MOST_DIGITS = 60


def canonical(text: str) -> str:
    """Return one spelling for the names of one owner or one class.

    ``1``, ``1.0`` and ``01`` are the number 1, exactly, however large. Other text is compared
    without surrounding spaces, in Unicode's composed form. Merging two owners is always safe, since
    a client's contribution is bounded for all data. Splitting one owner would not be.
    """
    plain = unicodedata.normalize("NFC", text.strip())
    try:
        value = Decimal(plain)
    except InvalidOperation:
        return plain
    if value.is_zero():
        return "0"
    if not value.is_finite() or abs(value.adjusted()) > _MOST_DIGITS:
        return plain
    number = format(value, "f")
    return number.rstrip("0").rstrip(".") if "." in number else number


def owner_number(name: str) -> int:
    """Return an owner's number: a hash of its name in 0 .. 2^63 - 1, the same in all data sets."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1


def keyed_uniform(identities: Indices, purpose: str, seed: int) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each identity [n]: a keyed hash of that identity alone.

    ``purpose`` keeps the numbers for a test split apart from those for a hold-out. The key is the
    public seed.
    """
    key = hashlib.blake2b(f"{purpose} {_seed(seed)}".encode(), digest_size=32).digest()
    unique, places = np.unique(identities, return_inverse=True)
    hashes = b"".join(
        hashlib.blake2b(identity.tobytes(), digest_size=8, key=key).digest()
        for identity in unique.astype("<i8")
    )
    # 53 bits are exact in float64, and the largest stays below 1.
    return (np.frombuffer(hashes, "<u8") >> np.uint64(11)).astype(np.float64)[places] * 2.0**-53


def assign_owners(
    names: Sequence[str], test_share: float, *, seed: int = 0
) -> tuple[Indices, NDArray[np.bool_]]:
    """Number the owners of the rows of a table, and choose the owners for the test data.

    Each owner becomes test data with probability ``test_share``, by a keyed hash of its name. Two
    tables that differ in one owner's rows agree on the numbers and the side of all other rows. A
    row without an owner column is its own owner, named by its content. So identical rows are on
    the same side, and a copy of a training row is never tested on.

    Args:
        names: of the owner of each row.
        test_share: in (0, 1). seed: public.
    Returns:
        The owners' numbers, int64, and whether each row is test data, bool, both of shape (n,).
    """
    unique, places = np.unique(np.asarray(names, dtype=str), return_inverse=True)
    owners = np.array([owner_number(str(name)) for name in unique], np.int64)[places]
    return owners, keyed_uniform(owners, "test", seed) < test_share


@dataclass(frozen=True, eq=False)
class Partition:
    """Client i holds the examples ``order[bounds[i]:bounds[i + 1]]``.

    Args:
        order: the indices 0, ..., n - 1, each exactly once, shape (n,).
        bounds: rising from 0 to n, shape (clients + 1,).
        owners: the owner's number of each client, shape (clients,), or None in a simulation.

    Raises:
        InvalidParameter: an example that belongs to no client or to several, or an empty client.
    """

    order: Indices
    bounds: Indices
    owners: Indices | None = None

    def __post_init__(self) -> None:
        total = len(self.order)
        if total == 0 or not np.array_equal(np.sort(self.order), np.arange(total)):
            raise InvalidParameter("order", total, "each example belongs to exactly one client")
        ends = self.bounds
        if len(ends) < 2 or ends[0] != 0 or ends[-1] != total or np.any(np.diff(ends) < 1):
            raise InvalidParameter("bounds", len(ends), "each client has at least one example")

    @property
    def simulated(self) -> bool:
        """True if the clients are simulated: one example less may move others between clients."""
        return self.owners is None

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
        """The number of examples of each client, shape (clients,)."""
        return np.diff(self.bounds)


def iid(num_examples: int, num_clients: int, *, seed: int = 0) -> Partition:
    """Shuffle all examples and deal them out (a simulation). Sizes differ by at most one."""
    examples, clients = _counts(num_examples, num_clients)
    order = np.random.default_rng(_seed(seed)).permutation(examples)
    return Partition(order, np.arange(clients + 1, dtype=np.int64) * examples // clients)


def dirichlet(
    labels: Sequence[int] | NDArray[Any], num_clients: int, concentration: float, *, seed: int = 0
) -> Partition:
    """Deal out examples by label ratios drawn from a Dirichlet distribution (a simulation).

    Client i draws its ratios p_i ~ Dirichlet(A, ..., A), one A for each label that occurs. Then the
    examples are handed out one by one in a random order of clients. Client i draws a label from
    p_i, among the labels with examples left, and receives one of those examples at random. So
    every example is used, sizes differ by at most one, and the last examples handed out follow
    p_i less closely. Small A: few labels for each client. Large A: the ratios of an iid partition
    of balanced data. (Where a paper writes Dirichlet(A p) with p summing to one, its A is ours
    times the number of labels.)

    Args:
        labels: the label of each example, whole numbers, shape (n,).
        num_clients: how many clients, at most n.
        concentration: A, in [1e-3, 1e6].
        seed: public.

    Source: label ratios as in Hsu, Qi, Brown 2019, arXiv:1909.06335, section 3.
    """
    noun = "the concentration of a Dirichlet partition"
    strength = validate.within("concentration", concentration, noun, CONCENTRATION_RANGE)
    known, which = np.unique(_whole(labels, "labels"), return_inverse=True)
    examples, clients = _counts(len(which), num_clients)
    random = np.random.default_rng(_seed(seed))
    ratios = random.dirichlet(np.full(len(known), strength), size=clients)
    bounds = np.arange(clients + 1, dtype=np.int64) * examples // clients
    stock = [random.permutation(np.flatnonzero(which == label)) for label in range(len(known))]
    order, filled = np.empty(examples, np.int64), bounds[:-1].copy()
    turns = random.permutation(np.repeat(np.arange(clients), np.diff(bounds)))
    for client, label in zip(turns, _draw_labels(turns, ratios, stock, random), strict=True):
        order[filled[client]] = label
        filled[client] += 1
    return Partition(order, bounds)


def natural(owners: Sequence[int] | NDArray[Any]) -> Partition:
    """Make one client for each owner, in rising order of the owners' numbers.

    ``owners`` has the owner of each example, a whole number.
    """
    holders = _whole(owners, "owners")
    if len(holders) == 0:
        raise InvalidParameter("owners", 0, "a partition has at least one example")
    people, sizes = np.unique(holders, return_counts=True)
    order = np.argsort(holders, kind="stable")
    return Partition(order, np.concatenate([[0], np.cumsum(sizes)]), people)


def from_flower(partitioner: Any, **columns: Sequence[Any] | NDArray[Any]) -> Partition:
    """Deal out examples by a partitioner of Flower Datasets (a simulation).

    ``from_flower(PathologicalPartitioner(10, "label", 2), label=dataset.labels())``.

    Args:
        partitioner: of `flwr_datasets.partitioner`, without a data set of its own.
        columns: what it reads, by name, one entry for each example: labels, for example.

    Raises:
        InvalidParameter: an example without a client or with several, or an empty client.
        Unsupported: Flower Datasets is not installed.
    """
    try:
        table: Any = import_module("datasets").Dataset
    except ModuleNotFoundError:
        command = install_command(packages=("flwr-datasets",))
        raise Unsupported(f"Flower Datasets is not installed: {command}") from None
    number, *others = {len(column) for column in columns.values()} or {0}
    if others or not number or not hasattr(partitioner, "load_partition"):
        rule = "a partitioner reads columns of one length, one entry for each example"
        raise InvalidParameter("partitioner", type(partitioner).__name__, rule)
    cells = {name: np.asarray(column).tolist() for name, column in columns.items()}
    partitioner.dataset = table.from_dict({**cells, "row of dpacct": list(range(number))})
    clients = range(int(partitioner.num_partitions))
    parts = [_whole(partitioner.load_partition(k)["row of dpacct"], "partitioner") for k in clients]
    order = np.concatenate([np.empty(0, np.int64), *parts])
    if len(order) != number:
        rule = f"each of {number} examples has exactly one client"
        raise InvalidParameter("partitioner", f"gave out {len(order)}", rule)
    return Partition(order, np.cumsum([0, *(len(part) for part in parts)]))


def divided(partition: Partition, share: float, *, seed: int = 0) -> tuple[Indices, Indices]:
    """Split clients into those that take part and those that are held out.

    A client is held out with probability ``share``, by a keyed hash of its owner's number (in a
    simulation, of its place). So both sides are alike, as an attack on the model needs, and one
    owner less moves no other owner across. Returns the places of both in the partition, rising.
    """
    noun = "the share of clients that take no part"
    part = validate.positive_probability("hold_out", share, noun, below_one=True)
    identities = np.arange(len(partition)) if partition.owners is None else partition.owners
    apart = keyed_uniform(identities, "hold-out", seed) < part
    if apart.all() or not apart.any():
        rule = f"of {len(partition)} clients some take part and some do not"
        raise InvalidParameter("hold_out", share, rule, "Try another share or --public-seed.")
    return np.flatnonzero(~apart), np.flatnonzero(apart)


def of_clients(partition: Partition, clients: Indices) -> tuple[Indices, Partition]:
    """Return the examples that some clients hold, and their partition among those clients."""
    parts = [partition[int(client)] for client in clients]
    rows = np.concatenate(parts)
    bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    owners = None if partition.owners is None else partition.owners[clients]
    return rows, Partition(np.arange(len(rows)), bounds, owners)


def _draw_labels(
    turns: Indices, ratios: NDArray[np.float64], stock: list[Indices], random: np.random.Generator
) -> Iterator[int]:
    """Yield the example that each turn receives."""
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
    """Return cumulated ratios of the labels that are left. Other clients take any of them."""
    open_labels = left > 0
    kept = np.where(open_labels, ratios, 0.0)
    without = kept.sum(axis=1) < 1e-12
    kept[without] = left / left.sum()
    edges = np.cumsum(kept / kept.sum(axis=1, keepdims=True), axis=1)
    edges[:, np.flatnonzero(open_labels)[-1] :] = 1.0
    return edges


def _counts(num_examples: int, num_clients: int) -> tuple[int, int]:
    examples = validate.count("num_examples", num_examples, "the number of examples")
    clients = validate.count("num_clients", num_clients, "the number of clients")
    if clients > examples:
        rule = f"each client holds at least one of the {examples} examples"
        raise InvalidParameter("num_clients", clients, rule, "Ask for fewer (--clients N).")
    return examples, clients


def _whole(values: Sequence[int] | NDArray[Any], name: str) -> Indices:
    array = np.asarray(validate.several(name, values, "whole numbers"))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        rule = f"{name} are whole numbers in one row"
        raise InvalidParameter(name, f"{array.dtype} of shape {array.shape}", rule)
    return array.astype(np.int64)


def _seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InvalidParameter("seed", seed, "a public seed is a whole number of at least 0")
    return seed
