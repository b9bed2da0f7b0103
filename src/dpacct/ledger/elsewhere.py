"""Rounds that ran elsewhere: what they spent belongs into the ledger all the same.

Rule 1: they are recorded together, in one transaction, or not at all.
Rule 2: where they are admitted as a plan they are read as one: tightly, by themselves.
Rule 3: what does not fit is refused, unless it is said that it has happened: spent is spent. It is
then recorded outside any plan, the ledger reads more than its budget, and no further round fits.
Rule 4: each round has its entries, as if it had run here; so there is a limit to one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpacct.errors import BudgetExceeded, InvalidParameter
from dpacct.ledger.book import Book
from dpacct.ledger.record.charged import PAIRS
from dpacct.ledger.record.events import Event
from dpacct.ledger.record.standing import Standing
from dpacct.ledger.reservation import commit, reserve
from dpacct.rounds import Schedule

MOST_ROUNDS = 100_000


def record(
    book: Book,
    name: str,
    rounds: Schedule,
    *,
    private: bool,
    over_budget: bool,
    details: dict[str, Any],
    standing: Callable[[], Standing],
    accountant: str = PAIRS,
) -> int:
    """Charge rounds that ran elsewhere as a run of their own, and finish it.

    Args:
        book: of the ledger.
        name, private, details: of the run, as they are kept.
        rounds: what ran, in its order.
        over_budget: record it whether the budget has room for it or not.
        standing: what a refusal says beside the rules.
        accountant: that they may be charged by as a plan.
    Returns:
        The run's number.
    Raises:
        BudgetExceeded: the rounds do not fit; nothing is written.
        InvalidParameter: there are too many, or their adjacency is not the ledger's.
        LedgerError: the file cannot be written; nothing of it counts then.
    """
    if rounds.rounds > MOST_ROUNDS:
        rule = f"one call records at most {MOST_ROUNDS} rounds, at about 2.8 kB each"
        raise InvalidParameter("rounds", rounds.rounds, rule, "Record more in several calls.")

    def start(plan: Schedule | None) -> int:
        return book.start_run(
            name,
            plan,
            private=private,
            details=details,
            standing=standing,
            over_budget=plan is None,
            accountant=accountant,
        )

    with book.store.writing(joint=True):
        try:
            run = start(rounds)
        except BudgetExceeded:
            if not over_budget:
                raise
            run = start(None)
        plan = book.plan(run)
        for round_, count in rounds:
            event = Event(round_)
            for _ in range(count):
                ticket = reserve(book, run, plan, event, standing, over_budget=plan is None)
                commit(book, ticket, {})
        book.finish(run)
    return run
