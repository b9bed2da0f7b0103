"""Privacy accounting and calibration for (federated) learning under differential privacy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpacct.accountant import delta, epsilon
from dpacct.budget import Budget, Interval, Spent
from dpacct.calibration.answer import Calibration
from dpacct.calibration.calibrate import calibrate
from dpacct.errors import (
    BudgetExceeded,
    DpacctError,
    InvalidParameter,
    LedgerError,
    NotConverged,
    Unsupported,
)
from dpacct.renyi.curve import rdp
from dpacct.risk.tradeoff import tradeoff
from dpacct.rounds import Adjacency, Full, Poisson, Round, Schedule, Uniform

if TYPE_CHECKING:
    from dpacct.ledger import Ledger

# Imported when asked for: the ledger brings SQLite, `fl` PyTorch, which most uses never need.
_ROOMS = ("claims", "fl", "interop", "ledger", "pictures", "report", "risk", "schedules")

__version__ = "0.1.0"

__all__ = [
    "Adjacency",
    "Budget",
    "BudgetExceeded",
    "Calibration",
    "DpacctError",
    "Full",
    "Interval",
    "InvalidParameter",
    "Ledger",
    "LedgerError",
    "NotConverged",
    "Poisson",
    "Round",
    "Schedule",
    "Spent",
    "Uniform",
    "Unsupported",
    "__version__",
    "calibrate",
    "delta",
    "epsilon",
    "rdp",
    "tradeoff",
]


def __getattr__(name: str) -> Any:
    if name == "Ledger":
        return import_module("dpacct.ledger").Ledger
    if name in _ROOMS:
        return import_module(f"dpacct.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
