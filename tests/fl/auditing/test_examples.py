"""Audits of DP-SGD: single examples are planted, and go where gradients go."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpacct import Full, Poisson, fl
from dpacct.fl.auditing.canaries import Canaries, with_canaries
from dpacct.fl.auditing.runs import audit_run
from tests.fl.auditing.test_runs import Longer, Quieter
from tests.fl.problems import cross_entropy

pytestmark = pytest.mark.usefixtures("uncounted")


def examples(count=30):
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(3, (count,), generator=generator)
    return fl.Examples(torch.randn(count, 6, generator=generator), targets)


def audited(people=None, **options):
    given = {
        "rounds": 15,
        "clip_norm": 0.5,
        "noise_multiplier": 1.0,
        "sampling": Poisson(0.4),
        "delta": 1e-5,
    } | options
    torch.manual_seed(5)

    def build(clients):
        model = nn.Sequential(nn.Linear(6, 120), nn.Tanh(), nn.Linear(120, 3))
        return fl.Federation(model, cross_entropy, clients, **given)

    return audit_run(build, people or examples(), canaries=120)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"vectorize": False, "rounds": 3}, marks=pytest.mark.slow),
        pytest.param(
            {"method": fl.FedSMPRandK(), "server": fl.Adam(), "secure_noise": True, "rounds": 3},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_right_passes(options):
    found = audited(**options)
    assert found.passed
    assert found.clients == 30


def test_canaries_reach_the_release():
    found = audited(sampling=Full(), rounds=10)
    # Half of the sum's length is missed only by noise of more than seven standard deviations.
    assert found.shown.noise_factor < 2.2
    assert found.passed
    assert found.clients == 30


@pytest.mark.parametrize(("noise", "fault"), [(Quieter(), "noise"), (Longer(), "contribution")])
def test_a_fault_is_seen(noise, fault):
    found = audited(noise=noise, preflight=False, sampling=Full())
    assert fault in found.shown.faults


@pytest.mark.parametrize("silent", [True, False])
def test_examples_stand_before_canaries(silent):
    canaries, others = Canaries(40), examples(7)
    people = with_canaries(others, canaries, silent=silent)
    canaries.aim(600, 0.5, replaced=False)
    assert isinstance(people, fl.Examples)
    assert len(people) == 47
    read = people.batch([3, 46, 0])
    assert torch.equal(read.inputs, others.batch([3, 0, 0]).inputs)
    assert torch.equal(read.targets, others.batch([3, 0, 0]).targets)
    for row in range(47):
        update = people.planted(row)
        if row < 7:
            assert update is None if not silent else not update.any()
        else:
            assert bool(update.any()) == bool(canaries.coins[row - 7])
    assert all(others.planted(row) is None for row in range(7))
