"""How much of a budget is left, in rounds of a kind."""

from __future__ import annotations

from dpacct.ledger.book import Book
from dpacct.ledger.record.initial import initial_plans
from dpacct.ledger.record.plans import most_planned_rounds
from dpacct.renyi.odometer import count_fitting
from dpacct.rounds import Round


def rounds_left(book: Book, round_: Round) -> int:
    """How many more such rounds fit, chosen as one goes; what is held for plans is not available.

    Args:
        book: as of an entry.
        round_: as it is charged.
    Raises:
        InvalidParameter: its adjacency is not the ledger's.
    """
    state = book.state()
    book.adjacency_with(state, round_.adjacency)
    cost = book.mixture.cost(round_)
    return count_fitting(book.mixture, state.charged, cost, book.budget, state.delta)


def rounds_left_as_plan(book: Book, round_: Round) -> int:
    """How many such rounds a plan may have that is registered now; arguments as `rounds_left`."""
    chosen = rounds_left(book, round_)
    if book.state().started:
        return chosen
    plans = [plan.schedule for plan in initial_plans(book, unfinished=True).values()]
    return most_planned_rounds(book.mixture, book.budget, plans, round_, chosen)
