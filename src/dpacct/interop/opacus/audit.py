"""`audit_loop` for Opacus: a training with `attach_ledger`, and canaries among its examples.

Rule 1: a canary's gradient takes the place of an example's after Opacus has computed it and before
it clips. Clip, sum, noise and division are Opacus' own. Rule 2: a release is what the wrapped
optimizer gets, the moment before it changes the model. Rule 3: everything that was put into a
training is taken out again, however the audit ends: optimizers may be the user's, and train on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.canaries import Aimed, Canaries, Watch
from dpacct.fl.auditing.verdict import (
    SURELY,
    RunAudit,
    Wanted,
    check_functions,
    conclude,
    passing_ledger,
)
from dpacct.fl.privacy.findings import AuditFailed
from dpacct.fl.tensors import norm, split
from dpacct.interop.opacus.steps import Steps
from dpacct.ledger import Event, Ledger, Run
from dpacct.rounds import Adjacency


def audit_loop(
    training: Callable[[Any, Ledger], object],
    data: Any,
    *,
    canaries: int = 200,
    others: str = "silent",
    delta: float = 1e-5,
    error: float = 1e-6,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> RunAudit:
    """Train with canaries among the examples, and test the steps of the wrapped optimizer.

    Args:
        training: ``training(data, ledger)`` trains on a data set as it always does, with a model
            of its own: a `DataLoader` of just these data, `make_private`, a run of the ledger,
            `attach_ledger`, and the loop. It transforms examples inside ``data`` only.
        data: the examples, read by number; the first one lends canaries its input.
        canaries: examples whose gradients are replaced before they are clipped.
        others: "silent": the gradients of all others are zero. "heard": they are their own.
        delta: at which epsilon is shown.
        error, confidence, generator: as for `dpacct.fl.audit_run`.
    Returns:
        The result of the audit; its clients are the other examples.
    Raises:
        AuditFailed: a step that was not charged changed the model.
        InvalidParameter: as for `dpacct.fl.audit_run`; no function; no examples; or a ledger of
            its own, which is charged for no step.
        Unsupported: not every step was seen, no gradient was replaced, several processes, or ghost
            clipping, which holds no gradient of a single example.
        Anything that `attach_ledger` raises.
    """
    wanted = Wanted(canaries, others, error, confidence, generator)
    at = validate.delta(delta)
    check_functions(training=training)
    # Torch gives a stream the method `__getitem__`, which raises.
    numbered = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if not numbered or isinstance(data, cast("type", IterableDataset)) or len(data) == 0:
        rule = "examples that are read by number, one at least; the loop makes the loader"
        raise InvalidParameter("data", type(data).__name__, rule)
    clients, planted = len(data), wanted.plant()
    with passing_ledger(at) as ledger, ExitStack() as undo:
        people = Audited(data, planted, ledger, undo, silent=wanted.silent)
        training(people, ledger)
        run, watch = people.run, people.watch
        if run is None or watch is None or not watch.events:
            raise Unsupported(
                "the audit saw no step: the loop trains from a DataLoader of the data that it is "
                "given, and attaches a run of the ledger that it is given"
            )
        if len(ledger.runs) != 1:
            rule = "the run that is charged is the only one of the ledger that the loop is given"
            raise InvalidParameter("training", f"{len(ledger.runs)} runs", rule)
        if len(watch.events) < run.committed:
            raise Unsupported(
                f"{run.committed} steps were charged, and the audit saw {len(watch.events)}: "
                "another optimizer took the place of the wrapped one"
            )
        expected = watch.events[0].charged.sampling_rate * canaries * len(watch.events)
        if not planted.asked and expected > SURELY:
            raise Unsupported("no gradient of a canary was replaced")
        return conclude(watch, run.epsilon(), "tight", wanted, clients)


class _Grown(Dataset[Any]):
    """A data set, followed by so many copies of its first example."""

    def __init__(self, data: Any, more: int) -> None:
        self._data, self._more, self._others = data, more, len(data)

    def __len__(self) -> int:
        return self._others + self._more

    def __getitem__(self, index: int) -> Any:
        return self._data[index if index < self._others else 0]


class Audited(_Grown):
    """A data set with canaries behind its own examples.

    Args:
        data: the examples, one at least. canaries: behind them.
        ledger: that is charged. undo: takes how to detach the audit again (Rule 3).
        silent: whether the gradients of all others are zero.

    Attributes:
        watch: the releases; None before a ledger is attached. run: that is charged.
    """

    def __init__(
        self, data: Any, canaries: Canaries, ledger: Ledger, undo: ExitStack, *, silent: bool
    ) -> None:
        super().__init__(data, len(canaries))
        self._canaries, self._silent, self._ledger, self._undo = canaries, silent, ledger, undo
        self.watch: Watch | None = None
        self.run: Run | None = None
        self._aimed: dict[tuple[float, ...], Aimed] = {}

    def __reduce__(self) -> tuple[type[_Grown], tuple[Any, int]]:
        """A loader's workers only read examples."""
        return _Grown, (self._data, self._more)

    def attach(self, optimizer: Any, steps: Steps, run: Run | None, event: Event) -> None:
        """Plant canaries among the gradients of an optimizer, and watch its releases.

        Args:
            optimizer: whose steps are charged. steps: which examples are next. run, event: the
            charge.
        Raises:
            Unsupported: several processes, two optimizers, or ghost clipping.
            InvalidParameter: the model has too few parameters for so many canaries, or the run is
                of another ledger.
        """
        if run is not None and run.ledger_path != self._ledger.path:
            rule = "the run that is charged is of the ledger that the loop is given"
            raise InvalidParameter("training", "a run of another ledger", rule)
        if run is None or type(optimizer).__name__.startswith("Distributed"):
            raise Unsupported("an audit watches one process, and this training has several")
        if type(optimizer).__name__ == "DPOptimizerFastGradientClipping":
            raise Unsupported(
                "ghost clipping holds no gradient of a single example for a canary to replace. "
                'Audit the same training with grad_sample_mode="hooks"'
            )
        if self.watch is not None:
            raise Unsupported("an audit watches one optimizer, and this is the second one")
        charged = event.charged
        sizes = [parameter.numel() for parameter in optimizer.params]
        replaced = charged.adjacency is Adjacency.REPLACE_ONE
        self._canaries.aim(sum(sizes), float(optimizer.max_grad_norm), replaced=replaced)
        self.run = run
        self.watch = Watch(self._canaries, charged.sampling_rate, charged.adjacency, sizes)
        pre_step = optimizer.pre_step

        def with_canaries(*words: Any, **named: Any) -> Any:
            self._plant(optimizer, steps.upcoming())
            return pre_step(*words, **named)

        self._undo.callback(setattr, optimizer, "pre_step", pre_step)
        optimizer.pre_step = with_canaries

        def before_update(*_: Any) -> None:
            self._see(optimizer, run, event)

        handle = optimizer.original_optimizer.register_step_pre_hook(before_update)
        self._undo.callback(handle.remove)

    def _plant(self, optimizer: Any, rows: Any) -> None:
        """Replace the gradients of examples with these numbers. Rule 1."""
        held: list[Any] = [parameter.grad_sample for parameter in optimizer.params]
        if optimizer.accumulated_iterations != 1:
            return  # Gradients of several batches, which the step rejects.
        parts: list[Any] = [part[0] if isinstance(part, list) else part for part in held]
        samples: list[Tensor] = [part.clone() for part in parts]
        sizes = [parameter.numel() for parameter in optimizer.params]
        # A synthetic example that Opacus puts into an empty batch comes last, and keeps its own.
        for place, row in enumerate(rows[: len(samples[0])]):
            if row >= self._others:
                gradient = self._canaries.sent(row - self._others)
            elif self._silent:
                gradient = self._canaries.nothing()
            else:
                continue
            for sample, part in zip(samples, split(gradient, sizes), strict=True):
                sample[place] = part.view_as(sample[place]).to(sample)
        for parameter, sample in zip(optimizer.params, samples, strict=True):
            parameter.grad_sample = sample

    def _see(self, optimizer: Any, run: Run, event: Event) -> None:
        """Note a release. Rule 2."""
        watch = cast("Watch", self.watch)
        count = len(watch.events) + 1
        if count > run.committed:
            raise AuditFailed(f"step {count} was not charged: {run!r}")
        mean = torch.cat([parameter.grad.flatten() for parameter in optimizer.params])
        divided = optimizer.loss_reduction == "mean"
        total = mean.double() * (optimizer.expected_batch_size if divided else 1)
        whole = float(optimizer.max_grad_norm)
        layers = tuple(map(float, getattr(optimizer, "max_grad_norms", ()))) or (whole,)
        if layers not in self._aimed:
            sizes = [parameter.numel() for parameter in optimizer.params]
            sizes = sizes if len(layers) > 1 else [sum(sizes)]

            def bounded(rows: Tensor) -> Tensor:
                parts = zip(split(rows.double(), sizes), layers, strict=True)
                return torch.cat([_clipped(part, length) for part, length in parts], dim=1)

            self._aimed[layers] = Aimed.of(self._canaries, bounded, mean.cpu(), whole)
        watch.see(total, self._aimed[layers], event)


def _clipped(rows: Tensor, length: float) -> Tensor:
    return rows * (length / norm(rows, dim=1).clamp(min=length)).unsqueeze(1)
