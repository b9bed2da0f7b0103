"""`--gdp` of `dpacct epsilon` and `report`: mu is printed with its slack, for plans alone."""

from __future__ import annotations

from typing import Any

import pytest

from dpacct import Budget, Ledger

RUN = ("--noise", "4", "--rounds", "20", "--q", "0.1")


def test_the_answer_has_mu_and_slack(dpacct: Any) -> None:
    found = dpacct("epsilon", *RUN, "--gdp", "1e-6", "--json").json["gdp"]
    assert found["slack"] == 1e-6
    assert 0 < found["mu"]["lower"] <= found["mu"]["upper"] < 1
    assert "with slack 1e-06" in dpacct("epsilon", *RUN, "--gdp", "1e-6").text


@pytest.mark.parametrize("form", ["md", "registry", "model-card"])
def test_reports_state_it(dpacct: Any, form: str) -> None:
    shown = dpacct("report", *RUN, "--gdp", "1e-6", "--format", form).text
    assert "with slack 1e-06" in shown


def test_a_reading_of_a_ledger_has_none(dpacct: Any, tmp_path: Any) -> None:
    file = str(tmp_path / "a.ledger")
    Ledger.open(file, Budget(8, 1e-5)).close()
    for words in (("epsilon", "--from", file), ("report", file)):
        refused = dpacct(*words, "--gdp", "1e-6")
        assert refused.code == 2
        assert "all deltas of a plan" in refused.err
