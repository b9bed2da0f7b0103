"""The batches of a client: the examples of each local step, in their order.

They are drawn before training, so that the sequential and the vectorized trainer use the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from dpacct.fl.clients import Inputs
from dpacct.fl.local.sgd import SGD

# Narrower batches cost no less, since their time is not arithmetic.
_NARROW = 16


class Batch(NamedTuple):
    """The examples of one local step of one client.

    Attributes:
        inputs: [b, ...], in each of their tensors. targets: [b, ...].
        weights: [b], summing to one, zero for padding. None if all rows are examples of equal
            weight.
    """

    inputs: Inputs
    targets: Tensor
    weights: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """The batches of one client in one round.

    Attributes:
        indices: int64 [steps, width], rows of the client's data. Columns from ``counts`` on pad.
        counts: int64 [steps], examples in each step's batch.
    """

    indices: Tensor
    counts: Tensor

    @property
    def steps(self) -> int:
        """Number of local steps."""
        return self.counts.shape[0]


def plan_batches(examples: int, local: SGD, generator: torch.Generator) -> Batches:
    """Draw the batches of a client with this many examples."""
    steps = local.count_steps(examples)
    if steps == 0:
        return Batches(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    width = examples if local.batch_size is None else min(local.batch_size, examples)
    per_pass = -(-examples // width)
    passes = -(-steps // per_pass)
    if local.shuffle and width < examples:
        order = torch.rand(passes, examples, generator=generator, dtype=torch.float32).argsort(
            dim=1
        )
    else:
        order = torch.arange(examples).expand(passes, examples)
    counts = torch.full((passes, per_pass), width)
    missing = per_pass * width - examples
    padded = order
    if missing:
        padded = torch.nn.functional.pad(order, (0, missing))
        counts[:, -1] = width - missing
    return Batches(padded.reshape(-1, width)[:steps], counts.flatten()[:steps])


def chunks(workers: Sequence[int], size: int) -> list[Sequence[int]]:
    """Return workers in order, in as few parts of nearly equal length as ``size`` allows."""
    parts = -(-len(workers) // size)
    ends = [len(workers) * part // max(parts, 1) for part in range(parts + 1)]
    return [workers[start:stop] for start, stop in pairwise(ends)]


def padded_width(examples: int, local: SGD) -> int:
    """Return the columns to which the batches of a client with this many examples are padded.

    A power of two, at least 16 and at most the batch size: a function of that client alone.
    """
    width = max(_NARROW, 1 << max(examples - 1, 0).bit_length())
    return width if local.batch_size is None else min(width, local.batch_size)
