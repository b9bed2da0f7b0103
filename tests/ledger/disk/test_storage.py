"""What is read from a ledger while others write, and what its storage promises."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from dpacct import Budget, Ledger, LedgerError, Poisson, Round
from dpacct.ledger.record.state import RunState

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


# What a write reads once


def test_a_write_sees_what_it_has_written(ledger: Ledger) -> None:
    run = ledger.start_run("one")
    store = ledger._book.store
    with store.writing(joint=True):
        before = store.head()
        assert store.head() is before
        ticket = run.reserve(ROUND)
        assert (store.head().number, store.head().kind) == (ticket.number, "reserve")
        assert store.entry(before.number) == before
    assert store.head() is not store.head()


def test_what_a_write_has_read_ends_with_it(ledger: Ledger) -> None:
    run = ledger.start_run("one")
    store = ledger._book.store
    with suppress(KeyError), store.writing(joint=True):
        ledger._book.resume_run(run.id)
        assert store.head().kind == "resume"
        raise KeyError
    assert store.head().kind == "run"
    ledger._book.resume_run(run.id)
    assert ledger.verify().sound


def test_totals_that_somebody_else_wrote_are_read(path: Path) -> None:
    with Ledger.open(path, BUDGET) as one, Ledger.open(path) as two:
        ours, theirs = one.start_run("ours"), two.start_run("theirs")
        for _ in range(3):
            ours.reserve(ROUND).commit()
            theirs.reserve(ROUND).commit()
        states = [(book.state(), book.run_state(1)) for book in (one._book, two._book)]
        assert states[0] == states[1]
        assert one._book.state().rounds == 6
        assert one.verify().sound


def test_totals_are_of_the_entry_on_disk_not_of_one_that_was_undone(ledger: Ledger) -> None:
    run = ledger.start_run("one")
    with suppress(KeyError), ledger._book.store.writing(joint=True):
        run.reserve(ROUND)
        raise KeyError
    assert run.rounds == 0
    ticket = run.reserve(ROUND)
    ticket.commit()
    assert ticket.totals == run.totals()
    assert (run.rounds, run.committed) == (1, 1)
    assert ledger.verify().sound


def test_a_round_may_be_refused_for_what_its_run_has_spent(ledger: Ledger) -> None:
    run, seen = ledger.start_run("one"), []

    def twice(state: RunState) -> None:
        seen.append(state.rounds)
        if state.rounds == 2:
            raise KeyError

    for _ in range(2):
        run.reserve(ROUND, asks=twice).commit()
    head = ledger._book.store.head()
    with pytest.raises(KeyError):
        run.reserve(ROUND, asks=twice)
    assert seen == [0, 1, 2]
    assert ledger._book.store.head() == head
    run.reserve(ROUND).commit()


def test_a_ledger_that_is_kept_can_undo_a_write_after_its_process_is_gone(path: Path) -> None:
    for passing, mode in ((False, "delete"), (True, "memory"), (False, "delete")):
        with Ledger.open(path, BUDGET, passing=passing) as ledger:
            connection = ledger._book.store.database.connection
            assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)
            ledger.start_run("one").reserve(ROUND).commit()
        assert [file.name for file in path.parent.iterdir() if "journal" in file.name] == []
