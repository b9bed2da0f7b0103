"""What a crash, a power loss or a broken disk leaves: all that was released, or a clear refusal."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.ledger_kills import kill_writers
from dpacct import DpacctError, Ledger, LedgerError
from dpacct.ledger.disk.rows import StoredEntries
from dpacct.ledger.record.entries import new_entry
from ledgers import MANY, SMALL, WIDE, beside, play

PAGE = 4096
DRAWS = random.Random(7)  # noqa: S311 - not for privacy


@pytest.mark.needs("posix")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("crowd", [False, True])
def test_writers_killed_at_random_points_lose_no_released_round(
    tmp_path: Path, *, crowd: bool
) -> None:
    """Alone and in crowds; `benchmarks/ledger_kills.py` does more."""
    kills = 20 if MANY > 1 else 8
    hit = {"released": 0, "uncommitted": 0}
    for seed in range(20, 25):
        (folder := tmp_path / str(seed)).mkdir()
        found = kill_writers(folder, kills, seed=seed, crowd=crowd)
        assert found.problems == []
        assert found.kills == kills
        assert found.charged >= found.printed
        hit["released"] += found.printed
        hit["uncommitted"] += found.uncommitted
        if all(hit.values()):
            break
    # The kills hit writers at work: between releases, and between reserve and commit.
    assert all(hit.values()), hit
    assert found.creations >= kills // 10 - 1


def facts(ledger: Ledger) -> dict[str, Any]:
    return {
        "head": ledger.head,
        "entries": ledger.position.entry,
        "rounds": ledger.rounds,
        "upper_epsilon": ledger.upper_epsilon(),
        "runs": [
            {key: getattr(run, key) for key in ("rounds", "committed", "on_plan", "finished")}
            for run in ledger.runs
        ],
    }


def read(path: Path, *, read_only: bool) -> dict[str, Any] | None:
    """What a ledger says; None where it is refused, in one line."""
    try:
        with Ledger.open(path, read_only=read_only) as ledger:
            return facts(ledger)
    except DpacctError as error:
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
        beside(self.path).write_bytes(self.witness)
        beside(self.path, "-journal").unlink(missing_ok=True)
        if journal is not None:
            beside(self.path, "-journal").write_bytes(journal)

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
    with Ledger.open(path, WIDE) as ledger:
        # So many that the next entry divides a page of the tree.
        play(ledger.start_run("x"), SMALL, 30)
        then, store = facts(ledger), ledger._file.store
        before, witness = path.read_bytes(), beside(path).read_bytes()
        # The journal is complete at once then, as it is on disk before the file is written to.
        store.connection.execute("PRAGMA synchronous=OFF")

        def write(rows: StoredEntries) -> bytes:
            for text in ("one", "two"):
                head = rows.head()
                totals = rows.states()[-1][2]
                entry = new_entry(head, "resume", 1, {"x": text * 900}, totals)
                rows.add(entry, totals)
            return beside(path, "-journal").read_bytes()

        journal = store.write(write)
        return Cut(path, before, path.read_bytes(), journal, witness, then)


def test_a_write_that_was_cut_short_is_undone_whatever_reached_the_disk(cut: Cut) -> None:
    states = list(cut.states())
    assert len(states) >= 16
    for data in DRAWS.sample(states, 4 * MANY):
        cut.put(data, cut.journal)
        before = contents(cut.path.parent)
        assert read(cut.path, read_only=True) == cut.then
        assert contents(cut.path.parent) == before
        assert read(cut.path, read_only=False) == cut.then
        assert not beside(cut.path, "-journal").exists()
        assert cut.path.read_bytes()[: 2 * PAGE] == cut.before[: 2 * PAGE]
        # A journal that was deleted hides no round.
        for read_only in (True, False):
            cut.put(data, None)
            assert not fewer(read(cut.path, read_only=read_only), cut.then)


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("copies", [0, 1, 2])
def test_a_write_that_goes_on_is_not_taken_for_one_that_was_cut_short(
    cut: Cut, monkeypatch: pytest.MonkeyPatch, copies: int, *, read_only: bool
) -> None:
    """Without flock, another process may finish writes before, amid or behind the copies."""
    cut.put(cut.before, None)
    with Ledger.open(cut.path) as ledger:
        play(ledger.start_run("y"), SMALL, 2)
        then = facts(ledger)
    behind, witness = cut.path.read_bytes(), beside(cut.path).read_bytes()
    cut.put(next(cut.states()), cut.journal)
    copy, done = shutil.copyfile, []

    def finish() -> None:
        cut.put(behind, bytes(28) + cut.journal[28:])
        beside(cut.path).write_bytes(witness)

    def copyfile(source: Path, target: Path) -> None:
        if len(done) == copies:
            finish()
        copy(source, target)
        done.append(source)
        if len(done) == copies == 2:
            finish()

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    assert read(cut.path, read_only=read_only) == then
    assert len(done) == 2


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
    states, refused = list(cut.states()), 0
    for _ in range(10 * MANY):
        place = DRAWS.choice((DRAWS.randrange(28), DRAWS.randrange(len(cut.journal))))
        journal = flipped(cut.journal, place)
        if DRAWS.random() < 0.3:
            journal = cut.journal[: DRAWS.randrange(1, len(cut.journal))]
        cut.put(DRAWS.choice(states), journal)
        before = contents(cut.path.parent)
        found = read(cut.path, read_only=True)
        assert contents(cut.path.parent) == before
        again = read(cut.path, read_only=False)
        assert not fewer(found, cut.then)
        assert not fewer(again, cut.then)
        if again is None:
            refused += 1
            assert contents(cut.path.parent) == before
    assert refused > 0


def test_the_journal_of_another_ledger_is_not_played(cut: Cut, tmp_path: Path) -> None:
    other = tmp_path / "other.ledger"
    with Ledger.open(other, WIDE) as ledger:
        play(ledger.start_run("y"), SMALL, 40)
        then = facts(ledger)
    beside(other, "-journal").write_bytes(cut.journal)
    before = contents(tmp_path)
    for read_only in (True, False):
        assert not fewer(read(other, read_only=read_only), then)
    assert contents(tmp_path) == before


# Broken disks


def test_a_flipped_bit_in_the_witness_is_rejected(ledger: Ledger, path: Path) -> None:
    ledger.start_run("x").reserve(SMALL).commit()
    good = beside(path).read_bytes()
    for place in range(0, len(good), 30 // MANY):
        beside(path).write_bytes(flipped(good, place))
        for read_only in (True, False):
            with pytest.raises(LedgerError, match="witness"):
                Ledger.open(path, read_only=read_only)
