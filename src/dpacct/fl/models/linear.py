"""Logistic regression."""

from __future__ import annotations

from torch import Tensor, nn


class LogisticRegression(nn.Module):
    """One linear layer on the flattened input; starts at zero.

    Args:
        num_features: values in one input. num_classes: outputs.
    """

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_classes)
        # The loss is convex: where it starts does not matter, and zero favors no class.
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [n, num_classes] of inputs [n, ...]."""
        return self.linear(inputs.flatten(1))
