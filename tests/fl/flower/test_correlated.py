"""Correlated noise over Flower: the rows of a federation, and nodes that come back too early."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed beside the other test extras")

from dpacct import fl
from dpacct.correlated import square_root
from dpacct.fl.flower import PrivateStrategy, client_app
from tests.fl.flower.fake import FakeGrid
from tests.fl.problems import cross_entropy, federation, flat, linear, make_clients

CLIENTS = make_clients((4, 5, 3, 6))
ROUNDS = 6
SETTINGS = {
    "clip_norm": 0.5,
    "noise_multiplier": 2.0,
    "noise": fl.CorrelatedNoise(square_root(ROUNDS, 2)),
    "sampling": fl.Cyclic(2),
    "rounds": ROUNDS,
    "local": fl.SGD(lr=0.1, epochs=1, batch_size=4),
}


def app():
    return client_app(linear, cross_entropy, lambda c: CLIENTS[c.node_config["partition-id"]])


def play(run: fl.Server, network: FakeGrid) -> list[fl.RoundReport]:
    reports: list[fl.RoundReport] = []
    strategy = PrivateStrategy(run, poll=1e-3, patience=0.05, on_round=reports.append)
    strategy.start(network, timeout=0.05)
    return reports


def server(**options) -> fl.Server:
    return fl.Server(linear(), len(CLIENTS), **(SETTINGS | options))


def test_it_ends_with_the_bits_of_a_federation():
    with federation(linear(), CLIENTS, **SETTINGS, seed=5) as run:
        run.run()
        expected = flat(run.model)
    network = FakeGrid([app() for _ in CLIENTS])
    with server(seed=5) as run:
        play(run, network)
        assert torch.equal(flat(run.model), expected)
    asked = [client for client, _ in network.sent]
    assert asked == 3 * [0, 2, 1, 3]


def test_a_node_that_answers_again_too_early_does_not_count(tmp_path: Path):
    """Client 0 takes part in rounds 1, 3, 5. It sends its answer of round 1 in round 2 again."""
    kept = []

    def early(client, message, replies):
        if client == 0:
            kept.extend(replies)
        return [*replies, *kept] if client == 1 else replies

    network = FakeGrid([app() for _ in CLIENTS], early)
    with server(ledger=tmp_path / "ledger") as run:
        reports = play(run, network)
    assert [report.diagnostics.cohort_size for report in reports] == ROUNDS * [2]


def test_a_client_that_drops_out_has_used_its_turn():
    network = FakeGrid([app() for _ in CLIENTS], lambda c, _, replies: replies if c else [])
    with server() as run:
        reports = play(run, network)
    assert [report.diagnostics.cohort_size for report in reports] == 3 * [1, 2]
    assert [client for client, _ in network.sent] == 3 * [0, 2, 1, 3]
