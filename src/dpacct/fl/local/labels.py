"""The range of class labels that a loss accepts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpacct.errors import InvalidParameter
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.tensors import integers

_DEFAULT_IGNORED = -100


@dataclass(frozen=True, slots=True)
class Labels:
    """0 .. count - 1, and one value that a loss passes over.

    Attributes:
        padded: whether padded batches leave out what is passed over, as the loss does.
    """

    count: int
    ignored: int
    padded: bool = False

    @classmethod
    def of(cls, loss: LocalLoss, outputs: Tensor, targets: Tensor) -> Labels | None:
        """Return the labels of torch's losses of classes; None for others, or probabilities."""
        function = loss.function
        classes = isinstance(function, nn.CrossEntropyLoss | nn.NLLLoss)
        plain = function is functional.cross_entropy or function is functional.nll_loss
        if not (classes or plain) or outputs.ndim < 2 or targets.is_floating_point():
            return None
        ignored = getattr(function, "ignore_index", _DEFAULT_IGNORED)
        return cls(outputs.shape[1], ignored, loss.is_cross_entropy)

    def check(self, targets: Tensor) -> bool:
        """Refuse labels out of range, on which a GPU would break off all that runs there.

        Returns:
            Whether batches of them may be padded.
        """
        if not targets.numel():
            return True
        # A device is waited for once.
        low, high = integers(torch.stack(torch.aminmax(targets)))
        if low >= 0 and high < self.count:
            return self.padded or not bool((targets == self.ignored).any())
        if not bool(self.fit(targets).all()):
            rule = f"labels lie in 0..{self.count - 1}"
            raise InvalidParameter("targets", low if low < 0 else high, rule)
        return self.padded

    def fit(self, targets: Tensor) -> Tensor:
        """Return whether all labels of each example are in range, bool [n]."""
        inside = (targets >= 0) & (targets < self.count) | (targets == self.ignored)
        return inside.flatten(1).all(dim=1) if inside.ndim > 1 else inside
