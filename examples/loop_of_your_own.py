"""A federated loop written by hand: draw, train, then one call that bounds, adds noise and charges.

python examples/loop_of_your_own.py --rounds 20

What the call cannot see is yours to keep: the cohort is drawn by the scheme of the plan, in secret,
and nothing but the released mean reaches the model.
"""

from __future__ import annotations

import argparse
import copy
import secrets
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import dpacct
from dpacct import Budget, Ledger, Poisson, fl

CLIENTS = 400
RATE = 0.1
BUDGET = Budget(6.0, 1e-5)
DRAW = secrets.SystemRandom()


def people() -> list[tuple[Tensor, Tensor]]:
    """Made-up clients, each with 20 examples of its own."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(CLIENTS, 20, 10, generator=generator)
    return [(x, (x[:, :3].sum(dim=1) > 0).long()) for x in inputs]


def update_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """What one client sends: how a copy of the model moved while it trained on its data alone."""
    own = copy.deepcopy(model)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(own(inputs), targets).backward()
        optimizer.step()
    moved = parameters_to_vector(own.parameters()) - parameters_to_vector(model.parameters())
    return moved.detach().unsqueeze(0)


def main() -> None:
    """Calibrate, train, and compare what was spent with the budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--ledger", type=Path, default=Path("own-loop.ledger"))
    asked = parser.parse_args()
    noise = dpacct.calibrate(
        epsilon=BUDGET.epsilon, delta=BUDGET.delta, rounds=asked.rounds, sampling_rate=RATE
    ).noise_multiplier
    plan = fl.AggregationPlan(
        noise_multiplier=noise, clip_norm=1.0, sampling=Poisson(RATE), num_clients=CLIENTS
    )
    clients = people()
    model = nn.Linear(10, 2)
    with Ledger.open(asked.ledger, BUDGET) as ledger:
        # Registered before anything ran, so that the tight bound of the whole plan applies.
        run = ledger.start_run("own loop", plan=asked.rounds * plan.round)
        for _ in range(asked.rounds):
            cohort = [client for client in clients if DRAW.random() < RATE]
            updates = [update_of(model, *client) for client in cohort]
            weights = parameters_to_vector(model.parameters()).detach()
            mean = fl.privatize(torch.cat([torch.zeros(0, len(weights)), *updates]), plan, run)
            vector_to_parameters(weights + mean, model.parameters())
        run.finish()
        spent = ledger.epsilon()
        print(f"{ledger.rounds} rounds, epsilon {spent.upper:.3f} of {BUDGET.epsilon:g}")
    fresh = torch.randn(2000, 10)
    right = model(fresh).argmax(dim=1) == (fresh[:, :3].sum(dim=1) > 0).long()
    print(f"accuracy on made-up people: {right.float().mean():.2f}")


if __name__ == "__main__":
    main()
