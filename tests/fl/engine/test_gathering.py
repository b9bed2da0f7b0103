"""Clients of one table are read together, and train as if each had been read by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpacct import fl
from dpacct.fl.data import Examples, PartitionedClients, Scaling
from dpacct.fl.data.partitions import Partition
from dpacct.fl.training import tasks
from tests.fl.problems import federation, flat, linear, make_clients

BOUNDS = np.array([0, 9, 10, 22, 30, 36])
ALONE = pytest.param(False, id="alone", marks=pytest.mark.slow)
WAYS = pytest.mark.parametrize("vectorize", [ALONE, pytest.param(True, id="together")])


SCALING = Scaling(torch.tensor(0.25), torch.tensor(-0.5))


def table(scaling=SCALING):
    single = make_clients([36])[0]
    return Examples((single.inputs * 40).to(torch.int16), single.targets, scaling)


def population(examples, kind=PartitionedClients):
    order = np.random.default_rng(0).permutation(36)
    return kind(examples, Partition(order, BOUNDS))


@pytest.fixture
def gathered(monkeypatch):
    """How many chunks were read together."""
    count = [0]
    whole = tasks.join_gathered

    def counted(*given):
        count[0] += 1
        return whole(*given)

    monkeypatch.setattr("dpacct.fl.engine.engine.join_gathered", counted)
    return count


def trained(clients, **options):
    model = linear()
    with federation(model, clients, seed=5, **options) as run:
        reports = list(run)
    return flat(model), [report.diagnostics.dropped_updates for report in reports]


@WAYS
@pytest.mark.parametrize("method", [fl.DPFedAvg(), fl.Scaffold()])
def test_the_model_is_that_of_clients_read_one_by_one(vectorize, method, gathered):
    people = population(table())
    options = {"vectorize": vectorize, "method": method}
    together, _ = trained(people, **options)
    assert gathered[0] >= 3
    before = gathered[0]
    alone, _ = trained(list(people), **options)
    assert gathered[0] == before
    assert torch.equal(together, alone)


@WAYS
def test_labels_out_of_range_cost_their_own_client_alone(vectorize):
    examples = table()
    people = population(examples)
    examples.targets[people._partition[1]] = 7
    together, dropped = trained(people, vectorize=vectorize)
    assert dropped == [1, 1, 1]
    alone, same = trained(list(people), vectorize=vectorize)
    assert same == dropped
    assert torch.equal(together, alone)


@WAYS
def test_what_is_not_finite_costs_its_own_client_alone(vectorize):
    examples = table(None)
    examples = replace(examples, inputs=examples.inputs.float())
    people = population(examples)
    examples.inputs[people._partition[2][0]] = torch.nan
    together, dropped = trained(people, vectorize=vectorize)
    alone, same = trained(list(people), vectorize=vectorize)
    assert dropped == same == [1, 1, 1]
    assert torch.equal(together, alone)


class Doubled(PartitionedClients):
    """Clients that are not the rows of their table."""

    def __getitem__(self, index):
        data = super().__getitem__(index)
        return fl.ClientData(2 * data.inputs, data.targets)


class Shortened(Partition):
    """At most five examples a client; how many it says everywhere else is another matter."""

    def __getitem__(self, client):
        return super().__getitem__(client)[:5]


class Misled(PartitionedClients):
    """Tells other numbers of examples than clients have."""

    @property
    def sizes(self):
        return np.full(len(self), 3)


@WAYS
def test_nobody_gets_the_examples_of_another(vectorize, gathered):
    order = np.random.default_rng(0).permutation(36)
    shortened = PartitionedClients(table(), Shortened(order, BOUNDS))
    for people in (shortened, population(table(), Misled)):
        together, dropped = trained(people, vectorize=vectorize)
        assert gathered[0] >= 3
        alone, same = trained(list(people), vectorize=vectorize)
        assert dropped == same == [0, 0, 0]
        assert torch.equal(together, alone)


class Curved(Scaling):
    def __call__(self, values):
        return values.float().exp().clamp(max=1.0)


class Halved(Examples):
    def batch(self, rows):
        inputs, targets = super().batch(rows)
        return inputs / 2, targets


def test_who_reads_in_a_way_of_its_own_is_asked_one_by_one(gathered):
    own = Curved(torch.tensor(1.0), torch.tensor(0.0))
    plain = table()
    for people in (
        population(plain, Doubled),
        population(table(own)),
        population(Halved(plain.inputs, plain.targets, plain.scaling)),
    ):
        assert people.together([0, 1]) is None
        found, _ = trained(people, rounds=1)
        expected, _ = trained(list(people), rounds=1)
        assert torch.equal(found, expected)
    assert not gathered[0]


def test_a_table_that_cannot_be_read_at_once_is_read_one_by_one(monkeypatch, gathered):
    def breaks(_, clients):
        raise MemoryError(f"{len(clients)} clients are too many")

    expected, _ = trained(population(table()))
    before = gathered[0]
    monkeypatch.setattr(PartitionedClients, "together", breaks)
    found, dropped = trained(population(table()))
    assert gathered[0] == before
    assert dropped == [0, 0, 0]
    assert torch.equal(found, expected)


def test_nobody_can_write_to_what_others_hold():
    class Grabs(torch.nn.Module):
        """Zeroes all that its batch's storage holds."""

        def __init__(self):
            super().__init__()
            self.layer = linear()

        def forward(self, inputs):
            if inputs.untyped_storage().nbytes() > inputs.nbytes:
                raise AssertionError("more than the batch")
            return self.layer(inputs)

    with federation(Grabs(), population(table()), rounds=1) as run:
        run.run()


def test_a_client_may_write_to_its_copy_of_what_it_remembers():
    together = population(table()).together([0, 2])
    assert together is not None
    memory = {"step": torch.zeros(3)}
    found = tasks.join_gathered(
        *together, fl.SGD(lr=0.1), [memory, None], [1, 2], torch.device("cpu"), None
    )
    assert found[0].state is not None
    found[0].state["step"].add_(1.0)
    assert not memory["step"].any()
    assert found[1].state is None
