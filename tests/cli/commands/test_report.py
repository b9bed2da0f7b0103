"""`dpacct report`: one page for a ledger or rounds, in three forms, never over a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dpacct as library
from dpacct import Budget, Ledger, Poisson, Round

WORDS = "report --noise 4 --rounds 50 --q 0.1 --unit patient"


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    plan = 5 * Round(4.0, Poisson(0.1))
    with Ledger.open("census.ledger", Budget(8, 1e-5), unit="household") as ledger:
        run = ledger.start_run("census", plan)
        for _ in range(5):
            run.reserve(Round(4.0, Poisson(0.1))).commit()
    return "census.ledger"


def test_the_report_on_a_ledger_is_that_of_ledger_report(dpacct: Any, ledger: str) -> None:
    for form in ("html", "md", "json"):
        one = dpacct(f"report {ledger} --format {form}").text
        assert dpacct(f"ledger report {ledger} --format {form}").text == one
        assert dpacct(f"report {ledger} -o page.{form}").text == ""
        assert Path(f"page.{form}").read_text(encoding="utf-8") == one
    assert json.loads(one)["kind"] == "ledger"
    assert dpacct(f"report {ledger} --json").text == one


def test_a_terminal_shows_the_headline_and_how_to_write_the_page(
    dpacct: Any, ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = dpacct(f"report {ledger}").text
    monkeypatch.setattr("dpacct_cli.commands.report.on_terminal", lambda: True)
    for words in (f"report {ledger}", f"ledger report {ledger}", WORDS):
        text = dpacct(words).text
        assert "-o report.html writes the page." in text
        assert len(text.splitlines()) < 10
    assert dpacct(f"report {ledger} --format md").text == whole


def test_a_cover_stands_above_the_report(dpacct: Any) -> None:
    pytest.importorskip("fpdf")
    cover = "--title 'A |title|' --author 'An Author' --date 2026-11-25"
    assert dpacct(f"{WORDS} -o a.pdf {cover}").text == ""
    content = Path("a.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert len(content) > 20_000
    text = dpacct(f"{WORDS} {cover}").text
    assert text.startswith("# A \\|title\\|\n\nAn Author, 2026-11-25\n")


def test_the_guarantee_goes_to_a_registry_and_to_a_model_card(dpacct: Any, ledger: str) -> None:
    upper = dpacct(f"{WORDS} --json").json["epsilon"]["upper"]
    for words in (WORDS, f"report {ledger}", f"ledger report {ledger}"):
        entry = dpacct(f"{words} --format registry --author 'An Author'").text
        assert 'data_curators: ["An Author"]' in entry
        assert "      delta: 1.0e-05" in entry
        card = dpacct(f"{words} --format model-card").text
        assert "| mechanism | 5" in card
        assert "- Noise and cohorts came from" in card
    assert dpacct(f"{WORDS} -o entry.yaml --format registry").text == ""
    assert f"      epsilon: {upper!r}\n" in Path("entry.yaml").read_text(encoding="utf-8")
    assert dpacct("ledger init empty.ledger --eps 1").code == 0
    for form in ("registry", "model-card"):
        assert "promises nothing" in dpacct(f"report empty.ledger --format {form}").err


def test_every_value_of_a_registry_entry_is_json_and_so_yaml() -> None:
    plan = 3 * Round(4.0, Poisson(0.1)) + library.Laplace(epsilon=0.1)
    page = library.report.on_schedule(plan, delta=1e-5, unit='a "b": c')
    found: dict[str, Any] = {}
    for line in library.report.to_registry(page).splitlines():
        name, _, text = line.strip().partition(":")
        found[name] = json.loads(text or "null")
    assert found["privacy_unit"] == 'a "b": c'
    assert found["epsilon"] == page.facts["epsilon"]["upper"]
    assert found["delta"] == 1e-5
    assert (
        found["mechanisms"] == "3 rounds, noise 4, Poisson sampling at rate 0.1; Laplace noise 10"
    )


def test_the_first_page_of_a_planned_ledger_is_about_its_plan(dpacct: Any, ledger: str) -> None:
    data = dpacct(f"report {ledger} --json").json
    plan = 5 * Round(4.0, Poisson(0.1))
    risk = data["risk"]
    assert risk["epsilon"] == data["epsilon_any_stop"]
    assert risk["epsilon"] == pytest.approx(library.epsilon(plan, delta=1e-5).upper, rel=1e-9)
    best = library.risk.best_guess(plan, prior=0.5)
    assert best.lower <= risk["of_procedure"]["best_guess"] <= best.upper * (1 + 1e-6)
    assert risk["of_promise"]["best_guess"] > risk["of_procedure"]["best_guess"]
    assert (
        "guesses whether the data of a given household were used" in dpacct(f"report {ledger}").text
    )


def test_rounds_by_options_and_by_file_are_the_same(dpacct: Any) -> None:
    data = dpacct(WORDS, "--json").json
    spent = library.epsilon(50 * Round(4.0, Poisson(0.1)), delta=1e-5)
    assert data["epsilon"] == {"lower": spent.lower, "upper": spent.upper}
    assert (data["kind"], data["unit"], data["delta"]) == ("schedule", "patient", 1e-5)
    Path("rounds.csv").write_text("rounds,noise_multiplier,sampling_rate\n50,4,0.1\n")
    Path("rounds.toml").write_text(
        "[[phase]]\nrounds = 50\nnoise_multiplier = 4\nsampling_rate = 0.1\n"
    )
    for words in ("rounds.csv", "rounds.toml"):
        assert dpacct(f"report --schedule {words} --unit patient --json").json == data


def test_clients_are_counted(dpacct: Any) -> None:
    data = dpacct("report --noise 4 --rounds 5 --cohort 10 --clients 100 --json").json
    assert (data["num_units"], data["delta"]) == (100, 1e-5)
    text = dpacct("report --noise 4 --rounds 5 --cohort 10 --clients 100").text
    assert "client of the 100" in text
