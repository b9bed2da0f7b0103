"""Audits of runs over Flower's messages, in one process, with the clients' own bounds and noise."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed beside the other test extras")

from dpacct import fl
from dpacct.fl.flower import LocalGrid, PrivateStrategy, client_app
from tests.fl.auditing.test_runs import SURE, Quieter
from tests.fl.problems import cross_entropy, make_clients


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(6, 60)


def engines_loop(people, **options):
    def data(context):
        return people[context.node_config["partition-id"]]

    return client_app(model, cross_entropy, data, **options)


def played(app):
    def play(server, people):
        grid = LocalGrid([app(people) for _ in people])
        PrivateStrategy(server, poll=1e-3, patience=0.05).start(grid, timeout=0.05)

    return play


def audited(app=engines_loop, *, canaries=24, others="silent", **options):
    known = torch.Generator().manual_seed(5)
    given = {
        "rounds": 2, "clip_norm": 0.5, "noise_multiplier": 0.5, "sampling": fl.Full(),
        "delta": 1e-5, "local": fl.SGD(lr=0.1, steps=1),
    } | options  # fmt: skip
    return fl.audit_server(
        lambda clients: fl.Server(model(), clients, **given), played(app),
        make_clients([5, 3, 4]), canaries=canaries, others=others, confidence=SURE,
        generator=known,
    )  # fmt: skip


def by_sam(people):
    return engines_loop(people, method=fl.DPFedSAM())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"others": "heard"},
        pytest.param(
            {"app": by_sam, "method": fl.DPFedSAM(), "sampling": fl.Poisson(0.5)},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["silent", "heard", "method"],
)
def test_a_sound_run_passes(options):
    found = audited(**options)
    found.require()
    assert found.clients == 3
    assert found.gaussian_epsilon < found.charged.upper


def test_canaries_reach_what_is_released():
    # Missed only by noise of more than eight standard deviations.
    assert audited(noise_multiplier=0.05).shown.noise_factor < 4


def test_less_noise_of_the_server_is_seen():
    found = audited(noise=Quieter(), noise_multiplier=2.0)
    assert found.shown.faults == ("noise",)
