"""Releases beside the rounds in a ledger: mechanisms, promises, parts of the data, projects."""

from __future__ import annotations

import copy
import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpacct
import forgeries
from dpacct import Budget, Ledger, Poisson, Round
from dpacct.errors import BudgetExceeded, DpacctError, InvalidParameter, LedgerError
from dpacct.items import read_alone, release_entry
from dpacct.ledger.record.parts import PartTotals
from dpacct.mechanisms import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Laplace,
    PureDP,
    RandomizedResponse,
    ZeroConcentratedDP,
)
from dpacct.renyi.odometer import Odometer, add

BUDGET = Budget(3.0, 1e-5)
HISTOGRAM = Laplace(epsilon=0.1)
EVERY = (
    HISTOGRAM,
    RandomizedResponse(0.1),
    PureDP(0.1, source="a paper"),
    ApproximateDP(0.1, 1e-8, source="another library"),
    ZeroConcentratedDP(0.001),
    DiscreteGaussian(20.0, (1, -1)),
    DiscreteLaplace(10.0, 1),
    ExponentialMechanism(0.1),
)


def test_a_charge_is_on_disk_when_it_returns_by_either_spelling(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.charge(HISTOGRAM, name="age histogram")
        ledger.charge("old spelling", Round(5.0, Poisson(0.1)))
        ledger.charge(name="words", rounds=2 * HISTOGRAM)
        assert (run.name, run.finished, run.committed) == ("age histogram", True, 1)
    with Ledger.open(path, read_only=True) as ledger:
        assert [run.committed for run in ledger.runs] == [1, 1, 2]
        assert ledger.verify().sound
        released = ledger.epsilon()
        assert released.lower <= released.upper <= BUDGET.epsilon


@pytest.mark.parametrize("arguments", [(), ("a", "b"), (HISTOGRAM,), ("a", HISTOGRAM, HISTOGRAM)])
def test_a_charge_has_one_name_and_one_release(tmp_path: Path, arguments: tuple[object]) -> None:
    with Ledger.open(tmp_path / "x", BUDGET) as ledger:
        with pytest.raises(InvalidParameter, match="one name, and one schedule or release"):
            ledger.charge(*arguments)  # type: ignore[arg-type]
        assert ledger.rounds == 0


def test_every_mechanism_is_written_read_back_and_verified(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "x", BUDGET, promised_delta=1e-6) as ledger:
        for item in EVERY:
            ledger.charge(2 * item, name=type(item).__name__)
    with Ledger.open(tmp_path / "x") as ledger:
        found = ledger.verify()
        assert found.sound, found.problems
        entries = [entry["data"] for entry in ledger.export() if entry["kind"] == "charge"]
        charged = [phase for data in entries for phase in data["plan"]]
        assert {"another library", "a paper"} <= {text.get("source") for text in charged}
        assert "another library" in ledger.report_markdown()
        again = Odometer(BUDGET, promised_delta=1e-6)
        for item in EVERY:
            again.add(item, 2)
        assert ledger.upper_epsilon() == pytest.approx(again.epsilon, rel=1e-12)


def test_the_filter_refuses_what_does_not_fit_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "x", BUDGET) as ledger:
        run = ledger.start_run("as it goes")
        run.reserve(HISTOGRAM).commit()
        with pytest.raises(BudgetExceeded, match="the round does not fit"):
            run.reserve(Laplace(epsilon=9.0))
        with pytest.raises(BudgetExceeded):
            ledger.charge(Laplace(epsilon=9.0), name="too much")
        assert ledger.rounds == 1
        left = ledger.remaining(HISTOGRAM)
        for _ in range(left):
            run.reserve(HISTOGRAM).commit()
        with pytest.raises(BudgetExceeded):
            run.reserve(HISTOGRAM)
        assert ledger.upper_epsilon() <= BUDGET.epsilon


def test_infinite_losses_need_a_delta_that_was_set_aside(tmp_path: Path) -> None:
    promise = ApproximateDP(0.01, 1e-7)
    with Ledger.open(tmp_path / "none", BUDGET) as ledger:
        ledger.charge(HISTOGRAM, name="before")
        with pytest.raises(BudgetExceeded, match="none is"):
            ledger.charge(promise, name="promise")
        assert ledger.rounds == 1
        assert ledger.remaining(promise) == 0
        ledger.charge(promise, name="it happened", over_budget=True)
        assert ledger.upper_epsilon() == math.inf
        with pytest.raises(BudgetExceeded):
            ledger.charge(HISTOGRAM, name="more")
    with Ledger.open(tmp_path / "some", BUDGET, promised_delta=1e-6) as ledger:
        run = ledger.start_run("promises")
        for _ in range(10):
            run.reserve(promise).commit()
        assert ledger.remaining(promise) == 0
        with pytest.raises(BudgetExceeded, match="of 1e-06 is left"):
            run.reserve(promise)
        run.reserve(HISTOGRAM).commit()
        assert ledger.verify().sound
    with pytest.raises(InvalidParameter, match="promised_delta"):
        Ledger.open(tmp_path / "all", BUDGET, promised_delta=1.1e-5)


def test_promises_that_are_planned_first_set_their_delta_aside(tmp_path: Path) -> None:
    promise = ApproximateDP(0.01, 1e-7)
    with Ledger.open(tmp_path / "x", BUDGET) as ledger:
        assert ledger.remaining(ApproximateDP(0.1, 1e-6)) == 10
        ledger.charge(3 * promise, name="promises")
        assert ledger.summary()["promised_delta"] == 3e-7
        # Anything else still fits, at the rest of delta.
        ledger.charge(Round(20.0), name="a Gaussian sum")
        alone = Odometer(Budget(3.0, 1e-5 - 3e-7))
        alone.add(PureDP(0.01), 3)
        alone.add(Round(20.0))
        assert ledger.upper_epsilon() == pytest.approx(alone.epsilon, rel=1e-3)
        with pytest.raises(BudgetExceeded, match="only 0 of 3e-07 is left"):
            ledger.charge(promise, name="one more")
        assert ledger.verify().sound


@pytest.mark.parametrize("aside", [0.0, 1e-6])
def test_a_promise_fits_into_a_ledger_of_its_own_epsilon_and_delta(
    tmp_path: Path, aside: float
) -> None:
    with Ledger.open(tmp_path / "x", Budget(1, 1e-6), promised_delta=aside) as ledger:
        assert ledger.remaining(ApproximateDP(1, 1e-6)) == 1
        ledger.charge(ApproximateDP(1, 1e-6), name="a promise")
        assert ledger.upper_epsilon() == ledger.epsilon_any_stop() == 1
        for more in (PureDP(1e-6), ApproximateDP(0, 1e-12), Round(1e6)):
            assert ledger.remaining(more) == 0
            with pytest.raises(BudgetExceeded):
                ledger.charge(more, name="more")
        assert ledger.verify().sound


def test_epsilons_and_deltas_of_promises_add_up_one_by_one(tmp_path: Path) -> None:
    budget = Budget(1, 1e-6)
    with Ledger.open(tmp_path / "x", budget, promised_delta=1e-6) as ledger:
        run, odometer = ledger.start_run("as they come"), Odometer(budget, promised_delta=1e-6)
        for item in (7 * [ApproximateDP(0.1, 1e-7)]) + [PureDP(0.11), Laplace(epsilon=0.19)]:
            run.reserve(item).commit()
            odometer.add(item)
            assert ledger.upper_epsilon() == odometer.epsilon
        assert ledger.upper_epsilon() == 1
        with pytest.raises(BudgetExceeded):
            run.reserve(PureDP(1e-9))
        assert ledger.verify().sound


def test_an_odometer_refuses_infinite_losses_that_it_has_no_delta_for() -> None:
    odometer = Odometer(Budget(1, 1e-6), promised_delta=2e-7)
    odometer.add(ApproximateDP(0.1, 1e-7), 2)
    for other in (odometer, Odometer(Budget(1, 1e-6))):
        before = other.rounds, other.epsilon
        with pytest.raises(BudgetExceeded, match="promised_delta"):
            other.add(ApproximateDP(0.1, 1e-7))
        assert (other.rounds, other.epsilon) == before
        assert other.remaining(ApproximateDP(0.1, 1e-7)) == 0


def test_the_reading_of_promises_holds_for_their_composition() -> None:
    # Fixed in advance is one way to choose: the odometer is never below the tight accountant.
    budget = Budget(8.0, 1e-5)
    odometer = Odometer(budget, promised_delta=5e-6)
    plan = 30 * ApproximateDP(0.1, 1e-7) + 5 * Laplace(epsilon=0.2)
    for item, count in plan:
        odometer.add(item, count)
    assert odometer.epsilon >= dpacct.epsilon(plan, delta=1e-5).upper
    without = Odometer(Budget(8.0, 5e-6))
    without.add(PureDP(0.1), 30)
    without.add(Laplace(epsilon=0.2), 5)
    # The finite part of a promise costs what pure DP costs, at the rest of delta.
    assert odometer.epsilon == pytest.approx(without.epsilon, rel=1e-6)


def test_parts_cost_as_much_as_the_worst_part(tmp_path: Path) -> None:
    partitions = {"country": ["DE", "FR"], "year": ["2024", "2025"]}
    with Ledger.open(tmp_path / "x", BUDGET, partitions=partitions) as ledger:
        ledger.charge(5 * HISTOGRAM, name="Germany", part="country=DE")
        alone = ledger.epsilon()
        ledger.charge(5 * HISTOGRAM, name="France", part="country=FR")
        assert ledger.epsilon() == alone
        ledger.charge(HISTOGRAM, name="France again", part="country=FR")
        six = ledger.epsilon()
        assert alone.upper < six.upper
        assert alone.lower < six.lower
        # Another partition is another part of the same client.
        ledger.charge(5 * HISTOGRAM, name="last year", part="year=2024")
        assert ledger.upper_epsilon() > six.upper
        ledger.charge(HISTOGRAM, name="everybody")
        assert ledger.verify().sound
        assert "country" in ledger.report_markdown()
        plain = Odometer(BUDGET)
        plain.add(HISTOGRAM, 6 + 5 + 1)
        assert ledger.upper_epsilon() == pytest.approx(plain.epsilon, rel=1e-12)
        assert ledger.runs[0].part == "country=DE"
    with Ledger.open(tmp_path / "x") as ledger:
        assert ledger.rounds == 5 + 5 + 1 + 5 + 1


def test_parts_are_declared_and_not_for_replacements(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "x", BUDGET, partitions={"country": ["DE", "FR"]}) as ledger:
        with pytest.raises(InvalidParameter, match="a part is one of country=DE"):
            ledger.charge(HISTOGRAM, name="Italy", part="country=IT")
        replaced = Laplace(epsilon=0.1, adjacency="replace-one")
        with pytest.raises(InvalidParameter, match="both parts would pay"):
            ledger.charge(replaced, name="Germany", part="country=DE")
        ledger.charge(HISTOGRAM, name="Germany", part="country=DE")
        with pytest.raises(BudgetExceeded, match="about country=DE does not fit"):
            ledger.charge(Laplace(epsilon=3.0), name="Germany", part="country=DE")
        assert ledger.rounds == 1
    for bad in ({"a=b": ["x", "y"]}, {"a": ["x"]}, {"a": ["x", "x"]}, ["a"]):
        with pytest.raises(InvalidParameter, match="partition"):
            Ledger.open(tmp_path / "y", BUDGET, partitions=bad)  # type: ignore[arg-type]
    assert not (tmp_path / "y").exists()


totals = st.tuples(st.integers(0, 9), st.integers(0, 9))


@given(st.lists(st.tuples(st.sampled_from(["a=1", "a=2", "b=1", "b=2"]), totals)))
def test_parts_added_one_by_one_are_their_maximum(
    charges: list[tuple[str, tuple[int, ...]]],
) -> None:
    parts, spent = PartTotals((), (0, 0)), (0, 0)
    for part, cost in charges:
        spent = add(spent, parts.charge(part, cost))
    assert spent == parts.total() == PartTotals(charges, (0, 0)).total()
    for i in range(2):
        sums = {p: sum(c[i] for q, c in charges if q == p) for p in ("a=1", "a=2", "b=1", "b=2")}
        assert spent[i] == max(sums["a=1"], sums["a=2"]) + max(sums["b=1"], sums["b=2"])


def test_projects_add_up_by_themselves(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "x", BUDGET) as ledger:
        ledger.charge(HISTOGRAM, name="ages", project="statistics")
        ledger.charge(2 * HISTOGRAM, name="incomes", project="statistics")
        run = ledger.start_run("training", project="model")
        run.reserve(Round(5.0, Poisson(0.1))).commit()
        found = {one["name"]: one for one in ledger.summary()["projects"]}
        assert found["statistics"]["runs"] == [1, 2]
        assert found["statistics"]["rounds"] == 3
        plan = 3 * HISTOGRAM
        least = dpacct.epsilon(plan, delta=BUDGET.delta).lower
        assert least <= found["statistics"]["epsilon"] <= 3 * HISTOGRAM.epsilon
        assert found["model"]["epsilon"] < ledger.upper_epsilon()


def test_a_promise_is_for_the_neighbors_that_it_names(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "x", BUDGET, adjacency="zero-out") as ledger:
        ledger.charge(HISTOGRAM, name="a sum")
        with pytest.raises(InvalidParameter, match="share one adjacency"):
            ledger.charge(PureDP(0.1), name="promise")
        ledger.charge(PureDP(0.1, "zero-out"), name="promise")


def problems_of(path: Path) -> list[str]:
    """Return what is wrong with a file, by opening and verifying it."""
    try:
        with Ledger.open(path) as ledger:
            return list(ledger.verify().problems)
    except LedgerError as error:
        return [str(error)]


def test_a_part_that_is_claimed_afterwards_does_not_verify(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with Ledger.open(path, BUDGET, partitions={"country": ["DE", "FR"]}) as ledger:
        ledger.charge(3 * HISTOGRAM, name="Germany", part="country=DE")
        ledger.charge(2 * HISTOGRAM, name="France", part="country=FR")
        assert ledger.verify().sound
    rows = forgeries.read(path)
    for number, part in ((1, "country=FR"), (1, ""), (1, "country=IT")):
        forged = copy.deepcopy(rows)
        assert forged[number].content["data"]["part"] == "country=DE"
        forged[number].content["data"]["part"] = part
        forgeries.write(tmp_path / "forged", forged)
        assert problems_of(tmp_path / "forged"), part


CHILD = """
import os, signal, sys
import dpacct.ledger.ledger as room
from dpacct import Budget, Laplace, Ledger
from dpacct.ledger.writing import Transaction

def die(*_given, **_more):
    os.kill(os.getpid(), signal.SIGKILL)

with Ledger.open(sys.argv[1], Budget(3.0, 1e-5)) as ledger:
    ledger.charge(Laplace(epsilon=0.1), name="before")
    if sys.argv[2] == "after":
        room.Run = die
    else:
        Transaction.register = die
    ledger.charge(2 * Laplace(epsilon=0.1), name="killed")
"""


@pytest.mark.needs("posix")
@pytest.mark.parametrize(("moment", "rounds"), [("before", 1), ("after", 3)])
def test_killed_between_write_and_return_it_counts_whole_or_not_at_all(
    tmp_path: Path, moment: str, rounds: int
) -> None:
    path = tmp_path / "x"
    done = subprocess.run([sys.executable, "-c", CHILD, str(path), moment], check=False)
    assert done.returncode == -signal.SIGKILL
    with Ledger.open(path) as ledger:
        assert ledger.rounds == rounds
        assert ledger.verify().sound
        ledger.charge(HISTOGRAM, name="afterwards")


def test_an_entry_with_an_unknown_mechanism_is_refused_politely() -> None:
    text = json.loads(json.dumps(release_entry(DiscreteGaussian(20.0, (1, -1)), alone=True)))
    assert read_alone(text) == DiscreteGaussian(20.0, (1, -1))
    with pytest.raises(InvalidParameter, match="a mechanism is one of"):
        read_alone(text | {"mechanism": "of a later version"})
    with pytest.raises(DpacctError):
        read_alone(text | {"shift": [1.5]})


def test_a_slot_that_a_cheaper_round_took_gives_no_more_back(path: Path):
    """Others may have taken the difference meanwhile."""
    with Ledger.open(path, Budget(5, 1e-5)) as ledger:
        ledger.charge("first", Round(30.0, Poisson(0.01)))
        plan = ledger.start_run("plan", 5 * Round(1.0, Poisson(0.1)))
        ticket = plan.reserve(Round(2.0, Poisson(0.1)))
        for one in (Round(3.0, Poisson(0.1)), Round(30.0, Poisson(0.2))):
            ledger.charge("fills", ledger.remaining(one) * one)
        ticket.abandon("a test")
        now = ledger._file.now()
        assert now.fits(now.state.charged)
        assert ledger.verify().sound
