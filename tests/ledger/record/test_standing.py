"""What a refusal says: the ledger's own reading, which bound decides, who holds room."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dpacct
from dpacct import Budget, Ledger, Poisson, Round
from dpacct.errors import BudgetExceeded
from ledgers import BUDGET, play


def at_budget(rounds: int, epsilon: float = 8.0) -> Round:
    found = dpacct.calibrate(epsilon=epsilon, delta=1e-5, rounds=rounds, sampling_rate=0.1)
    return found.schedule.phases[0].round


def stated(refusal: BaseException) -> float:
    """The epsilon that a refusal says the ledger reads."""
    found = re.search(r"the ledger reads epsilon (\S+) of 8 at delta 1e-05 now", str(refusal))
    assert found is not None, refusal
    return float(found[1])


def test_after_a_plan_was_played_a_refusal_reads_what_the_ledger_does(ledger: Ledger) -> None:
    round_ = at_budget(10)
    run = ledger.start_run("planned", 10 * round_)
    play(run, round_, 10)
    run.finish()
    upper = ledger.epsilon().upper
    with pytest.raises(BudgetExceeded) as plan:
        ledger.start_run("second", 10 * round_)
    with pytest.raises(BudgetExceeded) as single:
        ledger.start_run("third").reserve(round_)
    for refused in (plan, single):
        assert upper <= stated(refused.value) <= upper * (1 + 1e-4)
        words = str(refused.value)
        assert "may depend on them, so it is charged by the adaptive bound" in words
        sentence = r": epsilon \d\d\.\d+ now, \d\d\.\d+ with this charge\. Both"
        assert re.search(sentence, words)
        assert "held by" not in words


def test_rounds_chosen_one_by_one_are_refused_by_the_bound_that_is_read(ledger: Ledger) -> None:
    round_ = Round(1.0, Poisson(0.3))
    run = ledger.start_run("free")
    play(run, round_, ledger.remaining_one_by_one(round_))
    with pytest.raises(BudgetExceeded) as refused:
        run.reserve(round_)
    found = re.search(
        r"reads epsilon (\S+) of 8 at delta 1e-05 now\. With it, it would read (\S+)\.$",
        str(refused.value),
    )
    assert found is not None
    assert ledger.upper_epsilon() <= float(found[1]) <= 8 < float(found[2])


def test_whoever_holds_room_is_named_with_the_ways_to_free_it(path: Path) -> None:
    round_ = at_budget(40)
    with Ledger.open(path, BUDGET) as ledger:
        for name in ("one", "two", "three", "four"):
            ledger.start_run(name, 10 * round_)
        with pytest.raises(BudgetExceeded) as plan:
            ledger.start_run("five", 10 * round_)
        with pytest.raises(BudgetExceeded) as single:
            ledger.start_run("free").reserve(round_)
        for refused in (plan, single):
            words = str(refused.value)
            assert stated(refused.value) == ledger.upper_epsilon() == 0
            assert "held by run 1 ('one', 10 rounds), run 2 ('two', 10 rounds), run 3" in words
            assert "1 more" in words
            assert f"`dpacct ledger finish {path} --run 1` frees it, and" in words
            assert (
                f"`dpacct train --resume --ledger {path}` (in Python: `resume()`) continues"
                in words
            )
        # So it is.
        ledger.runs[0].finish()
        ledger.start_run("five", 10 * round_)


def test_room_that_would_not_be_enough_is_not_praised(ledger: Ledger) -> None:
    round_ = at_budget(40)
    ledger.start_run("one", 20 * round_).reserve(round_).commit()
    with pytest.raises(BudgetExceeded) as plan:
        ledger.start_run("two", 200 * round_)
    with pytest.raises(BudgetExceeded) as single:
        ledger.start_run("free").reserve(Round(0.05))
    for refused in (plan, single):
        assert "run 1 ('one', 19 rounds)" in str(refused.value)
        assert "frees it, which would not be enough here" in str(refused.value)
        # Whatever decides when to stop, as `dpacct ledger show` tells it first.
        assert stated(refused.value) == pytest.approx(ledger.epsilon_any_stop(), rel=1e-4)
        assert ledger.epsilon_any_stop() > ledger.upper_epsilon()


def test_a_late_plan_is_told_how_many_of_its_rounds_fit(ledger: Ledger) -> None:
    round_ = Round(1.0, Poisson(0.3))
    ledger.start_run("look").reserve(round_).commit()
    with pytest.raises(BudgetExceeded) as refused:
        ledger.start_run("late", 500 * round_)
    found = re.search(r"What fits: (\d+) such rounds\.", str(refused.value))
    assert found is not None
    most = int(found[1])
    with pytest.raises(BudgetExceeded):
        ledger.start_run("late", (most + 1) * round_)
    ledger.start_run("late", most * round_)


def test_delta_is_told_as_it_is_or_rounded_up(path: Path) -> None:
    with Ledger.open(path, Budget(1, 100**-1.1)) as ledger:
        with pytest.raises(BudgetExceeded) as refused:
            ledger.start_run("much", 100 * Round(0.5))
        assert "at delta 0.006309574," in str(refused.value)
