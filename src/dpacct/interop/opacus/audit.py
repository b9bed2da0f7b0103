"""`audit_loop` for Opacus: a training with `attach_ledger`, and canaries among its examples.

Rule 1: A canary's gradient replaces that of an example after Opacus has computed it and before it
    is clipped. Clip, sum, noise and division are done by Opacus.
Rule 2: A release is the gradient that the wrapped optimizer gets, just before the model changes.
Rule 3: The audit removes its hooks from a training in all cases. Optimizers may be the user's, and
    train on.
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
from dpacct.fl.auditing.canaries import Aimed
from dpacct.fl.auditing.canary_audit import (
    CanaryAudit,
    RunAudit,
    check_functions,
    passing_ledger,
)
from dpacct.fl.privacy.findings import AuditFailed
from dpacct.fl.tensors import norm, split
from dpacct.interop.opacus.steps import Steps
from dpacct.ledger import Event, Ledger, Run
from dpacct.rounds import Round


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
        data: the examples, read by number. Canaries borrow the input of the first one.
        canaries: examples whose gradients are replaced before they are clipped.
        others: "silent": all other gradients are zero. "heard": they are unchanged.
        delta: at which epsilon is shown.
        error, confidence, generator: as for `dpacct.fl.audit_run`.
    Returns:
        The result of the audit. Its clients are the other examples.
    Raises:
        AuditFailed: a step that was not charged changed the model.
        InvalidParameter: as for `dpacct.fl.audit_run`, or no function, no examples, or a ledger
            that is charged for no step.
        Unsupported: not every step was seen, no gradient was replaced, several processes, or ghost
            clipping, which holds no gradient of a single example.
        Anything that `attach_ledger` raises.
    """
    audit = CanaryAudit(canaries, others, error, confidence, generator)
    at = validate.delta(delta)
    check_functions(training=training)
    # Torch gives a stream the method `__getitem__`, which raises.
    numbered = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if not numbered or isinstance(data, cast("type", IterableDataset)) or len(data) == 0:
        rule = "examples that are read by number, one at least; the loop makes the loader"
        raise InvalidParameter("data", type(data).__name__, rule)
    with passing_ledger(at) as ledger, ExitStack() as undo:
        grown = Audited(data, audit, ledger, undo)
        training(grown, ledger)
        run, steps = grown.run, len(audit.events)
        if run is None or not steps:
            raise Unsupported(
                "the audit saw no step: the loop trains from a DataLoader of the data that it is "
                "given, and attaches a run of the ledger that it is given"
            )
        if len(ledger.runs) != 1:
            rule = "the run that is charged is the only one of the ledger that the loop is given"
            raise InvalidParameter("training", f"{len(ledger.runs)} runs", rule)
        if steps < run.committed:
            raise Unsupported(
                f"{run.committed} steps were charged, and the audit saw {steps}: another "
                "optimizer took the place of the wrapped one"
            )
        audit.check_asked("no gradient of a canary was replaced")
        return audit.conclude(run.epsilon(), "tight", len(data))


class _Grown(Dataset[Any]):
    """A data set, followed by copies of its first example."""

    def __init__(self, data: Any, more: int) -> None:
        self._data, self._more, self._others = data, more, len(data)

    def __len__(self) -> int:
        return self._others + self._more

    def __getitem__(self, index: int) -> Any:
        return self._data[index if index < self._others else 0]


class Audited(_Grown):
    """A data set with canaries behind its own examples.

    ``undo`` gets the calls that detach the audit again (Rule 3). ``run`` is None before `attach`.
    """

    def __init__(self, data: Any, audit: CanaryAudit, ledger: Ledger, undo: ExitStack) -> None:
        super().__init__(data, len(audit.canaries))
        self._audit, self._ledger, self._undo = audit, ledger, undo
        self.run: Run | None = None
        self._aimed: dict[tuple[float, ...], Aimed] = {}

    def __reduce__(self) -> tuple[type[_Grown], tuple[Any, int]]:
        """Give a loader's workers the examples only."""
        return _Grown, (self._data, self._more)

    def attach(self, optimizer: Any, steps: Steps, run: Run | None, event: Event) -> None:
        """Plant canaries among the gradients of an optimizer, and watch its releases.

        ``steps`` tells which examples are next. ``run`` and ``event`` are the charge.
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
        if self.run is not None:
            raise Unsupported("an audit watches one optimizer, and this is the second one")
        charged, sizes = event.charged, [p.numel() for p in optimizer.params]
        if not isinstance(charged, Round):
            raise Unsupported("an audit compares step by step. Audit the same training by Poisson")
        norm_ = float(optimizer.max_grad_norm)
        self._audit.aim(sizes, norm_, charged.sampling_rate, charged.adjacency)
        self.run = run
        pre_step = optimizer.pre_step

        def with_canaries(*args: Any, **kwargs: Any) -> Any:
            self._plant(optimizer, steps.upcoming())
            return pre_step(*args, **kwargs)

        self._undo.callback(setattr, optimizer, "pre_step", pre_step)
        optimizer.pre_step = with_canaries

        def before_update(*_: Any) -> None:
            self._see(optimizer, run, event)

        handle = optimizer.original_optimizer.register_step_pre_hook(before_update)
        self._undo.callback(handle.remove)

    def _plant(self, optimizer: Any, rows: Any) -> None:
        """Replace the gradients of examples with these numbers. Rule 1."""
        if optimizer.accumulated_iterations != 1:
            return  # Gradients of several batches, which the step rejects.
        held: list[Any] = [parameter.grad_sample for parameter in optimizer.params]
        parts: list[Any] = [part[0] if isinstance(part, list) else part for part in held]
        samples: list[Tensor] = [part.clone() for part in parts]
        sizes = [parameter.numel() for parameter in optimizer.params]
        # A synthetic example that Opacus puts into an empty batch comes last, and stays.
        for place, row in enumerate(rows[: len(samples[0])]):
            if row >= self._others:
                gradient = self._audit.canaries.sent(row - self._others)
            elif self._audit.silent:
                gradient = self._audit.canaries.silence()
            else:
                continue
            for sample, part in zip(samples, split(gradient, sizes), strict=True):
                sample[place] = part.view_as(sample[place]).to(sample)
        for parameter, sample in zip(optimizer.params, samples, strict=True):
            parameter.grad_sample = sample

    def _see(self, optimizer: Any, run: Run, event: Event) -> None:
        """Note a release. Rule 2."""
        count = len(self._audit.events) + 1
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
                """Clip rows as Opacus does, whole or layer by layer."""
                return torch.cat(
                    [
                        part * (length / norm(part, dim=1).clamp(min=length)).unsqueeze(1)
                        for part, length in zip(split(rows.double(), sizes), layers, strict=True)
                    ],
                    dim=1,
                )

            self._aimed[layers] = Aimed.of(self._audit.canaries, bounded, mean.cpu(), whole)
        self._audit.see(total, self._aimed[layers], event)
