"""Ledgers of version 0.3: read by their own rule, and continued by it in the present form."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpacct import (
    BudgetExceeded,
    Full,
    InvalidParameter,
    Laplace,
    Ledger,
    LedgerError,
    Poisson,
    Round,
    Uniform,
)
from dpacct.ledger.ledger import Terms
from dpacct.ledger.record.entries import canonical, link
from dpacct.ledger.record.events import in_adjacency
from dpacct.ledger.record.replay import Replay
from dpacct.renyi.odometer import design_mixture
from dpacct.rounds import Adjacency
from forgeries import BUDGET
from ledgers import MANY

FIXTURES = Path(__file__).parents[1] / "fixtures" / "v0_3"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())
ZERO_OUT = Adjacency.ZERO_OUT
OLD, NEW = 3, 4


def copy(name: str, folder: Path) -> Path:
    for file in FIXTURES.glob(f"{name}.ledger*"):
        shutil.copy(file, folder)
    return folder / f"{name}.ledger"


def version_of(path: Path) -> int:
    connection = sqlite3.connect(path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return version


def readings(ledger: Ledger) -> dict[str, Any]:
    def near(value: float) -> Any:
        return pytest.approx(value, rel=1e-9)

    return {
        "head": ledger.head,
        "rounds": ledger.rounds,
        "epsilon": near(ledger.upper_epsilon()),
        "any_stop": near(ledger.epsilon_any_stop()),
        "runs": [near(run.upper_epsilon()) for run in ledger.runs],
        "remaining": ledger.remaining_one_by_one(Round(2.0, Poisson(0.2))),
        "laplace": ledger.remaining_one_by_one(Laplace(epsilon=0.1)),
    }


@pytest.mark.parametrize("name", EXPECTED)
def test_every_reading_is_the_one_of_version_0_3(name: str, tmp_path: Path) -> None:
    path = copy(name, tmp_path)
    before = path.read_bytes()
    for read_only in (True, False):
        with Ledger.open(path, read_only=read_only) as ledger:
            assert readings(ledger) == EXPECTED[name]
            assert ledger.verify(EXPECTED[name]["head"]).sound
            assert not ledger.note
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", EXPECTED)
def test_it_goes_on_by_its_own_rule_and_nothing_of_it_is_lost(name: str, tmp_path: Path) -> None:
    path = copy(name, tmp_path)
    with Ledger.open(path, read_only=True) as ledger:
        place, before, entries = ledger.position, readings(ledger), list(ledger.export())
        summary = ledger.summary()
    with Ledger.open(path) as ledger:
        run = ledger.start_run("no plan")
        run.finish()
        after = readings(ledger)
        # The first write goes on behind all that was there.
        ledger.require(place, "the test")
        assert list(ledger.export())[: len(entries)] == entries
        assert [e["kind"] for e in ledger.export()][len(entries) :] == ["recount", "run", "finish"]
        assert after | {"head": 0, "runs": 0} == before | {"head": 0, "runs": 0}
        assert after["runs"] == [*before["runs"], 0.0]
        assert ledger.summary()["runs"][:-1] == summary["runs"]
        for item in (Laplace(epsilon=0.05), Round(50.0, Poisson(0.01))):
            try:
                ledger.charge(item, name="later")
            except BudgetExceeded:
                assert name == "plans"
        assert ledger.verify(EXPECTED[name]["head"]).sound
        assert {len(run.totals().spent) for run in ledger.runs} == {11 + (name == "chosen")}
        open_ = [run for run in ledger.runs if not run.finished]
        for run in open_:
            run.finish()
        assert ledger.verify().sound
    assert version_of(path) == NEW
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.verify().sound


def test_a_round_that_0_3_reserved_is_released_by_this_version(tmp_path: Path) -> None:
    with Ledger.open(copy("plans", tmp_path)) as ledger:
        run = ledger.runs[1]
        ticket, kinds = run.unsettled(), len(run.totals().released)
        assert ticket is not None
        before = run.committed
        ticket.commit()
        assert (run.committed, run.unsettled()) == (before + 1, None)
        # It is of the kind of the rounds before.
        assert (len(run.totals().released), kinds) == (1, 1)
        run.reserve(ticket.event).commit()
        assert ledger.verify().sound
        assert math.isfinite(run.epsilon().lower)


def test_an_old_entry_in_the_place_of_a_new_one_is_found(tmp_path: Path) -> None:
    path = copy("chosen", tmp_path)
    with Ledger.open(path) as ledger:
        ledger.start_run("new").finish()
        first, *_, last = ledger._file.now().entries()
    assert first.old
    assert not last.old
    old = {"data": {}, "kind": "resume", "number": last.number + 1, "run": 1, "time": ""}
    entry = replace(last, number=last.number + 1, run=1, kind="resume", text=canonical(old))
    replay = Replay(ledger._file.known.opening)
    with Ledger.open(path, read_only=True) as ledger:
        for known in ledger._file.now().entries():
            replay.take(known)
    with pytest.raises(LedgerError, match="its form is that of another version"):
        replay.take(replace(entry, hash=link(last.hash, entry)))


@pytest.mark.parametrize("change", ["'row\":0', 'row\":7'", "'\"spent\":[', '\"spent\":[1'"])
def test_totals_of_old_runs_are_bound_once_it_goes_on(tmp_path: Path, change: str) -> None:
    path = copy("chosen", tmp_path)
    with Ledger.open(path) as ledger:
        ledger.start_run("new")
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE states SET text = replace(text, {change}) WHERE run = 1")  # noqa: S608
    connection.commit()
    connection.close()
    with pytest.raises(LedgerError, match="the totals behind it were changed"):
        Ledger.open(path)


def test_totals_that_were_too_low_are_counted_again(tmp_path: Path) -> None:
    path = copy("low", tmp_path)
    for writes in (False, True, False):
        with Ledger.open(path, read_only=not writes) as ledger:
            assert bool(ledger.note) is (version_of(path) == OLD)
            if writes:
                ledger.start_run("new").finish()
            found = ledger.verify()
            assert ledger.upper_epsilon() >= 2 * (1 - 1e-9)
            # A reader cannot mend the file.
            assert found.sound is (version_of(path) == NEW)
            words = found.remarks if found.sound else found.problems
            assert (
                "the totals are too low since entry 7" in words[0] or "from entry 7 to" in words[0]
            )
    with Ledger.open(path) as ledger:
        with pytest.raises(BudgetExceeded):
            ledger.charge(Laplace(epsilon=2.5), name="as if the run had cost nothing")
        ledger.charge(Laplace(epsilon=0.5), name="what is left", part="country=DE")
        assert ledger.verify().sound
        if MANY > 1:
            assert "too low from entry 7" in ledger.report_markdown()


@pytest.mark.parametrize(("version", "words"), [(1, "0.2, then with 0.3"), (2, "with dpacct 0.3")])
def test_older_ledgers_name_the_program_that_reads_them(
    tmp_path: Path, version: int, words: str
) -> None:
    path = copy("plans", tmp_path)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version={version}")
    connection.close()
    for read_only in (True, False):
        with pytest.raises(LedgerError, match=words):
            Ledger.open(path, read_only=read_only)


def test_new_ledgers_have_another_version_than_those_of_0_3(path: Path) -> None:
    Ledger.open(path, BUDGET).close()
    assert version_of(path) == NEW


def test_rounds_of_0_2_that_0_3_relabelled_are_left_to_0_3(tmp_path: Path) -> None:
    path = copy("trained", tmp_path)
    before = path.read_bytes()
    for read_only in (True, False):
        with pytest.raises(LedgerError, match=r"Read it with dpacct 0\.3, and charge its rounds"):
            Ledger.open(path, read_only=read_only)
    assert path.read_bytes() == before


def test_a_zero_out_ledger_charges_add_remove_rounds_of_the_same_mechanism(path: Path) -> None:
    with Ledger.open(path, BUDGET, adjacency="zero-out") as ledger:
        run = ledger.start_run("planned", 3 * Round(2.0, Poisson(0.2), ZERO_OUT))
        # With a public size, or by hand: the same mechanism, charged as what the ledger promises.
        run.reserve(Round(2.0, Poisson(0.2))).commit()
        assert (run.on_plan, run.committed) == (True, 1)
        late = ledger.start_run("late", 2 * Round(4.0) + Round(3.0, Poisson(0.5)))
        late.reserve(Round(4.0, None, ZERO_OUT)).commit()
        assert late.plan is not None
        assert late.plan.adjacency is ZERO_OUT
        assert Terms.of(ledger).check(None, Adjacency.ADD_REMOVE) == BUDGET.delta
        for other in (Round(2.0, Uniform(2, 20), "add-remove"), Round(2.0, Uniform(2, 20))):
            with pytest.raises(InvalidParameter, match="this one has zero-out"):
                ledger.start_run("x").reserve(other)
        with pytest.raises(InvalidParameter, match="has zero-out"):
            Ledger.open(path, adjacency="add-remove")
        assert ledger.verify().sound


def test_zero_out_never_becomes_add_remove(path: Path) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        ledger.start_run("x").reserve(Round(2.0, Poisson(0.2))).commit()
        with pytest.raises(InvalidParameter, match="this one has add-remove"):
            ledger.start_run("y").reserve(Round(2.0, Poisson(0.2), ZERO_OUT))
        with pytest.raises(InvalidParameter, match="has add-remove"):
            Terms.of(ledger).check(None, ZERO_OUT)


@pytest.mark.parametrize("sampling", [Poisson(0.2), Poisson(1.0), Full()])
def test_both_are_one_mechanism_at_one_cost(sampling: Poisson | Full) -> None:
    mixture = design_mixture(BUDGET)
    removed = Round(1.5, sampling, "add-remove")
    zeroed = in_adjacency(removed, "zero-out")
    assert zeroed.adjacency is ZERO_OUT
    assert mixture.cost(removed) == mixture.cost(zeroed)
    for other in ("replace-one", "add-remove"):
        with pytest.raises(InvalidParameter):
            in_adjacency(zeroed, other)
