"""The terms of a ledger: what it fixes for all that is charged to it.

Rule: an epsilon means something at its delta only, so a run has the delta of its ledger or is
refused before anything is computed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dpacct.budget import Budget
from dpacct.errors import InvalidParameter
from dpacct.ledger.ledger import Ledger
from dpacct.rounds import Adjacency

# Units of privacy that runs know by themselves; a ledger may have any other word.
CLIENT, EXAMPLE = "client", "example"


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one ledger.

    Attributes:
        path: of its file.
        budget: of all its runs together; its delta is that of every reading.
        adjacency: of all its rounds; None before the first.
        unit: whom it protects.
        note: see `Ledger.note`.
    """

    path: Path
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
            delta: that the run asked for; None if it asked for none.
            adjacency: of the run, if it is known.
            unit: that the run protects, if it is known. A client may have any other name in the
                ledger but that of an example.
        Raises:
            InvalidParameter: the run asked for another one, or has another adjacency or unit.
        """
        own = self.budget.delta
        if delta is not None and delta != own:
            rule = f"the ledger {self.path} has delta {own!r}, and what it charges is told there"
            raise InvalidParameter(
                "delta", delta, rule, f"Leave it out, give {own!r}, or charge another ledger."
            )
        # Which rounds of add-remove may be charged as zero-out: `record.events.in_adjacency`.
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


def known_terms(ledger: Ledger | str | os.PathLike[str] | None) -> Terms | None:
    """Return the terms of a ledger that is there; None if a new one will be made.

    Raises:
        LedgerError: the file is no ledger, or damaged.
    """
    if ledger is None or isinstance(ledger, Ledger):
        return None if ledger is None else Terms.of(ledger)
    if not Path(ledger).exists():
        return None
    with Ledger.open(ledger, read_only=True) as found:
        return Terms.of(found)
