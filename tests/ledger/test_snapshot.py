"""Everything that is said at one time is as of one entry, whoever writes meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpacct import Budget, Ledger, Round
from dpacct.ledger.ledger import SOFTWARE
from dpacct.ledger.readings import Known, Snapshot
from dpacct.ledger.report.facts import report_of, summarize

BUDGET = Budget(8, 1e-5)
ROUND = Round(30.0)


@pytest.fixture(params=["planned", "chosen"])
def busy(
    request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ledger]:
    """A ledger of which every look at a run is followed by a round of somebody else's."""
    with Ledger.open(path, BUDGET) as other, Ledger.open(path, read_only=True) as ledger:
        run = other.start_run("busy", 500 * ROUND if request.param == "planned" else None)
        for _ in range(3):
            run.reserve(ROUND).commit()
        look, writing = Snapshot.run_state, False

        def looked(now: Snapshot, number: int) -> Any:
            nonlocal writing
            found = look(now, number)
            if not writing:
                writing = True
                run.reserve(ROUND).commit()
                writing = False
            return found

        with monkeypatch.context() as patch:
            patch.setattr(Snapshot, "run_state", looked)
            yield ledger
        assert other.rounds > 3


def then(ledger: Ledger, number: int) -> Snapshot:
    """The ledger when an entry was its latest."""
    book = ledger._file
    return Snapshot.of(book.store, book.now().entry(number), Known(book.known.opening))


def as_of(ledger: Ledger, number: int) -> dict[str, Any]:
    """What the ledger said when an entry was its latest."""
    return report_of(then(ledger, number), SOFTWARE)


def test_a_summary_and_a_report_are_those_of_their_head(busy: Ledger, path: Path) -> None:
    summary, report = busy.summary(), busy.report()
    with Ledger.open(path, read_only=True) as ledger:
        assert as_of(ledger, report["entries"]) == report
        assert summarize(then(ledger, summary["entries"])) == summary
    for said in (summary, report):
        assert said["rounds"] == said["runs"][0]["rounds"]
    assert summary["entries"] < report["entries"]


def test_a_page_certifies_the_head_that_it_tells_of(busy: Ledger, path: Path) -> None:
    page = busy.report_markdown()
    with Ledger.open(path, read_only=True) as ledger:
        (entries,) = map(int, re.findall(r"recomputed from (\d+) entries", page))
        truth = as_of(ledger, entries)
        assert truth["head"] in page
        assert f"All {truth['rounds']} rounds" in page


def test_epsilon_and_its_kind_are_those_of_one_entry(busy: Ledger, path: Path) -> None:
    run = busy.runs[0]
    spent, own, upper = busy.epsilon(), run.epsilon(), busy.upper_epsilon()
    assert spent.upper <= upper
    with Ledger.open(path, read_only=True) as ledger:
        known = [summarize(then(ledger, n))["epsilon"] for n in range(7, ledger.position.entry + 1)]
    for told in (spent, own):
        assert {"lower": told.lower, "upper": told.upper} in known


def test_a_verification_is_of_the_entries_that_were_there(busy: Ledger, path: Path) -> None:
    found = busy.verify()
    assert found.sound
    with Ledger.open(path, read_only=True) as ledger:
        assert as_of(ledger, found.entries)["head"] == found.head
