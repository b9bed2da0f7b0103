"""What a crash, a power loss or a broken disk leaves: all that was released, or a clear refusal."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dpacct import Budget, Ledger, LedgerError, Poisson, Round
from dpacct.ledger.disk.rows import Rows
from dpacct.ledger.record.entries import new_entry

BUDGET = Budget(50, 1e-5)
ROUND = Round(30.0, Poisson(0.01))
PAGE = 4096
DRAWS = random.Random(7)  # noqa: S311 - not for privacy


def facts(ledger: Ledger) -> dict[str, Any]:
    return {
        "head": ledger.head,
        "entries": ledger.position.entry,
        "rounds": ledger.rounds,
        # What a later version computes from the same totals may differ in the last digit.
        "upper_epsilon": pytest.approx(ledger.upper_epsilon(), rel=1e-9),
        "runs": [
            {
                "name": run.name,
                "rounds": run.rounds,
                "committed": run.committed,
                "on_plan": run.on_plan,
                "finished": run.finished,
            }
            for run in ledger.runs
        ],
    }


def read(path: Path, *, read_only: bool) -> dict[str, Any] | None:
    """What a ledger says; None where it is refused, in one line."""
    refusal = ""
    try:
        with Ledger.open(path, read_only=read_only) as ledger:
            return facts(ledger)
    except LedgerError as error:
        refusal = str(error)
    assert refusal.isprintable()
    return None


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def fewer(found: dict[str, Any] | None, least: dict[str, Any]) -> bool:
    """Whether somebody was told less than was spent."""
    if found is None:
        return False
    pairs = zip(found["runs"], least["runs"], strict=False)
    return (
        found["rounds"] < least["rounds"]
        or len(found["runs"]) < len(least["runs"])
        or any(a["rounds"] < b["rounds"] or a["committed"] < b["committed"] for a, b in pairs)
    )


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1 << DRAWS.randrange(8)
    return bytes(changed)


# What stands beside it


def test_what_is_no_file_is_no_journal_and_nobody_waits_for_it(path: Path) -> None:
    # SQLite would open it, and wait for somebody to write into it, with the lock in its hands.
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("x")
        run.reserve(ROUND).commit()
        beside = path.with_name(f"{path.name}-journal")
        for make in (os.mkfifo, os.mkdir):
            make(beside)
            for call in (
                lambda: run.reserve(ROUND),
                lambda: ledger.rounds,
                lambda: Ledger.open(path),
                lambda: Ledger.open(path, read_only=True),
            ):
                with pytest.raises(LedgerError, match=f"{beside.name}, which stands beside it, is"):
                    call()
            (Path.unlink if make is os.mkfifo else Path.rmdir)(beside)
        run.reserve(ROUND).commit()
        assert ledger.rounds == 2


# A write that was cut short


class Cut(NamedTuple):
    """A write of one entry: the file before and behind it, and the journal meanwhile."""

    path: Path
    before: bytes
    behind: bytes
    journal: bytes
    witness: bytes
    then: dict[str, Any]

    def put(self, data: bytes, journal: bytes | None) -> None:
        self.path.write_bytes(data)
        self.path.with_name(f"{self.path.name}.witness").write_bytes(self.witness)
        left = self.path.with_name(f"{self.path.name}-journal")
        left.unlink(missing_ok=True)
        if journal is not None:
            left.write_bytes(journal)

    def states(self) -> Iterator[bytes]:
        """Every order in which pages may reach a disk."""
        size = len(self.behind) // PAGE
        old = [self.before[PAGE * n : PAGE * n + PAGE] for n in range(size)]
        new = [self.behind[PAGE * n : PAGE * n + PAGE] for n in range(size)]
        changed = [n for n in range(size) if old[n] != new[n]]
        for choice in product((False, True), repeat=len(changed)):
            pages = dict(zip(changed, choice, strict=True))
            yield b"".join(new[n] if pages.get(n) else old[n] for n in range(size))


@pytest.fixture
def cut(path: Path) -> Cut:
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("x")
        # So many that the next entry divides a page of the tree.
        for _ in range(30):
            run.reserve(ROUND).commit()
        then = facts(ledger)
        store = ledger._file.store
        before, witness = path.read_bytes(), path.with_name(f"{path.name}.witness").read_bytes()
        # The journal is complete at once then, as it is on disk before the file is written to.
        store.connection.execute("PRAGMA synchronous=OFF")

        def write(rows: Rows) -> bytes:
            for text in ("one", "two"):
                head = rows.head()
                data, state = {"x": text * 900}, head.content["state"]
                rows.add(new_entry(head, "resume", 1, data, state), None)
            return path.with_name(f"{path.name}-journal").read_bytes()

        journal = store.write(write)
        return Cut(path, before, path.read_bytes(), journal, witness, then)


def test_a_write_that_was_cut_short_is_undone_whatever_reached_the_disk(cut: Cut) -> None:
    states = list(cut.states())
    assert len(states) >= 16
    for data in DRAWS.sample(states, 12):
        cut.put(data, cut.journal)
        before = contents(cut.path.parent)
        assert read(cut.path, read_only=True) == cut.then
        assert contents(cut.path.parent) == before
        assert read(cut.path, read_only=False) == cut.then
        assert not cut.path.with_name(f"{cut.path.name}-journal").exists()
        assert cut.path.read_bytes()[: 2 * PAGE] == cut.before[: 2 * PAGE]


def test_a_journal_that_was_not_completed_undoes_nothing(cut: Cut) -> None:
    """Its beginning is written last, and the file only then."""
    for length in (0, 100, 512, 3000, len(cut.journal)):
        cut.put(cut.before, bytes(min(length, 12)) + cut.journal[12:length])
        for read_only in (True, False):
            assert read(cut.path, read_only=read_only) == cut.then
        with Ledger.open(cut.path) as ledger:
            ledger.resume_run(1)
            assert ledger.verify().sound


def test_a_journal_that_was_damaged_hides_no_round(cut: Cut) -> None:
    states = list(cut.states())
    refused = 0
    for _ in range(40):
        place = DRAWS.choice((DRAWS.randrange(28), DRAWS.randrange(len(cut.journal))))
        journal = flipped(cut.journal, place)
        if DRAWS.random() < 0.3:
            journal = cut.journal[: DRAWS.randrange(1, len(cut.journal))]
        cut.put(DRAWS.choice(states), journal)
        before = contents(cut.path.parent)
        found = read(cut.path, read_only=True)
        assert contents(cut.path.parent) == before
        assert not fewer(found, cut.then)
        again = read(cut.path, read_only=False)
        assert not fewer(again, cut.then)
        if again is None:
            refused += 1
            assert contents(cut.path.parent) == before
    assert refused > 2


def test_a_journal_that_was_deleted_hides_no_round(cut: Cut) -> None:
    for data in DRAWS.sample(list(cut.states()), 12):
        for read_only in (True, False):
            cut.put(data, None)
            assert not fewer(read(cut.path, read_only=read_only), cut.then)


def test_the_journal_of_another_ledger_is_not_played(cut: Cut, tmp_path: Path) -> None:
    other = tmp_path / "other.ledger"
    with Ledger.open(other, BUDGET) as ledger:
        run = ledger.start_run("y")
        for _ in range(40):
            run.reserve(ROUND).commit()
        then = facts(ledger)
    other.with_name("other.ledger-journal").write_bytes(cut.journal)
    before = contents(tmp_path)
    for read_only in (True, False):
        assert not fewer(read(other, read_only=read_only), then)
    assert contents(tmp_path) == before


# Broken disks


def test_a_flipped_bit_anywhere_hides_no_round(path: Path) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        runs = [ledger.start_run("one"), ledger.start_run("two", 40 * ROUND)]
        for _ in range(12):
            for run in runs:
                run.reserve(ROUND).commit()
        runs[0].reserve(ROUND)
        then = facts(ledger)
    good = path.read_bytes()
    # The bytes that hold the trees of SQLite together stand at the beginning of each page.
    places = [DRAWS.randrange(len(good)) for _ in range(30)]
    places += [PAGE * DRAWS.randrange(len(good) // PAGE) + DRAWS.randrange(40) for _ in range(30)]
    for place in places:
        path.write_bytes(flipped(good, place))
        assert not fewer(read(path, read_only=True), then), place


def test_a_flipped_bit_in_the_witness_is_refused(path: Path) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        ledger.start_run("x").reserve(ROUND).commit()
    witness = path.with_name(f"{path.name}.witness")
    good = witness.read_bytes()
    for place in range(0, len(good), 9):
        witness.write_bytes(flipped(good, place))
        for read_only in (True, False):
            with pytest.raises(LedgerError, match="witness"):
                Ledger.open(path, read_only=read_only)
