"""The life of a round in a ledger: reserved, then committed or abandoned.

Rule 1: a round is reserved before data is touched, committed before its noisy value leaves.
Rule 2: a reserved round counts as spent until it is abandoned, whatever becomes of the process.
Rule 3: a round that its run's plan covers was admitted with the plan; any other round is admitted
only while the adaptive bound, with all that is held for plans, stays within the budget.
Rule 4: where the charge of a plan depends on the order of its rounds, they are released in it.
Rule 5: admission and reservation are one transaction: two processes never share the same room.
Rule 6: a round that is reserved is committed at most once, by whichever process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from dpacct.errors import LedgerError
from dpacct.ledger.book import Book
from dpacct.ledger.record.admission import refuse
from dpacct.ledger.record.chain import Entry
from dpacct.ledger.record.charged import Charged
from dpacct.ledger.record.events import (
    Event,
    event_to_json,
    in_adjacency,
    round_from_json,
    round_to_json,
)
from dpacct.ledger.record.order import keeps_order, released_later
from dpacct.ledger.record.plans import Plan
from dpacct.ledger.record.standing import Standing
from dpacct.ledger.record.state import LedgerState, RunState, Slot, abandoned, committed, reserved
from dpacct.renyi.odometer import Totals, add, subtract


class Reservation(NamedTuple):
    """A round that is on disk.

    Attributes:
        number: its entry.
        run: its run.
        cost: what was charged.
        slot: the place in its run's plan, or None.
        skipped: whether planned rounds before it were skipped.
    """

    number: int
    run: int
    cost: Totals
    slot: Slot | None
    skipped: bool


def anything(state: RunState) -> None:
    """Refuses no round."""
    del state


def reserve(
    book: Book,
    run: int,
    plan: Plan | None,
    event: Event,
    standing: Callable[[], Standing],
    *,
    over_budget: bool = False,
    asks: Callable[[RunState], None] = anything,
) -> Reservation:
    """Charge a round and put it on disk; ``standing`` and ``over_budget`` as for `start_run`.

    Args:
        book, run, plan, event: what is charged, and to whom.
        standing, over_budget: as for `start_run`.
        asks: refuses the round, by an error, for what its run has spent before.

    Raises:
        BudgetExceeded: it does not fit; nothing is written.
        InvalidParameter: its adjacency is another than the ledger's.
        LedgerError: the run is finished, or the file cannot be written.
    """
    charged = in_adjacency(event.charged, book.state().adjacency)
    # Before the file is locked: a round of a new kind takes milliseconds.
    cost = book.mixture.cost(charged)
    with book.store.writing():
        head, ledger, state = book.open_run(run)
        asks(state)
        charged = in_adjacency(charged, ledger.adjacency)
        number = plan.covering(charged, state.cursor) if plan and state.on_plan else None
        slot: Slot | None = None
        base = ledger.charged
        if plan is None or number is None:
            base = subtract(base, state.held)
            after = book.mixture.epsilon(add(base, cost), ledger.delta)
            fits = over_budget or after <= book.budget.epsilon
        else:
            own = plan.cost(book.mixture, number, number + 1)
            freed = add(plan.cost(book.mixture, state.cursor, number), own)
            # Another version may have held another amount: never free more than was held.
            slot, fits = Slot(number, tuple(map(min, freed, state.held))), True
            cost = tuple(map(min, cost, own))
        if fits:
            left = slot is None and state.on_plan
            skipped = number is not None and number > state.cursor
            ledger, state = reserved(ledger, state, cost, slot, str(charged.adjacency))
            data = event_to_json(event, charged) | {"slot": number, "left": left}
            entry = book.append(head, "reserve", run, data, ledger, state)
            return Reservation(entry.number, run, cost, slot, skipped)
    held = any(subtract(ledger.held, state.held))
    raise refuse(book.mixture, book.budget, ledger, base, charged, standing(), held=held)


def left_behind(book: Book, run: int, event: Event) -> Reservation | None:
    """The latest round of a run, if it is this one and nobody settled it.

    Nothing of it was released, since a round is committed before that. Whoever takes it over may
    draw and release it anew: of those who do, one can commit.

    Args:
        run: its number. event: the round as it would be reserved.
    Returns:
        The reservation, whose cost is not known, so that it cannot be abandoned; or None.
    Raises:
        LedgerError: the entry is damaged.
    """
    now = book.as_of()
    last: Entry | None = None
    for entry, _ in now.store.entries():
        if entry.kind == "reserve" and entry.run == run:
            last = entry
    if last is None or now.store.is_closed(last.number):
        return None
    data: dict[str, Any] = dict(now.store.entry(last.number).content["data"])
    number, left = data.pop("slot", None), data.pop("left", False)
    # As it is read back: a list for a tuple, say.
    charged = in_adjacency(event.charged, now.state().adjacency)
    # What version 0.2 charged as add-remove may be zero-out by now.
    data["charged"] = round_to_json(
        in_adjacency(round_from_json(data["charged"]), charged.adjacency)
    )
    if left or data != json.loads(json.dumps(event_to_json(event, charged))):
        return None
    slot = None if number is None else Slot(number, ())
    return Reservation(last.number, run, (), slot, skipped=False)


def commit(book: Book, reservation: Reservation, details: dict[str, Any]) -> RunState:
    """Note that the round's noisy value may leave now.

    Returns:
        The totals of its run, this round included.
    Raises:
        LedgerError: the round was committed or abandoned before, its turn is over, or the file
            cannot be written.
    """
    with book.store.writing():
        head, ledger, state = _settle(book, reservation)
        _check_order(book, reservation)
        ledger, state = committed(ledger, state)
        data = {"round": reservation.number} | ({"details": details} if details else {})
        run = reservation.run
        book.append(head, "commit", run, data, ledger, state, reservation.number)
    return state


def abandon(book: Book, reservation: Reservation, reason: str) -> None:
    """Take a round back for which nothing was drawn; it stays visible.

    Raises:
        LedgerError: as for `commit`.
    """
    with book.store.writing():
        head, ledger, state = _settle(book, reservation)
        cost, slot, skipped = reservation.cost, reservation.slot, reservation.skipped
        ledger, state = abandoned(ledger, state, cost, slot, skipped=skipped)
        data = {"round": reservation.number, "reason": reason}
        run = reservation.run
        book.append(head, "abandon", run, data, ledger, state, reservation.number)


def _check_order(book: Book, reservation: Reservation) -> None:
    run, plan = reservation.run, book.plan(reservation.run)
    if plan is None or reservation.slot is None:
        return
    if not keeps_order(Charged(plan.schedule, book.start(run).accountant)):
        return
    later = released_later(run, book.store.entries(reservation.number))
    if later is not None:
        raise LedgerError(
            f"{book.store.path}: round {later}, a later one of the same plan, was released before "
            f"round {reservation.number}, and the plan is charged by a game that knows one order: "
            "nothing of this round may be released; it counts as spent."
        )


def _settle(book: Book, reservation: Reservation) -> tuple[Entry, LedgerState, RunState]:
    if book.store.is_closed(reservation.number):
        raise LedgerError(
            f"{book.store.path}: round {reservation.number} was committed or abandoned before."
        )
    return book.latest(reservation.run)
