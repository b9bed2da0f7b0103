"""A job in pfl-research 0.6, run by its own Python. See `pfl_research`.

Arguments: the file that `pfl_research.written` wrote, and the number of rounds. Prints the seconds
of training, by the clock and of the processor, and the median of a round behind the first.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism


def layers(network: str) -> torch.nn.Module:
    """Return the network of a job."""
    if network == "logistic":
        return torch.nn.Linear(784, 10)
    parts: list[torch.nn.Module] = []
    for before, after in ((3, 32), (32, 64)):
        parts += [torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.ReLU()]
        parts += [torch.nn.MaxPool2d(2)]
    dense = [torch.nn.Linear(64 * 8 * 8, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)]
    return torch.nn.Sequential(*parts, torch.nn.Flatten(), *dense)


class Network(torch.nn.Module):
    """A model with the members that pfl requires."""

    def __init__(self, network: str) -> None:
        super().__init__()
        self.layers = layers(network)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return Logits."""
        return self.layers(inputs)

    def loss(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        eval: bool = False,  # noqa: A002, FBT001, FBT002 - the name and the place that pfl uses
    ) -> torch.Tensor:
        """Return mean loss."""
        self.train(not eval)
        return torch.nn.functional.cross_entropy(self(inputs), targets)

    @torch.no_grad()
    def metrics(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        eval: bool = True,  # noqa: A002, FBT001, FBT002 - as above
    ) -> dict[str, Weighted]:
        """Return the loss as pfl reports it."""
        loss = torch.nn.functional.cross_entropy(self(inputs), targets).item()
        del eval
        return {"loss": Weighted(loss * len(targets), len(targets))}


class Clock(TrainingProcessCallback):
    """When rounds ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(
        self,
        aggregate_metrics: Metrics,
        model: object,
        *,
        central_iteration: int,
    ) -> tuple[bool, Metrics]:
        """Note it, and go on."""
        del aggregate_metrics, model, central_iteration
        self.ends.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    """Train, and print the seconds."""
    content = torch.load(sys.argv[1], weights_only=True)
    rounds, job = int(sys.argv[2]), content["job"]
    os.environ["PFL_PYTORCH_DEVICE"] = job["device"]
    from pfl.internal.ops import pytorch_ops  # noqa: PLC0415 - chooses framework and device

    set_framework_module(pytorch_ops)
    device = torch.device(job["device"])
    data = [(x.to(device), y.to(device)) for x, y in zip(content["x"], content["y"], strict=True)]

    def dataset(user: int) -> PyTorchTensorDataset:
        return PyTorchTensorDataset(data[user], user_id=str(user))

    sampler = get_user_sampler("random", list(range(len(data))))
    training = FederatedDataset(dataset, sampler)
    mechanism = GaussianMechanism(job["clip_norm"], job["noise_multiplier"])
    noise = CentrallyAppliedPrivacyMechanism(mechanism)
    backend = SimulatedBackend(
        training_data=training, val_data=training, postprocessors=[WeightByUser(), noise]
    )
    network = Network(job["network"])
    model = PyTorchModel(
        network,
        lambda params, lr: torch.optim.SGD(params, lr=lr, weight_decay=job["weight_decay"]),
        torch.optim.SGD(network.parameters(), lr=1.0),
    )
    settings = NNTrainHyperParams(
        local_batch_size=job["batch"],
        local_num_epochs=job["epochs"],
        local_learning_rate=job["rate"],
    )
    np.random.seed(0)  # noqa: NPY002 - pfl samples with numpy's global generator
    clock = Clock()
    started, busy = time.perf_counter(), time.process_time()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            # No evaluation: only training is timed.
            evaluation_frequency=rounds + 1,
            train_cohort_size=job["cohort"],
            val_cohort_size=0,
        ),
        backend,
        model,
        settings,
        model_eval_params=None,
        callbacks=[clock],
    )
    wall, processor = time.perf_counter() - started, time.process_time() - busy
    each = [later - earlier for earlier, later in itertools.pairwise(clock.ends)]
    print(wall, processor, statistics.median(each) if each else wall)


if __name__ == "__main__":
    main()
