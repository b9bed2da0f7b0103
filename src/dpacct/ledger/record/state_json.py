"""The running totals as they stand in an entry: every number with its type and its range.

What is read here has the form of totals. Whether they are those that follow from the entries
before is for `replay` to say.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from dpacct.errors import LedgerError
from dpacct.ledger.record.fields import flag, items, members, real, refuse, whole, words
from dpacct.ledger.record.state import LedgerState, RunState
from dpacct.renyi.odometer import Totals
from dpacct.rounds import Adjacency
from dpacct.validate import MAX_ROUNDS

# Far above `odometer.UNBOUNDED` times any number of rounds.
MAX_TOTAL = 1 << 512


def state_to_json(ledger: LedgerState, run: RunState | None) -> dict[str, Any]:
    """As it stands in an entry."""
    # As `asdict` would give them: their fields hold plain numbers, words and tuples of numbers.
    return {
        "ledger": {name: getattr(ledger, name) for name in _LEDGER},
        "run": None if run is None else {name: getattr(run, name) for name in _RUN},
    }


def state_from_json(
    value: Any, orders: int, *, of_run: bool
) -> tuple[LedgerState, RunState | None]:
    """What `state_to_json` wrote.

    Args:
        value: the JSON value.
        orders: how many the ledger has; so many numbers each total has.
        of_run: whether it holds the totals of a run.
    Raises:
        LedgerError: it is something else, or cannot be the totals of anything.
    """
    state = members("state", value, ("ledger", "run"))
    ledger = _ledger(members("state.ledger", state["ledger"], _LEDGER), orders)
    if not of_run:
        if state["run"] is not None:
            refuse("state.run", state["run"], "null")
        return ledger, None
    run = _run(members("state.run", state["run"], _RUN), orders)
    if not run.within(ledger):
        raise LedgerError("its run has more than all runs together")
    return ledger, run


_LEDGER = tuple(field.name for field in fields(LedgerState))
_RUN = tuple(field.name for field in fields(RunState))


def _ledger(part: dict[str, Any], orders: int) -> LedgerState:
    adjacency = words("state.ledger.adjacency", part["adjacency"])
    if adjacency not in ("", *Adjacency):
        refuse("state.ledger.adjacency", adjacency, "an adjacency")
    rounds = whole("state.ledger.rounds", part["rounds"])
    return LedgerState(
        spent=_totals("state.ledger.spent", part["spent"], orders),
        held=_totals("state.ledger.held", part["held"], orders),
        runs=whole("state.ledger.runs", part["runs"]),
        rounds=rounds,
        exposed=whole("state.ledger.exposed", part["exposed"], 0, rounds),
        started=flag("state.ledger.started", part["started"]),
        loose=flag("state.ledger.loose", part["loose"]),
        delta=real("state.ledger.delta", part["delta"], 0.0, 1.0),
        plan_delta=real("state.ledger.plan_delta", part["plan_delta"], 0.0, 1.0),
        adjacency=adjacency,
    )


def _run(part: dict[str, Any], orders: int) -> RunState:
    rounds = whole("state.run.rounds", part["rounds"])
    return RunState(
        spent=_totals("state.run.spent", part["spent"], orders),
        held=_totals("state.run.held", part["held"], orders),
        rounds=rounds,
        committed=whole("state.run.committed", part["committed"], 0, rounds),
        cursor=whole("state.run.cursor", part["cursor"], 0, MAX_ROUNDS),
        private=flag("state.run.private", part["private"]),
        planned=flag("state.run.planned", part["planned"]),
        initial=flag("state.run.initial", part["initial"]),
        left=flag("state.run.left", part["left"]),
        finished=flag("state.run.finished", part["finished"]),
    )


def _totals(name: str, value: Any, orders: int) -> Totals:
    found = items(name, value)
    if len(found) != orders:
        raise LedgerError(f"{name} has {len(found)} numbers, and there are {orders} orders")
    for number in found:
        whole(name, number, 0, MAX_TOTAL)
    return tuple(found)
