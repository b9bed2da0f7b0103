"""`audit_loop` for Opacus: a training with `attach_ledger`, and canaries among its examples."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch.utils.data import IterableDataset

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.passing import passing_ledger
from dpacct.fl.auditing.verdict import SURELY, RunAudit, Wanted, check_functions, conclude
from dpacct.fl.opacus.canaries import Audited
from dpacct.ledger import Ledger


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
    """Train with canaries among the examples, and test what reaches the optimizer that is wrapped.

    Args:
        training: ``training(data, ledger)`` trains on a data set as it always does, with a model
            of its own: a `DataLoader` of just these data, `make_private`, a run of the ledger,
            `attach_ledger`, and the loop. What it transforms it transforms inside ``data``.
        data: the examples, read by number; the first one lends canaries its input.
        canaries: examples whose gradients are replaced before they are clipped.
        others: "silent": the gradients of all others are zero. "heard": they are their own.
        delta: at which epsilon is shown.
        error, confidence, generator: as for `dpacct.fl.audit_run`.
    Returns:
        What was shown; clients are the other examples.
    Raises:
        AuditFailed: a step that was not charged changed the model.
        InvalidParameter: as for `dpacct.fl.audit_run`; no function; no examples; or a ledger of
            its own, which is charged for no step.
        Unsupported: not every step was seen, no gradient was replaced, several processes, or ghost
            clipping without its criterion.
        Anything that `attach_ledger` raises of a training that it refuses.
    """
    wanted = Wanted.checked(canaries, others, error, confidence, generator)
    at = validate.delta(delta)
    check_functions(training=training)
    if not _numbered(data):
        rule = "examples that are read by number, one at least; the loop makes the loader"
        raise InvalidParameter("data", type(data).__name__, rule)
    clients: int = len(data)
    planted = wanted.plant()
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
            raise Unsupported(
                "no gradient was replaced: the loss that is trained on is the criterion that was "
                "attached"
            )
        return conclude(watch, run.epsilon(), "tight", wanted, clients)


def _numbered(data: Any) -> bool:
    """Whether these are examples that are read by number."""
    # Torch gives it the method, which raises.
    streamed = isinstance(data, cast("type", IterableDataset))
    if streamed or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        return False
    return len(data) > 0
