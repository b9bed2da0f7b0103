"""`dpacct claims`, and `dpacct epsilon --claim`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpacct.claims import shipped_claims
from tests.claims.test_files import BELOW, GOOD


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "paper.toml"
    path.write_text(GOOD, encoding="utf-8")
    return path


def test_a_file_is_checked(dpacct: Any, file: Path) -> None:
    text = dpacct(f"claims check {file}").text
    assert "verdict            refuted" in text
    assert "epsilon 2 at delta 1e-05" in text
    assert "100 rounds, Poisson sampling at rate 0.1, add-remove a client" in text
    assert "achieved so: In every round all other clients contribute zero" in text
    assert "would make epsilon 2 true" in text
    assert dpacct(f"claims check {file} -q").text == "refuted\n"
    assert max(map(len, text.splitlines())) <= 100


def test_every_reading_is_in_the_json(dpacct: Any, file: Path) -> None:
    file.write_text(GOOD.replace("epsilon = 2", "epsilon = 30") + BELOW, encoding="utf-8")
    (claim,) = dpacct(f"claims check {file} --json").json["claims"]
    assert (claim["stated"], claim["delta"], claim["verdict"]) == (30, 1e-5, "proven")
    fixed, twice = claim["readings"]
    assert fixed["sampling"] == "uniform"
    assert twice["noise_multiplier"] == 4.0
    assert twice["epsilon"]["lower"] <= twice["epsilon"]["upper"]


def test_a_shipped_claim_is_found_by_its_id(dpacct: Any) -> None:
    assert dpacct("claims check fed-alpha-normec-p0.25 -q").text == "not private as described\n"
    ran = dpacct("claims check fed-alpha-normec-p0.26")
    assert ran.code == 2
    assert "Did you mean fed-alpha-normec-p0.25?" in ran.err
    ids = [claim.id for claim in shipped_claims().claims]
    assert dpacct("claims list -q").text.split() == ids


def test_all_are_listed_with_their_verdicts(dpacct: Any) -> None:
    text = dpacct("claims list").text
    assert all(claim.id in text for claim in shipped_claims().claims)


@pytest.mark.parametrize(
    ("stated", "word", "more"),
    [("8", "proven", ""), ("7", "refuted", "would make it true, all else as it is")],
)
def test_an_epsilon_answers_a_claim(dpacct: Any, stated: str, word: str, more: str) -> None:
    line = f"epsilon --noise 1.36 --rounds 300 --q 0.1 --claim {stated}"
    text = dpacct(line).text
    assert text.lstrip().startswith(f"claim              {word:<12}  epsilon {stated}")
    assert more in text
    found = dpacct(f"{line} --json").json["claim"]
    assert (found["stated"], found["verdict"]) == (float(stated), word)
    assert (found["sufficient_noise"] is None) is (word == "proven")


def test_of_rounds_that_differ_a_factor_is_told(dpacct: Any, schedule_file: str) -> None:
    text = dpacct(f"epsilon --schedule {schedule_file} --claim 5").text
    assert "x the noise of every round would make it true" in text
