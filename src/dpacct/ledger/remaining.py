"""How much of a budget is left, in rounds of a kind."""

from __future__ import annotations

from dpacct.ledger.book import Book
from dpacct.ledger.record.charged import PAIRS, accountant_of
from dpacct.ledger.record.events import Event, in_adjacency
from dpacct.ledger.record.initial import charged_plans, initial_plans
from dpacct.ledger.record.plans import most_planned_rounds
from dpacct.renyi.odometer import count_fitting
from dpacct.rounds import Round
from dpacct.validate import MAX_ROUNDS


def rounds_left(book: Book, asked: Round | Event) -> int:
    """How many more such rounds fit, chosen as one goes; what is held for plans is not available.

    Args:
        book: as of an entry.
        asked: a round as it is charged, or with all that it releases.
    Raises:
        InvalidParameter: it is no round, or its adjacency is not the ledger's.
    """
    state, round_ = book.state(), _charged(book, asked)
    cost = book.mixture.cost(round_)
    return count_fitting(book.mixture, state.charged, cost, book.budget, state.delta)


def rounds_left_as_plan(
    book: Book, asked: Round | Event, accountant: str = PAIRS, most: int = MAX_ROUNDS
) -> int:
    """How many such rounds a plan may have that is registered now; arguments as `rounds_left`.

    ``accountant``: that the plan may be charged by. ``most``: no more are asked for.
    """
    round_ = _charged(book, asked)
    chosen = rounds_left(book, round_)
    if book.state().started:
        return min(most, chosen)
    plans = charged_plans(book, initial_plans(book, unfinished=True))
    charged_by = accountant_of(2 * round_, accountant)
    return most_planned_rounds(book.mixture, book.budget, plans, round_, chosen, charged_by, most)


def _charged(book: Book, asked: Round | Event) -> Round:
    event = asked if isinstance(asked, Event) else Event(asked)
    return in_adjacency(event.charged, book.state().adjacency)
