"""By which accountant plans are charged; nothing is charged by a game without a promise."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpacct
from dpacct import (
    Budget,
    BudgetExceeded,
    Full,
    InvalidParameter,
    Ledger,
    LedgerError,
    Poisson,
    Round,
    Uniform,
)
from dpacct.ledger.record.plans import PAIRS, TIGHT, Plan, epsilon_so_far, together
from forgeries import read, write
from ledgers import play

ROUND = Round(1.5, Uniform(10, 100))
OTHER = Round(1.5, Uniform(11, 100))
EVERYBODY = Round(3.2746, Full(), "replace-one")
PLAN = 6 * ROUND
DELTA = 1e-4
WIDE = Budget(50.0, DELTA)


@pytest.fixture(scope="module")
def game() -> float:
    return dpacct.epsilon(PLAN, delta=DELTA).upper


@pytest.fixture(scope="module")
def fixed() -> float:
    return dpacct.epsilon(PLAN, delta=DELTA, accountant="pairs").upper


def run_all(ledger: Ledger, name: str, accountant: str, rounds: int = 6) -> dpacct.ledger.Run:
    run = ledger.start_run(name, PLAN, accountant=accountant)
    play(run, ROUND, rounds)
    return run


@pytest.mark.slow
def test_a_game_is_played_only_where_it_was_promised(path: Path, game: float, fixed: float) -> None:
    assert game < 0.99 * fixed
    with Ledger.open(path, WIDE) as ledger:
        run = run_all(ledger, "plain", PAIRS)
        assert run.accountant == PAIRS
        assert run.upper_epsilon() == ledger.upper_epsilon() == fixed
    with Ledger.open(path.with_name("promised"), WIDE) as ledger:
        run = run_all(ledger, "promised", TIGHT, 3)
        assert run.accountant == TIGHT
        assert run.planned_epsilon() == ledger.epsilon_any_stop() == game
        half = ledger.upper_epsilon()
        assert half == run.upper_epsilon() < game
        assert half < dpacct.epsilon(3 * ROUND, delta=DELTA, accountant="pairs").upper
        assert half == pytest.approx(dpacct.epsilon(3 * ROUND, delta=DELTA).upper, rel=5e-3)
        play(run, ROUND, 3)
        assert ledger.upper_epsilon() == game
        assert ledger.summary()["runs"][0]["accountant"] == TIGHT
        assert ledger.verify().sound


def test_entries_without_a_promise_have_no_key_more(path: Path) -> None:
    with Ledger.open(path, WIDE, adjacency="replace-one") as ledger:
        ledger.start_run("pairs", PLAN)
        ledger.start_run("no game", 3 * Round(1.5, Full(), "replace-one"), accountant=TIGHT)
        ledger.start_run("poisson", 3 * Round(1.5, Poisson(0.1), "replace-one"), accountant=TIGHT)
        ledger.start_run("no plan", accountant=TIGHT)
        ledger.start_run("game", PLAN, accountant=TIGHT)
        with pytest.raises(InvalidParameter, match="a plan is charged by pairs, or by tight"):
            ledger.start_run("x", PLAN, accountant="rdp")
        starts = [entry["data"] for entry in ledger.export() if entry["kind"] == "run"]
    assert ["accountant" in start for start in starts] == [False] * 4 + [True]


def test_plans_of_several_runs_together(path: Path) -> None:
    """Equal rounds are one schedule in any order. Other rounds may run in any order."""
    game, fixed, mixed = Plan(PLAN, TIGHT), Plan(PLAN), Plan(3 * ROUND + 3 * OTHER, TIGHT)
    assert together([game, game]) == Plan(12 * ROUND, TIGHT)
    assert together([mixed]) == mixed
    for plans in ([game, fixed], [game, Plan(2 * OTHER, TIGHT)], []):
        assert together(plans).accountant == PAIRS
    with Ledger.open(path, WIDE) as ledger:
        runs = [ledger.start_run(name, PLAN, accountant=TIGHT) for name in ("one", "two")]
        ledger.start_run("three", PLAN)
        for run in runs:
            play(run, ROUND, 1)
        # One run of three promises nothing.
        pairs = dpacct.epsilon(2 * ROUND, delta=DELTA, accountant="pairs").upper
        assert ledger.upper_epsilon() == pairs


@pytest.mark.slow
def test_the_charge_of_the_game_depends_on_which_round_comes_first() -> None:
    sampled = 10 * Round(1.1151, Uniform(5, 100))
    first, swapped = sampled + EVERYBODY, EVERYBODY + sampled
    assert dpacct.delta(swapped, epsilon=1).lower > 1.05 * dpacct.delta(first, epsilon=1).upper
    mixed = Plan(2 * OTHER + 3 * ROUND, TIGHT)
    whole = epsilon_so_far(mixed, mixed.schedule, DELTA)
    for rounds in range(1, 5):
        assert epsilon_so_far(mixed, mixed.first(rounds), DELTA) <= whole


def test_rounds_of_a_mixed_plan_are_released_in_its_order(path: Path) -> None:
    """Two tickets may be open at once."""
    plan = ROUND + OTHER + EVERYBODY
    with Ledger.open(path, WIDE) as ledger:
        run = ledger.start_run("mixed", plan, accountant=TIGHT)
        early, late, last = (run.reserve(phase.round) for phase in plan)
        late.commit()
        with pytest.raises(LedgerError, match="a later round of the same plan was released"):
            early.commit()
        assert (early.state, run.committed) == ("drawn", 1)
        last.commit()
        assert ledger.verify().sound
    equal = path.with_name("equal")
    for file, schedule, accountant in ((equal, PLAN, TIGHT), (path.with_name("f"), plan, PAIRS)):
        with Ledger.open(file, WIDE) as ledger:
            run = ledger.start_run("any order", schedule, accountant=accountant)
            for ticket in reversed([run.reserve(schedule.phases[0].round) for _ in range(2)]):
                ticket.commit()
            assert ledger.verify().sound


def promise(path: Path, accountant: str) -> Path:
    """Another accountant in the entry of the run, the chain linked anew."""
    rows = read(path)
    next(r for r in rows if r.content["kind"] == "run").content["data"]["accountant"] = accountant
    write(path, rows)
    return path


def test_a_forged_promise(path: Path, game: float) -> None:
    with Ledger.open(path, WIDE) as ledger:
        run = ledger.start_run("mixed", ROUND + OTHER, accountant=PAIRS)
        for ticket in reversed([run.reserve(ROUND), run.reserve(OTHER)]):
            ticket.commit()
    with Ledger.open(promise(path, TIGHT)) as ledger:
        assert "a round of a plan after a later one" in ledger.verify().problems[-1]
    other = path.with_name("other")
    with Ledger.open(other, WIDE) as ledger:
        run_all(ledger, "pairs", PAIRS)
    # That it was promised, nobody can check: `verify` lists it as unverified.
    with Ledger.open(promise(other, TIGHT)) as ledger:
        found = ledger.verify()
        assert any("remembers" in what for what in found.unverified)
        assert found.sound
        assert ledger.upper_epsilon() == game


@pytest.mark.slow
def test_what_fits_by_the_game_alone(path: Path, game: float, fixed: float) -> None:
    budget = Budget((game + fixed) / 2, DELTA)
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


@pytest.mark.slow
def test_remaining_by_the_game_is_what_a_plan_may_have(path: Path) -> None:
    """In this budget the delta of five rounds fits, and their epsilon is not proven to."""
    round_ = Round(2.0, Uniform(5, 100), "zero-out")
    with Ledger.open(path, Budget(1.37155, 1e-6)) as ledger:
        most = ledger.remaining_as_plan(round_, TIGHT)
        with pytest.raises(BudgetExceeded):
            ledger.start_run("too long", (most + 1) * round_, accountant=TIGHT)
        ledger.start_run("longest", most * round_, accountant=TIGHT)


def test_outside_a_plan_and_elsewhere(path: Path, game: float, fixed: float) -> None:
    with Ledger.open(path, WIDE) as ledger:
        run = run_all(ledger, "leaves", TIGHT, 2)
        play(run, Round(1.4, Uniform(10, 100)), 1)
        assert str(run.guarantee) == "adaptive"
        assert run.upper_epsilon() > fixed / 2
    for accountant, truth in ((TIGHT, game), (PAIRS, fixed)):
        with Ledger.open(path.with_name(accountant), WIDE) as ledger:
            ledger.charge("elsewhere", PLAN, accountant=accountant)
            assert ledger.upper_epsilon() == truth
