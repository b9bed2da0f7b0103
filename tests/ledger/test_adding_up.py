"""Adding up never loses: pure releases alone, beside plans, in parts, given back, and counted."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpacct
from dpacct import (
    ApproximateDP,
    Budget,
    BudgetExceeded,
    DiscreteLaplace,
    ExponentialMechanism,
    Laplace,
    Ledger,
    Poisson,
    PureDP,
    RandomizedResponse,
    Round,
    Schedule,
)
from dpacct.ledger import Guarantee
from dpacct.renyi.odometer import Odometer, design_mixture
from ledgers import play

BUDGET = Budget(2, 1e-5)
TRAINING = 1000 * Round(1.0, Poisson(0.01))
HISTOGRAM = Laplace(epsilon=0.1)
# Each by its own epsilon. The epsilon of a scale is rounded up, so the scale has room for that.
PURE = (
    lambda e: Laplace(epsilon=e), PureDP, RandomizedResponse, ExponentialMechanism,
    lambda e: DiscreteLaplace((1 + 1e-15) / e),
)  # fmt: skip


def tight(plan: Schedule, delta: float = 1e-5) -> float:
    return dpacct.epsilon(plan, delta=delta).upper


@given(st.lists(st.tuples(st.sampled_from(PURE), st.integers(1, 300)), min_size=1, max_size=8))
def test_pure_releases_read_their_sum_or_less_and_fill_a_budget_exactly(drawn) -> None:
    releases = [kind(cents / 100) for kind, cents in drawn]
    total = float(Fraction(sum(cents for _, cents in drawn), 100))
    odometer, larger = Odometer(Budget(total, 1e-9)), Odometer(Budget(100 * total, 1e-9))
    for release in releases:
        assert odometer.remaining(release) >= 1
        odometer.add(release)
        larger.add(release)
    for found in (odometer.epsilon, larger.epsilon):
        assert found <= total
        assert found >= dpacct.epsilon(sum(releases[1:], 1 * releases[0]), delta=1e-9).lower


def test_one_release_that_is_not_pure_leaves_the_orders_alone() -> None:
    odometer, mixture = Odometer(BUDGET), design_mixture(BUDGET)
    odometer.add(HISTOGRAM, 3)
    assert mixture.largest_loss(odometer._totals) == Fraction(3, 10)
    odometer.add(Round(30.0, Poisson(0.01)))
    assert mixture.largest_loss(odometer._totals) is None
    assert odometer.epsilon > 0.3


@pytest.mark.parametrize("epsilon", [2, 3, 100])
def test_a_release_beside_a_plan_adds_its_epsilon(tmp_path: Path, epsilon: float) -> None:
    alone = tight(TRAINING)
    with Ledger.open(tmp_path / "x", Budget(epsilon, 1e-5)) as ledger:
        ledger.charge(TRAINING, name="training")
        ledger.charge(HISTOGRAM, name="ages")
        assert alone < ledger.upper_epsilon() == ledger.epsilon_any_stop() <= alone + 0.1 + 1e-9
        assert ledger.guarantee is Guarantee.PLANNED
        summary = ledger.summary()
        assert "The pure rounds beside the plans add 0.1 in all" in summary["claim"]
        assert "Every round that is not pure was planned" in summary["claim"]
        # A round that is not pure is read, and admitted, by the adaptive bound.
        if epsilon > 2:
            ledger.charge(Round(40.0, Poisson(0.01)), name="a look")
            assert ledger.guarantee is Guarantee.ADAPTIVE
            assert ledger.upper_epsilon() > alone + 0.1
        assert ledger.verify().sound


def test_what_fits_beside_a_plan_fits_at_the_delta_that_is_set_aside(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "x", BUDGET) as ledger:
        ledger.charge(TRAINING, name="training")
        state = ledger.summary()
        assert state["plan_delta"] + state["adaptive_delta"] <= 1e-5
        room = 2 - tight(TRAINING, state["plan_delta"])
        count = ledger.remaining(Laplace(epsilon=0.01))
        assert count == math.floor(room / 0.01)
        ledger.charge(count * Laplace(epsilon=0.01), name="statistics")
        with pytest.raises(BudgetExceeded, match="between the plans and other charges"):
            ledger.charge(Laplace(epsilon=0.01), name="one more")
        assert ledger.upper_epsilon() <= 2
        assert ledger.verify().sound


def test_a_planned_gaussian_counts_before_it_has_run(tmp_path: Path) -> None:
    plan = dpacct.calibrate(epsilon=2, delta=1e-5, rounds=10, sampling_rate=1.0).schedule
    with Ledger.open(tmp_path / "x", BUDGET) as ledger:
        run = ledger.start_run("planned", plan)
        assert ledger.remaining_one_by_one(HISTOGRAM) == 0
        with pytest.raises(BudgetExceeded, match="Budget for planned rounds is held by run 1"):
            ledger.start_run("statistics").reserve(HISTOGRAM)
        run.finish()
        # Nothing has run, so all of the budget is there again.
        play(ledger.start_run("statistics"), HISTOGRAM, 20)
        assert ledger.upper_epsilon() <= 2
        assert ledger.verify().sound


def test_a_plan_that_was_begun_counts_whole_whenever_it_ends(tmp_path: Path) -> None:
    plan = dpacct.calibrate(epsilon=1.5, delta=1e-5, rounds=10, sampling_rate=1.0).schedule
    with Ledger.open(tmp_path / "x", BUDGET) as ledger:
        run = ledger.start_run("planned", plan)
        play(run, plan.phases[0].round, 1)
        before = ledger.remaining(Laplace(epsilon=0.01))
        run.finish()
        # Results decided to stop. The adaptive bound has the rest again, the sum has not.
        assert ledger.remaining(Laplace(epsilon=0.01)) >= before > 10
        ledger.charge(before * Laplace(epsilon=0.01), name="statistics")
        assert ledger.upper_epsilon() <= 2
        assert ledger.verify().sound


def test_a_run_that_leaves_its_plan_by_a_pure_release_still_adds_up(tmp_path: Path) -> None:
    plan = 10 * Round(20.0)
    with Ledger.open(tmp_path / "x", BUDGET) as ledger:
        run = ledger.start_run("planned", plan)
        play(run, Round(20.0), 10)
        run.reserve(Laplace(epsilon=0.05)).commit()
        assert not run.on_plan
        assert ledger.upper_epsilon() <= tight(plan) + 0.05 + 1e-9
        assert run.upper_epsilon() >= tight(plan)
        assert ledger.verify().sound


def test_a_release_that_is_given_back_makes_room_again(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "x", Budget(1, 1e-9)) as ledger:
        run = ledger.start_run("statistics")
        play(run, HISTOGRAM, 9)
        ticket = run.reserve(HISTOGRAM)
        with pytest.raises(BudgetExceeded):
            run.reserve(HISTOGRAM)
        ticket.abandon("nothing drawn")
        look = run.reserve(Round(1e4))
        look.abandon("nothing drawn")
        # All that counts is pure again.
        run.reserve(HISTOGRAM).commit()
        # A crash leaves its release charged.
        assert ledger.upper_epsilon() == 1
        assert ledger.remaining(PureDP(1e-9)) == 0
        assert ledger.verify().sound


def test_each_partition_adds_the_sum_of_its_worst_part(tmp_path: Path) -> None:
    partitions = {"country": ["DE", "FR"], "year": ["2024", "2025"]}
    with Ledger.open(tmp_path / "x", Budget(1, 1e-9), partitions=partitions) as ledger:
        for part, count in (("country=DE", 3), ("country=FR", 4), ("year=2025", 2), ("", 4)):
            ledger.charge(count * HISTOGRAM, name=part or "all", part=part)
        assert ledger.upper_epsilon() == 1
        ledger.charge(HISTOGRAM, name="Germany", part="country=DE")
        with pytest.raises(BudgetExceeded, match="about country=DE does not fit"):
            ledger.charge(PureDP(1e-9), name="Germany", part="country=DE")
        assert ledger.upper_epsilon() == 1
        assert ledger.verify().sound


@pytest.mark.parametrize("aside", [0.0, 2e-6])
def test_promises_beside_a_plan_need_the_delta_that_was_set_aside(
    tmp_path: Path, aside: float
) -> None:
    promise = ApproximateDP(0.01, 1e-6)
    with Ledger.open(tmp_path / "x", Budget(3, 1e-5), promised_delta=aside) as ledger:
        ledger.charge(TRAINING, name="training")
        fits = round(aside / 1e-6)
        assert ledger.remaining(promise) == fits
        for _ in range(fits):
            ledger.charge(promise, name="promise")
        with pytest.raises(BudgetExceeded, match="infinite with probability"):
            ledger.charge(promise, name="one more")
        # The plan is read at what is left of delta.
        ledger.charge(HISTOGRAM, name="ages")
        read = tight(TRAINING, 1e-5 - aside) + 0.01 * fits + 0.1
        assert ledger.upper_epsilon() == pytest.approx(read, rel=1e-9)
        assert ledger.verify().sound


def test_a_project_and_a_run_read_their_sums(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "x", Budget(50, 1e-9)) as ledger:
        for name in "abc":
            ledger.charge(HISTOGRAM, name=name, project="statistics")
        run = ledger.start_run("as they come")
        play(run, HISTOGRAM, 7)
        (project,) = ledger.summary()["projects"]
        # The first release is a plan, which at delta costs a little less than its epsilon.
        assert 0.3 - 1e-8 < project["epsilon"] <= 0.3
        assert (run.upper_epsilon(), ledger.upper_epsilon()) == (0.7, 1.0)


def test_a_project_reads_its_plan_and_its_sums(tmp_path: Path) -> None:
    alone = tight(TRAINING)
    with Ledger.open(tmp_path / "x", Budget(50, 1e-5), partitions={"half": ["a", "b"]}) as ledger:
        ledger.start_run("given up", TRAINING, project="plan and statistics").finish()
        ledger.charge(TRAINING, name="training", project="plan and statistics")
        ledger.charge(HISTOGRAM, name="ages", project="plan and statistics")
        for part in ("half=a", "half=b"):
            ledger.charge(HISTOGRAM, name=part, project="plan and statistics", part=part)
        ledger.charge(TRAINING, name="later", project="later plan")
        play(ledger.start_run("as they come", project="neither"), Round(8.0), 2)
        seeded = ledger.start_run("seeded", private=False, project="without privacy")
        read = {one["name"]: one["epsilon"] for one in ledger.summary()["projects"]}
        assert read["without privacy"] == 0
        play(seeded, Round(8.0), 1)
        again = {one["name"]: one["epsilon"] for one in ledger.summary()["projects"]}
    # The halves cost as much as one of them.
    assert alone + 0.2 <= read["plan and statistics"] <= alone + 0.2 + 1e-9
    assert read["later plan"] == alone
    assert read["neither"] > tight(2 * Round(8.0))
    assert again == read | {"without privacy": None}


def test_a_project_that_left_its_plan_reads_the_adaptive_bound(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "x", BUDGET) as ledger:
        run = ledger.start_run("training", 5 * Round(8.0), project="p")
        play(run, Round(8.0), 2)
        play(run, Round(7.0), 1)
        (project,) = ledger.summary()["projects"]
        assert project["epsilon"] > tight(2 * Round(8.0) + Round(7.0))
        assert project["epsilon"] == pytest.approx(ledger.upper_epsilon(), rel=0.02)


ITEMS = (HISTOGRAM, PureDP(0.3), ApproximateDP(0.1, 1e-6), Round(8.0), Round(20.0))


@settings(max_examples=6)
@given(
    st.lists(st.tuples(st.sampled_from(ITEMS), st.integers(1, 3)), max_size=3),
    st.sampled_from(ITEMS),
    st.sampled_from([0.0, 3e-6, 1e-5]),
)
def test_remaining_is_what_one_charge_holds(tmp_path_factory, before, item, aside) -> None:
    path = tmp_path_factory.mktemp("any") / "x"
    with Ledger.open(path, BUDGET, promised_delta=aside) as ledger:
        for other, count in before:
            try:
                ledger.charge(count * other, name="before")
            except BudgetExceeded:
                continue
        most = ledger.remaining(item)
        with pytest.raises(BudgetExceeded):
            ledger.charge((most + 1) * item, name="too much")
        if most:
            ledger.charge(min(most, 50) * item, name="all that fits, or some of it")
            assert ledger.upper_epsilon() <= 2
            assert most > 50 or ledger.remaining_one_by_one(item) == 0
        found = ledger.verify()
        assert found.sound, found.problems
