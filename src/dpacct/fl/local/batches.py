"""The order in which a client's examples are used: which ones, in which step.

Drawn apart from training, so that the sequential and the cohort-parallel path see the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from dpacct.fl.local.sgd import SGD
from dpacct.fl.tensors import integers, listed, truths

# Narrower batches cost no less: what takes time there is not the arithmetic.
_NARROW = 16


class Batch(NamedTuple):
    """What one local step of one client trains on.

    Attributes:
        inputs: [b, ...]. targets: [b, ...].
        weights: [b], summing to one, zero for padding; None where all rows are examples of equal
            weight.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """The batches of one client in one round.

    Attributes:
        indices: int64 [steps, width], rows of the client's data; columns from ``counts`` on pad.
        counts: int64 [steps], examples in each step's batch.
    """

    indices: Tensor
    counts: Tensor

    @property
    def steps(self) -> int:
        """Number of local steps."""
        return self.counts.shape[0]


def plan_batches(examples: int, local: SGD, generator: torch.Generator) -> BatchPlan:
    """Draw the batches of a client with so many examples."""
    steps = local.count_steps(examples)
    if steps == 0:
        return BatchPlan(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
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
    return BatchPlan(padded.reshape(-1, width)[:steps], counts.flatten()[:steps])


class Steps(NamedTuple):
    """The batches of several clients, side by side, over rows of their concatenated data.

    Attributes:
        rows: int64 [steps, c, width].
        weights: float64 [steps, c, width] as in `Batch`.
        active: bool [steps, c], whether the client still trains. all_active: for each step.
    """

    rows: Tensor
    weights: Tensor
    active: Tensor
    all_active: list[bool]


def chunks(workers: Sequence[int], size: int) -> list[Sequence[int]]:
    """Workers in order, in as few parts of nearly equal length as ``size`` allows."""
    parts = -(-len(workers) // size)
    ends = [len(workers) * part // max(parts, 1) for part in range(parts + 1)]
    return [workers[start:stop] for start, stop in pairwise(ends)]


def padded_width(examples: int, local: SGD) -> int:
    """Columns to which the batches of a client with so many examples are padded.

    A power of two, at least 16 and at most the batch size: a function of that client alone.
    """
    width = max(_NARROW, 1 << max(examples - 1, 0).bit_length())
    return width if local.batch_size is None else min(width, local.batch_size)


def align(plans: Sequence[BatchPlan], sizes: Sequence[int], width: int) -> Steps:
    """Pad the plans of clients to one width, which no client's data decide.

    Args:
        plans: of the clients. sizes: rows that each has in the concatenated data, at least one.
        width: columns, at least those of every plan.
    """
    steps = max(plan.steps for plan in plans)
    rows = torch.zeros(steps, len(plans), width, dtype=torch.int64)
    counts = torch.zeros(steps, len(plans), dtype=torch.int64)
    starts = [0, *accumulate(sizes)]
    alike: dict[tuple[int, ...], list[int]] = {}
    for column, plan in enumerate(plans):
        alike.setdefault(tuple(plan.indices.shape), []).append(column)
    for (number, used), columns in alike.items():
        first = torch.tensor([starts[column] for column in columns])
        rows[:, columns] = first.unsqueeze(-1)
        if not number:
            continue
        # Rows of padding are the client's own: what another one holds cannot reach it, not even
        # with weight zero, which times infinity is not zero.
        own = torch.stack([plans[column].indices for column in columns], 1) + first.unsqueeze(-1)
        here = torch.stack([plans[column].counts for column in columns], 1)
        rows[:number, columns] = own[..., :1]
        taken = torch.arange(used) < here.unsqueeze(-1)
        rows[:number, columns, :used] = torch.where(taken, own, own[..., :1])
        counts[:number, columns] = here
    active = counts > 0
    taken = torch.arange(width) < counts.unsqueeze(-1)
    weights = taken.double() / counts.clamp(min=1).unsqueeze(-1)
    return Steps(rows, weights, active, truths(active.all(dim=1)))


def resting(plan: Steps, device: torch.device) -> list[Tensor | None]:
    """For each step the clients that have finished, None where there are none.

    Who takes no step at all is left out. A set is copied to the device once.
    """
    known: dict[tuple[int, ...], Tensor] = {}
    found: list[Tensor | None] = []
    ever = plan.active.any(dim=0)
    for active, everybody in zip(plan.active, plan.all_active, strict=True):
        rows = () if everybody else tuple(integers((ever & ~active).nonzero().flatten()))
        if rows and rows not in known:
            known[rows] = listed(rows, device)
        found.append(known[rows] if rows else None)
    return found
