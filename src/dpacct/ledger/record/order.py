"""The order in which rounds of one plan are released, where their charge depends on it.

Rule 1: the game is about rounds in the order of their plan: who sees the release of a later round
first may choose what is sent in an earlier one by it. So where a plan of different rounds is
charged by the game, none of them is released after a later one.
"""

from __future__ import annotations

from collections.abc import Iterable

from dpacct.errors import LedgerError
from dpacct.ledger.record.chain import Entry
from dpacct.ledger.record.charged import TIGHT, Charged
from dpacct.ledger.record.state import Slot


def keeps_order(plan: Charged | None) -> bool:
    """Whether the charge of a plan depends on the order of its rounds."""
    return plan is not None and plan.accountant == TIGHT and len(plan.schedule.phases) > 1


def released_later(run: int, behind: Iterable[tuple[Entry, int | None]]) -> int | None:
    """The reservation of a round of a run that was made later, and released already; or None.

    Args:
        run: its number.
        behind: the entries behind a reservation of that run, each with what it closes.
    """
    later: set[int | None] = set()
    for entry, closes in behind:
        if entry.kind == "reserve" and entry.run == run:
            later.add(entry.number)
        elif entry.kind == "commit" and closes in later:
            return closes
    return None


class Released:
    """The latest place of each plan that was released, while a ledger is read from its start."""

    def __init__(self) -> None:
        self._latest: dict[int, int] = {}

    def add(self, run: int, plan: Charged | None, slot: Slot | None) -> None:
        """A round of a run is released.

        Raises:
            LedgerError: it should have been released before another one was.
        """
        if slot is None or not keeps_order(plan):
            return
        if slot.number < self._latest.get(run, 0):
            raise LedgerError("it releases a round of a plan after a later one of it")
        self._latest[run] = slot.number
