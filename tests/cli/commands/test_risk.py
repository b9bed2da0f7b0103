"""`dpacct risk`, and `dpacct calibrate` to a limit of risk."""

from __future__ import annotations

from typing import Any

import pytest

import dpacct as library
from dpacct import risk
from dpacct.rounds import Poisson, Round
from dpacct.schedules.files import load_schedule

RISK = "risk --noise 1 --rounds 300 --q 0.1"
PLAN = 300 * Round(1.0, Poisson(0.1))


def both(value: library.Interval) -> dict[str, float]:
    return {"lower": value.lower, "upper": value.upper}


def close(shown: dict[str, float], value: library.Interval) -> bool:
    return shown == pytest.approx(both(value), rel=1e-7)


def test_json(dpacct: Any) -> None:
    data = dpacct(RISK, "--fpr 0.01,0.5 --prior 0.1 --json").json
    assert set(data) == {
        "advantage", "prior", "best_guess", "rates", "accountant",
        "rounds", "sampling", "sampling_rate", "adjacency", "noise_multiplier", "phases",
    }  # fmt: skip
    assert close(data["advantage"], risk.advantage(PLAN))
    assert close(data["best_guess"], risk.best_guess(PLAN, prior=0.1))
    assert [row["fpr"] for row in data["rates"]] == [0.01, 0.5]
    for row in data["rates"]:
        fpr = row["fpr"]
        assert set(row) == {"fpr", "tpr", "posterior"}
        assert close(row["tpr"], risk.true_positive_rate(PLAN, fpr=fpr))
        assert close(row["posterior"], risk.posterior(PLAN, prior=0.1, fpr=fpr))
    assert (data["prior"], data["accountant"], data["adjacency"]) == (0.1, "tight", "add-remove")


def test_quiet_prints_the_advantage(dpacct: Any) -> None:
    assert float(dpacct(RISK, "-q").text) == risk.advantage(PLAN).upper


def test_a_person_reads_who_attacks_and_what_is_proven(dpacct: Any) -> None:
    text = dpacct(RISK).text
    assert "advantage          0.68675 proven    0.68674 achieved" in text
    assert "Poisson sampling at rate 0.1, add-remove a client" in text
    assert "whether one client was there" in " ".join(text.split())
    # Three rates by default, proven rounded up and achieved rounded down.
    assert "0.01   0.41007     0.41006" in text
    uniform = dpacct("risk --noise 9 --rounds 100 --sampling uniform --q 0.1 --fpr 0.1").text
    assert "which of two clients" in " ".join(uniform.split())


def test_a_schedule_file(dpacct: Any, schedule_file: str) -> None:
    data = dpacct(f"risk --schedule {schedule_file} --fpr 0.1 --json").json
    assert close(data["advantage"], risk.advantage(load_schedule(schedule_file)))
    assert len(data["phases"]) == 2


def test_calibrate_to_an_advantage(dpacct: Any) -> None:
    words = "calibrate --advantage 0.1 --rounds 300 --q 0.1 --accountant tight"
    data = dpacct(words, "--json").json
    found = library.calibrate(advantage=0.1, rounds=300, sampling_rate=0.1, accountant="tight")
    assert data["noise_multiplier"] == found.noise_multiplier
    assert found.risk is not None
    assert data["risk"] == {"name": "advantage", **both(found.risk), "target": 0.1}
    assert data["epsilon"] == {**both(found.epsilon), "target": None}
    assert data["delta"] == 1e-5
    lines = dpacct(words).text.splitlines()
    assert lines[1].startswith("  noise multiplier   6.9175")
    assert lines[2].startswith("  advantage          0.10000 proven")
    assert lines[3].startswith("  epsilon  ")


def test_calibrate_to_a_tpr(dpacct: Any) -> None:
    words = "calibrate --tpr 0.1 --fpr 0.01 --rounds 300 --q 0.1 --accountant tight"
    data = dpacct(words, "--json").json
    assert data["risk"]["name"] == "TPR at FPR 0.01"
    assert data["risk"]["upper"] <= 0.1
    assert 1.798 < data["noise_multiplier"] < 1.799
    assert float(dpacct(words, "-q").text) == data["noise_multiplier"]
    solved = "calibrate --tpr 0.1 --fpr 0.01 --noise 2 --q 0.1 --solve rounds --accountant tight"
    assert "the most that stay within TPR at FPR 0.01 0.1" in dpacct(solved).text


def test_any_mechanism_with_a_guarantee(dpacct: Any) -> None:
    data = dpacct("risk --eps 8 --fpr 0.01 --prior 0.1 --json").json
    known = risk.AnyMechanism(8.0, 1e-5)
    assert set(data) == {"prior", "any_mechanism"}
    whoever = data["any_mechanism"]
    assert (whoever["epsilon"], whoever["delta"]) == (8.0, 1e-5)
    assert whoever["advantage"] == known.advantage()
    assert whoever["best_guess"] == known.guess(0.1)
    assert whoever["rates"][0]["tpr"] == known.tpr(0.01)
    text = dpacct("risk --eps 8").text
    assert "0.99933 at most" in text
    assert "any mechanism  with epsilon 8 at delta 1e-05" in text
    assert float(dpacct("risk --eps 8 -q").text) == known.advantage()


def test_the_mechanism_itself_stands_beside(dpacct: Any) -> None:
    data = dpacct("risk --eps 8 --rounds 300 --q 0.1 --json").json
    assert data["noise_multiplier"] == pytest.approx(1.28601, rel=1e-4)
    assert data["advantage"]["upper"] < data["any_mechanism"]["advantage"]
    given = dpacct(RISK, "--eps 8 --delta 1e-6 --json").json
    assert given["any_mechanism"]["delta"] == 1e-6
    assert "calibrated" in dpacct("risk --eps 8 --rounds 300 --q 0.1").text


def test_noise_is_calibrated_for_the_mechanism_that_was_typed(dpacct: Any) -> None:
    correlated = "--correlated square-root --rounds 20 --separation 5"
    for words in (correlated, "--rounds 3 --sampling full --adjacency replace-one"):
        found = dpacct(f"risk --eps 8 {words} --json").json
        wanted = dpacct(f"calibrate --eps 8 {words} --json").json
        assert found["noise_multiplier"] == wanted["noise_multiplier"]
