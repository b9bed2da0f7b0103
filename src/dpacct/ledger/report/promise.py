"""What a ledger promises to people, whatever happened: the whole plan, or the budget.

Rule 1: what an attacker can do is told of a promise that was fixed in advance. The reading of an
odometer is none: it depends on what was released (docs/derivations/adaptive.md).
"""

from __future__ import annotations

from typing import Any

from dpacct.ledger.readings import Guarantee, Readings
from dpacct.report.front import Promise
from dpacct.report.risks import risks_of_rounds
from dpacct.rounds import Adjacency


def promise_of(now: Readings, found: dict[str, Any]) -> Promise | None:
    """The promise of a ledger, or None where it keeps none.

    Args:
        now: of the ledger.
        found: its facts, as of the same entry.
    """
    epsilon, budget = found["epsilon_any_stop"], found["budget"]["epsilon"]
    if epsilon is None or not found["rounds"]:
        return None
    unit, relation, delta = found["unit"], Adjacency(found["adjacency"]), found["delta"]
    if now.ledger_guarantee() is Guarantee.PLANNED:
        whole = now.whole_plan()
        risks = risks_of_rounds(whole.schedule, whole.accountant)
        return Promise(unit, relation, epsilon, delta, risks)
    if epsilon > budget:
        return None
    return Promise(unit, relation, budget, delta, spent=epsilon)
