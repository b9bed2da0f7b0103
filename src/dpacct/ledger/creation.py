"""Making the file of a new ledger, with its first entry."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dpacct import validate
from dpacct.budget import Budget
from dpacct.errors import LedgerError
from dpacct.ledger.chain import new_entry
from dpacct.ledger.state import empty_ledger
from dpacct.ledger.state_json import state_to_json
from dpacct.ledger.store import Store
from dpacct.odometer import design_mixture
from dpacct.rounds import Round, Schedule


def software() -> str:
    """The version that is installed."""
    try:
        return f"dpacct {version('dpacct')}"
    except PackageNotFoundError:
        return "dpacct, version unknown"


def create(
    file: Path, budget: Budget, adjacency: str, unit: str, typical: Round | Schedule | None
) -> None:
    """Make a ledger; arguments as for `Ledger.open`.

    Raises:
        InvalidParameter: the unit is no word. LedgerError: no file can be made there.
    """
    validate.line("unit", unit, "a unit of privacy")
    if not file.parent.is_dir():
        raise LedgerError(f"{file}: no ledger can be made: there is no folder {file.parent}.")
    mixture = design_mixture(budget, typical)
    data: dict[str, Any] = {
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "orders": list(mixture.orders),
        "weights": list(mixture.weights),
        "unit": unit,
        "software": software(),
    }
    state = state_to_json(empty_ledger(mixture.zero(), budget.delta, adjacency), None)
    Store.create(file, new_entry(None, "ledger", 0, data, state))
