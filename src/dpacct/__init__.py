"""Privacy accounting and calibration for (federated) learning under differential privacy."""

from dpacct.accountant import delta, epsilon
from dpacct.budget import Budget, Interval
from dpacct.calibrate import calibrate
from dpacct.calibration import Calibration
from dpacct.errors import (
    BudgetExceeded,
    DpacctError,
    InvalidParameter,
    LedgerError,
    NotConverged,
    Unsupported,
)
from dpacct.rdp import rdp
from dpacct.rounds import Adjacency, Full, Poisson, Round, Schedule, Uniform

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
    "LedgerError",
    "NotConverged",
    "Poisson",
    "Round",
    "Schedule",
    "Uniform",
    "Unsupported",
    "__version__",
    "calibrate",
    "delta",
    "epsilon",
    "rdp",
]
