"""`audit_loop` for Opacus: a training with `attach_ledger`, and canaries among its examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.passing import passing_ledger
from dpacct.fl.auditing.verdict import RunAudit, Wanted, conclude
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
        InvalidParameter: as for `dpacct.fl.audit_run`; no examples; or a ledger of its own.
        Unsupported: no step was seen, several processes, or ghost clipping without its criterion.
        Anything that `attach_ledger` raises of a training that it refuses.
    """
    wanted = Wanted.checked(canaries, others, error, confidence, generator)
    at = validate.delta(delta)
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__") and len(data)):
        rule = "examples that are read by number, one at least; the loop makes the loader"
        raise InvalidParameter("data", type(data).__name__, rule)
    clients: int = len(data)
    people = Audited(data, wanted.plant(), silent=wanted.silent)
    with passing_ledger(at) as ledger:
        training(people, ledger)
        run, watch = people.run, people.watch
        if run is None or watch is None or not watch.events:
            raise Unsupported(
                "the audit saw no step: the loop trains from a DataLoader of the data that it is "
                "given, and attaches a run of the ledger that it is given"
            )
        if run.id not in {own.id for own in ledger.runs} or len(ledger.runs) != 1:
            rule = "the run that is charged is of the ledger that the loop is given, and its only"
            raise InvalidParameter("training", "another run", rule)
        return conclude(watch, run.epsilon(), "tight", wanted, clients)
