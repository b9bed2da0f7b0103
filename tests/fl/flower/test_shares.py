"""Clients that add the noise themselves, for a secure aggregator of the user's own."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed beside the other test extras")

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from dpacct import fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.flower import LocalGrid, OwnShare, PrivateStrategy, client_app, private_mod, wire
from tests.fl.flower.test_strategy import CLIENTS, QUICK, own_data, rounds_of
from tests.fl.problems import cross_entropy, flat, linear

# Little noise, so that the sum shows, and enough for shares on the grid.
STILL = 1e-3


def server(**options) -> fl.Server:
    settings = {
        "clip_norm": 0.5, "noise_multiplier": 0.7, "sampling": fl.Full(), "rounds": 1,
        "adjacency": "replace-one", "noise": fl.NoiseShares(4), "preflight": False,
        "local": fl.SGD(lr=0.1, epochs=2, batch_size=4),
    }  # fmt: skip
    return fl.Server(linear(), len(CLIENTS), **(settings | options))


class Aggregator:
    """Stands for a secure aggregator: it shows the server the sum alone."""

    def __init__(self):
        self.rows = []

    def send(self, row, message, context):
        self.rows.append((context.node_config["partition-id"], row))
        return RecordDict({"sent": ArrayRecord({"nothing": torch.zeros(1)})})

    def sum(self, grid, replies, clients):
        assert len(list(replies)) == len(self.rows)
        assert sorted(clients.values()) == list(range(6))
        numbers, rows = zip(*self.rows, strict=True)
        self.rows = []
        return list(numbers), torch.stack(rows).sum(dim=0)


def played(run, hidden, app, **options):
    strategy = PrivateStrategy(run, secure_sum=hidden.sum, **(QUICK | options))
    strategy.start(LocalGrid([app] * 6), timeout=0.05)
    return strategy


def own_loop(share) -> ClientApp:
    found = ClientApp(mods=[private_mod(share=share)])

    @found.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        if client == 5:
            raise RuntimeError("a secret of the data")
        arrays = message.content["arrays"].to_torch_state_dict()
        moved = {name: value + 0.01 * client for name, value in arrays.items()}
        return Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)

    return found


def test_the_model_moves_by_the_sum_and_a_failure_does_not_show(tmp_path):
    hidden = Aggregator()
    seen = []

    def send(row, message, context):
        # The noisy sum can be read once it exists: the round is committed by then.
        seen.append(rounds_of(tmp_path / "run.ledger"))
        return hidden.send(row, message, context)

    settings = {"noise_multiplier": STILL, "clip_norm": 0.1, "ledger": tmp_path / "run.ledger"}
    with server(**settings) as run:
        before = flat(run.model)
        strategy = played(run, hidden, own_loop(OwnShare(4, STILL, send)))
        assert strategy.last.diagnostics.cohort_size == 6
        moved = flat(run.model) - before
    assert seen == [(1, 1)] * 6
    # Updates of 0.01 k on 21 coordinates, clipped to 0.1 from k = 3 on; client 5 adds zero.
    updates = [min(0.01 * client, 0.1 / 21**0.5) for client in range(5)]
    assert torch.allclose(moved, torch.full_like(moved, sum(updates) / 6), atol=2e-4)


def test_noise_has_the_law_that_is_charged():
    """Six rounds of 21 coordinates with zero updates: a chi-square variate of 126 degrees."""
    hidden, drawn, before = Aggregator(), [], []
    app = client_app(linear, cross_entropy, own_data, share=OwnShare(4, 0.7, hidden.send))
    with server(rounds=6, noise_multiplier=2.0, local=fl.SGD(lr=1e-30)) as run:
        before.append(flat(run.model))

        def note(_):
            now = flat(run.model)
            drawn.append((now - before.pop()).double() * 6)
            before.append(now)

        played(run, hidden, app, on_round=note)
    # Six shares where four make up the noise.
    scaled = torch.cat(drawn) / (2.0 * 0.5 * math.sqrt(6 / 4))
    assert 58 < float(scaled.square().sum()) < 230


def test_too_few_shares_release_nothing(tmp_path):
    hidden = Aggregator()
    app = client_app(linear, cross_entropy, own_data, share=OwnShare(4, 0.1, hidden.send))
    settings = {"ledger": tmp_path / "run.ledger"}
    with server(**settings) as run:
        before = flat(run.model)
        strategy = PrivateStrategy(run, secure_sum=lambda *_: None, **QUICK)
        strategy.start(LocalGrid([app] * 6), timeout=0.05)
        assert not strategy.last.released
        assert torch.equal(flat(run.model), before)
    assert rounds_of(tmp_path / "run.ledger") == (1, 1)


@pytest.mark.parametrize(
    ("share", "said"),
    [(None, "minimum"), ((5, 0.1), "minimum"), ((4, 0.8), "noise_multiplier")],
    ids=["none", "another minimum", "more noise"],
)
def test_clients_with_other_shares_are_rejected_before_a_charge(tmp_path, share, said):
    hidden, path = Aggregator(), tmp_path / "run.ledger"
    own = None if share is None else OwnShare(*share, hidden.send)
    app = client_app(linear, cross_entropy, own_data, share=own)
    with server(ledger=path) as run, pytest.raises(InvalidParameter, match=said):
        played(run, hidden, app)
    assert not path.exists()


def test_a_client_holds_the_server_to_its_noise():
    hidden, told = Aggregator(), []

    def send(row, message, context):
        told.append(message)
        return hidden.send(row, message, context)

    with server(noise_multiplier=0.7) as run:
        app = client_app(linear, cross_entropy, own_data, share=OwnShare(4, 0.7, send))
        played(run, hidden, app)
    context = type("Context", (), {"node_config": {"partition-id": 0}})()
    given = wire.unpack_assignment(told[0].content)

    def asked(by, shares):
        content = wire.pack_assignment(
            dataclasses.replace(given, shares=shares),
            wire.shared_records(given.broadcast, given.kept),
        )
        by(Message(content, dst_node_id=1, message_type="train"), context)

    for shares, said in (((4, 0.3), "at least 0.35"), ((3, 0.35), "one of 4 shares")):
        with pytest.raises(InvalidParameter, match=said):
            asked(app, shares)
    with pytest.raises(InvalidParameter, match="secure aggregator only"):
        asked(app, None)
    with pytest.raises(InvalidParameter, match="no noise of its own"):
        asked(client_app(linear, cross_entropy, own_data), given.shares)


def test_shares_and_an_aggregator_belong_together():
    with pytest.raises(Unsupported, match="belong together"):
        PrivateStrategy(server())
    with pytest.raises(Unsupported, match="belong together"):
        PrivateStrategy(server(noise=fl.GaussianNoise()), secure_sum=Aggregator().sum)
    with pytest.raises(InvalidParameter, match="at least 4 shares"):
        PrivateStrategy(server(), min_clients=3, secure_sum=Aggregator().sum)
