"""Train on most clients under a budget, and look at the model on clients who never took part.

python examples/federated_with_held_out_clients.py --rounds 30 --eps 8

The held-out clients agreed to be looked at, and their data are outside the promise: nothing that
is computed from them enters the model. Looking at the accuracy on *training* clients would be a
release.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from dpacct import Budget, fl
from dpacct.fl.data import PartitionedClients, load
from dpacct.fl.data.partitions import iid
from dpacct.fl.models import build_model

CLIENTS = 120
HELD_OUT = 20


def main() -> None:
    """Train, evaluate now and then, and say what was spent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--eps", type=float, default=8.0)
    parser.add_argument("--ledger", type=Path, default=Path("held-out.ledger"))
    asked = parser.parse_args()
    digits = load("digits")
    everybody = PartitionedClients(digits.train, iid(len(digits.train), CLIENTS))
    # Who is held out is decided once, before training, and without a look at the data.
    training = [everybody[place] for place in range(HELD_OUT, CLIENTS)]
    others = [everybody[place] for place in range(HELD_OUT)]
    held_out = fl.ClientData(
        torch.cat([torch.as_tensor(client.inputs) for client in others]),
        torch.cat([torch.as_tensor(client.targets) for client in others]),
    )
    model = build_model("logistic", digits)
    loss = torch.nn.functional.cross_entropy
    with fl.Federation(
        model,
        loss,
        training,
        clip_norm=1.0,
        sampling=fl.Poisson(0.3),
        rounds=asked.rounds,
        budget=Budget(asked.eps, 1e-4),
        local=fl.SGD(lr=1.0, epochs=5, batch_size=10),
        ledger=asked.ledger,
    ) as run:
        print(f"noise multiplier {run.noise_multiplier:.4f}, {len(training)} clients")
        for report in run:
            if report.round % 10 == 0 or report.round == asked.rounds:
                seen = fl.evaluate(model, loss, held_out)
                print(
                    f"round {report.round:3}  epsilon {report.epsilon.upper:.3f}"
                    f"  accuracy on {HELD_OUT} held-out clients {seen.accuracy:.3f}"
                )


if __name__ == "__main__":
    main()
