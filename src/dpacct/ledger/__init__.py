"""The ledger: the spent and the remaining privacy budget of a data set, on disk, for all runs.

A `Ledger` records each round before it runs, and rejects a round that would exceed the budget.
"""

# The ledger's front: other rooms import from here, and from no room of the ledger.
# ruff: noqa: F401 - names that are not in `__all__` are for other rooms
# pyright: reportUnusedImport=false

from dpacct.ledger.disk.place import sync_folder
from dpacct.ledger.disk.rows import begins_as_ledger
from dpacct.ledger.ledger import CLIENT, EXAMPLE, Ledger, Terms, as_place, is_there, known_terms
from dpacct.ledger.postgres.address import Address
from dpacct.ledger.readings import Guarantee
from dpacct.ledger.record.entries import MOST_AHEAD, Position
from dpacct.ledger.record.events import (
    Event,
    NoisySum,
    covers,
    joint_noise_multiplier,
    joint_noise_of,
    noise_of,
    schedule_from_json,
    schedule_in_adjacency,
    with_noise,
)
from dpacct.ledger.record.plans import (
    PAIRS,
    TIGHT,
    Plan,
    achieved_epsilon,
    epsilon_so_far,
    exposure,
)
from dpacct.ledger.record.state import RunState
from dpacct.ledger.run import Run, Ticket

__all__ = [
    "Address",
    "Event",
    "Guarantee",
    "Ledger",
    "NoisySum",
    "Position",
    "Run",
    "Ticket",
    "joint_noise_multiplier",
]
