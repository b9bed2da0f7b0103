"""The ledger: the spent and the remaining privacy budget of a data set, on disk, for all runs."""

from dpacct.ledger.ledger import Ledger
from dpacct.ledger.readings import Guarantee
from dpacct.ledger.record.entries import Position
from dpacct.ledger.record.events import Event, NoisySum, joint_noise_multiplier
from dpacct.ledger.run import Run, Ticket

__all__ = [
    "Event",
    "Guarantee",
    "Ledger",
    "NoisySum",
    "Position",
    "Run",
    "Ticket",
    "joint_noise_multiplier",
]
