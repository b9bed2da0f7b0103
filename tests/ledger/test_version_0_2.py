"""Ledgers of version 0.2: what training charged as add-remove is read as zero-out, and goes on."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from dpacct import Full, InvalidParameter, Ledger, LedgerError, Poisson, Round, Uniform
from dpacct.ledger.record.events import in_adjacency
from dpacct.ledger.terms import Terms
from dpacct.renyi.odometer import design_mixture
from dpacct.rounds import Adjacency
from forgeries import BUDGET, read, write
from ledgers import MANY

FIXTURES = Path(__file__).parents[1] / "fixtures" / "v0_2"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())
ZERO_OUT = Adjacency.ZERO_OUT


def copy(name: str, folder: Path) -> Path:
    for file in FIXTURES.glob(f"{name}.ledger*"):
        shutil.copy(file, folder)
    return folder / f"{name}.ledger"


def as_0_2(path: Path) -> None:
    """The file says that version 0.2 wrote it."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=2")
    connection.close()


def readings(ledger: Ledger) -> dict[str, object]:
    return {
        "rounds": ledger.rounds,
        "epsilon": pytest.approx(ledger.upper_epsilon(), rel=1e-9),
        "runs": [pytest.approx(run.upper_epsilon(), rel=1e-9) for run in ledger.runs],
        "remaining": ledger.remaining(Round(2.0, Poisson(0.2))),
    }


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("name", EXPECTED)
def test_every_reading_is_the_one_of_version_0_2(
    name: str, tmp_path: Path, *, read_only: bool
) -> None:
    path = copy(name, tmp_path)
    before = path.read_bytes()
    for opening in (1, 2):
        with Ledger.open(path, read_only=read_only) as ledger:
            assert readings(ledger) | {"head": EXPECTED[name]["head"]} == EXPECTED[name]
            assert ledger.verify(EXPECTED[name]["head"]).sound
            # Only what training charged is another promise now, and this is said once.
            relabelled = name == "trained"
            assert ledger.adjacency == ("zero-out" if relabelled else "add-remove")
            assert bool(ledger.note) is (relabelled and (read_only or opening == 1))
            assert ledger.summary()["relabelled"] is relabelled
            kinds = [entry["kind"] for entry in ledger.export()]
            assert kinds.count("relabel") == (relabelled and not read_only)
    assert (path.read_bytes() == before) is read_only
    with Ledger.open(path, read_only=True) as ledger:
        if relabelled or MANY > 1:
            page = ledger.report_markdown()
            assert ("are zero-out, at the same epsilon" in page) is relabelled


def test_a_run_of_today_fits_into_it(tmp_path: Path) -> None:
    path = copy("trained", tmp_path)
    with Ledger.open(path) as ledger:
        old = ledger.resume_run(1)
        today = Round(2.0, Poisson(0.2), ZERO_OUT)
        old.reserve(today).commit()
        # With a public size, or by hand: the same mechanism, charged as what the ledger promises.
        old.reserve(Round(2.0, Poisson(0.2))).commit()
        assert (old.on_plan, old.committed) == (True, 5)
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
    with Ledger.open(path, read_only=True) as ledger:
        assert not ledger.note
        assert ledger.rounds == 9
        assert ledger.runs[0].epsilon().upper > EXPECTED["trained"]["runs"][0]


def test_the_round_that_0_2_left_is_settled(tmp_path: Path) -> None:
    path = copy("trained", tmp_path)
    with Ledger.open(path) as ledger:
        run = ledger.resume_run(2)
        ticket = run.unsettled()
        assert ticket is not None
        assert ticket.event.round == Round(3.0, Poisson(0.1), ZERO_OUT)
        ticket.commit()
        assert (run.rounds, run.committed) == (3, 3)
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


def test_fixed_cohorts_beside_training_are_refused(tmp_path: Path) -> None:
    path = copy("trained", tmp_path)
    rows = read(path)
    charged = rows[9].content["data"]["charged"]
    del charged["sampling_rate"]
    charged |= {"sampling": "uniform", "cohort_size": 2, "num_clients": 20}
    write(path, rows)
    as_0_2(path)
    for read_only in (True, False):
        with pytest.raises(LedgerError, match="entry 10 has cohorts of fixed size"):
            Ledger.open(path, read_only=read_only)
