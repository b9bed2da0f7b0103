"""What is read from a ledger while others write, and what its storage promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpacct import Budget, Ledger, LedgerError, Poisson, Round
from dpacct.ledger.record.state import RunState
from dpacct.ledger.writing import Transaction

BUDGET = Budget(8, 1e-5)
ROUND = Round(1.3, Poisson(0.1))


# A view of the past


def test_a_snapshot_sees_nothing_later(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpacct.ledger.disk.rows.CHUNK", 2)
    run = ledger.start_run("one")
    run.reserve(ROUND).commit()
    ticket = run.reserve(ROUND)
    then = ledger._file.now()
    seen = []
    for entry, _ in then.entries():
        seen.append(entry.number)
        ledger.start_run("more")
    assert seen == [1, 2, 3, 4, 5]
    ticket.commit()
    assert (then.state.runs, then.run_state(1).committed, then.head.number) == (1, 1, 5)
    assert not then.read(lambda rows: rows.is_closed(ticket.number))
    assert ledger._file.now().read(lambda rows: rows.is_closed(ticket.number))
    assert then.read(lambda rows: rows.first_of_run(2)) is None
    with pytest.raises(LedgerError, match="entry 6 is missing"):
        then.entry(6)
    with pytest.raises(LedgerError, match="there is no run 2"):
        then.run_state(2)


# What a write reads once


def test_what_a_write_has_read_ends_with_it(ledger: Ledger) -> None:
    run, book = ledger.start_run("one"), ledger._file

    def fails(opened: Transaction) -> None:
        opened.append("resume", run.id, {}, (opened.state, opened.open_run(run.id)))
        assert opened.head.kind == "resume"
        # Whoever is called meanwhile finds the ledger in use.
        with pytest.raises(LedgerError, match="in use by a call that this one interrupted"):
            _ = ledger.head
        raise KeyError

    with pytest.raises(KeyError):
        book.write(fails)
    assert book.now().head.kind == "run"
    ticket = run.reserve(ROUND)
    ticket.commit()
    assert ticket.totals == run.totals()
    assert (run.rounds, run.committed) == (1, 1)
    assert ledger.verify().sound


def test_totals_that_somebody_else_wrote_are_read(path: Path) -> None:
    with Ledger.open(path, BUDGET) as one, Ledger.open(path) as two:
        ours, theirs = one.start_run("ours"), two.start_run("theirs")
        for _ in range(3):
            ours.reserve(ROUND).commit()
            theirs.reserve(ROUND).commit()
        states = [(now.state, now.run_state(1)) for now in (one._file.now(), two._file.now())]
        assert states[0] == states[1]
        assert one.rounds == 6
        assert one.verify().sound


def test_a_round_may_be_refused_for_what_its_run_has_spent(ledger: Ledger) -> None:
    run, seen = ledger.start_run("one"), []

    def twice(state: RunState) -> None:
        seen.append(state.rounds)
        if state.rounds == 2:
            raise KeyError

    for _ in range(2):
        run.reserve(ROUND, asks=twice).commit()
    head = ledger.head
    with pytest.raises(KeyError):
        run.reserve(ROUND, asks=twice)
    assert seen == [0, 1, 2]
    assert ledger.head == head
    run.reserve(ROUND).commit()


def test_a_ledger_that_is_kept_can_undo_a_write_after_its_process_is_gone(path: Path) -> None:
    # 3 is EXTRA: both an entry and the end of its journal are on disk when a write returns.
    for passing, mode, sync in ((False, "delete", 3), (True, "memory", 0), (False, "delete", 3)):
        with Ledger.open(path, BUDGET, passing=passing) as ledger:
            connection = ledger._file.store.connection
            assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)
            assert connection.execute("PRAGMA synchronous").fetchone() == (sync,)
            ledger.start_run("one").reserve(ROUND).commit()
        assert [file.name for file in path.parent.iterdir() if "journal" in file.name] == []
