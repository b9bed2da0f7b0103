"""The terms of a ledger, which a run has to share.

Rule: an epsilon has a meaning only at its delta. So a run has the delta of its ledger, or is
rejected before anything is computed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dpacct.budget import Budget
from dpacct.errors import InvalidParameter
from dpacct.ledger.ledger import Ledger, is_there
from dpacct.ledger.postgres.address import Address
from dpacct.rounds import Adjacency

# Units of privacy of runs. A ledger may have any other word.
CLIENT, EXAMPLE = "client", "example"


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one ledger, with attributes as for `Ledger`."""

    path: Path | Address
    budget: Budget
    adjacency: Adjacency | None
    unit: str = CLIENT
    note: str = ""

    @classmethod
    def of(cls, ledger: Ledger) -> Terms:
        """Return those of an open ledger."""
        return cls(ledger.path, ledger.budget, ledger.adjacency, ledger.unit, ledger.note)

    def check(
        self, delta: float | None, adjacency: Adjacency | None = None, unit: str = ""
    ) -> float:
        """Return the delta of a run: the ledger's.

        Args:
            delta: that the run asked for, or None.
            adjacency: of the run, if it is known.
            unit: that the run protects, if it is known. A client may have any other name in the
                ledger but that of an example.
        Raises:
            InvalidParameter: the run asked for another delta, adjacency or unit.
        """
        own = self.budget.delta
        if delta is not None and delta != own:
            rule = f"the ledger {self.path} has delta {own!r}, which all its runs share"
            raise InvalidParameter(
                "delta", delta, rule, f"Leave it out, give {own!r}, or charge another ledger."
            )
        # `record.events.in_adjacency` decides which add-remove rounds become zero-out.
        weaker = self.adjacency is Adjacency.ZERO_OUT and adjacency is Adjacency.ADD_REMOVE
        if adjacency is not None and self.adjacency not in (None, adjacency) and not weaker:
            rule = f"all rounds of a ledger share one, and {self.path} has {self.adjacency}"
            hint = "Take that one, or charge another ledger."
            if self.adjacency is Adjacency.ADD_REMOVE and adjacency is Adjacency.ZERO_OUT:
                hint = (
                    "Declare a public number of clients with public_size=, which allows "
                    "add-remove, or charge another ledger."
                )
            raise InvalidParameter("adjacency", str(adjacency), rule, hint)
        named = unit == CLIENT and self.unit != EXAMPLE
        if unit and unit != self.unit and not named:
            rule = f"the ledger {self.path} protects one {self.unit}, and the run one {unit}"
            raise InvalidParameter("ledger", str(self.path), rule, "Charge another ledger.")
        return own


def known_terms(ledger: Ledger | Address | str | os.PathLike[str] | None) -> Terms | None:
    """Return the terms of an existing ledger, or None if a new one will be made."""
    if ledger is None or isinstance(ledger, Ledger):
        return None if ledger is None else Terms.of(ledger)
    if not is_there(ledger):
        return None
    with Ledger.open(ledger, read_only=True) as found:
        return Terms.of(found)
