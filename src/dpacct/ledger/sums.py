"""The runs of a ledger add up to its totals.

The totals stand in the latest entry, and those of a run in its own latest entry, which an index
finds. An index that was damaged finds an older one, with less in it.
"""

from __future__ import annotations

from dpacct.errors import LedgerError
from dpacct.ledger.book import Book
from dpacct.renyi.odometer import add


def check_runs(book: Book) -> None:
    """Refuse a ledger whose runs do not add up; the cost grows with their number, not with rounds.

    Raises:
        LedgerError: they do not.
    """
    now = book.as_of()
    ledger = now.state()
    runs = [now.run_state(number) for number in range(1, ledger.runs + 1)]
    spent = held = book.mixture.zero()
    for run in runs:
        spent, held = add(spent, run.spent), add(held, run.held)
    rounds = sum(run.rounds for run in runs)
    if (spent, held, rounds) != (ledger.spent, ledger.held, ledger.rounds):
        raise LedgerError(
            f"{book.store.path}: the runs do not add up to the totals of the ledger; the file was "
            f"damaged. Restore a copy, and treat what is missing as spent."
        )
