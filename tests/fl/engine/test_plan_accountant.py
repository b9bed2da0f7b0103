"""Which accountant a run's plan is charged by: a game only where no client remembers anything."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from dpacct import epsilon, fl
from dpacct.fl.engine.checks import plan_accountant
from dpacct.fl.layout import Params, State
from dpacct.fl.methods.protocol import Context, Method
from dpacct.rounds import Round, Uniform

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


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (fl.DPFedAvg(), "tight"),
        (fl.DPFedLS(), "tight"),
        (Remembering(), "pairs"),
        (fl.FedAlphaNormEC(), "pairs"),
    ],
)
def test_a_memory_is_charged_by_fixed_pairs(method: Method, expected: str) -> None:
    assert plan_accountant(method, PARAMS, "tight") == expected
    assert plan_accountant(method, PARAMS, "rdp") == "rdp"


@pytest.mark.parametrize(
    ("method", "accountant", "by"),
    [
        (fl.DPFedAvg(), "tight", "tight"),
        (Remembering(), "tight", "pairs"),
        (fl.DPFedAvg(), "pairs", "pairs"),
        (fl.DPFedAvg(), "rdp", "pairs"),
    ],
)
def test_a_federation_records_it(method: Method, accountant: str, by: str) -> None:
    clients = [fl.ClientData(torch.ones(2, 2), torch.zeros(2, dtype=torch.long)) for _ in range(12)]
    with fl.Federation(
        torch.nn.Linear(2, 2),
        torch.nn.functional.cross_entropy,
        clients,
        method=method,
        rounds=4,
        clip_norm=1.0,
        sampling=Uniform(4, 12),
        noise_multiplier=1.5,
        delta=1e-2,
        vectorize=False,
        accountant=accountant,
        preflight=False,
    ) as run:
        plan = 4 * Round(1.5, Uniform(4, 12))
        run.run()
        spent = run.epsilon
        [entry] = run._player.account._open(None).runs
        assert entry.accountant == by
        assert entry.planned_epsilon() == spent.upper
    assert spent.upper == pytest.approx(epsilon(plan, delta=1e-2, accountant=by).upper, rel=1e-9)
