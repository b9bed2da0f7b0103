"""Which accountant a run's plan is charged by: a game only where no client remembers anything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.stats import norm

import dpacct
from dpacct import Full, Poisson, Unsupported, epsilon, fl
from dpacct.fl.engine.setup import plan_accountant
from dpacct.fl.layout import Params, State
from dpacct.fl.methods.protocol import Context, Method
from dpacct.rounds import Round, Sampling, Uniform
from tests.fl.problems import federation, linear, make_clients

PARAMS: Params = {"w": torch.zeros(2)}


@dataclass(frozen=True)
class Remembering(fl.DPFedAvg):
    """Keeps how often a client took part."""

    name = "remembering"

    def init_client(self, params: Params) -> State | None:
        del params
        return {"times": torch.zeros(())}

    def client_state(self, client_state: State, bounded: torch.Tensor, context: Context) -> State:
        del bounded, context
        return {"times": client_state["times"] + 1}


@dataclass(frozen=True)
class Everyone(Remembering):
    """All clients count the rounds, whoever takes part."""

    everyone_computes = True


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (fl.DPFedAvg(), "tight"),
        (fl.DPFedLS(), "tight"),
        (Everyone(), "pairs"),
        (fl.FedAlphaNormEC(), "pairs"),
    ],
)
def test_a_memory_is_charged_by_fixed_pairs(method: Method, expected: str) -> None:
    fixed = Uniform(4, 12)
    assert plan_accountant(method, "tight", fixed) == expected
    assert plan_accountant(method, "rdp", fixed) == "rdp"


@pytest.mark.parametrize("accountant", ["tight", "pairs", "rdp"])
def test_memories_of_participation_need_other_cohorts_than_of_fixed_size(accountant: str) -> None:
    """There others remember in whose place they took part; no accountant bounds that."""
    with pytest.raises(Unsupported, match=r"remember when they took part.*Poisson\(0.333333\)"):
        plan_accountant(Remembering(), accountant, Uniform(4, 12))
    others: tuple[Sampling, ...] = (Poisson(0.25), Full())
    for sampling in others:
        found = plan_accountant(Remembering(), accountant, sampling)
        assert found == ("pairs" if accountant == "tight" else accountant)


def test_what_such_memories_would_tell() -> None:
    """The data sets of docs/derivations/federated.md exceed what fixed pairs prove."""
    rate, apart, told = 1e-3, 6.0, 4.0
    x, y = np.arange(-9, apart + 9, 0.05), np.arange(-9, told + 9, 0.05)
    absent = (1 - rate) * np.outer(norm.pdf(x), norm.pdf(y))
    one = absent + rate * np.outer(norm.pdf(x - apart), norm.pdf(y - told))
    other = absent + rate * np.outer(norm.pdf(x), norm.pdf(y - told))
    reached = np.maximum(one - np.exp(10.0) * other, 0.0).sum() * 0.05**2
    plan = Round(1 / 3, Uniform(1, 1000)) + Round(1.0, Full(), "replace-one")
    assert reached > 1.2 * dpacct.delta(plan, epsilon=10.0, accountant="pairs").upper


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("method", "accountant", "by"),
    [
        (fl.DPFedAvg(), "tight", "tight"),
        (Everyone(), "tight", "pairs"),
        (fl.DPFedAvg(), "pairs", "pairs"),
        (fl.DPFedAvg(), "rdp", "pairs"),
    ],
)
def test_a_federation_records_it(method: Method, accountant: str, by: str) -> None:
    rule = Uniform(4, 12)
    settings = {"noise_multiplier": 1.5, "delta": 1e-2, "accountant": accountant, "rounds": 4}
    with federation(
        linear(), make_clients([2] * 12), method=method, sampling=rule, **settings
    ) as run:  # fmt: skip
        run.run()
        spent = run.epsilon
        [entry] = run.account._open(None).runs
        assert entry.accountant == by
        assert entry.planned_epsilon() == spent.upper
    expected = epsilon(4 * Round(1.5, rule), delta=1e-2, accountant=by).upper
    assert spent.upper == pytest.approx(expected, rel=1e-9)
