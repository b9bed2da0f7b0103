"""Seeds of clients and of their steps."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dpacct.fl.engine.states import Draw  # noqa: E402
from dpacct.fl.training.own_functions import seeds_of_steps  # noqa: E402


def test_no_two_clients_share_the_seed_of_a_step():
    """Else dropout masks would depend on who is listed between two clients."""
    seeds = [Draw([], [], 0, order=123456789123456789).seed_of(client) for client in range(100)]
    steps = seeds_of_steps(torch.tensor(seeds), 5)
    assert len(torch.unique(steps)) == steps.numel()
