"""Privacy accounting and calibration for (federated) learning under differential privacy."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpacct import claims as claims
    from dpacct import correlated as correlated
    from dpacct import fl as fl
    from dpacct import interop as interop
    from dpacct import ledger as ledger
    from dpacct import pictures as pictures
    from dpacct import report as report
    from dpacct import risk as risk
    from dpacct import schedules as schedules
    from dpacct.accountant import delta, epsilon
    from dpacct.budget import Budget, Interval, Spent
    from dpacct.calibration.calibrate import Calibration, calibrate
    from dpacct.certificates import Certificate, certify
    from dpacct.epochs import Epoch, ShuffledEpoch
    from dpacct.errors import (
        BudgetExceeded,
        DpacctError,
        InvalidParameter,
        LedgerError,
        NotConverged,
        Unsupported,
    )
    from dpacct.gaussian_dp import GaussianDP, gdp
    from dpacct.ledger import Ledger
    from dpacct.mechanisms import (
        ApproximateDP,
        DiscreteGaussian,
        DiscreteLaplace,
        ExponentialMechanism,
        Laplace,
        PureDP,
        RandomizedResponse,
        ZeroConcentratedDP,
    )
    from dpacct.renyi.curve import rdp
    from dpacct.risk.measures import tradeoff
    from dpacct.rounds import Adjacency, Full, Poisson, Round, Schedule, Uniform
    from dpacct.sampled import Sampled
    from dpacct.tuning import best_of

# The module of each public name, imported on first use: a command does not pay for all of them.
_HOMES = {
    "accountant": "delta epsilon",
    "budget": "Budget Interval Spent",
    "calibration.calibrate": "Calibration calibrate",
    "certificates": "Certificate certify",
    "epochs": "Epoch ShuffledEpoch",
    "errors": "BudgetExceeded DpacctError InvalidParameter LedgerError NotConverged Unsupported",
    "gaussian_dp": "GaussianDP gdp",
    "ledger": "Ledger",
    "mechanisms": (
        "ApproximateDP DiscreteGaussian DiscreteLaplace ExponentialMechanism Laplace PureDP "
        "RandomizedResponse ZeroConcentratedDP"
    ),
    "renyi.curve": "rdp",
    "risk.measures": "tradeoff",
    "rounds": "Adjacency Full Poisson Round Schedule Uniform",
    "sampled": "Sampled",
    "tuning": "best_of",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
# Likewise: the ledger imports SQLite, and `fl` PyTorch.
_ROOMS = (
    "claims", "correlated", "fl", "interop", "ledger", "pictures", "report", "risk", "schedules",
)  # fmt: skip

__version__ = "0.3.0"

__all__ = [
    "Adjacency", "ApproximateDP", "Budget", "BudgetExceeded", "Calibration", "Certificate",
    "DiscreteGaussian", "DiscreteLaplace", "DpacctError", "Epoch", "ExponentialMechanism",
    "Full", "GaussianDP", "Interval", "InvalidParameter", "Laplace", "Ledger", "LedgerError",
    "NotConverged", "Poisson", "PureDP", "RandomizedResponse", "Round", "Sampled",
    "Schedule", "ShuffledEpoch", "Spent", "Uniform", "Unsupported", "ZeroConcentratedDP",
    "__version__", "best_of", "calibrate", "certify", "delta", "epsilon", "gdp", "rdp", "tradeoff",
]  # fmt: skip


if not TYPE_CHECKING:  # Checkers read the imports above, and report any other name.

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF and name not in _ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module(f"dpacct.{_HOME_OF.get(name, name)}")
            value = getattr(module, name) if name in _HOME_OF else module
        except AttributeError as error:
            # Python would take it for a name that does not exist, and drop the cause.
            raise ImportError(f"dpacct.{name} cannot be imported: {error}") from error
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    # `help(dpacct)` opens every name, and `fl` needs PyTorch.
    rooms = [room for room in _ROOMS if room != "fl" or find_spec("torch")]
    return sorted([*__all__, *rooms])
