"""A question about a charge has the answer that the charge would have, and leaves no trace."""

from __future__ import annotations

import math
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpacct import Budget, Full, Laplace, Ledger, Poisson, Round, Uniform
from dpacct.errors import BudgetExceeded, InvalidParameter

BUDGET = Budget(4.0, 1e-5)
ASKED = [
    20 * Round(2.0, Poisson(0.1)),
    Round(6.0, Full()),
    Laplace(epsilon=0.3),
    10 * Round(3.0, Poisson(0.2)) + Laplace(epsilon=0.1),
]


@settings(max_examples=25)
@given(charges=st.lists(st.sampled_from(ASKED), max_size=3), asked=st.sampled_from(ASKED))
def test_it_is_what_the_ledger_reads_after_the_charge(tmp_path_factory, charges, asked) -> None:
    path: Path = tmp_path_factory.mktemp("would") / "a.ledger"
    with Ledger.open(path, BUDGET, passing=True) as ledger:
        for number, charge in enumerate(charges):
            ledger.charge(f"run {number}", charge)
        before, head = path.read_bytes(), ledger.head
        told = ledger.would_read(asked)
        assert (path.read_bytes(), ledger.head, len(ledger.runs)) == (before, head, len(charges))
        ledger.charge("the run", asked)
        assert told == ledger.epsilon()


def test_a_reader_may_ask_and_what_does_not_fit_is_refused_alike(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with Ledger.open(path, BUDGET) as ledger:
        ledger.charge("first", ASKED[0])
    before = path.read_bytes()
    much = 5000 * Round(1.0, Poisson(0.2))
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.epsilon().upper < ledger.would_read(ASKED[0]).upper < BUDGET.epsilon
        with pytest.raises(BudgetExceeded) as told:
            ledger.would_read(much)
        with pytest.raises(InvalidParameter, match="adjacency"):
            ledger.would_read(Round(5.0, Poisson(0.1), "replace-one"))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir() if "journal" in file.name] == []
    with Ledger.open(path) as ledger, pytest.raises(BudgetExceeded) as refused:
        ledger.charge("much", much)
    assert str(told.value) == str(refused.value)


def test_a_charge_by_the_tight_accountant_is_told(tmp_path: Path) -> None:
    plan = 30 * Round(3.0, Uniform(10, 100))
    with Ledger.open(tmp_path / "a.ledger", Budget(8.0, 1e-5)) as ledger:
        by_pairs, tight = ledger.would_read(plan), ledger.would_read(plan, "tight")
        assert math.isfinite(tight.upper)
        assert tight.upper < by_pairs.upper
        ledger.charge("tight", plan, accountant="tight")
        assert tight == ledger.epsilon()


def test_a_summary_dates_its_runs_and_says_what_the_ledger_read_after_each(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.ledger", BUDGET) as ledger:
        read, times = [], []
        for number, charge in enumerate(ASKED[:3]):
            ledger.charge(f"run {number}", charge)
            read.append(ledger.upper_epsilon())
            times.append(ledger.last_written)
        found = ledger.summary()["runs"]
        assert [run["total_after"] for run in found] == read == sorted(read)
        assert [run["latest"] for run in found] == times
        assert all(run["started"] <= run["latest"] for run in found)
        assert [run["started"] for run in ledger.report()["runs"]] == [r["started"] for r in found]


def test_a_page_without_matplotlib_has_all_but_its_chart(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("markdown_it")
    with Ledger.open(tmp_path / "a.ledger", BUDGET) as ledger:
        ledger.charge("first", ASKED[0])
        with monkeypatch.context() as patched:
            patched.setattr(metadata, "version", missing_matplotlib)
            page = ledger.report_html()
        assert "not drawn. matplotlib is not installed" in page
        assert "<img" not in page
        assert ledger.head in page


def missing_matplotlib(name: str) -> str:
    if name == "matplotlib":
        raise metadata.PackageNotFoundError(name)
    return "99"
