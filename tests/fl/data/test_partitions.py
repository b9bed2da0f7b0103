"""Partitions: exact covers without an empty client, and label ratios as they are meant to be."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.data.partitions import (
    Partition,
    dirichlet,
    divided,
    from_flower,
    iid,
    keyed_uniform,
    natural,
    of_clients,
)
from tests.fl.data.refusals import refusal

labels_of = st.lists(st.integers(-3, 6), min_size=1, max_size=80)
concentrations = st.floats(-3, 6).map(lambda power: 10.0**power)


def assert_exact_cover(partition: Partition, total: int) -> None:
    parts = list(partition)
    assert len(parts) == len(partition)
    assert sorted(np.concatenate(parts).tolist()) == list(range(total))
    assert all(len(part) >= 1 for part in parts)
    assert partition.sizes.tolist() == [len(part) for part in parts]


def label_counts(labels: np.ndarray, partition: Partition) -> np.ndarray:
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in partition])


@given(labels=labels_of, share=st.floats(0, 1), alpha=concentrations, seed=st.integers(0, 2**64))
def test_simulations_cover_exactly_and_evenly(labels, share, alpha, seed) -> None:
    clients = 1 + int(share * (len(labels) - 1))
    for partition in (
        iid(len(labels), clients, seed=seed),
        dirichlet(labels, clients, alpha, seed=seed),
    ):
        assert len(partition) == clients
        assert_exact_cover(partition, len(labels))
        assert partition.sizes.max() - partition.sizes.min() <= 1


@given(owners=labels_of)
def test_natural_gives_each_owner_what_it_owns(owners: list[int]) -> None:
    partition = natural(owners)
    assert_exact_cover(partition, len(owners))
    held = [{owners[index] for index in part} for part in partition]
    assert held == [{owner} for owner in sorted(set(owners))]
    # Examples stay in the order in which they came.
    assert all(list(part) == sorted(part) for part in partition)


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: iid(500, 20, seed=seed),
        lambda seed: dirichlet([0, 1] * 250, 20, 0.5, seed=seed),
    ],
)
def test_the_seed_alone_decides(make: object) -> None:
    assert callable(make)
    assert np.array_equal(make(3).order, make(3).order)
    assert not np.array_equal(make(3).order, make(4).order)


def test_iid_clients_look_like_the_whole() -> None:
    labels = np.repeat(np.arange(10), 1000)
    counts = label_counts(labels, iid(10_000, 20, seed=1))
    # 500 draws without replacement: standard deviation of a count is 6.5.
    assert np.abs(counts - 50).max() < 33


@pytest.mark.parametrize(("alpha", "least"), [(0.1, 0.88), (0.6, 0.94), (5.0, 0.96)])
def test_label_ratios_have_the_moments_of_a_dirichlet(alpha: float, least: float) -> None:
    """E sum_k p_k^2 = (alpha + 1) / (K alpha + 1), and counts are multinomial given p.

    That is for independent draws. Here every example is used, so about a tenth of them at
    alpha = 0.1 come from labels that were not asked for: less uneven, never more.
    """
    classes, clients, each = 10, 300, 100
    labels = np.repeat(np.arange(classes), clients * each // classes)
    counts = label_counts(labels, dirichlet(labels, clients, alpha, seed=2))
    # The unbiased estimate of sum p_k^2 from multinomial counts.
    found = ((counts * (counts - 1)).sum(1) / (each * (each - 1))).mean()
    expected = (alpha + 1) / (classes * alpha + 1)
    assert least < found / expected < 1.05
    assert (counts.mean(0) == each / classes).all()


def test_what_is_no_partition_cannot_be_built() -> None:
    for order, bounds in (
        ([0, 1, 1], [0, 3]),  # one example twice, one for nobody
        ([0, 1, 3], [0, 3]),
        ([0, 1, 2], [0, 2]),  # the last for nobody
        ([0, 1, 2], [1, 3]),
        ([0, 1, 2], [0, 1, 1, 3]),  # an empty client
        ([0, 1, 2], [0, 2, 1, 3]),
        ([0, 1, 2], [3]),
        ([], [0]),
    ):
        with pytest.raises(InvalidParameter):
            Partition(np.array(order, np.int64), np.array(bounds, np.int64))


def test_bad_input_is_named() -> None:
    for make, arguments, name in (
        (iid, (3, 4), "num_clients"),
        (iid, (3, 0), "num_clients"),
        (iid, (0, 1), "num_examples"),
        (dirichlet, ([0, 1], 3, 1.0), "num_clients"),
        (dirichlet, ([0, 1], 1, 0.0), "concentration"),
        (dirichlet, ([0, 1], 1, float("nan")), "concentration"),
        (dirichlet, ([0, 1], 1, 1e7), "concentration"),
        (dirichlet, (np.zeros((2, 2), int), 1, 1.0), "labels"),
        (dirichlet, (np.array([0.5, 1.0]), 1, 1.0), "labels"),
        (dirichlet, ([], 1, 1.0), "num_examples"),
        (natural, ([],), "owners"),
        (natural, (np.array(["a", "b"]),), "owners"),
    ):
        refusal(make, *arguments, name=name)
    for seed in (-1, True):
        refusal(iid, 3, 1, seed=seed, name="seed")


def test_clients_are_counted_from_both_ends() -> None:
    partition = natural([7, 8, 8])
    assert partition[-1].tolist() == partition[1].tolist() == [1, 2]
    for wrong in (2, -3):
        with pytest.raises(IndexError, match="2 clients"):
            partition[wrong]


@given(st.integers(2, 60), st.floats(0.05, 0.95), st.integers(0, 1000))
def test_clients_are_held_out_whole_and_everybody_is_on_one_side(clients, share, seed):
    partition = iid(3 * clients, clients, seed=seed)
    apart = int((keyed_uniform(np.arange(clients), "hold-out", seed) < share).sum())
    if not 0 < apart < clients:
        with pytest.raises(InvalidParameter, match="some take part"):
            divided(partition, share, seed=seed)
        return
    inside, outside = divided(partition, share, seed=seed)
    assert sorted([*inside, *outside]) == list(range(clients))
    assert len(outside) == apart
    rows, own = of_clients(partition, outside)
    assert len(own) == len(outside)
    for place, client in enumerate(outside):
        assert rows[own[place]].tolist() == partition[int(client)].tolist()


class EveryThird:
    """A partitioner of the form of Flower Datasets: of rows in turn, sorted by label."""

    num_partitions = 3
    dataset: dict[str, list[int]]

    def load_partition(self, number: int) -> dict[str, list[int]]:
        order = np.argsort(self.dataset["label"], kind="stable")[number::3]
        return {name: [cells[k] for k in order] for name, cells in self.dataset.items()}


def test_a_partitioner_of_flower_deals_out_the_rows(monkeypatch):
    """Its table is that of the package `datasets`, which is not needed for this."""
    labels = np.array([2, 0, 1, 0, 2, 1, 1])
    table = SimpleNamespace(from_dict=dict)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(Dataset=table))
    partition = from_flower(EveryThird(), label=labels)
    assert_exact_cover(partition, 7)
    assert partition.simulated
    assert [labels[part].tolist() for part in partition] == [[0, 1, 2], [0, 1], [1, 2]]
    for columns in ({}, {"label": labels, "size": labels[1:]}):
        with pytest.raises(InvalidParameter, match="columns of one length"):
            from_flower(EveryThird(), **columns)
    halves = SimpleNamespace(
        num_partitions=1, load_partition=lambda _: {"row of dpacct": [0.0, 1.9]}
    )
    with pytest.raises(InvalidParameter, match="whole numbers"):
        from_flower(halves, label=labels[:2])
    monkeypatch.setattr(EveryThird, "num_partitions", 2)
    with pytest.raises(InvalidParameter, match="exactly one client"):
        from_flower(EveryThird(), label=labels)
    with pytest.raises(InvalidParameter, match="exactly one client"):
        from_flower(EveryThird(), label=np.array([0, 0, 1]))  # the last row is left out
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(Unsupported, match="flwr-datasets"):
        from_flower(EveryThird(), label=labels)


@pytest.mark.filterwarnings("ignore")
def test_partitioners_of_flower_datasets():
    kinds = pytest.importorskip("flwr_datasets.partitioner")
    labels = np.arange(60) % 6
    partition = from_flower(kinds.PathologicalPartitioner(10, "label", 2), label=labels)
    assert_exact_cover(partition, 60)
    assert all(len(set(labels[part])) <= 2 for part in partition)
    assert_exact_cover(from_flower(kinds.IidPartitioner(7), label=labels), 60)
