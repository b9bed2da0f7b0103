"""Accuracy of DP-FedAvg on MNIST at the setting of the DP-Fed-LS paper, beside its printed row.

``python -m benchmarks.federated_mnist FOLDER`` with MNIST in the folder. 500 clients, Poisson rate
0.05, 30 rounds, 5 epochs, batch 10, rate 0.1 decaying by 0.99, clip norm 0.4, weight decay 4e-5,
delta = 500^-1.1, 50000 training images split evenly, test accuracy on 10000 images, five runs.
The paper took its noise from a closed-form rule that gives away most of the budget; both that noise
and the one that really costs the epsilon are run.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.federated_jobs import Job, cross_entropy, mnist_job
from benchmarks.measure import table
from dpacct import Budget, Poisson, calibrate, epsilon, fl
from dpacct.fl.layout import Params
from dpacct.noise_rules import NoiseRule, printed_noise

CLIENTS, RATE, ROUNDS, CLIP_NORM, RUNS = 500, 0.05, 30, 0.4, 5
DELTA = CLIENTS**-1.1
# Table 2 of the paper, Poisson sampling, no smoothing: mean and deviation of five runs.
PRINTED = {6: "83.94 +-0.28", 7: "85.45 +-0.24", 8: "86.30 +-0.74", 9: "86.53 +-0.79"}


@dataclass(frozen=True)
class Projected(fl.DPFedAvg):
    """The paper's local training: after every step the iterate is projected on the ball."""

    radius: float = CLIP_NORM

    def after_step(self, params: Params, context: fl.Context) -> Params:
        """The nearest point to the new iterate within the radius of the anchor."""
        gaps = {name: value - context.anchor[name] for name, value in params.items()}
        squares: Tensor = torch.stack([gap.square().sum() for gap in gaps.values()])
        scale = (self.radius / squares.sum().sqrt()).clamp(max=1.0)
        return {name: context.anchor[name] + scale * gap for name, gap in gaps.items()}


def accuracy(job: Job, method: fl.Method, noise_multiplier: float) -> tuple[float, float]:
    """Test accuracy in percent of one run with fresh noise, and the epsilon that it spent."""
    model = nn.Linear(784, 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    with fl.Federation(
        model,
        cross_entropy,
        job.clients,
        method=method,
        clip_norm=CLIP_NORM,
        sampling=Poisson(RATE),
        noise_multiplier=noise_multiplier,
        delta=DELTA,
        rounds=ROUNDS,
        local=fl.SGD(lr=0.1, epochs=5, batch_size=10, lr_decay=0.99, weight_decay=4e-5),
        vectorize=True,
    ) as run:
        run.run()
        spent = run.epsilon.upper
    return 100 * fl.evaluate(model, cross_entropy, job.test).accuracy, spent


def main() -> None:
    """Print the table."""
    job = mnist_job(CLIENTS, folder=sys.argv[1] if len(sys.argv) > 1 else None)
    rows: list[list[str]] = []
    for target, printed in PRINTED.items():
        budget = Budget(target, DELTA)
        rule = printed_noise(epsilon=target, delta=DELTA, rounds=ROUNDS, sampling=Poisson(RATE))
        exact = calibrate(
            epsilon=budget.epsilon,
            delta=DELTA,
            rounds=ROUNDS,
            sampling_rate=RATE,
            accountant="tight",
        )
        if not isinstance(rule, NoiseRule):
            raise SystemExit(f"the printed rule has no noise for epsilon {target}")
        cells = [str(target), printed]
        for noise in (rule.noise_multiplier, exact.noise_multiplier):
            found = [accuracy(job, Projected(), noise) for _ in range(RUNS)]
            plain = [accuracy(job, fl.DPFedAvg(), noise)[0] for _ in range(RUNS)]
            projected = [value for value, _ in found]
            cells += [
                f"{noise:.4f}",
                f"{found[0][1]:.2f}",
                f"{statistics.mean(projected):.2f} +-{statistics.stdev(projected):.2f}",
                f"{statistics.mean(plain):.2f} +-{statistics.stdev(plain):.2f}",
            ]
        rows.append(cells)
        print(" ".join(cells), file=sys.stderr, flush=True)
    header = ["epsilon", "printed"]
    header += ["rule's z", "real eps", "projected", "clipped"]
    header += ["exact z", "real eps", "projected", "clipped"]
    whole = epsilon(
        noise_multiplier=1.0, rounds=ROUNDS, sampling_rate=RATE, delta=DELTA, accountant="tight"
    )
    print(table(f"Test accuracy on {job.data}, {RUNS} runs each", header, rows))
    print(f"for scale: noise multiplier 1 costs epsilon {whole.upper:.4f}")


if __name__ == "__main__":
    main()
