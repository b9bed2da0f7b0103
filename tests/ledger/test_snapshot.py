"""All that is read at one time is as of one entry, while others write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpacct import Ledger, LedgerError, Round
from dpacct.ledger.ledger import SOFTWARE
from dpacct.ledger.readings import Known, Snapshot
from dpacct.ledger.record.entries import Entry
from dpacct.ledger.record.replay import Replay
from dpacct.ledger.record.state import RunState, empty_ledger, state_text
from dpacct.ledger.report.facts import report_of, summarize
from dpacct.ledger.verify import UNVERIFIED
from dpacct.ledger.writing import Transaction
from ledgers import BUDGET, ROUND, WIDE

FULL = Round(30.0)


@pytest.fixture(params=["planned", "chosen"])
def busy(
    request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ledger]:
    """A ledger of which every look at a run is followed by a round of somebody else's."""
    with Ledger.open(path, WIDE) as other, Ledger.open(path, read_only=True) as ledger:
        run = other.start_run("busy", 60 * FULL if request.param == "planned" else None)
        for _ in range(3):
            run.reserve(FULL).commit()
        look, writing = Snapshot.run_state, False

        def looked(now: Snapshot, number: int) -> Any:
            nonlocal writing
            found = look(now, number)
            if not writing:
                writing = True
                run.reserve(FULL).commit()
                writing = False
            return found

        with monkeypatch.context() as patch:
            patch.setattr(Snapshot, "run_state", looked)
            yield ledger
        assert other.rounds > 3


class Past:
    """The file as it was when an entry was its latest."""

    old = False

    def __init__(self, ledger: Ledger, number: int) -> None:
        self.store, self.number, self.path = ledger._file.store, number, ledger.path
        self.replay = Replay(ledger._file.known.opening)
        now = ledger._file.now()
        for entry in now.entries():
            if entry.number <= number:
                self.replay.take(entry)

    def head(self) -> Entry:
        return self.entry(self.number)

    def entry(self, number: int) -> Entry:
        return self.store.read(lambda rows: rows.entry(number))

    def states(self, _after: int) -> list[tuple[int, int, str]]:
        opening = 1, 0, state_text(empty_ledger(self.replay_opening), None)
        runs = ((n, run, state_text(*both)) for run, (n, *both) in self.replay.runs.items())
        return [opening, *runs]


def then(ledger: Ledger, number: int) -> Snapshot:
    """The ledger when an entry was its latest."""
    file, past = ledger._file, Past(ledger, number)
    past.replay_opening = file.known.opening
    return Snapshot(file.store, past, Known(file.known.opening))  # type: ignore[arg-type]


def test_whatever_is_told_is_of_one_entry(busy: Ledger, path: Path) -> None:
    told = busy.epsilon(), busy.runs[0].epsilon()
    last, summary, report = busy.position.entry, busy.summary(), busy.report()
    with Ledger.open(path, read_only=True) as ledger:
        ends = [e.number for e in ledger._file.now().entries() if e.kind != "kind"]
        known = [summarize(then(ledger, n))["epsilon"] for n in ends if 7 <= n <= last]
        found, _ = report_of(then(ledger, report["entries"]), ledger._file.store, SOFTWARE)
        assert found == report
        assert summarize(then(ledger, summary["entries"])) == summary
    for spent in told:
        assert {"lower": spent.lower, "upper": spent.upper} in known
    for said in (summary, report):
        assert said["rounds"] == said["runs"][0]["rounds"]
    assert summary["entries"] < report["entries"]


@pytest.mark.parametrize("busy", ["chosen"], indirect=True)
def test_a_page_and_a_verification_are_of_one_entry(busy: Ledger, path: Path) -> None:
    page, found = busy.report_markdown(), busy.verify()
    with Ledger.open(path, read_only=True) as ledger:
        (entries,) = map(int, re.findall(r"recomputed from (\d+) entries", page))
        truth = summarize(then(ledger, entries))
        assert truth["head"] in page
        assert f"All {truth['rounds']} rounds" in page
        assert found.sound
        assert then(ledger, found.entries).head.hash.hex() == found.head


def test_a_snapshot_sees_nothing_later(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpacct.ledger.disk.rows.CHUNK", 2)
    run = ledger.start_run("one")
    run.reserve(ROUND).commit()
    ticket = run.reserve(ROUND)
    then = ledger._file.now()
    seen = []
    for entry in then.entries():
        seen.append(entry.number)
        ledger.start_run("more")
    assert seen == [1, 2, 3, 4, 5, 6]
    ticket.commit()
    assert (then.state.runs, then.run_state(1).committed, then.head.number) == (1, 1, 6)
    assert not then.read(lambda rows: rows.is_closed(ticket.number))
    assert ledger._file.now().read(lambda rows: rows.is_closed(ticket.number))
    assert then.read(lambda rows: rows.of_run(2, first=True)) is None
    with pytest.raises(LedgerError, match="entry 7 is missing"):
        then.entry(7)
    with pytest.raises(LedgerError, match="there is no run 2"):
        then.run_state(2)


def test_what_a_write_has_read_ends_with_it(ledger: Ledger) -> None:
    run, file = ledger.start_run("one"), ledger._file

    def fails(opened: Transaction) -> None:
        opened.append("resume", run.id, {}, (opened.state, opened.open_run(run.id)))
        assert opened.head.kind == "resume"
        with pytest.raises(LedgerError, match="in use by a call that this one interrupted"):
            _ = ledger.head
        raise KeyError

    with pytest.raises(KeyError):
        file.write(fails)
    assert file.now().head.kind == "run"
    ticket = run.reserve(ROUND)
    ticket.commit()
    assert ticket.totals == run.totals()
    assert (run.rounds, run.committed) == (1, 1)


def test_totals_that_another_process_wrote_are_read(path: Path) -> None:
    with Ledger.open(path, BUDGET) as one, Ledger.open(path) as two:
        ours, theirs = one.start_run("ours"), two.start_run("theirs")
        for _ in range(3):
            ours.reserve(ROUND).commit()
            theirs.reserve(ROUND).commit()
        states = [(now.state, now.run_state(1)) for now in (one._file.now(), two._file.now())]
        assert states[0] == states[1]
        assert one.rounds == 6
        assert one.verify().sound


def test_a_round_may_be_rejected_for_what_its_run_has_spent(ledger: Ledger) -> None:
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
    assert (seen, ledger.head) == ([0, 1, 2], head)


def test_a_kept_ledger_can_undo_a_write_after_its_process_is_gone(path: Path) -> None:
    # 3 is EXTRA: both an entry and the end of its journal are on disk when a write returns.
    for passing, mode, sync in ((False, "persist", 3), (True, "memory", 0), (False, "persist", 3)):
        with Ledger.open(path, BUDGET, passing=passing) as ledger:
            connection = ledger._file.store.connection
            assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)
            assert connection.execute("PRAGMA synchronous").fetchone() == (sync,)
            ledger.start_run("one").reserve(ROUND).commit()
        assert [file.name for file in path.parent.iterdir() if "journal" in file.name] == []


def test_a_verification_lists_what_it_cannot_check_and_looks_for_a_head(ledger: Ledger) -> None:
    words = ("budget", "names", "details", "sensitivities", "times", "noise was secret", "remember")
    assert all(any(word in what for what in UNVERIFIED) for word in words)
    page = re.sub(r"\\(.)", r"\1", ledger.report_markdown())
    assert all(what in page for what in ledger.verify().unverified)
    heads, run = [ledger.head], ledger.start_run("one")
    for _ in range(3):
        run.reserve(FULL).commit()
        heads.append(ledger.head)
    for head in [*heads, f" {heads[0].upper()}\n"]:
        found = ledger.verify(head)
        assert (found.sound, found.head_found) == (True, True)
    for head in ("00", "", "\x1b[31m" + "x" * 1000):
        found = ledger.verify(head)
        (problem,) = found.problems
        assert found.head_found is False
        assert "is not in the chain" in problem
        assert problem.isprintable()
        assert len(problem) < 250
