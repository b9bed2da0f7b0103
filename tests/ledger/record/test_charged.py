"""By which accountant plans are charged; nothing is charged by a game without a promise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dpacct
from dpacct import Budget, Full, InvalidParameter, Ledger, Poisson, Round, Schedule, Uniform
from dpacct.ledger.record.plans import PAIRS, TIGHT, Plan, epsilon_so_far, together
from forgeries import read, write

ROUND = Round(1.5, Uniform(10, 100))
OTHER = Round(1.5, Uniform(11, 100))
PLAN = 6 * ROUND
DELTA = 1e-4
WIDE = Budget(50.0, DELTA)
GAME = dpacct.epsilon(PLAN, delta=DELTA).upper
FIXED = dpacct.epsilon(PLAN, delta=DELTA, accountant="pairs").upper


def run_all(ledger: Ledger, name: str, accountant: str, rounds: int = 6) -> dpacct.ledger.Run:
    run = ledger.start_run(name, PLAN, accountant=accountant)
    for _ in range(rounds):
        run.reserve(ROUND).commit()
    return run


@pytest.mark.slow
def test_a_game_is_played_only_where_it_was_promised(path: Path) -> None:
    assert GAME < 0.99 * FIXED
    with Ledger.open(path, WIDE) as ledger:
        run = run_all(ledger, "plain", PAIRS)
        assert run.accountant == PAIRS
        assert run.upper_epsilon() == ledger.upper_epsilon() == FIXED
    with Ledger.open(path.with_name("promised"), WIDE) as ledger:
        run = run_all(ledger, "promised", TIGHT, 3)
        assert run.accountant == TIGHT
        assert run.planned_epsilon() == ledger.epsilon_any_stop() == GAME
        half = ledger.upper_epsilon()
        assert half == run.upper_epsilon() < GAME
        assert half < dpacct.epsilon(3 * ROUND, delta=DELTA, accountant="pairs").upper
        assert half == pytest.approx(dpacct.epsilon(3 * ROUND, delta=DELTA).upper, rel=5e-3)
        for _ in range(3):
            run.reserve(ROUND).commit()
        assert ledger.upper_epsilon() == GAME
        assert ledger.summary()["runs"][0]["accountant"] == TIGHT
        assert ledger.verify().sound


def test_entries_without_a_promise_are_as_they_always_were(path: Path) -> None:
    """No key more than an earlier version wrote, for whatever has no game to play."""
    with Ledger.open(path, WIDE, adjacency="replace-one") as ledger:
        ledger.start_run("pairs", PLAN)
        ledger.start_run("no game", 3 * Round(1.5, Full(), "replace-one"), accountant=TIGHT)
        ledger.start_run("poisson", 3 * Round(1.5, Poisson(0.1), "replace-one"), accountant=TIGHT)
        ledger.start_run("no plan", accountant=TIGHT)
        ledger.start_run("game", PLAN, accountant=TIGHT)
        starts = [entry["data"] for entry in ledger.export() if entry["kind"] == "run"]
    assert ["accountant" in start for start in starts] == [False] * 4 + [True]


def test_plans_of_several_runs_together(path: Path) -> None:
    """Equal rounds are one schedule in any order; others may run in any order, and nobody knows."""
    game, fixed = Plan(PLAN, TIGHT), Plan(PLAN)
    assert together([game, game]) == Plan(12 * ROUND, TIGHT)
    assert together([game, fixed]).accountant == PAIRS
    assert together([game, Plan(2 * OTHER, TIGHT)]).accountant == PAIRS
    assert together([]).accountant == PAIRS
    mixed = Plan(3 * ROUND + 3 * OTHER, TIGHT)
    assert together([mixed]) == mixed
    with Ledger.open(path, WIDE) as ledger:
        runs = [ledger.start_run(name, PLAN, accountant=TIGHT) for name in ("one", "two")]
        third = ledger.start_run("three", PLAN)
        for run in runs:
            run.reserve(ROUND).commit()
        # One run of three promises nothing.
        pairs = dpacct.epsilon(2 * ROUND, delta=DELTA, accountant="pairs").upper
        assert ledger.upper_epsilon() == pairs
        assert third.accountant == PAIRS
        assert ledger.verify().sound


@pytest.mark.slow
def test_what_the_game_charges_depends_on_which_round_comes_first() -> None:
    everybody = Round(3.2746, Full(), "replace-one")
    sampled = 10 * Round(1.1151, Uniform(5, 100))
    first, swapped = sampled + everybody, everybody + sampled
    assert dpacct.delta(swapped, epsilon=1).lower > 1.05 * dpacct.delta(first, epsilon=1).upper


def test_rounds_of_a_mixed_plan_are_released_in_its_order(path: Path) -> None:
    """Two tickets may be open at once."""
    everybody = Round(3.2746, Full(), "replace-one")
    plan = ROUND + OTHER + everybody
    with Ledger.open(path, WIDE) as ledger:
        run = ledger.start_run("mixed", plan, accountant=TIGHT)
        early, late, last = (run.reserve(phase.round) for phase in plan)
        late.commit()
        with pytest.raises(dpacct.LedgerError, match=r"round 4, a later one .* before round 3"):
            early.commit()
        assert early.state == "drawn"
        assert run.committed == 1
        last.commit()
        assert ledger.verify().sound
    equal = path.with_name("equal")
    for file, schedule, accountant in ((equal, PLAN, TIGHT), (path.with_name("f"), plan, PAIRS)):
        with Ledger.open(file, WIDE) as ledger:
            run = ledger.start_run("any order", schedule, accountant=accountant)
            tickets = [run.reserve(phase.round) for phase in (2 * schedule).phases[:1] * 2]
            for ticket in reversed(tickets):
                ticket.commit()
            assert ledger.verify().sound


def test_an_order_that_was_forged_is_found(path: Path) -> None:
    with Ledger.open(path, WIDE) as ledger:
        run = ledger.start_run("mixed", ROUND + OTHER, accountant=PAIRS)
        for ticket in reversed([run.reserve(ROUND), run.reserve(OTHER)]):
            ticket.commit()
    rows = list(read(path))
    next(row for row in rows if row.content["kind"] == "run").content["data"]["accountant"] = TIGHT
    write(path, rows)
    with Ledger.open(path) as ledger:
        assert "a round of a plan after a later one" in ledger.verify().problems[-1]


@pytest.mark.slow
def test_part_of_a_mixed_plan_costs_no_more_than_all_of_it() -> None:
    mixed = Plan(2 * OTHER + 3 * ROUND, TIGHT)
    whole = epsilon_so_far(mixed, mixed.schedule, DELTA)
    for rounds in range(1, 5):
        used = Schedule(dpacct.ledger.record.plans.Plan(mixed.schedule).first(rounds).phases)
        assert epsilon_so_far(mixed, used, DELTA) <= whole


@pytest.mark.slow
def test_what_fits_by_the_game_alone(path: Path) -> None:
    budget = Budget((GAME + FIXED) / 2, DELTA)
    with Ledger.open(path, budget) as ledger:
        with pytest.raises(dpacct.BudgetExceeded, match="does not fit"):
            ledger.start_run("pairs", PLAN)
        assert ledger.remaining_as_plan(ROUND) < 6 <= ledger.remaining_as_plan(ROUND, TIGHT)
        run = run_all(ledger, "game", TIGHT)
        # All of delta is set aside for the plan but what the game leaves.
        with pytest.raises(dpacct.BudgetExceeded):
            run.reserve(ROUND)
        assert ledger.upper_epsilon() <= budget.epsilon
        assert ledger.verify().sound


def test_outside_its_plan_a_run_is_charged_by_the_odometer(path: Path) -> None:
    with Ledger.open(path, WIDE) as ledger:
        run = run_all(ledger, "leaves", TIGHT, 2)
        run.reserve(Round(1.4, Uniform(10, 100))).commit()
        assert str(run.guarantee) == "adaptive"
        assert run.upper_epsilon() > FIXED / 2


def test_a_promise_that_is_none_is_refused(path: Path) -> None:
    with Ledger.open(path, WIDE) as ledger:
        run_all(ledger, "pairs", PAIRS, 1)
    rows = list(read(path))
    start = next(row for row in rows if row.content["kind"] == "run")
    start.content["data"]["accountant"] = "best"
    write(path, rows)
    with pytest.raises(dpacct.LedgerError, match="accountant"), Ledger.open(path) as ledger:
        ledger.summary()
    assert json.dumps(start.content)


def test_a_promise_is_what_nobody_can_check(path: Path) -> None:
    """A chain that was linked anew may say it; `verify` lists it as unverified."""
    with Ledger.open(path, WIDE) as ledger:
        run_all(ledger, "pairs", PAIRS)
    rows = list(read(path))
    next(row for row in rows if row.content["kind"] == "run").content["data"]["accountant"] = TIGHT
    write(path, rows)
    with Ledger.open(path) as ledger:
        found = ledger.verify()
        assert any("remembers" in what for what in found.unverified)
        assert found.sound
        assert ledger.upper_epsilon() == GAME


def test_an_unknown_accountant_of_plans_is_refused(path: Path) -> None:
    with Ledger.open(path, WIDE) as ledger:
        with pytest.raises(InvalidParameter, match="a plan is charged by pairs, or by tight"):
            ledger.start_run("x", PLAN, accountant="rdp")
        assert not ledger.runs


def test_rounds_that_ran_elsewhere(path: Path) -> None:
    with Ledger.open(path, WIDE) as ledger:
        ledger.charge("elsewhere", PLAN, accountant=TIGHT)
        assert ledger.upper_epsilon() == GAME
    with Ledger.open(path.with_name("plain"), WIDE) as ledger:
        ledger.charge("elsewhere", PLAN)
        assert ledger.upper_epsilon() == FIXED
