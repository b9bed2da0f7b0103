"""Fewer writes: rounds reserved ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpacct
from dpacct import InvalidParameter, Ledger, Round
from dpacct.ledger import Event, NoisySum
from ledgers import BUDGET, play

FULL, MORE = Round(30.0), Round(40.0)


def kinds(ledger: Ledger) -> list[str]:
    return [entry["kind"] for entry in ledger.export()]


def test_rounds_ahead_are_one_entry_and_cost_what_they_cost_one_by_one(path: Path) -> None:
    with Ledger.open(path, BUDGET) as ledger, Ledger.open(path.with_name("b"), BUDGET) as other:
        run, alone = (one.start_run("x", 9 * FULL + 3 * MORE) for one in (ledger, other))
        for _ in range(9):
            run.reserve(FULL, ahead=5).commit()
        assert kinds(ledger).count("reserve") == 2
        run.reserve(MORE, ahead=64).commit()
        run.finish()
        play(alone, FULL, 9)
        play(alone, MORE, 1)
        alone.finish()
        assert run.totals()[:6] == alone.totals()[:6]
        assert ledger.epsilon() == other.epsilon()
        # What was left of the second phase was given back.
        assert (run.rounds, run.committed, kinds(ledger).count("abandon")) == (10, 10, 2)
        assert ledger.verify().sound
        assert ledger.report()["runs"][0]["phases"] == other.report()["runs"][0]["phases"]


def test_while_they_are_ahead_they_count_as_spent(ledger: Ledger) -> None:
    run = ledger.start_run("x", 50 * FULL)
    ticket = run.reserve(FULL, ahead=8)
    assert (run.rounds, run.committed, run.held) == (8, 0, 42)
    so_far = ledger.upper_epsilon()
    ticket.commit()
    assert ledger.upper_epsilon() == so_far <= ledger.epsilon_any_stop()
    # Another round gives them back first.
    run.reserve(Round(35.0)).commit()
    assert (run.rounds, run.committed, run.held, run.on_plan) == (2, 2, 48, True)
    assert ledger.upper_epsilon() < so_far
    assert ledger.verify().sound


def test_a_crash_loses_the_round_that_may_have_been_drawn_and_gives_the_others_back(
    path: Path,
) -> None:
    alive = Ledger.open(path, BUDGET)
    run = alive.start_run("x", 20 * FULL, ahead=6)
    for _ in range(2):
        run.reserve(FULL).commit()
    drawn = run.reserve(FULL)
    for _ in range(2):  # A second crash before anything is reserved loses nothing more.
        with Ledger.open(path) as ledger:
            again = ledger.resume_run(1, ahead=4)
            assert (again.rounds, again.committed, again.held) == (3, 2, 17)
            ticket = again.unsettled()
            assert ticket is not None
            assert (ticket.number, ticket.state) == (drawn.number, "drawn")
    with Ledger.open(path) as ledger:
        again = ledger.resume_run(1, ahead=4)
        for _ in range(17):
            again.reserve(FULL).commit()
        assert (again.rounds, again.committed, again.held) == (20, 19, 0)
        assert kinds(ledger).count("reserve") == 1 + 5
        # The first process was alive after all. What it has drawn, it may release, and no more.
        drawn.commit()
        assert run.reserved_ahead == 0
        assert (again.rounds, again.committed, ledger.verify().sound) == (20, 20, True)
    alive.close()


@pytest.mark.parametrize("settled", [False, True], ids=["in a round", "between rounds"])
@pytest.mark.parametrize("way", ["goes on", "another round", "abandons", "finish", "give back"])
def test_a_process_takes_no_round_that_another_one_has_given_back(
    path: Path,
    way: str,
    settled: bool,  # noqa: FBT001 - of the table above
) -> None:
    """A drawn round that was given back would be below the truth, even if it is not released."""
    with Ledger.open(path, BUDGET) as one, Ledger.open(path) as two:
        run = one.start_run("x", 20 * FULL, ahead=6)
        ticket = run.reserve(FULL)
        if settled:
            ticket.commit()
        two.resume_run(1)
        if not settled:
            ticket.abandon("no client came") if way == "abandons" else ticket.commit()
        given_back = {entry["closes"] for entry in two.export() if entry["kind"] == "abandon"}
        if way in ("finish", "give back"):
            run.finish() if way == "finish" else run.give_back()
            assert (run.rounds, run.reserved_ahead) == (1, 0)
        for _ in range(0 if way == "finish" else 3):
            drawn = run.reserve(FULL if way != "another round" else Round(35.0))
            assert drawn._reservation.closes not in given_back
            drawn.commit()
        assert two.verify().sound


def test_an_abandoned_round_is_reserved_again_behind_those_ahead_of_it(ledger: Ledger) -> None:
    run = ledger.start_run("x", 20 * FULL, ahead=6)
    run.reserve(FULL).abandon("no client came")
    assert (run.rounds, run.held, run.reserved_ahead) == (0, 20, 0)
    assert ledger.verify().sound


def test_a_round_that_costs_less_than_the_plan_is_reserved_alone(ledger: Ledger) -> None:
    """Its place in the plan would not come back with it."""
    run = ledger.start_run("x", 20 * FULL, ahead=6)
    run.reserve(MORE).commit()
    assert (run.rounds, run.held, run.reserved_ahead) == (1, 19, 0)


@pytest.mark.parametrize("way", ["close", "give back", "finish"])
def test_rounds_that_are_left_are_given_back(path: Path, way: str) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("x", 20 * FULL, ahead=8)
        run.reserve(FULL).commit()
        assert (run.rounds, run.reserved_ahead) == (8, 7)
        if way != "close":
            run.finish() if way == "finish" else run.give_back()
            assert run.reserved_ahead == 0
    with Ledger.open(path) as ledger:
        assert (ledger.rounds, ledger.verify().sound) == (1, True)
        assert ledger.upper_epsilon() == dpacct.epsilon(FULL, delta=BUDGET.delta).upper


def test_while_a_round_is_not_settled_the_next_one_is_reserved_alone(ledger: Ledger) -> None:
    run = ledger.start_run("x", 20 * FULL, ahead=8)
    first = run.reserve(FULL)
    second = run.reserve(FULL)
    assert (run.rounds, run.reserved_ahead) == (2, 0)
    second.commit()
    third = run.reserve(FULL)
    assert (run.rounds, run.reserved_ahead) == (10, 7)
    first.commit()
    third.commit()
    run.reserve(FULL).commit()
    assert (run.committed, run.reserved_ahead, ledger.verify().sound) == (4, 6, True)


def test_without_a_plan_or_off_it_there_is_nothing_ahead(ledger: Ledger) -> None:
    free, planned = ledger.start_run("free"), ledger.start_run("planned", 3 * FULL)
    for run, round_ in ((free, FULL), (planned, Round(8.0))):
        run.reserve(round_, ahead=64).commit()
        assert run.rounds == 1
    for ahead in (0, 1025, 1.5, True, "2"):
        with pytest.raises(InvalidParameter, match=r"^ahead is"):
            free.reserve(FULL, ahead=ahead)  # type: ignore[arg-type]
        with pytest.raises(InvalidParameter, match=r"^ahead is"):
            ledger.resume_run(1, ahead=ahead)  # type: ignore[arg-type]
    assert ledger.verify().sound


def test_rounds_of_several_releases_go_ahead_too(ledger: Ledger) -> None:
    event = Event(Round(30.0), (NoisySum("update", 31.0), NoisySum("count", 200.0)), {"lr": 1})
    run = ledger.start_run("x", 6 * event.charged)
    for _ in range(6):
        run.reserve(event, ahead=4).commit()
    assert (run.committed, run.on_plan, kinds(ledger).count("kind")) == (6, True, 1)
    assert ledger.verify().sound


def test_a_kept_journal_is_gone_when_the_ledger_is_at_rest(path: Path) -> None:
    journal = path.with_name(f"{path.name}-journal")
    with Ledger.open(path, BUDGET) as one, Ledger.open(path) as two:
        one.start_run("x").reserve(FULL).commit()
        assert journal.read_bytes()[:8] == bytes(8)
        two.start_run("y").reserve(FULL).commit()
        one.close()
        two.start_run("z").reserve(FULL).commit()
    assert {file.name for file in path.parent.iterdir()} == {path.name, f"{path.name}.witness"}
    with Ledger.open(path) as ledger:
        assert ledger.rounds == 3
        assert ledger.verify().sound
