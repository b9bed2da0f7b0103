"""`dpacct certify`, and the other doors of certificates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dpacct as library
from dpacct import Budget, Ledger, Poisson, Round

pytestmark = pytest.mark.needs("flint")
RUN = ("--noise", "4", "--rounds", "100", "--q", "0.1")


def test_a_proof_and_a_refutation_by_exit_code(dpacct: Any) -> None:
    found = library.epsilon(100 * Round(4.0, Poisson(0.1)), delta=1e-5)
    proven = dpacct("certify", *RUN, "--eps", repr(found.upper), "--json")
    assert (proven.code, json.loads(proven.out)["finding"]) == (0, "proven")
    below = dpacct("certify", *RUN, "--eps", repr(found.lower * (1 - 1e-9)), "-q")
    assert (below.code, below.out) == (1, "refuted\n")


def test_a_schedule_file(dpacct: Any, tmp_path: Any) -> None:
    file = tmp_path / "rounds.toml"
    file.write_text("[[phase]]\nrounds = 100\nnoise_multiplier = 4.0\nsampling_rate = 0.1\n")
    assert dpacct("certify", str(file), "--eps", "2", "-q").out == "proven\n"


def test_a_ledger_whose_rounds_were_planned(dpacct: Any, tmp_path: Any) -> None:
    file = str(tmp_path / "a.ledger")
    with Ledger.open(file, Budget(8, 1e-5)) as ledger:
        step = Round(4.0, Poisson(0.1))
        ledger.start_run("one", plan=100 * step).reserve(step).commit()
    assert dpacct("certify", file, "-q").out == "proven\n"
    assert "the ledger says it" in dpacct("certify", file, "--eps", "2").err
    with Ledger.open(file) as ledger:
        ledger.charge("more", 10 * Round(9.0, Poisson(0.1)))
    refused = dpacct("certify", file)
    assert refused.code == 1
    assert "planned before" in refused.err


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("a.ledger", None, "", "FILE is"),
        ("b.ledger", "ledger", "--eps 2", "--eps 2 contradicts b.ledger (the ledger says it)"),
        ("b.ledger", "ledger", "--delta 1e-6", "--delta 1e-6 contradicts b.ledger"),
        ("a.toml", "x", "--eps 2", "FILE is"),
        ("a.toml", "", "--eps 2 --noise 2", "--noise 2 contradicts a.toml"),
        ("a.json", "[]", "--eps 2", "FILE is"),
        ("a.pt", "x", "--eps 2", "FILE is"),
        (
            "a.report.jsonl",
            '{"round": 1, "rounds": 1, "delta": 1e-5, "private": false}',
            "",
            "this file is not a ledger",
        ),
    ],
)
def test_a_file_without_proof_is_called_by_the_name_of_its_argument(
    dpacct: Any,
    name: str,
    content: str | None,
    options: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if content == "ledger":
        Ledger.open(name, Budget(8, 1e-5)).close()
    elif content is not None:
        Path(name).write_text(content)
    refused = dpacct("certify", name, *options.split())
    assert refused.code == 2
    assert said in refused.err
    assert "--from" not in refused.err


def test_what_is_not_covered_is_named(dpacct: Any) -> None:
    found = dpacct("certify", *RUN, "--sampling", "uniform", "--eps", "8")
    assert found.code == 1
    assert "Uniform" in found.err


def test_claims_with_certificates(dpacct: Any) -> None:
    answer = json.loads(dpacct("claims", "check", "fed-alpha-normec-p1", "--certify", "--json").out)
    kinds = [row["certified"] for row in answer["claims"][0]["readings"]]
    assert any(row and row["finding"] == "proven" for row in kinds)
    shown = dpacct("claims", "check", "fed-alpha-normec-p1", "--certify").text
    assert "by ball arithmetic as well" in shown


@pytest.mark.parametrize("form", ["md", "json", "registry", "model-card"])
def test_a_report_says_that_it_was_certified(dpacct: Any, form: str) -> None:
    shown = dpacct("report", *RUN, "--certify", "--format", form).text
    assert ('"finding": "proven"' if form == "json" else "by ball arithmetic") in shown
    assert "by ball arithmetic" not in dpacct("report", *RUN, "--format", form).text
