"""Reports: what a reviewer needs is in them, in a form that browsers and readers take."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dpacct import Ledger, Poisson, Round, __version__
from dpacct.ledger import Event, NoisySum
from dpacct.pictures import epsilon_chart
from ledgers import BUDGET, play

FIRST = Event(Round(1.5, Poisson(0.05)), (NoisySum("update", 1.5, 0.2), NoisySum("quantile", 20.0)))
SECOND = Round(1.2, Poisson(0.05))
VOID = {"meta", "link", "br", "img", "hr", "line", "circle", "polyline", "polygon"}


class Checker(HTMLParser):
    """Tags are closed in the order in which they were opened; nothing comes from afar."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "iframe", "link")
        for name, value in attrs:
            assert not name.startswith("on")
            assert name != "href"
            assert name != "src" or (value or "").startswith("data:image/svg+xml;base64,")
            assert "http" not in (value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def text_of(html: str) -> str:
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    return " ".join(" ".join(checker.text).split())


class Told(NamedTuple):
    report: dict[str, Any]
    markdown: str
    html: str
    upper: float


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Two planned phases, a crash, an adaptive change, an abandoned round, a second run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpacct.ledger.report.facts._POINTS", 4)
        return _eventful(tmp_path_factory)


def _eventful(tmp_path_factory: pytest.TempPathFactory) -> Told:
    path = tmp_path_factory.mktemp("eventful") / "a.ledger"
    plan = 12 * FIRST.charged + 8 * SECOND
    with Ledger.open(path, BUDGET, unit="patient") as ledger:
        run = ledger.start_run("training", plan, details={"model": "cnn", "clip_norm": 0.2})
        for _ in range(12):
            run.reserve(FIRST).commit()
        run.reserve(SECOND).abandon("no client answered")
        play(run, SECOND, 4)
        run.reserve(SECOND)
    with Ledger.open(path) as ledger:
        run = ledger.resume_run(1)
        play(run, Round(0.9, Poisson(0.05)), 3)
        ledger.start_run("evaluation").reserve(Round(30.0)).commit()
        pages = ledger.report_markdown(), ledger.report_html()
        return Told(ledger.report(), *pages, ledger.upper_epsilon())


def test_a_noise_is_one_number_in_all_columns_of_a_report(tmp_path: Path) -> None:
    noise = 1.41527878865
    step = Event(Round(noise, Poisson(0.1)), (NoisySum("update", noise, 0.5),))
    with Ledger.open(tmp_path / "a.ledger", BUDGET) as ledger:
        ledger.start_run("one").reserve(step).commit()
        words = ledger.report_markdown()
    assert set(re.findall(r"1\.4152\d*", words)) == {"1.415279"}


@pytest.mark.needs("matplotlib", "markdown_it")
def test_the_report_says_what_a_reviewer_asks(eventful: Told) -> None:
    report, markdown, html, upper = eventful
    plain = re.sub(r"\\(.)", r"\1", markdown)
    for text in (plain, text_of(html)):
        for fact in (
            "one patient", "add-remove", "1e-05", "Poisson sampling at rate 0.05", "Renyi odometer",
            "update: noise multiplier 1.5, sensitivity 0.2", "left its plan at round 18",
            "clip_norm: 0.2", report["head"],
            f"dpacct {__version__}",
            "sound", "budget is 8", "secret",
        ):  # fmt: skip
            assert fact in text, fact
        shown = re.search(r"epsilon (\d+\.\d+) at delta", text)
        assert shown is not None
        # Rounded to the safe side, in the fifth digit.
        assert upper <= float(shown[1]) <= upper * (1 + 1e-4)
    assert report["rounds"] == 21
    assert [phase["rounds"] for phase in report["runs"][0]["phases"]] == [12, 5, 3]
    assert report["runs"][0]["uncommitted"] == 1
    json.dumps(report, allow_nan=False)


@pytest.mark.needs("matplotlib", "markdown_it")
def test_epsilon_over_rounds_is_true_at_every_point_and_in_the_chart(eventful: Told) -> None:
    report = eventful.report
    points = report["points"]
    assert [p["round"] for p in points] == sorted({p["round"] for p in points})
    assert points[-1]["round"] == 21
    assert points[-1]["upper"] == report["epsilon"]["upper"]
    uppers = [p["upper"] for p in points]
    assert uppers == sorted(uppers)
    kinds = [p["guarantee"] for p in points]
    assert kinds == sorted(kinds, reverse=True)
    assert set(kinds) == {"planned", "adaptive"}
    [panel] = epsilon_chart(report).panels
    assert list(panel.curves[0].y[1:]) == uppers
    assert [level.words for level in panel.levels] == ["budget 8"]
    assert eventful.html.count('src="data:image/svg+xml;base64,') == 1


@pytest.mark.needs("matplotlib", "markdown_it")
def test_words_of_others_stay_words(path: Path) -> None:
    evil = "<script>alert(1)</script> | **bold** `code` </table>"
    with Ledger.open(path, BUDGET, unit="<b>client") as ledger:
        run = ledger.start_run(evil, details={evil: evil})
        event = Event(Round(9.0), (NoisySum(evil, 9.0),), main=evil)
        run.reserve(event).abandon(evil)
        run.reserve(event).commit()
        html, markdown = ledger.report_html(), ledger.report_markdown()
    assert "alert(1)" in text_of(html)
    assert "<script" not in html
    assert "<script" not in markdown.replace("\\<", "")
    assert all(
        len(re.findall(r"(?<!\\)\|", line)) in (3, 5, 6, 9)
        for line in markdown.splitlines()
        if line.startswith("|")
    )


def test_reports_of_what_is_not_sound_or_not_private_claim_nothing(path: Path) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        empty = ledger.report_markdown()
        ledger.start_run("seeded", private=False).reserve(Round(9.0)).commit()
        seeded = ledger.report_markdown()
        ledger._file.store.connection.execute("CREATE TABLE more (x)")
        damaged = ledger.report_html()
    assert "All 0 rounds" in empty
    assert "**No guarantee" in seeded
    assert "none: not private" in seeded
    assert "damaged, and nothing is claimed" in damaged


@pytest.mark.slow
def test_planned_ledgers_say_so(path: Path) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("planned", 20 * SECOND)
        play(run, SECOND, 20)
        text = ledger.report_markdown()
    assert "planned before the first one ran" in text
    assert "tight composition" in text
    assert "The plan of 20 rounds costs epsilon" in text
    assert "It was registered before the first round." in text
    assert "Renyi odometer" not in text


def test_a_long_run_is_summed_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpacct.ledger.report.facts.MAX_PHASES", 5)
    rounds = [Round(30.0 + n) for n in range(8)]
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("each round another noise")
        for round_ in rounds:
            run.reserve(round_).commit()
        report: dict[str, Any] = ledger.report()
        assert "And 3 more rounds" in ledger.report_markdown()
    assert sum(p["rounds"] for p in report["runs"][0]["phases"]) == 5


def test_a_report_leaves_out_the_abandoned_round_itself(path: Path) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("two equal rounds apart")
        first = run.reserve(Round(30.0))
        for noise in (31.0, 30.0):
            run.reserve(Round(noise)).commit()
        first.abandon("no client answered")
        (found,) = ledger.report()["runs"]
    assert [phase["noise_multiplier"] for phase in found["phases"]] == [31.0, 30.0]
    assert [phase["rounds"] for phase in found["phases"]] == [1, 1]
    assert found["abandonments"] == 1
