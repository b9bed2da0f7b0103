"""The rules of a ledger: the life of a round, plans, budgets, several runs, resuming."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from operator import ge
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpacct
import dpacct.schedules.shapes
from dpacct import (
    Adjacency,
    Budget,
    BudgetExceeded,
    InvalidParameter,
    Laplace,
    Ledger,
    LedgerError,
    Poisson,
    Round,
    Schedule,
    Uniform,
)
from dpacct.items import read_alone
from dpacct.ledger import Event, Guarantee, NoisySum
from dpacct.ledger.record.entries import Kind, Start
from dpacct.ledger.record.plans import Plan, schedule_cost
from dpacct.ledger.record.state import charge_of, started_run
from dpacct.renyi.odometer import Odometer, add, as_float, times
from dpacct.rounds import Phase
from ledgers import BUDGET, ROUND, play


@pytest.fixture(scope="module")
def exact() -> Schedule:
    """A plan of 40 rounds that takes the whole budget."""
    return dpacct.calibrate(epsilon=8, delta=1e-5, rounds=40, sampling_rate=0.1).schedule


def odometer(*rounds: tuple[Round, int]) -> float:
    found = Odometer(BUDGET)
    for round_, count in rounds:
        found.add(round_, count)
    return found.epsilon


@pytest.mark.parametrize(
    ("plan", "ahead", "most"), [(None, 1, 250), (900 * ROUND, 1, 250), (900 * ROUND, 64, 140)]
)
def test_a_round_takes_the_place_that_the_page_says(
    tmp_path: Path, plan: Schedule | None, ahead: int, most: int
) -> None:
    path, sizes = tmp_path / "a.ledger", list[int]()
    with Ledger.open(path, Budget(80, 1e-5), passing=True) as ledger:
        run = ledger.start_run("one", plan=plan)
        for rounds in (64, 640):
            for _ in range(rounds):
                run.reserve(ROUND, ahead=ahead).commit()
            sizes.append(path.stat().st_size)
        ledger.charge("100,000 rounds", 100_000 * Round(90.0, Poisson(0.001)))
    assert 0.8 * most < (sizes[1] - sizes[0]) / 640 < 1.05 * most
    assert path.stat().st_size - sizes[1] < 20_000
    page = Path(__file__).parents[2] / "docs" / "how-to" / "ledger.md"
    assert "A round takes 250 bytes" in page.read_text(encoding="utf-8")


def test_reserve_and_commit_are_on_disk_at_once(ledger: Ledger, path: Path) -> None:
    assert (ledger.rounds, ledger.runs, ledger.adjacency) == (0, (), None)
    assert ledger.epsilon() == dpacct.Spent(0.0, 0.0, 1e-5)
    numbers: list[Any] = [0, 1, -1, 7, None, [], {}, "1", 1.0]
    for number in numbers:
        with pytest.raises(LedgerError, match="there is no run"):
            ledger.resume_run(number)
    ticket = ledger.start_run("one").reserve(ROUND)
    with Ledger.open(path, read_only=True) as other:
        assert (other.rounds, other.runs[0].committed) == (1, 0)
    ticket.draw()
    ticket.commit({"loss": 0.25})
    with Ledger.open(path, read_only=True) as other:
        assert (other.rounds, other.runs[0].committed, other.budget) == (1, 1, BUDGET)
        assert list(other.export())[-1]["data"]["details"] == {"loss": 0.25}
    with pytest.raises(InvalidParameter, match="A budget is chosen once"):
        Ledger.open(path, Budget(9, 1e-5))
    with pytest.raises(InvalidParameter, match=r"Ledger\.open"):
        Ledger("a.ledger")  # type: ignore[arg-type]


def test_a_reserved_round_counts_although_it_never_commits(path: Path) -> None:
    with Ledger.open(path, BUDGET) as first:
        run = first.start_run("crashes")
        run.reserve(ROUND).commit()
        run.reserve(ROUND)
        spent = run.upper_epsilon()
    with Ledger.open(path, BUDGET) as second:
        again = second.resume_run(1)
        assert (again.rounds, again.committed, again.name) == (2, 1, "crashes")
        assert again.upper_epsilon() == spent


def test_abandoning_gives_back_what_was_charged_and_stays_visible(ledger: Ledger) -> None:
    run = ledger.start_run("one")
    play(run, ROUND, 3)
    before = run.upper_epsilon()
    ticket = run.reserve(Round(2.0))
    assert run.upper_epsilon() > before
    ticket.abandon("the data were not there")
    assert (run.upper_epsilon(), run.rounds) == (before, 3)
    assert list(ledger.export())[-1]["data"]["reason"] == "the data were not there"
    assert ledger.verify().sound


@pytest.mark.parametrize("steps", ["draw abandon", "commit abandon", "commit commit",
                                   "abandon commit", "abandon abandon", "abandon draw",
                                   "commit draw"])  # fmt: skip
def test_a_ticket_rejects_what_may_not_follow(ledger: Ledger, steps: str) -> None:
    ticket = ledger.start_run("one").reserve(ROUND)
    calls = {name: getattr(ticket, name) for name in ("draw", "commit")}
    calls["abandon"] = lambda: ticket.abandon("because")
    first, second = steps.split()
    calls[first]()
    with pytest.raises(LedgerError, match=r"round \d+ is (drawn|committed|abandoned)"):
        calls[second]()
    assert ledger.verify().sound


@pytest.fixture
def small(path: Path) -> Iterator[Ledger]:
    with Ledger.open(path, Budget(2, 1e-5)) as opened:
        yield opened


def test_a_round_that_does_not_fit_is_rejected_before_anything_is_written(small: Ledger) -> None:
    ledger, run = small, small.start_run("one")
    play(run, ROUND, ledger.remaining_one_by_one(ROUND))
    assert ledger.remaining(ROUND) == ledger.remaining_one_by_one(ROUND) == 0
    head = ledger.head
    with pytest.raises(BudgetExceeded, match=r"With it, it would read 2\.0"):
        run.reserve(ROUND)
    assert ledger.head == head
    assert run.upper_epsilon() <= 2
    assert ledger.remaining(Round(1.3, Poisson(0.01))) >= 1


def test_the_reading_is_that_of_the_odometer_over_all_runs(ledger: Ledger) -> None:
    runs = [ledger.start_run("one"), ledger.start_run("two")]
    kinds = [Round(noise, Poisson(0.05)) for noise in (1.0, 2.0, 1.5)]
    for round_ in kinds:
        for run in runs:
            run.reserve(round_).commit()
    assert ledger.upper_epsilon() == odometer(*((round_, 2) for round_ in kinds))
    assert runs[0].upper_epsilon() == runs[1].upper_epsilon() < ledger.upper_epsilon()
    assert ledger.guarantee is Guarantee.ADAPTIVE


# Plans


def test_a_plan_that_meets_the_budget_exactly_runs_to_its_end(
    ledger: Ledger, exact: Schedule
) -> None:
    run, planned = ledger.start_run("planned", exact), exact.phases[0].round
    # The odometer alone would have stopped earlier.
    assert Odometer(BUDGET).remaining(planned) < 40
    play(run, planned, 20)
    half = dpacct.epsilon(20 * planned, delta=1e-5, accountant="tight")
    assert run.epsilon().upper == pytest.approx(half.upper, rel=1e-9)
    assert run.epsilon().lower == pytest.approx(half.lower, rel=1e-9)
    # It cannot be left; more noise, or a lower rate, is within it.
    with pytest.raises(BudgetExceeded, match="charged by the adaptive bound"):
        run.reserve(Round(planned.noise_multiplier * 0.9, Poisson(0.1)))
    play(run, Round(planned.noise_multiplier * 2, Poisson(0.02)), 1)
    play(run, planned, 19)
    assert run.guarantee is ledger.guarantee is Guarantee.PLANNED
    assert ledger.epsilon().upper <= 8
    assert run.planned_epsilon() <= 8
    with pytest.raises(BudgetExceeded):
        run.reserve(planned)
    assert ledger.verify().sound


def test_a_plan_too_large_is_rejected_as_a_whole(ledger: Ledger) -> None:
    head = ledger.head
    with pytest.raises(BudgetExceeded, match=r"the plan of 1,000 rounds .* alone it needs"):
        ledger.start_run("planned", 1000 * ROUND)
    assert ledger.head == head
    first = ledger.start_run("first", 200 * ROUND)
    with pytest.raises(BudgetExceeded, match="with the plans"):
        ledger.start_run("second", 200 * ROUND)
    # Plans that fit compose tightly.
    other = Round(1.4, Poisson(0.1))
    second = ledger.start_run("second", 20 * other)
    play(first, ROUND, 200)
    play(second, other, 20)
    both = dpacct.epsilon(200 * ROUND + 20 * other, delta=1e-5, accountant="tight")
    assert ledger.guarantee is Guarantee.PLANNED
    assert ledger.upper_epsilon() == pytest.approx(both.upper, rel=1e-6)
    assert ledger.verify().sound


def test_a_plan_made_after_rounds_have_run_is_charged_adaptively(ledger: Ledger) -> None:
    play(ledger.start_run("look"), ROUND, 50)
    run = ledger.start_run("late", 20 * ROUND)
    play(run, ROUND, 20)
    assert (run.guarantee, ledger.guarantee) == (Guarantee.PLANNED, Guarantee.ADAPTIVE)
    assert ledger.upper_epsilon() == odometer((ROUND, 70))
    with pytest.raises(BudgetExceeded, match="What fits: 167 such rounds"):
        ledger.start_run("later", 500 * ROUND)


def test_room_is_held_for_a_plan_until_its_run_is_finished(path: Path) -> None:
    with Ledger.open(path, Budget(4, 1e-5)) as ledger:
        planned, other = ledger.start_run("planned", 30 * ROUND), ledger.start_run("other")
        # A round outside the plans has seven eighths of delta.
        free = ledger.remaining_one_by_one(ROUND)
        assert 15 < free < ledger.remaining(ROUND) <= 51
        play(planned, ROUND, 5)
        assert ledger.remaining(ROUND) == free
        play(other, ROUND, free)
        with pytest.raises(BudgetExceeded, match="with the budget held for plans"):
            other.reserve(ROUND)
        play(planned, ROUND, 5)
        planned.finish()
        assert ledger.remaining(ROUND) == 20
        play(other, ROUND, 20)
        assert ledger.upper_epsilon() <= 4
        with pytest.raises(LedgerError, match="finished"):
            planned.reserve(ROUND)
        assert ledger.verify().sound


def test_leaving_a_plan_falls_back_to_the_adaptive_bound_visibly(ledger: Ledger) -> None:
    run = ledger.start_run("planned", 30 * ROUND)
    play(run, ROUND, 10)
    before = run.upper_epsilon()
    run.reserve(Round(1.2, Poisson(0.1))).commit()
    assert not run.on_plan
    assert run.guarantee is ledger.guarantee is Guarantee.ADAPTIVE
    assert run.upper_epsilon() > before
    entry = list(ledger.export())[-2]
    assert (entry["kind"], entry["data"]["s"]) == ("reserve", None)
    with pytest.raises(LedgerError, match="no plan"):
        run.planned_epsilon()
    assert ledger.verify().sound


def test_what_plans_leave_of_delta_is_for_rounds_outside_them(ledger: Ledger) -> None:
    half = dpacct.calibrate(epsilon=8, delta=5e-6, rounds=40, sampling_rate=0.1).schedule
    planned = half.phases[0].round
    other = Round(planned.noise_multiplier * 0.9, Poisson(0.1))
    run = ledger.start_run("planned", half)
    play(run, planned, 5)
    summary = ledger.summary()
    # The plan needs more of delta than rounds beside it do.
    assert summary["plan_delta"] == pytest.approx(7 / 8 * 1e-5)
    assert summary["plan_delta"] + summary["adaptive_delta"] <= 1e-5
    run.reserve(other).commit()
    assert ledger.guarantee is Guarantee.ADAPTIVE
    # The same totals at less than the whole delta.
    assert ledger.upper_epsilon() > odometer((planned, 5), (other, 1))
    assert ledger.verify().sound


LATE = Round(1.3, Poisson(0.2))


@pytest.mark.parametrize(
    ("plan", "steps", "on_plan", "held"),
    [
        # Skipped rounds may not be repeated.
        (3 * ROUND + 2 * LATE, "c l l", True, 0),
        (3 * ROUND + 2 * LATE, "c l l c", False, 0),
        # A slot for which others were skipped does not come back.
        (3 * ROUND + 2 * LATE, "L", True, 1),
        (3 * ROUND + 2 * LATE, "L l", True, 0),
        # An abandoned slot is used again, unless others followed it.
        (2 * ROUND + 1 * LATE, "c C c l", True, 0),
        (3 * ROUND, "CC c", True, 0),
        (3 * ROUND, "CC c c", False, 0),
    ],
)
def test_the_slots_of_a_plan(
    ledger: Ledger, plan: Schedule, steps: str, held: int, *, on_plan: bool
) -> None:
    """Small letters are committed, large ones abandoned; CC: the second of two is committed."""
    run = ledger.start_run("planned", plan)
    for step in steps.split():
        ticket = run.reserve(ROUND if step[0] in "cC" else LATE)
        if step == "CC":
            second = run.reserve(ROUND)
            ticket.abandon("late")
            second.commit()
        elif step.isupper():
            ticket.abandon("nothing drawn")
        else:
            ticket.commit()
    assert (run.on_plan, run.held) == (on_plan, held)
    assert ledger.verify().sound


def test_a_finished_plan_before_the_first_round_gives_its_share_back(
    ledger: Ledger, exact: Schedule
) -> None:
    mistake = ledger.start_run("mistake", exact)
    with pytest.raises(BudgetExceeded):
        ledger.start_run("right", exact)
    mistake.finish()
    play(ledger.start_run("right", exact), exact.phases[0].round, 40)
    assert ledger.guarantee is Guarantee.PLANNED
    assert ledger.verify().sound


def test_remaining_counts_the_repetitions_of_a_step(ledger: Ledger) -> None:
    assert ledger.remaining(1 * ROUND) == ledger.remaining(ROUND)
    assert ledger.remaining(3 * ROUND) == ledger.remaining(ROUND) // 3
    step = ROUND + Laplace(epsilon=0.05)
    with pytest.raises(InvalidParameter, match="at least one round"):
        ledger.remaining(Schedule())
    fitting, one_by_one = ledger.remaining(step), ledger.remaining_one_by_one(step)
    assert 0 < one_by_one < fitting < ledger.remaining(ROUND)
    with pytest.raises(BudgetExceeded):
        ledger.charge("too much", (fitting + 1) * step)
    ledger.charge("elsewhere", fitting * step)
    assert ledger.remaining(step) == 0


def test_remaining_as_plan_is_what_a_plan_may_have(ledger: Ledger) -> None:
    most = ledger.remaining_as_plan(ROUND)
    assert most == ledger.remaining(ROUND) > ledger.remaining_one_by_one(ROUND)
    with pytest.raises(BudgetExceeded):
        ledger.start_run("too long", (most + 1) * ROUND)
    ledger.start_run("longest", most * ROUND).reserve(ROUND).commit()
    assert ledger.remaining_as_plan(ROUND) == 0


@pytest.mark.parametrize("started", [False, True])
def test_remaining_as_plan_rejects_what_a_plan_rejects(ledger: Ledger, *, started: bool) -> None:
    if started:
        ledger.charge(ROUND, name="before")
    for ask in (
        ledger.remaining_as_plan,
        lambda *how: ledger.charge(ROUND, name="x", accountant=how[-1]),
    ):
        with pytest.raises(InvalidParameter, match="accountant is 'gdp'; a plan is charged by"):
            ask(ROUND, "gdp")


@pytest.mark.slow
def test_a_plan_of_many_different_rounds(ledger: Ledger) -> None:
    plan = dpacct.schedules.shapes.linear(200, 3.0, 2.0, Poisson(0.05))
    run = ledger.start_run("decay", plan)
    for round_, count in plan:
        play(run, round_, count)
    assert (run.on_plan, run.rounds) == (True, 200)
    assert min(run.totals().held) >= 0
    assert ledger.verify().sound


# What is charged, and under which adjacency


def test_several_releases_of_a_round_are_charged_as_one(ledger: Ledger) -> None:
    releases = (NoisySum("update", 1.0, 0.5), NoisySum("quantile", 10.0, 0.5))
    event = Event(Round(1.0, Poisson(0.1)), releases, {"server_lr": 0.1})
    run = ledger.start_run("one", 5 * event.charged)
    ticket = run.reserve(event)
    assert ticket.event is event
    ticket.commit()
    assert run.on_plan
    said, entry = (next(e["data"] for e in ledger.export() if e["kind"] == kind)
                   for kind in ("reserve", "kind"))  # fmt: skip
    assert read_alone(entry["charged"]) == event.charged
    assert [r["name"] for r in entry["releases"]] == ["update", "quantile"]
    assert said["details"] == {"server_lr": 0.1}
    assert ledger.remaining(event) == ledger.remaining(event.charged)


def test_one_round_outside_the_plans_makes_the_whole_ledger_adaptive_for_good(
    ledger: Ledger,
) -> None:
    run, other = ledger.start_run("planned", 3 * ROUND), ledger.start_run("as it goes")
    play(other, Round(30.0, Poisson(0.01)), 1)
    play(run, ROUND, 3)
    assert (run.guarantee, ledger.guarantee) == (Guarantee.PLANNED, Guarantee.ADAPTIVE)
    assert ledger.upper_epsilon() >= odometer((ROUND, 3), (Round(30.0, Poisson(0.01)), 1))


def test_no_more_is_freed_than_was_held_and_many_rounds_are_held_for_at_their_sum(
    ledger: Ledger,
) -> None:
    mixture = ledger._file.known.opening.mixture
    # Rounds of the second kind are rounded up one by one, by more than the curve of all of them.
    for noise, rate in ((1.0, 0.01), (100.0, 1e-3)):
        many = Schedule(Phase(Round(noise + k / 7, Poisson(rate)), 9 + k) for k in range(70))
        alone = [times(count, mixture.cost(round_)) for round_, count in many]
        assert all(map(ge, schedule_cost(mixture, many), add(*alone)))
    # Held by another version, which bounded the cost of the plan a little lower.
    before, less = ledger._file.now().state, tuple(part - 1 for part in mixture.cost(ROUND))
    start = Start("x", Plan(1 * ROUND), True, {}, cost=less)
    _, state = started_run(before, start)
    kind = Kind(ROUND, None, (), mixture.cost(ROUND))
    charge = charge_of(mixture, Plan(1 * ROUND), state, kind, 1, 0)
    assert charge.freed == less
    assert charge.cost == mixture.within_plans(mixture.cost(ROUND))


@pytest.mark.parametrize("private", ["False", "no", 0, None, 1])
def test_private_is_true_or_false_and_nothing_like_it(ledger: Ledger, private: Any) -> None:
    for start in (ledger.start_run, ledger.charge):
        with pytest.raises(InvalidParameter, match="private"):
            start("x", ROUND, private=private)
    with pytest.raises(InvalidParameter, match="over_budget"):
        ledger.charge("x", ROUND, over_budget=private)
    assert ledger.runs == ()


def test_a_run_that_is_not_private_has_no_guarantee_and_takes_the_ledgers(ledger: Ledger) -> None:
    run = ledger.start_run("seeded", private=False)
    assert ledger.upper_epsilon() == 0.0
    ticket = run.reserve(ROUND)
    assert run.upper_epsilon() == run.epsilon().upper == ledger.upper_epsilon() == math.inf
    assert run.guarantee is ledger.guarantee is Guarantee.NONE
    assert run.nominal_epsilon().upper < 8
    assert ledger.summary()["runs"][0]["epsilon"]["upper"] is None
    ticket.abandon("nothing was drawn")
    assert math.isfinite(ledger.upper_epsilon())


def test_all_rounds_share_one_adjacency(path: Path, ledger: Ledger) -> None:
    run, other = ledger.start_run("one"), Round(9.0, Uniform(1, 100))
    run.reserve(ROUND).commit()
    assert ledger.adjacency is Adjacency.ADD_REMOVE
    for use in (
        lambda: run.reserve(other),
        lambda: ledger.start_run("two", 3 * other),
        lambda: ledger.remaining(other),
    ):
        with pytest.raises(InvalidParameter, match="share one adjacency"):
            use()
    with pytest.raises(InvalidParameter, match="replace-one"):
        Ledger.open(path, adjacency="replace-one")
    new = path.with_name("other")
    with Ledger.open(new, BUDGET, adjacency="zero-out", unit="writer") as chosen:
        assert (chosen.adjacency, chosen.unit) == (Adjacency.ZERO_OUT, "writer")
        with pytest.raises(InvalidParameter):
            chosen.start_run("one").reserve(other)


# Input that is none


@pytest.mark.parametrize("odd", [None, 5, math.nan, True, "x", b"x", (), [ROUND], {}, object()])
def test_odd_values_are_rejected_by_name(ledger: Ledger, odd: Any) -> None:
    calls: list[tuple[str, Callable[[Any], object]]] = [
        ("plan", lambda odd: ledger.start_run("a", plan=odd)),
        ("rounds", lambda odd: ledger.charge("a", odd)),
        ("round", ledger.remaining),
        ("round", ledger.remaining_as_plan),
        ("position", lambda odd: ledger.require(odd, "the test")),
        ("head", ledger.verify),
        ("releases", lambda odd: Event(ROUND, odd)),
    ]
    allowed = {"plan": [None], "head": [None, "x"], "releases": [(), {}]}
    for name, call in calls:
        if odd not in allowed.get(name, []):
            with pytest.raises(InvalidParameter, match=f"^{name} is "):
                call(odd)
    assert ledger.verify().entries == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda ledger: ledger.start_run("a", plan=Schedule()),
        lambda ledger: ledger.start_run("a").reserve("round"),
        lambda ledger: ledger.start_run("a").reserve(3 * ROUND),
        lambda ledger: ledger.start_run("a").reserve(ROUND).commit({"x": {1, 2}}),
        lambda ledger: Ledger.open(ledger.path.with_name("new"), (8, 1e-5)),
    ],
)
def test_bad_input_is_rejected_and_leaves_a_sound_ledger(ledger: Ledger, wrong: object) -> None:
    with pytest.raises(InvalidParameter):
        wrong(ledger)  # type: ignore[operator]
    assert ledger.verify().sound


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "commit", "abandon", "finish", "resume", "start", "plan"]),
        st.integers(0, 3),
        st.sampled_from([1.1, 1.3, 2.0, 4.0]),
        st.sampled_from([0.02, 0.1, 1.0]),
    ),
    max_size=40,
)


@settings(max_examples=6)
@given(actions=ACTIONS, epsilon=st.sampled_from([0.5, 2.0, 8.0]))
def test_whatever_is_done_the_totals_stay_true_and_within_the_budget(
    tmp_path_factory: pytest.TempPathFactory,
    actions: list[tuple[str, int, float, float]],
    epsilon: float,
) -> None:
    """Random runs, plans, crashes and ends against sums kept beside the ledger."""
    path = tmp_path_factory.mktemp("any") / "a.ledger"
    charged: dict[int, Round] = {}
    with Ledger.open(path, Budget(epsilon, 1e-5)) as ledger:
        mixture = Odometer(ledger.budget).mixture
        tickets: list[dpacct.ledger.Ticket] = []
        for what, which, noise, rate in actions:
            round_, runs = Round(noise, Poisson(rate)), ledger.runs
            try:
                if what in ("start", "plan") or not runs:
                    ledger.start_run("run", 5 * round_ if what == "plan" else None)
                elif what == "reserve":
                    tickets.append(runs[which % len(runs)].reserve(round_))
                    charged[tickets[-1].number] = round_
                elif what in ("commit", "abandon") and tickets:
                    ticket = tickets.pop(which % len(tickets))
                    if what == "commit":
                        ticket.commit()
                    else:
                        ticket.abandon("so")
                        del charged[ticket.number]
                elif what == "finish":
                    runs[which % len(runs)].finish()
                elif what == "resume":
                    ledger.resume_run(which + 1)
            except (BudgetExceeded, LedgerError):
                continue
        found = ledger.verify()
        assert found.sound, found.problems
        assert ledger.rounds == len(charged)
        assert ledger.upper_epsilon() <= epsilon * (1 + 1e-9)
        total = add(mixture.zero(), *(mixture.cost(r) for r in charged.values()))
        spent = ledger._file.now().state.spent
        # All but the last two numbers, which leave rounds within the plans out.
        ours, theirs = ([as_float(v) for v in totals[:-2]] for totals in (spent, total))
        assert ours == pytest.approx(theirs)
        schedule = Schedule(dpacct.rounds.Phase(r, 1) for r in charged.values())
        lower = dpacct.epsilon(schedule, delta=1e-5, accountant="tight").lower
        assert ledger.upper_epsilon() >= lower * (1 - 1e-9)
