"""What is claimed covers what was released, or says on which condition it does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import dpacct
from dpacct import Ledger, Round
from dpacct.budget import Interval, Spent
from dpacct.display import up
from dpacct.ledger import Guarantee
from dpacct.ledger.report.facts import claim_of
from dpacct.pictures import epsilon_chart, ledger_picture
from ledgers import BUDGET, play

ROUND = Round(9.0)


def tight(rounds: int) -> float:
    return dpacct.epsilon(rounds * ROUND, delta=1e-5).upper


def ran(path: Path, rounds: int, *, planned: int = 30, finish: bool = False) -> dict[str, Any]:
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("planned", planned * ROUND)
        play(run, ROUND, rounds)
        if finish:
            run.finish()
        return ledger.report()


def test_a_part_of_a_plan_is_told_with_the_whole(path: Path) -> None:
    report = ran(path, 10, finish=True)
    assert report["epsilon"]["upper"] == pytest.approx(tight(10), rel=1e-9)
    assert report["epsilon_any_stop"] == pytest.approx(tight(30), rel=1e-9)
    assert report["part_of_plan"]
    assert report["slots"] == {"used": 10, "planned": 30}
    (run,) = report["runs"]
    for said in (report, run):
        assert said["guarantee"] == "planned"
        for part in ("10 of 30", up(tight(30)), up(tight(10)), "decided in advance"):
            assert part in said["claim"]
        # The figure that holds in any case comes first.
        assert said["claim"].index(up(tight(30))) < said["claim"].index(up(tight(10)))
    assert run["epsilon_any_stop"] == run["planned_epsilon"]
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.epsilon_any_stop() == report["epsilon_any_stop"]
        assert ledger.epsilon().upper == report["epsilon"]["upper"]
        page = ledger.report_markdown()
        claim = page[page.index("All 10 rounds of 1 run together") :].split("budget", 1)[0]
        assert f"epsilon {up(tight(30))} at delta" in claim
        assert "even if results influenced when to stop" in claim
        assert up(tight(10)) not in claim
        assert "only if stopping here was decided in advance" in page


def test_a_plan_that_ran_to_its_end_is_told_as_it_is(path: Path) -> None:
    report = ran(path, 30)
    assert report["epsilon_any_stop"] == report["epsilon"]["upper"]
    assert report["epsilon"]["upper"] == pytest.approx(tight(30), rel=1e-9)
    assert not report["part_of_plan"]
    assert "all planned rounds are charged" in report["claim"]
    with Ledger.open(path, read_only=True) as ledger:
        assert "decided in advance" not in ledger.report_markdown()


def test_all_initial_plans_belong_to_the_whole_but_those_given_up_before_anything_ran(
    ledger: Ledger,
) -> None:
    ledger.start_run("given up", 40 * ROUND).finish()
    one, two = ledger.start_run("one", 5 * ROUND), ledger.start_run("two", 7 * ROUND)
    play(one, ROUND, 5)
    assert ledger.epsilon().upper == pytest.approx(tight(5), rel=1e-9)
    assert ledger.epsilon_any_stop() == pytest.approx(tight(12), rel=1e-9)
    # Whether to go on was decided with results at hand, so that the second plan still counts.
    two.finish()
    assert ledger.epsilon_any_stop() == pytest.approx(tight(12), rel=1e-9)
    assert ledger.summary()["slots"] == {"used": 5, "planned": 12}
    runs = ledger.summary()["runs"]
    assert [run["part_of_plan"] for run in runs] == [False, False, False]
    assert [run["claim"] == "Nothing ran yet." for run in runs] == [True, False, True]


def test_the_odometer_holds_in_any_case(ledger: Ledger) -> None:
    run = ledger.start_run("chosen")
    run.reserve(ROUND).commit()
    late = ledger.start_run("late plan", 9 * ROUND)
    late.reserve(ROUND).commit()
    summary = ledger.summary()
    assert summary["epsilon_any_stop"] == summary["epsilon"]["upper"] == ledger.epsilon_any_stop()
    assert "however they were chosen" in summary["claim"]
    # The late run by itself follows a plan, given what was before.
    assert summary["runs"][1]["part_of_plan"]
    assert summary["runs"][1]["epsilon_any_stop"] == pytest.approx(tight(9), rel=1e-9)
    assert not summary["runs"][0]["part_of_plan"]
    # A run that has left its plan is the odometer's.
    late.reserve(Round(8.0)).commit()
    assert not ledger.summary()["runs"][1]["part_of_plan"]
    assert ledger.epsilon_any_stop() == ledger.upper_epsilon()


def test_a_ledger_that_lost_its_guarantee_has_no_bound_in_its_picture(ledger: Ledger) -> None:
    ledger.start_run("private").reserve(ROUND).commit()
    ledger.start_run("seeded", private=False).reserve(ROUND).commit()
    assert ledger_picture(ledger.report()).title == "No bound holds any more"


def test_without_privacy_nothing_is_told(ledger: Ledger) -> None:
    seeded = ledger.start_run("seeded", 9 * ROUND, private=False)
    assert ledger.epsilon_any_stop() == 0.0
    seeded.reserve(ROUND).commit()
    summary = ledger.summary()
    assert ledger.epsilon_any_stop() == math.inf
    assert summary["epsilon_any_stop"] is None
    assert summary["runs"][0]["epsilon_any_stop"] is None
    assert not summary["part_of_plan"]
    assert "no guarantee holds" in summary["claim"]
    assert all(point["upper"] is None for point in ledger.report()["points"])


@pytest.mark.parametrize(
    ("guarantee", "slots", "word"),
    [
        (Guarantee.PLANNED, (3, 9), "3 of 9 planned rounds"),
        (Guarantee.PLANNED, (9, 9), "before the first one ran, and all"),
        (Guarantee.ADAPTIVE, (0, 0), "odometer"),
        (Guarantee.NONE, (0, 0), "no guarantee"),
    ],
)
def test_each_kind_of_claim_has_its_words(
    guarantee: Guarantee, slots: tuple[int, int], word: str
) -> None:
    spent = Spent.at(1e-5, Interval(1.0, 2.0))
    assert word in claim_of(guarantee, spent, 3.0, 9, slots)["claim"]
    late = claim_of(Guarantee.PLANNED, spent, 2.0, 9, (9, 9), first=False)
    assert "before the run started" in late["claim"]
    assert claim_of(guarantee, spent, 3.0, 0, (0, 0))["claim"] == "Nothing ran yet."


# The picture


def shown_above(text: str, value: float) -> None:
    assert float(text) >= value
    assert float(text) <= value * (1 + 1e-3)


def test_the_chart_never_shows_less_than_what_is_proven(path: Path) -> None:
    report = ran(path, 30)
    for upper in (report["epsilon_any_stop"], 1.23441, 1.2344999, 0.99999, 7.99951, 123.454):
        forged = report | {"epsilon_any_stop": upper}
        forged["points"] = [report["points"][-1] | {"upper": upper, "lower": None}]
        picture = ledger_picture(forged)
        shown_above(picture.title.split()[1], upper)
        (curve,) = epsilon_chart(forged).panels[0].curves
        shown_above(curve.name.split()[0], upper)


def test_the_chart_of_a_part_shows_the_whole_plan(path: Path) -> None:
    report = ran(path, 10)
    picture = ledger_picture(report)
    shown_above(picture.title.split()[1], report["epsilon_any_stop"])
    [budget, whole] = picture.panels[0].levels
    assert (budget.words, whole.y) == ("budget 8", report["epsilon_any_stop"])
    assert whole.words.startswith("whole plan")


def test_points_end_with_what_the_ledger_reads_although_rounds_were_given_back(
    ledger: Ledger,
) -> None:
    run = ledger.start_run("planned", 9 * ROUND)
    play(run, ROUND, 4)
    for _ in range(3):
        run.reserve(ROUND).abandon("nothing drawn")
    report = ledger.report()
    rounds = [point["round"] for point in report["points"]]
    assert rounds == sorted(set(rounds))
    assert report["points"][-1]["round"] == report["rounds"] == 4
    assert report["points"][-1]["upper"] == report["epsilon"]["upper"]
    run.reserve(ROUND).commit()
    assert ledger.report()["points"][-1]["upper"] > report["points"][-1]["upper"]
