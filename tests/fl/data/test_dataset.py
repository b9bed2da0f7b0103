"""Examples, data sets and populations: rows stay with their owners, and scaling is public."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpacct.fl.data import Dataset, Examples, PartitionedClients, Scaling, load_digits
from dpacct.fl.data.partitions import dirichlet, iid, natural
from tests.fl.data.refusals import refusal


def numbered(count: int) -> Examples:
    """Examples that know which they are."""
    return Examples(torch.arange(count).unsqueeze(1), torch.arange(count))


@given(owners=st.lists(st.integers(0, 8), min_size=1, max_size=60), kind=st.sampled_from("idn"))
def test_no_client_gets_another_ones_examples(owners: list[int], kind: str) -> None:
    clients = len(set(owners))
    partition = {
        "i": lambda: iid(len(owners), clients),
        "d": lambda: dirichlet(owners, clients, 0.3),
        "n": lambda: natural(owners),
    }[kind]()
    population = PartitionedClients(numbered(len(owners)), partition)
    assert len(population) == clients
    seen = [client.targets.tolist() for client in population]
    assert sorted(row for rows in seen for row in rows) == list(range(len(owners)))
    for index, client in enumerate(population):
        assert client.inputs[:, 0].tolist() == client.targets.tolist() == seen[index]
        assert client.targets.tolist() == partition[index].tolist()
    assert population.sizes.tolist() == [len(targets) for targets in seen]
    if kind == "n":
        assert all(len({owners[row] for row in rows}) == 1 for rows in seen)


def test_clients_are_built_when_asked_for_and_do_not_share_memory() -> None:
    examples = numbered(6)
    population = PartitionedClients(examples, iid(6, 3))
    first = population[0]
    first.inputs.zero_()
    first.targets.zero_()
    assert examples.targets.tolist() == list(range(6))
    assert population[0].targets.tolist() != [0, 0]
    assert [len(client) for client in population[1:]] == [2, 2]
    assert population[-1].targets.tolist() == population[2].targets.tolist()
    with pytest.raises(IndexError):
        population[3]


def test_what_does_not_fit_is_refused() -> None:
    none, whole, owned = torch.zeros(0, 2), numbered(3), np.array([5, 6, 7])
    text = Examples(torch.zeros(2, 3).long(), torch.zeros(2, 3).long())
    negative = Examples(torch.zeros(2, 1), torch.tensor([0, -1]))
    for build, name, words in (
        (lambda: Examples(none, none[:, 0].long()), "targets", ""),
        (lambda: Examples(torch.zeros(2, 2), torch.zeros(3).long()), "targets", ""),
        (lambda: Examples(torch.zeros(2, 2), torch.zeros(2)), "targets", ""),
        (lambda: Dataset("d", whole, numbered(2), 2), "targets", ""),
        (lambda: Dataset("d", whole, numbered(4), 3), "targets", ""),
        (lambda: Dataset("d", negative, numbered(2), 5), "targets", "labels of d lie in 0..4"),
        (lambda: Dataset("d", whole, numbered(2), 3, np.array([0, 1])), "owners", ""),
        (lambda: Dataset("d", whole, numbered(2), 3).first(4), "num_train", ""),
        (lambda: Dataset("d", whole, numbered(2), 3).first(0), "num_train", ""),
        # Of private examples, which come first depends on the other owners.
        (lambda: Dataset("d", whole, whole, 3, owned).first(2), "num_train", "other owners"),
        (
            lambda: Dataset("d", whole, whole, 3, test_data="unprotected").first(2),
            "num_train", "other owners",
        ),
        (lambda: Dataset("d", text, text, 2).labels(), "partition", "no single label"),
        (lambda: PartitionedClients(numbered(6), iid(7, 3)), "partition", "exactly the 6 examples"),
    ):  # fmt: skip
        assert words in refusal(build, name=name)
    public = Dataset("d", whole, numbered(2), 3)
    assert (len(public.first(2).train), len(public.first(2).test)) == (2, 2)
    assert public.labels().tolist() == [0, 1, 2]


def test_scaling_works_channel_by_channel() -> None:
    scaling = Scaling.standardized([0.5, 0.25], [0.5, 0.125])
    values = torch.tensor([[[[0, 255]], [[0, 255]]]], dtype=torch.uint8)
    assert scaling(values).tolist() == [[[[-1.0, 1.0]], [[-2.0, 6.0]]]]
    assert Scaling.divided_by(16.0)(torch.tensor([[8]], dtype=torch.uint8)).tolist() == [[0.5]]


def test_scaling_is_the_same_for_each_example_alone() -> None:
    """Nothing is estimated from a batch: what a row becomes does not depend on the others."""
    data = load_digits().train
    together, _ = data.batch(slice(0, 50))
    alone = torch.cat([data.batch(slice(row, row + 1))[0] for row in range(50)])
    assert torch.equal(together, alone)


def test_the_digits_are_all_there() -> None:
    data = load_digits()
    assert (len(data.train), len(data.test), data.input_shape) == (1437, 360, (1, 8, 8))
    images, labels = data.train.batch(slice(0, 1437))
    assert (images.min(), images.max()) == (0.0, 1.0)
    assert sorted(set(labels.tolist())) == list(range(10))
    # A zero is drawn around its middle.
    zeros = images[labels == 0].mean(0)[0]
    assert zeros[3:5, 3:5].mean() < 0.1 < zeros[1:7, 2:6].mean()


def test_without_scikit_learn_the_digits_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    from dpacct.errors import Unsupported

    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(Unsupported, match=r'not installed: .*install .*"scikit-learn>=1.4"'):
        load_digits()
