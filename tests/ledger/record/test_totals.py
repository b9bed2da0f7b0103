"""The latest totals stand once for each run: whoever changes, drops or restores them is found.

The claim and its proof are in docs/reference/ledger-format.md, "What the digests prove".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpacct import Ledger, LedgerError, Round
from dpacct.ledger.record.entries import digest_of
from dpacct.ledger.record.state import read_state, state_text
from ledgers import BUDGET, ROUND, beside

FULL = Round(30.0)
Edit = Callable[[sqlite3.Connection], object]


def three(path: Path) -> None:
    """Three runs, one of which goes on last, and rows of noise."""
    with Ledger.open(path, BUDGET) as ledger:
        one = ledger.start_run("one", 9 * FULL)
        two = ledger.start_run("two")
        for _ in range(3):
            one.reserve(FULL).commit()
            two.reserve(ROUND).commit()
        two.take_row()
        ledger.charge("three", 2 * FULL)
        one.reserve(FULL).abandon("nothing drawn")
        one.reserve(FULL)


def states(path: Path) -> list[tuple[int, int, str]]:
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT number, run, text FROM states ORDER BY run").fetchall()
    connection.close()
    return found


def edit(path: Path, *changes: tuple[str, tuple[Any, ...]]) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DROP TRIGGER entries_stay")
    connection.execute("DROP TRIGGER entries_keep")
    for statement, values in changes:
        connection.execute(statement, values)
    for trigger, event, done in (("stay", "DELETE", "deleted"), ("keep", "UPDATE", "changed")):
        connection.execute(
            f"CREATE TRIGGER entries_{trigger} BEFORE {event} ON entries "
            f"BEGIN SELECT RAISE(ABORT, 'entries are never {done}'); END"
        )
    connection.close()
    # Who edits the file can delete its witness.
    beside(path).unlink(missing_ok=True)


def assert_refused(path: Path, words: str) -> None:
    for read_only in (True, False):
        with pytest.raises(LedgerError, match=words):
            Ledger.open(path, read_only=read_only)


@pytest.mark.parametrize("run", [0, 1, 2, 3])
def test_altered_totals_of_any_run_are_refused(path: Path, run: int) -> None:
    three(path)
    number, _, text = states(path)[run]
    ledger, own = read_state(text)
    lower = tuple(part // 2 for part in ledger.spent), tuple(part // 2 for part in ledger.held)
    forged = [state_text(ledger._replace(spent=lower[0], held=lower[1]), own)]
    if own is not None:
        names = ("rounds", "committed", "cursor", "row", "through", "exact", "latest")
        more = (own._replace(**{name: getattr(own, name) + 1}) for name in names)
        forged += [state_text(ledger, changed) for changed in more]
        forged.append(state_text(ledger, own._replace(private=not own.private)))
        forged.append(state_text(ledger, own._replace(released=())))
    for n, changed in enumerate(change for change in forged if change != text):
        copy = path.with_name(f"{n}")
        copy.write_bytes(path.read_bytes())
        edit(copy, ("UPDATE states SET text = ? WHERE number = ?", (changed, number)))
        assert_refused(copy, "the totals behind it were changed")


@pytest.mark.parametrize("run", [1, 2])
def test_totals_of_an_earlier_time_are_refused_though_their_entry_has_their_digest(
    path: Path, run: int
) -> None:
    """Also if they differ in nothing but a row of noise, so that runs still add up."""
    with Ledger.open(path, BUDGET) as ledger:
        runs = [ledger.start_run("one"), ledger.start_run("two")]
        for each in runs:
            each.take_row()
        earlier = states(path)[run]
        for each in runs:
            each.take_row()
        runs[2 - run].reserve(ROUND).commit()
    text = earlier[2]
    edit(path, ("DELETE FROM states WHERE run = ?", (run,)),
         ("INSERT INTO states VALUES (?, ?, ?)", (earlier[0], run, text)))  # fmt: skip
    assert_refused(path, "older than its latest entry")


def test_dropped_swapped_and_invented_totals_are_refused(path: Path) -> None:
    three(path)
    rows = {run: (number, text) for number, run, text in states(path)}
    swap = "UPDATE states SET text = ? WHERE run = ?"
    cases: list[tuple[str, list[tuple[str, tuple[Any, ...]]]]] = [
        ("older than its latest entry", [("DELETE FROM states WHERE run = 2", ())]),
        ("are missing", [("DELETE FROM states WHERE run = 1", ())]),
        ("were changed", [(swap, (rows[2][1], 3)), (swap, (rows[3][1], 2))]),
        ("were changed", [("UPDATE states SET run = -run WHERE run = 3", ())]),
        ("were changed", [("INSERT INTO states VALUES (5, 9, ?)", (rows[2][1],))]),
        ("is missing", [("UPDATE states SET number = 900 WHERE run = 3", ())]),
        ("were changed", [("UPDATE states SET text = 7 WHERE run = 3", ())]),
        ("wrong types", [("UPDATE states SET text = NULL WHERE run = 3", ())]),
    ]
    for n, (words, changes) in enumerate(cases):
        copy = path.with_name(f"{n}")
        copy.write_bytes(path.read_bytes())
        edit(copy, *changes)
        with pytest.raises(LedgerError, match=words):
            Ledger.open(copy, read_only=True)


def test_without_any_of_the_checks_a_forgery_would_pass(path: Path) -> None:
    """Each of what binds totals is needed: the digest, the number of runs, and the sum."""
    three(path)
    now = states(path)
    digests = {number: digest_of(text) for number, _, text in now}
    with Ledger.open(path, read_only=True) as ledger:
        entries = {entry.number: entry for entry in ledger._file.now().entries()}
        state = ledger._file.now().state
    assert all(entries[number].digest == digests[number] for number in digests)
    assert state.latest == sum(number for number, run, _ in now if run)
    assert state.runs == len(now) - 1
    kinds = [entry for entry in entries.values() if entry.kind == "kind"]
    assert kinds
    assert all(entry.digest is None for entry in kinds)


def test_entries_that_are_swapped_altered_or_cut_off_are_refused(path: Path) -> None:
    three(path)
    whole = path.read_bytes()
    last = states(path)[1][0]
    changes: list[list[tuple[str, tuple[Any, ...]]]] = [
        [("UPDATE entries SET number = -1 WHERE number = 7", ()),
         ("UPDATE entries SET number = 7 WHERE number = 9", ()),
         ("UPDATE entries SET number = 9 WHERE number = -1", ())],
        [("UPDATE entries SET text = replace(text, '\"k\":', '\"j\":') WHERE number = 8", ())],
        [("UPDATE entries SET closes = NULL WHERE number = 6", ())],
        [("UPDATE entries SET kind = 'abandon' WHERE number = 6", ())],
        [("UPDATE entries SET run = 2 WHERE number = 6", ())],
        [("DELETE FROM entries WHERE number = ?", (last,))],
        [("DELETE FROM entries WHERE number > 9", ())],
    ]  # fmt: skip
    for n, change in enumerate(changes):
        copy = path.with_name(f"{n}")
        copy.write_bytes(whole)
        edit(copy, *change)
        try:
            with Ledger.open(copy, read_only=True) as ledger:
                assert ledger.verify().problems
        except LedgerError:
            pass
        if n == len(changes) - 1:
            assert_refused(copy, "is missing|older")


# A verification that goes on


def test_a_verification_goes_on_where_the_latest_one_ended(path: Path) -> None:
    three(path)
    with Ledger.open(path) as ledger:
        assert ledger.summary()["verified"] == 0
        whole = ledger.verify(keep=True)
        assert (whole.sound, ledger.summary()["verified"]) == (True, whole.entries)
        run = ledger.runs[0]
        unsettled = run.unsettled()
        assert unsettled is not None
        unsettled.commit()
        for _ in range(2):
            run.reserve(FULL).commit()
        run.reserve(Round(20.0)).commit()
        run.finish()
        ledger.charge("later", 3 * ROUND)
        since, again = ledger.verify(all_entries=False), ledger.verify()
        assert since.sound
        assert f"entries 1 to {whole.entries} were verified before" in since.remarks[0]
        assert (since.entries, since.rounds, since.head) == (
            again.entries, again.rounds, again.head,
        )  # fmt: skip
        assert ledger.summary()["verified"] == whole.entries
        # To find a head, all entries are read.
        assert ledger.verify(ledger.head, all_entries=False).remarks == ()
    edit(path, ("UPDATE entries SET text = replace(text, '\"k\":', '\"j\":') WHERE number = ?",
                (whole.entries + 2,)))  # fmt: skip
    with pytest.raises(LedgerError), Ledger.open(path, read_only=True) as ledger:
        ledger.charge("x", ROUND)


def test_a_place_where_a_verification_ended_may_be_forged_and_all_entries_tell(path: Path) -> None:
    three(path)
    with Ledger.open(path) as ledger:
        ledger.verify(keep=True)
        mark = ledger._file.now().verified()
        assert mark is not None
        ledger.charge("later", ROUND)
    edit(path, ("UPDATE verified SET hash = zeroblob(32)", ()))
    with Ledger.open(path) as ledger:
        # It is not the hash of that entry, so all of them are read.
        assert ledger.summary()["verified"] == 0
        assert ledger.verify(all_entries=False).remarks[:1] == ledger.verify().remarks[:1]
    for text in ("{}", "no text", mark[2].replace('"runs"', '"run"')):
        edit(path, ("DELETE FROM verified", ()), ("INSERT INTO verified VALUES (?, ?, ?)",
                                                  (mark[0], mark[1], text)))  # fmt: skip
        with Ledger.open(path) as ledger:
            with pytest.raises(LedgerError, match="cannot be read"):
                ledger.verify(all_entries=False)
            assert ledger.verify().sound
