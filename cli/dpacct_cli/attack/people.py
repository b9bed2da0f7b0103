"""Who is compared: members of a run, and people of the same kind whom it has not seen.

Rule 1: clients who were drawn at random to take no part are like the members; that is what a limit
is about. Where there are none, the test set has to do, and that is said. Rule 2: its examples are
dealt out as the members' were, unless they have owners. Rule 3: those of people who did train are
no strangers: they stand for examples only, and another limit holds for them. Rule 4: what is chosen
at random is chosen with the public seed, without a look at anything but sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dpacct.errors import Unsupported
from dpacct.fl.attacks import without_members
from dpacct.fl.clients import ClientData
from dpacct.fl.data import Dataset, PartitionedClients
from dpacct.fl.data.partitions import Partition, dirichlet, iid, natural
from dpacct.fl.tensors import from_array
from dpacct_cli.attack.target import Target
from dpacct_cli.train.job import read_data

MOST = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class People:
    """Two sides of a comparison.

    Attributes:
        members, nonmembers: clients.
        strangers: the held-out examples belong to nobody whom the model was trained on.
        random: who is a member was drawn at random from all of them.
        told: who they are, in words.
        left_out: held-out examples that a member has, too.
    """

    members: list[ClientData]
    nonmembers: list[ClientData]
    strangers: bool
    random: bool
    told: str
    left_out: int


def people_of(target: Target, most: int) -> People:
    """Members and others of a run.

    Args:
        target: its model. most: examples of each side, whole clients.
    Raises:
        InvalidParameter: the held-out examples are those that were trained on.
        Unsupported: the run protects single examples, and deals none out to clients.
    """
    job, seed = target.job, job_seed(target)
    clients = job.clients
    if not isinstance(clients, PartitionedClients):
        raise Unsupported("it was trained on single examples (--examples); this compares clients")
    kind = target.settings.values["partition"].partition(":")[0]
    strangers, random = True, job.held_out is not None
    if job.held_out is not None:
        outside, told = job.held_out, "of clients whom --hold-out kept out of the run"
    elif kind == "natural":
        outside, strangers = _others(target)
        told = "of people without training examples" if strangers else "of the members themselves"
    else:
        dealt = _dealt(target, job.dataset, seed)
        outside = PartitionedClients(job.dataset.test, dealt, job.device)
        told = "of the test set, dealt out as the members' are"
    members = _some(clients, most, seed)
    # Everybody's examples are looked at: who is not compared may still have a held-out one.
    found = without_members(_all(clients), _some(outside, most, seed))
    return People(members, found.clients, strangers, random, told, found.left_out)


def _others(target: Target) -> tuple[PartitionedClients, bool]:
    """Test examples by their owners, and whether these are people without training examples."""
    job, settings = target.job, target.settings
    dataset = job.dataset
    if settings.values["data"] == "femnist":
        options = {**settings.data_options, "test_writers": "new"}
        dataset = read_data(replace(settings, data_options=options))
    owners, known = dataset.test_owners, dataset.owners
    fresh = np.zeros(len(dataset.test), np.bool_)
    if owners is not None and known is not None:
        fresh = ~np.isin(owners, known)
    rows = np.flatnonzero(fresh) if fresh.any() else np.arange(len(dataset.test))
    part = dataset.test.select(from_array(rows))
    whose = np.zeros(len(rows), np.int64) if owners is None else owners[rows]
    return PartitionedClients(part, natural(whose), job.device), bool(fresh.any())


def job_seed(target: Target) -> int:
    """The public seed of a run."""
    return int(target.settings.get("public_seed") or 0)


def _dealt(target: Target, dataset: Dataset, seed: int) -> Partition:
    """The held-out examples, to clients of about the members' size."""
    count = len(dataset.test)
    clients = max(1, count * len(target.job.clients) // len(dataset.train))
    kind, _, strength = target.settings.values["partition"].partition(":")
    if kind == "dirichlet":
        labels = dataset.test.targets.numpy()
        return dirichlet(labels, clients, float(strength), seed=seed)
    return iid(count, clients, seed=seed)


def _some(clients: PartitionedClients, most: int, seed: int) -> list[ClientData]:
    """Random clients, whole ones, until they have so many examples."""
    order = np.random.default_rng(seed).permutation(len(clients))
    sizes = clients.sizes[order]
    before = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return [clients[int(client)] for client in sorted(order[before < most])]


def _all(clients: PartitionedClients) -> Iterator[ClientData]:
    return (clients[number] for number in range(len(clients)))
