"""How a ledger comes into being: its first entry, which fixes what never changes."""

from __future__ import annotations

from typing import Any

from dpacct import validate
from dpacct.budget import Budget
from dpacct.ledger.disk.place import Place
from dpacct.ledger.disk.store import Store
from dpacct.ledger.record.chain import new_entry
from dpacct.ledger.record.state import empty_ledger
from dpacct.ledger.record.state_json import state_to_json
from dpacct.renyi.odometer import design_mixture
from dpacct.rounds import Round, Schedule


def software() -> str:
    """The version that is installed."""
    # Takes as long to import as half of what a ledger needs.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - as said

    try:
        return f"dpacct {version('dpacct')}"
    except PackageNotFoundError:
        return "dpacct, version unknown"


def create(
    place: Place, budget: Budget, adjacency: str, unit: str, typical: Round | Schedule | None
) -> None:
    """Make the file, if nobody else does at the same time.

    Args:
        place: where there is none yet.
        budget, adjacency, unit, typical: as for `Ledger.open`; the adjacency as text, or empty.
    Raises:
        InvalidParameter: the unit is no word. LedgerError: the file cannot be made.
    """
    validate.line("unit", unit, "a unit of privacy")
    mixture = design_mixture(budget, typical)
    data: dict[str, Any] = {
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "orders": list(mixture.orders),
        "weights": list(mixture.weights),
        "unit": unit,
        "software": software(),
    }
    state = state_to_json(empty_ledger(mixture.zero(), budget.delta, adjacency), None)
    Store.create(place, new_entry(None, "ledger", 0, data, state))
