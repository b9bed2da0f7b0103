"""Audits of one round, run many times."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpacct import Full, Poisson, fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.rounds import audit_round, least_runs
from tests.fl.auditing.test_runs import Quieter
from tests.fl.problems import cross_entropy, make_clients

pytestmark = pytest.mark.usefixtures("uncounted")


def audited(people=None, runs=60, **options):
    given = {
        "rounds": 3,
        "clip_norm": 0.5,
        "noise_multiplier": 1.0,
        "sampling": Full(),
        "delta": 1e-5,
        "vectorize": True,
    } | options

    def build(clients):
        torch.manual_seed(0)
        return fl.Federation(nn.Linear(6, 5), cross_entropy, clients, **given)

    return audit_round(build, people or make_clients([5, 3]), runs=runs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "sampling": Poisson(0.5),
            "clip_norm": None,
            "bound": fl.AdaptiveClip(0.5, indicator_noise=30.0),
        },
        pytest.param({"adjacency": "replace-one", "secure_noise": True}, marks=pytest.mark.slow),
        {"people": fl.Examples(torch.randn(9, 6), torch.zeros(9).long())},
    ],
)
def test_a_sound_round_passes(options):
    found = audited(**options)
    assert found.passed
    found.require()
    assert found.runs == 60
    assert found.tpr.lower <= found.tpr.value <= found.tpr.upper


def test_the_client_is_recognized():
    # Fourteen standard deviations apart, with the threshold in the middle.
    found = audited(noise_multiplier=0.07)
    assert found.epsilon > 1.5
    assert found.gaussian_epsilon > 1.5
    assert found.tpr.value == 1.0
    assert found.fpr.value == 0.0


def test_a_fault_is_seen():
    # Noise of 0.12 for what is charged as noise of 6: eight standard deviations apart.
    found = audited(noise=Quieter(part=0.02), preflight=False, noise_multiplier=6.0, runs=80)
    assert not found.passed
    with pytest.raises(fl.AuditFailed, match="recognized"):
        found.require()


@pytest.mark.parametrize(
    ("options", "said"), [({"runs": 10}, str(least_runs(1e-6))), ({"runs": 0}, "runs")]
)
def test_bad_audits_are_refused(options, said):
    with pytest.raises(InvalidParameter, match=said):
        audited(**options)


def test_a_round_without_a_promise_is_refused():
    with pytest.raises(Unsupported, match="promised"):
        audited(seed=1)
