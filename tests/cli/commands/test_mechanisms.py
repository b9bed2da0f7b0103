"""Correlated noise, the best of several runs, one sample, mu: answers are those of the library."""

from __future__ import annotations

from typing import Any

import pytest

import dpacct as library
from dpacct import Budget, Ledger, Round, best_of, risk

CORRELATED = "--correlated square-root --rounds 2000 --bands 100 --separation 100"
BEST = "--best-of poisson:10"
SHORT = "--noise 3 --rounds 5 --sampling full"
PLAN = 1 * best_of(5 * Round(3.0), "poisson:10")
MU = "--noise 4 --rounds 20 --q 0.1 --gdp 1e-6"


def test_calibration_of_correlated_noise(dpacct: Any) -> None:
    run = f"calibrate --eps 8 {CORRELATED} --participations 20"
    found = dpacct(run, "--json").json
    assert found["noise_multiplier"] == pytest.approx(4.270792, abs=2e-6)
    assert found["epsilon"]["upper"] <= 8.0
    text = dpacct(run).text
    for part in ("4.270793", "2000 rounds of correlated noise (square-root), 100 bands", "13.319"):
        assert part in text
    assert "100 rounds apart, up to 20 participations, add-remove a client" in text


@pytest.mark.parametrize("kind", ["square-root", "buffered-toeplitz"])
def test_fewer_participations_need_less_noise(dpacct: Any, kind: str) -> None:
    run = f"calibrate --eps 8 --rounds 30 --correlated {kind} --separation 5 --json"
    every, six, three = (dpacct(run, f"--participations {most}" * bool(most)).json
                         for most in (0, 6, 3))  # fmt: skip
    assert every == six
    assert three["noise_multiplier"] < 0.8 * six["noise_multiplier"]
    assert three["phases"][0]["participations"] == 3


def test_sampling_in_groups(dpacct: Any) -> None:
    line = "--correlated square-root --rounds 200 --bands 8 --separation 8 --q 0.04 --noise 2"
    text = dpacct(f"epsilon {line}").text
    assert "8 rounds apart, Poisson sampling at rate 0.04 in groups" in text
    alone = dpacct("epsilon --noise 2 --rounds 25 --q 0.04 --json").json["epsilon"]["upper"]
    # Columns of the square root are longer than 1.
    assert dpacct(f"epsilon {line} --json").json["epsilon"]["upper"] > alone


def test_the_best_of_several_runs_is_charged_for_all(dpacct: Any) -> None:
    spent = library.epsilon(PLAN, delta=1e-5)
    data = dpacct(f"epsilon {SHORT} {BEST} --json").json
    assert data["epsilon"] == {"lower": spent.lower, "upper": spent.upper}
    assert data["noise_multiplier"] == 3
    assert "the best of a random number of such runs" in dpacct(f"epsilon {SHORT} {BEST}").text
    advantage = float(dpacct(f"risk {SHORT} {BEST} -q").text)
    assert advantage == pytest.approx(risk.advantage(PLAN).upper, rel=1e-9)
    solved = float(dpacct(f"calibrate --eps 2 {SHORT} {BEST} --solve delta -q").text)
    assert solved == pytest.approx(library.delta(PLAN, epsilon=2).upper, rel=1e-6)


def test_the_command_line_takes_one_sample(dpacct: Any) -> None:
    data = dpacct("epsilon --noise 1 --rounds 3 --sampling full --one-sample 0.2 --json").json
    plan = library.Sampled(3 * Round(1.0), 0.2)
    assert data["epsilon"]["upper"] == library.epsilon(1 * plan, delta=1e-5).upper
    assert (data["phases"][0]["mechanism"], data["phases"][0]["rate"]) == ("sampled", 0.2)


@pytest.mark.parametrize("door", ["epsilon", "report --format md", "report --format registry"])
def test_mu_is_stated_with_its_slack(dpacct: Any, door: str) -> None:
    assert "with slack 1e-06" in dpacct(door, MU).text


def test_a_reading_of_a_ledger_has_no_mu(dpacct: Any, folder: Any) -> None:
    Ledger.open(folder / "a.ledger", Budget(8, 1e-5)).close()
    for words in ("epsilon --from a.ledger", "report a.ledger"):
        refused = dpacct(words, "--gdp 1e-6")
        assert (refused.code, "all deltas of a plan" in refused.err) == (2, True)
