"""Examples with canaries behind them, whose gradients are replaced where Opacus has computed them.

Rule 1: what is replaced is what goes into the clip; clip, sum, noise and division are Opacus' own.
Rule 2: what is seen is what the wrapped optimizer gets, the moment before it changes the model.
Rule 3: all that was put into a training is taken out again, however the audit ends: losses and
optimizers may be the user's, and train on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.canaries import Canaries
from dpacct.fl.auditing.watching import Aimed, Watch
from dpacct.fl.opacus.ghost import GhostCanaries
from dpacct.fl.opacus.steps import Steps
from dpacct.fl.privacy.findings import AuditFailed
from dpacct.fl.tensors import norm, split
from dpacct.ledger import Event, Ledger, Run
from dpacct.rounds import Adjacency


class Grown(Dataset[Any]):
    """A data set, and the first of its examples as often again as is said."""

    def __init__(self, data: Any, more: int) -> None:
        self._data, self._more = data, more
        self._others = len(data)

    def __len__(self) -> int:
        return self._others + self._more

    def __getitem__(self, index: int) -> Any:
        return self._data[index if index < self._others else 0]


class Audited(Grown):
    """A data set with canaries behind its own examples.

    Args:
        data: whose examples take part, one at least. canaries: behind them.
        ledger: that is charged. undo: takes how what is attached comes off again (Rule 3).
        silent: the gradients of all others are zero.

    Attributes:
        watch: what releases showed; None before a ledger is attached. run: that is charged.
    """

    def __init__(
        self, data: Any, canaries: Canaries, ledger: Ledger, undo: ExitStack, *, silent: bool
    ) -> None:
        super().__init__(data, len(canaries))
        self._canaries, self._silent = canaries, silent
        self._ledger, self._undo = ledger, undo
        self.watch: Watch | None = None
        self.run: Run | None = None

    def __reduce__(self) -> tuple[type[Grown], tuple[Any, int]]:
        """A loader's workers only read examples."""
        return Grown, (self._data, self._more)

    def planted(self, row: int) -> Tensor | None:
        """The gradient [d] that takes the place of an example's; None where it keeps its own."""
        if row >= self._others:
            return self._canaries.sent(row - self._others)
        return self._canaries.nothing() if self._silent else None

    def attach(
        self, optimizer: Any, steps: Steps, run: Run | None, event: Event, criterion: Any
    ) -> None:
        """Plant canaries among the gradients of an optimizer, and watch what it releases.

        Args:
            optimizer: whose steps are charged. steps: that know whose gradients are next.
            run, event: the charge. criterion: of ghost clipping.
        Raises:
            Unsupported: several processes, two optimizers, or ghost clipping without its criterion.
            InvalidParameter: the model has too few parameters for so many canaries, or the run is
                of another ledger.
        """
        if run is not None and run.ledger_path != self._ledger.path:
            rule = "the run that is charged is of the ledger that the loop is given"
            raise InvalidParameter("training", "a run of another ledger", rule)
        if run is None or type(optimizer).__name__.startswith("Distributed"):
            raise Unsupported("an audit watches one process, and this training has several")
        if self.watch is not None:
            raise Unsupported("an audit watches one optimizer, and this is the second one")
        replaced = event.charged.adjacency is Adjacency.REPLACE_ONE
        sizes = [parameter.numel() for parameter in optimizer.params]
        self._canaries.aim(sum(sizes), float(optimizer.max_grad_norm), replaced=replaced)
        self.run = run
        charged = event.charged
        rate, relation = charged.sampling_rate, charged.adjacency
        self.watch = Watch(self._canaries, rate, relation, sizes)
        if type(optimizer).__name__ == "DPOptimizerFastGradientClipping":
            GhostCanaries(optimizer, criterion, self.planted, steps).attach(self._undo)
        else:
            _plant_samples(optimizer, self.planted, steps, self._undo)
        seen = _Released(self._canaries, self.watch, optimizer, run, event)
        handle = optimizer.original_optimizer.register_step_pre_hook(seen)
        self._undo.callback(handle.remove)


def _plant_samples(
    optimizer: Any, planted: Callable[[int], Tensor | None], steps: Steps, undo: ExitStack
) -> None:
    """Replace per-example gradients before each step. Rule 1."""
    pre_step = optimizer.pre_step

    def with_canaries(*words: Any, **named: Any) -> Any:
        samples = [_sample(parameter.grad_sample) for parameter in optimizer.params]
        # Gradients of several batches are refused behind this.
        if all(sample is not None for sample in samples):
            found = [cast("Tensor", sample).clone() for sample in samples]
            sizes = [sample[0].numel() if len(sample) else 0 for sample in found]
            # One that Opacus made up for an empty batch is behind them, and keeps its own.
            for place, row in enumerate(steps.upcoming()[: len(found[0])]):
                gradient = planted(row)
                if gradient is not None:
                    for sample, part in zip(found, split(gradient, sizes), strict=True):
                        sample[place] = part.view_as(sample[place]).to(sample)
            for parameter, sample in zip(optimizer.params, found, strict=True):
                parameter.grad_sample = sample
        return pre_step(*words, **named)

    undo.callback(setattr, optimizer, "pre_step", pre_step)
    optimizer.pre_step = with_canaries


def _sample(held: Any) -> Tensor | None:
    """The gradients of one backward pass; None where there are several."""
    found: list[Any] = cast("list[Any]", held) if isinstance(held, list) else [held]
    return found[0] if len(found) == 1 else None


class _Released:
    """Called before the wrapped optimizer changes the model. Rule 2."""

    def __init__(
        self, canaries: Canaries, watch: Watch, optimizer: Any, run: Run, event: Event
    ) -> None:
        self._canaries, self._watch, self._optimizer = canaries, watch, optimizer
        self._run, self._event = run, event
        self._aimed: dict[tuple[float, ...], Aimed] = {}

    def __call__(self, *_: Any) -> None:
        optimizer, count = self._optimizer, len(self._watch.events) + 1
        if count > self._run.committed:
            raise AuditFailed(f"step {count} was not charged: {self._run!r}")
        mean = torch.cat([parameter.grad.flatten() for parameter in optimizer.params])
        divided = optimizer.loss_reduction == "mean"
        total = mean.double() * (optimizer.expected_batch_size if divided else 1)
        self._watch.see(total, self._aim(mean), self._event)

    def _aim(self, like: Tensor) -> Aimed:
        """What canaries contribute at the clip norms of this step; the same at the same norms."""
        optimizer = self._optimizer
        whole = float(optimizer.max_grad_norm)
        layers = tuple(map(float, getattr(optimizer, "max_grad_norms", ()))) or (whole,)
        if layers not in self._aimed:
            sizes = [parameter.numel() for parameter in optimizer.params]
            sizes = sizes if len(layers) > 1 else [sum(sizes)]

            def bounded(rows: Tensor) -> Tensor:
                parts = zip(split(rows.double(), sizes), layers, strict=True)
                return torch.cat([_clipped(part, length) for part, length in parts], dim=1)

            self._aimed[layers] = Aimed.of(self._canaries, bounded, like.cpu(), whole)
        return self._aimed[layers]


def _clipped(rows: Tensor, length: float) -> Tensor:
    return rows * (length / norm(rows, dim=1).clamp(min=length)).unsqueeze(1)
