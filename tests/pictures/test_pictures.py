"""Pictures as data: what is drawn is what was computed, and lies on the safe side."""

from __future__ import annotations

import json
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import dpacct
from dpacct import Budget, Full, Ledger, Poisson, Round, Schedule, Uniform
from dpacct.errors import InvalidParameter
from dpacct.pictures import (
    Picture,
    Setting,
    as_data,
    compare_picture,
    delta_picture,
    epsilon_picture,
    ledger_picture,
    rdp_picture,
    read_run,
    runs_picture,
    schedule_picture,
    tradeoff_picture,
)
from dpacct.pictures.drawing import Drawing
from dpacct.pictures.picture import day_ticks
from dpacct.pictures.records import TrainedRun
from dpacct.pictures.schedules import round_counts
from dpacct.rounds import first_rounds

PLAN = 60 * Round(1.0, Poisson(0.1)) + 40 * Round(2.0, Poisson(0.05))
SETTING = Setting("plan", PLAN, "tight")


def as_json(picture: Picture) -> Picture:
    """The picture, which is written as JSON without an infinite number."""
    json.dumps(as_data(picture), allow_nan=False)
    return picture


def test_epsilon_over_rounds_is_that_of_the_first_rounds() -> None:
    picture = as_json(epsilon_picture([SETTING], 1e-5, target=5.0))
    (curve,) = picture.panels[0].curves
    for rounds in (1.0, 100.0, curve.x[len(curve.x) // 2]):
        spent = dpacct.epsilon(first_rounds(PLAN, int(rounds)), delta=1e-5)
        at = list(curve.x).index(rounds)
        assert (curve.lower[at], curve.y[at]) == (spent.lower, spent.upper)
    assert list(curve.y) == sorted(curve.y)
    assert picture.panels[0].levels[0].y == 5.0


def test_the_title_says_what_a_looser_accountant_costs_at_a_budget() -> None:
    plan = 40 * Round(0.9178, Poisson(0.05))
    settings = [Setting(name, plan, name) for name in ("tight", "rdp")]
    picture = as_json(epsilon_picture(settings, 1e-5, target=3.0))
    # At epsilon 3, the noise multipliers are 0.91774 and 0.99543.
    assert picture.title == "The run meets epsilon 3 by tight; rdp asks for 8.5 % more noise"
    tight, loose = picture.panels[0].curves
    # What lies between the looser curve and the tighter one is no doubt about the schedule.
    assert loose.lower is None
    assert tight.lower[-1] == dpacct.epsilon(plan, delta=1e-5).lower
    for target in (2.9, 3.7):
        agreed = epsilon_picture(settings, 1e-5, target=target).title
        assert agreed == "Epsilon after 40 rounds: 3.000 (tight), 3.607 (rdp)"


@pytest.mark.slow
def test_fixed_cohorts_are_bounded_by_one_game() -> None:
    plan = 20 * Round(3.0, Uniform(40, 200))
    (curve,) = epsilon_picture([Setting("", plan, "tight")], 1e-4).panels[0].curves
    pairs = dpacct.epsilon(plan, delta=1e-4, accountant="pairs")
    assert pairs.lower == curve.lower[-1] < curve.y[-1] < pairs.upper
    assert all(low <= high for low, high in zip(curve.lower, curve.y, strict=True))


def test_the_first_rounds_of_a_schedule() -> None:
    for rounds in (1, 2, 7, 300, 10**9):
        found = round_counts(rounds)
        assert (found[0], found[-1], len(found) < 200) == (1, rounds, True)
        assert found == sorted(set(found))
    assert first_rounds(PLAN, 70) == 60 * Round(1.0, Poisson(0.1)) + 10 * Round(2.0, Poisson(0.05))
    assert first_rounds(PLAN, 100) == PLAN
    assert first_rounds(PLAN, 0) == Schedule()


def test_delta_falls_with_epsilon_and_is_that_of_the_accountant() -> None:
    picture = as_json(delta_picture([SETTING], at=2.0))
    (curve,) = picture.panels[0].curves
    assert list(curve.y) == sorted(curve.y, reverse=True)
    (mark,) = picture.panels[0].marks
    exact = dpacct.delta(PLAN, epsilon=2.0)
    assert exact.lower <= mark.y <= exact.upper * (1 + 1e-6)


def test_attacks_are_marked_on_the_tradeoff_curve() -> None:
    picture = as_json(tradeoff_picture([SETTING], [0.01]))
    (mark,) = picture.panels[0].marks
    proven = dpacct.risk.true_positive_rate(PLAN, fpr=0.01).upper
    assert mark.y == pytest.approx(proven, rel=1e-6)
    guessing, curve = picture.panels[0].curves
    assert all(tpr >= fpr for fpr, tpr in zip(guessing.y, curve.y, strict=True))


def test_the_best_order_is_marked_on_the_renyi_curve() -> None:
    picture = as_json(rdp_picture([SETTING], 1e-5))
    (mark,) = picture.panels[0].marks
    epsilon = dpacct.epsilon(PLAN, delta=1e-5, accountant="rdp").upper
    assert f"epsilon {dpacct.display.up(epsilon, 4)}" in mark.words
    (curve,) = picture.panels[0].curves
    assert min(curve.x) < mark.x < max(curve.x)


def test_a_schedule_has_noise_and_rate() -> None:
    noise, rate = schedule_picture(PLAN).panels
    assert (list(noise.curves[0].x), list(noise.curves[0].y)) == ([0, 60, 100], [1, 2, 2])
    assert list(rate.curves[0].y) == [0.1, 0.05, 0.05]
    with pytest.raises(InvalidParameter, match="at least one round"):
        schedule_picture(Schedule())
    # Many phases are thinned out.
    plan = dpacct.schedules.geometric(5000, 2.0, 1.0, Full())
    (curve,) = schedule_picture(plan).panels[0].curves
    assert len(curve.x) < 3000
    assert (curve.x[-1], curve.y[-1]) == (5000, 1.0)


def test_the_smallest_epsilon_is_the_finding() -> None:
    answers = [("a", 1.0, 2.0, ""), ("b", None, None, "does not apply"), ("c", None, 1.5, "")]
    picture = as_json(compare_picture(PLAN, 1e-5, answers))
    assert picture.title == "The smallest epsilon is 1.5000, by c"
    assert [bar.name for bar in picture.panels[0].bars] == ["c", "a", "b"]
    # A tie in all shown digits is said.
    answers += [("d", 1.0, 1.5 - 1e-9, ""), ("e", None, 1.5, "")]
    picture = compare_picture(PLAN, 1e-5, answers)
    assert picture.title == "The smallest epsilon is 1.5000, by d, c and e"
    assert [bar.name for bar in picture.panels[0].bars] == ["d", "c", "e", "a", "b"]


def test_a_ledger_has_its_budget_and_its_runs(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.ledger", Budget(8, 1e-5)) as ledger:
        with pytest.raises(InvalidParameter, match="at least one round"):
            ledger.plot()
        ledger.charge("search", 10 * Round(2.0, Poisson(0.1)))
        ledger.charge("final", 20 * Round(1.5, Poisson(0.1)))
        picture = ledger_picture(ledger.report())
        promised = ledger.epsilon_any_stop()
    (panel,) = picture.panels
    assert [(curve.name, list(curve.x)) for curve in panel.curves] == [
        ("search", [0.0, 10.0, 30.0]), ("final", [0.0, 10.0, 30.0]),
    ]  # fmt: skip
    assert panel.curves[-1].y[-1] == promised
    assert panel.curves[1].lower == panel.curves[0].y
    assert panel.levels[0].y == 8.0
    assert not panel.dates


def test_a_year_is_drawn_by_date_and_stacked_by_project(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.ledger", Budget(8, 1e-5)) as ledger:
        for number in range(9):
            project = "" if number > 2 else f"project {number % 2}"
            ledger.charge(f"run {number}", (9 + number) * Round(2.0, Poisson(0.1)), project=project)
        report: Any = ledger.report()
    for month, run in enumerate(report["runs"], 1):
        run["latest"] = f"2026-0{month}-14T12:00:00+00:00"
    picture = ledger_picture(report)
    (panel,) = picture.panels
    assert panel.dates
    names = [curve.name for curve in panel.curves]
    assert names[:2] == ["project 0", "project 1"]
    assert len(names) == 6
    assert "others" in names
    assert panel.curves[-1].y[-1] == pytest.approx(report["epsilon_any_stop"])
    for below, curve in pairwise(panel.curves):
        assert curve.lower == below.y
        assert all(low <= high for low, high in zip(below.y, curve.y, strict=True))
        assert list(curve.y) == sorted(curve.y)
    assert "Feb 26" in Drawing(picture).text()


def test_days_of_an_axis_are_few() -> None:
    first = date(2026, 1, 31).toordinal()
    assert day_ticks(first, first + 3)[1] == ["31 Jan", "01 Feb", "02 Feb", "03 Feb"]
    for days in (1, 20, 59, 365, 3000):
        assert 1 <= len(day_ticks(first, first + days)[1]) <= 13


def rows(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def test_runs_are_read_from_reports(tmp_path: Path) -> None:
    file = tmp_path / "one.report.jsonl"
    looked = {"epsilon_upper": 2.0, "test_accuracy": 0.5, "delta": 1e-5}
    file.write_text(rows({"epsilon_upper": 1.0}, looked, looked | {"epsilon_upper": 3.0}))
    run = read_run(file)
    assert (run.name, run.epsilon, run.accuracy) == ("one", (2.0, 3.0), (0.5, 0.5))
    assert runs_picture([run]).panels[0].curves[0].name == "one"


def test_runs_are_drawn_against_rounds_and_communication(tmp_path: Path) -> None:
    file = tmp_path / "one.report.jsonl"
    steps = [{"round": n, "bytes_down": 4 * 10**6, "bytes_up": 10**6} for n in (1, 2, 3, 4)]
    seen = [row | ({"validation_accuracy": row["round"] / 10} if row["round"] % 2 == 0 else {})
            for row in steps]  # fmt: skip
    file.write_text(rows(*seen))
    for against, xs in (("round", (2, 4)), ("megabytes", (10, 20))):
        [panel] = runs_picture([read_run(file, against)], against).panels
        assert (panel.curves[0].x, panel.curves[0].y) == (xs, [0.2, 0.4])
        assert panel.y == "accuracy on the validation set"
    # Without noise there is no epsilon.
    with pytest.raises(InvalidParameter, match="no validation accuracy with a bounded epsilon"):
        read_run(file)
    file.write_text(rows(*({"test_accuracy": 0.5, "round": bad} for bad in (None, "1", 10**400))))
    with pytest.raises(InvalidParameter, match="no test accuracy with a place by round"):
        read_run(file, "round")


def test_repeats_of_a_run_are_a_mean_in_a_band() -> None:
    low = [TrainedRun(f"one-{n}", (0.5, 1.0), (0.5, 0.6 + 0.1 * n), 1e-5) for n in range(3)]
    high = [TrainedRun("eight", (4.0, 8.0), (0.8, 0.9), 1e-5)]
    picture = runs_picture([*high, *low])
    assert picture.title == "Epsilon 1 instead of 8 costs 20 points of accuracy"
    eight, one = picture.panels[0].curves
    assert (eight.name, eight.lower, one.name) == ("eight", None, "one")
    assert (one.y[-1], one.lower, one.upper) == (pytest.approx(0.7), [0.5, 0.6], [0.5, 0.8])
    assert "repeats" in picture.note
    # Runs of other lengths are no repeats.
    other = TrainedRun("one-9", (0.5,), (0.5,), 1e-5)
    names = [curve.name for curve in runs_picture([*low, other]).panels[0].curves]
    assert names == ["one", "one-9"]
    assert "ends best" in runs_picture(low).title


@pytest.mark.parametrize("text", ["", "not json", "[1]\n", '{"epsilon_upper": null}\n'])
def test_reports_that_say_nothing_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text(text)
    with pytest.raises(InvalidParameter, match="report is"):
        read_run(file)
    with pytest.raises(InvalidParameter, match="cannot be read"):
        read_run(tmp_path / "none.jsonl")
