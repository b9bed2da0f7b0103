"""The logistic-regression job in pfl-research 0.6; run by its own Python, see `federated`.

Arguments: the file that `federated` wrote, and the number of rounds. Prints the seconds of
training, by the clock and of the processor.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.data import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism


class Network(torch.nn.Module):
    """Logistic regression with the members that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(784, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.linear(inputs)

    def loss(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        eval: bool = False,  # noqa: A002, FBT001, FBT002 - the name and the place that pfl uses
    ) -> torch.Tensor:
        """Mean loss."""
        self.train(not eval)
        return torch.nn.functional.cross_entropy(self(inputs), targets)

    @torch.no_grad()
    def metrics(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        eval: bool = True,  # noqa: A002, FBT001, FBT002 - as above
    ) -> dict[str, Weighted]:
        """The loss as pfl reports it."""
        loss = torch.nn.functional.cross_entropy(self(inputs), targets).item()
        del eval
        return {"loss": Weighted(loss * len(targets), len(targets))}


def main() -> None:
    """Train, and print the seconds."""
    from pfl.internal.ops import pytorch_ops  # noqa: PLC0415 - chooses the framework

    set_framework_module(pytorch_ops)
    content = torch.load(sys.argv[1], weights_only=True)
    rounds = int(sys.argv[2])
    users = range(len(content["x"]))

    def dataset(user: int) -> PyTorchTensorDataset:
        return PyTorchTensorDataset((content["x"][user], content["y"][user]), user_id=str(user))

    sampler = get_user_sampler("random", list(users))
    training = FederatedDataset(dataset, sampler)
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(0.4, 1.1359))
    backend = SimulatedBackend(
        training_data=training, val_data=training, postprocessors=[WeightByUser(), noise]
    )
    network = Network()
    model = PyTorchModel(
        network,
        lambda params, lr: torch.optim.SGD(params, lr=lr, weight_decay=4e-5),
        torch.optim.SGD(network.parameters(), lr=1.0),
    )
    settings = NNTrainHyperParams(local_batch_size=10, local_num_epochs=5, local_learning_rate=0.1)
    np.random.seed(0)  # noqa: NPY002 - pfl samples with numpy's global generator
    started, busy = time.perf_counter(), time.process_time()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            # No evaluation: only training is timed.
            evaluation_frequency=rounds + 1,
            train_cohort_size=50,
            val_cohort_size=0,
        ),
        backend,
        model,
        settings,
        model_eval_params=None,
        callbacks=[],
    )
    print(time.perf_counter() - started, time.process_time() - busy)


if __name__ == "__main__":
    main()
