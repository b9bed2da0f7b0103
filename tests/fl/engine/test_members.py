"""Only members contribute: the rule of the engine, wherever its workers train."""

from __future__ import annotations

import pytest
import torch

from dpacct import fl
from tests.fl.problems import federation, linear, make_clients

CLIENTS = make_clients((6, 4, 5, 7))


def opened_round():
    """A run whose clients all work, with a round of clients 1 and 3, and its draw."""
    run = federation(linear(), CLIENTS, method=fl.FedAlphaNormEC(alpha=0.1), vectorize=False)
    run.prepare()
    draw = run.engine.draw_for([1, 3])
    assert list(draw.workers) == [0, 1, 2, 3]
    return run, draw


def test_workers_outside_the_cohort_remember_and_add_nothing():
    run, draw = opened_round()
    found = run.collect(draw)
    assert sorted(found.memories) == sorted(found.clients) == [0, 1, 2, 3]
    assert all(float(own["memory"].norm()) > 0 for own in found.memories.values())
    assert found.arrived == 2
    # Memories began at zero, so each holds beta times the client's contribution. They are rounded
    # to float32, and contributions are at most 1 long: two are off by 2^-23 at most.
    members = sum(found.memories[client]["memory"].double() for client in (1, 3))
    assert torch.allclose(found.total, members / run.engine.method.beta, rtol=1e-6, atol=2.0**-23)


def test_a_row_of_a_worker_outside_the_cohort_is_left_out_of_the_sum():
    run, draw = opened_round()
    found = run.engine.open(run.state, draw)
    rows = 0.1 * torch.ones(4, 21) * torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    bounded = run.engine.bound(found, rows)
    run.engine.add(found, [3, 2, 1, 0], bounded)
    expected = bounded.rows[[0, 2]].double().sum(dim=0)
    assert torch.equal(found.total, expected)
    assert (found.arrived, found.clients) == (2, [3, 2, 1, 0])


@pytest.mark.parametrize("parts", [1, 3])
def test_shares_of_a_draw_keep_its_members(parts):
    run, draw = opened_round()
    arrived = [run.collect(draw.share(part, parts)).arrived for part in range(parts)]
    assert sum(arrived) == 2
