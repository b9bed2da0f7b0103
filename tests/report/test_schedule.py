"""The report on rounds: its first page, what is to be signed, its figures, its three forms."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from typing import Any

import pytest

import dpacct
from dpacct import (
    Adjacency,
    Full,
    InvalidParameter,
    Poisson,
    Round,
    Schedule,
    Uniform,
    Unsupported,
    report,
)
from dpacct.report.front import (
    COHORTS,
    NO_MEMORY,
    Promise,
    front_page,
    one_in,
    schedule_assumptions,
)
from tests.ledger.report.test_compose import Checker, text_of

PLAN = 300 * Round(1.0, Poisson(0.1))


@pytest.fixture(scope="module")
def page() -> report.Report:
    return report.on_schedule(PLAN, delta=1e-5, unit="patient", num_units=50_000)


@pytest.fixture(scope="module")
def html(page: report.Report) -> str:
    return page.to_html()


@pytest.mark.needs("matplotlib", "markdown_it")
def test_the_first_page_says_what_an_ethics_board_asks(page: report.Report, html: str) -> None:
    for text in (text_of(html), page.to_markdown().replace("\\", "")):
        first = text[: text.index("Assumptions to sign")]
        for words in (
            "at most 844 times in 1,000", "Chance is 500", "each patient of the 50,000",
            "1 in 100,000", "every single patient", "not against", "groups", "not promised",
        ):  # fmt: skip
            assert words in first, words
        assert not re.search(r"Poisson\(|Round\(|Adjacency\.|None|inf\b|nan|\{'|<dpacct", text)
        assert text.index("Who is protected") < text.index("What an attacker can find out")
        assert (
            text.index("Assumptions to sign") < text.index("The figures") < text.index("Glossary")
        )


def test_people_and_epsilon_are_those_that_are_proven(page: report.Report) -> None:
    spent = dpacct.epsilon(PLAN, delta=1e-5)
    facts = page.facts
    assert facts["epsilon"] == {"lower": spent.lower, "upper": spent.upper}
    assert facts["risk"]["epsilon"] == spent.upper
    shown = re.search(r"Epsilon is ([\d.]+)\. Delta, the slack", page.to_markdown())
    assert shown is not None
    assert spent.upper <= float(shown[1]) <= spent.upper * 1.0001
    row = facts["risk"]["of_procedure"]["rates"][0]
    assert row["fpr"] == 0.001
    assert "| 1 | 174 |" in page.to_markdown()
    assert 0.173 < row["tpr"] <= 0.174
    assert facts["points"][-1]["upper"] == spent.upper
    assert [p["round"] for p in facts["points"]] == sorted({p["round"] for p in facts["points"]})


def test_json_is_plain_and_holds_all_phases(page: report.Report) -> None:
    data = json.loads(page.to_json())
    assert (data["kind"], data["unit"], data["num_units"]) == ("schedule", "patient", 50_000)
    assert data["phases"] == [
        {"rounds": 300, "noise_multiplier": 1.0, "sampling": "poisson", "sampling_rate": 0.1}
    ]
    assert data["assumptions"]


@pytest.mark.needs("matplotlib", "markdown_it")
def test_the_page_is_one_that_everybody_can_read(html: str) -> None:
    assert '<html lang="en">' in html
    levels = [int(level) for level in re.findall(r"<h(\d)", html)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert html.count("<img") == html.count('alt="') == 1
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html
    # It is whole: nothing is fetched, no script runs.
    Checker().feed(html)
    assert "url(" not in html
    assert "@import" not in html


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_words_stand_out_from_their_ground() -> None:
    page = files("dpacct.report").joinpath("templates", "page.html").read_text(encoding="utf-8")
    found = re.findall(r"--(\w+): (#[0-9a-f]{6})", page)
    for colors in (dict(found[:5]), dict(found[5:10])):
        assert len(colors) == 5
        for name in ("words", "faint", "accent"):
            assert contrast(colors[name], colors["ground"]) >= 4.5, name


def test_each_adjacency_has_its_question() -> None:
    for adjacency, words in {
        "add-remove": ["whether the data of a given client were used"],
        "replace-one": ["which of two records was used for a given client", "how many took part"],
        "zero-out": ["whether a given client contributed"],
    }.items():
        text = report.on_schedule(5 * Round(9.0, Full(), adjacency), delta=1e-5).to_markdown()
        assert all(part in text for part in words)
        assert "{unit}" not in text


def test_what_is_assumed_depends_on_what_runs() -> None:
    assert COHORTS not in schedule_assumptions(2 * Round(9.0), "tight")
    assert COHORTS in schedule_assumptions(2 * Round(9.0, Poisson(0.1)), "tight")
    fixed = 2 * Round(9.0, Uniform(5, 50))
    assert NO_MEMORY in schedule_assumptions(fixed, "tight")
    assert NO_MEMORY not in schedule_assumptions(fixed, "pairs")


def test_a_weak_promise_is_called_weak_and_none_is_called_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dpacct.report.schedule._points", lambda *_: [])
    weak = report.on_schedule(100 * Round(1.0), delta=1e-5).to_markdown()
    assert "This guarantee is weak" in weak
    strong = report.on_schedule(10 * Round(20.0), delta=1e-5).to_markdown()
    assert "This guarantee is weak" not in strong
    nothing: Any = dpacct.Spent(1.0, float("inf"), 1e-5)
    monkeypatch.setattr("dpacct.report.schedule.spend", lambda *_: nothing)
    none = report.on_schedule(10 * Round(20.0), delta=1e-5)
    assert none.facts["risk"] is None
    assert "There is no privacy guarantee" in none.to_markdown()
    assert "to sign" not in none.to_markdown()


def test_a_figure_says_what_it_follows_from(page: report.Report) -> None:
    """A budget of 3 may not read as worse than a plan of 8: the first is a worst case."""
    planned = page.to_markdown()
    assert "noise and sampling of these releases. Epsilon 12.4 by itself" in planned
    bare = Promise("patient", Adjacency.ADD_REMOVE, 3.0, 1e-5, spent=1.0)
    blocks = [block.strip("*") for block in front_page(bare)]
    assert "at most 953 times in 1,000" in blocks[0]
    assert blocks[1].startswith("This is a worst case over all procedures with epsilon 3.")
    assert not bare.weak
    assert replace(bare, epsilon=10.5).weak
    for delta, words in {1e-5: "1 in 100,000", 2.34e-4: "1 in 4,270", 0.5: "1 in 2"}.items():
        assert one_in(delta) == words
    assert one_in(0.7) == "more than 1 in 2"


def test_rounds_that_differ_are_listed_and_many_are_counted() -> None:
    plan = Schedule(phase for n in range(50) for phase in 2 * Round(9 + n / 10))
    found = report.on_schedule(plan, delta=1e-5)
    text = found.to_markdown()
    assert text.startswith("# Privacy report: 100 rounds of 50 kinds")
    assert "And 10 more phases" in text
    assert len(found.facts["phases"]) == 50


def test_bad_input_is_refused_before_anything_is_computed() -> None:
    with pytest.raises(InvalidParameter, match="rounds"):
        report.on_schedule(Schedule(), delta=1e-5)
    with pytest.raises(InvalidParameter, match="delta"):
        report.on_schedule(PLAN, delta=0)
    with pytest.raises(InvalidParameter, match="unit"):
        report.on_schedule(PLAN, delta=1e-5, unit="a\nb")
    with pytest.raises(InvalidParameter, match="accountant"):
        report.on_schedule(PLAN, delta=1e-5, accountant="guess")
    with pytest.raises(Unsupported):
        report.on_schedule(PLAN, delta=1e-5, accountant="gdp")


def test_words_of_others_stay_words() -> None:
    found = report.on_schedule(PLAN, delta=1e-5, unit="<b>cl|ient</b>", name="<i>x</i>")
    found = replace(found, blocks=found.blocks[:8])
    html = found.to_html()
    assert "<b>" not in html
    assert "<i>" not in html
    assert "<b>" not in found.to_markdown().replace("\\<", "")
