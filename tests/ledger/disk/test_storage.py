"""What is read from a ledger while others write, and what its storage promises."""

from __future__ import annotations

import pytest

from dpacct import Budget, Ledger, LedgerError, Poisson, Round

BUDGET = Budget(8, 1e-5)
ROUND = Round(1.3, Poisson(0.1))


# A view of the past


def test_a_book_as_of_an_entry_sees_nothing_later(ledger: Ledger) -> None:
    run = ledger.start_run("one")
    run.reserve(ROUND).commit()
    ticket = run.reserve(ROUND)
    then = ledger._book.as_of()
    before = (then.state(), then.run_state(1), then.store.head(), list(then.store.entries()))
    ticket.commit()
    ledger.start_run("two").reserve(ROUND).commit()
    assert (then.state(), then.run_state(1), then.store.head()) == before[:3]
    assert list(then.store.entries()) == before[3]
    assert not then.store.is_closed(ticket.number)
    assert ledger._book.store.is_closed(ticket.number)
    assert then.store.first_of_run(2) is None
    with pytest.raises(LedgerError, match="entry 6 is missing"):
        then.store.entry(6)
    with pytest.raises(LedgerError, match="there is no run 2"):
        then.run_state(2)
    assert then.as_of(2).state().rounds == 0


def test_the_past_cannot_be_written_and_the_future_cannot_be_read(ledger: Ledger) -> None:
    ledger.start_run("one")
    with pytest.raises(LedgerError, match="cannot be changed"):
        ledger._book.as_of(1).resume_run(1)
    for number in (0, 3, 99):
        with pytest.raises(LedgerError, match=f"entry {number} is missing"):
            ledger._book.as_of(number)


def test_entries_written_while_they_are_read_are_left_out(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpacct.ledger.disk.store.CHUNK", 2)
    run = ledger.start_run("grows")
    run.reserve(ROUND).commit()
    seen = []
    for entry, _ in ledger._book.store.entries():
        seen.append(entry.number)
        run.reserve(ROUND).commit()
    assert seen == [1, 2, 3, 4]
    assert [e.number for e, _ in ledger._book.store.entries(9)] == [10, 11, 12]
