"""What the page computes, draws and escapes, without a browser."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from datetime import date, timedelta
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import dpacct
from dpacct import Budget, DpacctError, Epoch, Ledger, Poisson, Round
from dpacct_cli import words
from dpacct_cli.app_page import calculate, draw, parts
from dpacct_cli.commands.compare import read_costs

FIELDS = {
    "solve": "epsilon", "noise_multiplier": "1", "sampling": "poisson", "size": "batch",
    "num_clients": "60000", "cohort_size": "600", "length": "epochs", "epochs": "10",
    "epsilon": "3", "delta": "1e-6", "adjacency": "zero-out",
}  # fmt: skip
SWEEP = FIELDS | {"noise_multiplier": "0.8..1.2/0.2", "cohort_size": "300,1200"}
QUESTION = {"noise_multiplier": "1.3", "sampling_rate": "0.1", "rounds": "20"}


@pytest.fixture(autouse=True)
def _in_a_page() -> Any:
    words.about_examples()
    yield
    words.forget()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger whose names are markup."""
    file = tmp_path / "registry.ledger"
    with Ledger.open(file, Budget(8, 1e-5), unit="<i>person</i>") as opened:
        opened.charge("first", 30 * Round(1.3, Poisson(0.1)), project="<b>a</b>")
        opened.charge("<script>alert(1)</script>", 20 * Round(2.0, Poisson(0.1)), project="b")
        opened.charge("third", 20 * Round(2.0, Poisson(0.1)), project="<b>a</b>")
    return file


def answer(tab: str, **request: Any) -> dict[str, str]:
    return dict(parts.TABS[tab](request))


def shown(html: str) -> str:
    """What a reader sees of HTML."""
    return unescape(re.sub(r"<[^>]*>", " ", html))


@pytest.mark.parametrize("solve", ["epsilon", "noise", "rounds"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"size": "rate", "sampling_rate": "0.02", "length": "rounds", "rounds": "300"},
        {"sampling": "allocation", "num_clients": "2000", "cohort_size": "100"},
        {"sampling": "shuffle", "noise_multiplier": "4", "epochs": "3"},
        {"adjacency": "replace-one", "length": "rounds", "rounds": "50"},
    ],
)
def test_commands_and_code_print_the_number_of_the_page(dpacct: Any, solve: str, more: Any):
    fields = FIELDS | {"epsilon": "6"} | more | {"solve": solve}
    # The browser leaves out what is solved for.
    left = {"noise": ["noise_multiplier"], "rounds": ["length", "epochs", "rounds"]}
    for name in left.get(solve, []):
        fields.pop(name, None)
    job = calculate.read_job(fields)
    command, code = job.commands()
    assert float(dpacct(f"{command.removeprefix('dpacct ')} -q").text) == job.number
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})  # noqa: S102 - the code of the page is to be copied
    assert float(printed.getvalue()) == pytest.approx(job.number, rel=1e-12)
    assert job.spent.upper <= 6 or solve == "epsilon"
    assert "client" not in shown(parts.headline(job))


def test_the_headline_is_epsilon_rounded_up():
    spent = dpacct.epsilon(1000 * Round(1.0, Poisson(0.01), "zero-out"), delta=1e-6)
    found = re.search(r"<strong>(.*)</strong>", parts.headline(calculate.read_job(FIELDS)))
    assert found is not None
    assert spent.upper <= float(found[1]) <= spent.upper * (1 + 1e-3)


def test_four_ways_are_filled_in_one_by_one():
    small = FIELDS | {"num_clients": "200", "cohort_size": "20", "epochs": "2"}
    job = calculate.read_job(small)
    counts = [html.count("computing ...") for html in parts.ways(job)]
    assert counts == [4, 3, 2, 1, 0]
    assert [way.name for way in job.ways()] == ["poisson", "allocation", "uniform", "shuffle"]
    (cost,) = read_costs(job.ways()[1:2], 1e-6)
    assert cost.ends[1] == dpacct.epsilon(2 * Epoch(1.0, 10), delta=1e-6).upper
    assert not calculate.read_job(FIELDS | {"size": "rate", "sampling_rate": "0.5"}).ways()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"noise_multiplier": ""}, "Noise multiplier is empty."),
        ({"noise_multiplier": None}, "Noise multiplier is empty."),
        ({"noise_multiplier": "<b>"}, "Noise multiplier is '<b>'; it has to be a number"),
        ({"noise_multiplier": ["1"]}, "Noise multiplier"),
        ({"cohort_size": "70000"}, "Batch size is 70000"),
        ({"delta": "2"}, "Delta is 2; delta lies in (0, 1)"),
        ({"epsilon": "0"}, "Epsilon budget is 0"),
        ({"solve": "everything"}, "solve is 'everything'"),
        ({"sampling": "../../etc/passwd"}, "sampling"),
        ({"size": {}}, "size"),
    ],
)
def test_a_wrong_field_is_named_and_stays_text(wrong: Any, said: str):
    found = answer("calculator", fields=FIELDS | wrong)
    assert said in shown(found["headline"])
    assert "<b>" not in found["headline"]
    assert found["headline"].startswith('<div role="alert">')
    assert not any(found[name] for name in ("curve", "ways", "risk", "code"))


def test_a_part_that_cannot_be_computed_says_why(monkeypatch: pytest.MonkeyPatch):
    def fails(_job: object) -> str:
        raise dpacct.NotConverged("no curve")

    monkeypatch.setattr(parts, "curve", fails)
    found = answer("calculator", fields=FIELDS | {"size": "rate", "sampling_rate": "0.01"})
    assert "no curve" in found["curve"]
    assert "right" in found["risk"]


def test_the_sweep_is_the_table_of_explore(dpacct: Any, tmp_path: Path):
    found = answer("sweep", fields=SWEEP)
    command = calculate.read_sweep(SWEEP).command
    file = tmp_path / "sweep.csv"
    assert dpacct(command.removeprefix("dpacct ").replace("sweep.csv", f"'{file}'")).code == 0
    assert found["csv"] == file.read_text(encoding="utf-8")
    assert found["heat"].count("<td") == 6
    rows = csv.DictReader(found["csv"].splitlines())
    inside = sum(float(row["epsilon_upper"]) <= 3 for row in rows)
    assert f"{inside} of 6" in found["heat"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epochs": "1,2"}, "Let two settings vary"),
        ({"noise_multiplier": "1..21/0.1", "cohort_size": "100,200"}, "These are 402 cells"),
        ({"noise_multiplier": "2..1"}, "a range goes up"),
        ({"epsilon": "x"}, "Epsilon budget is 'x'"),
    ],
)
def test_a_sweep_that_is_no_map_is_refused(wrong: Any, said: str):
    found = answer("sweep", fields=SWEEP | wrong)
    assert said in shown(found["heat"])
    assert found["csv"] == ""


def test_the_map_parts_what_fits_from_what_does_not():
    cells: list[list[draw.Cell]] = [[(1.0, ""), (4.0, "")], [(None, "<none>"), None]]
    html = draw.heat("a", ["x", "y"], ["1", "2"], cells, 3.0)
    kinds = re.findall(r'<td(?: class="(.*?)")?', html)
    assert [set(kind.split()) for kind in kinds] == [{"right", "bottom"}, {"left"}, {"top"}, set()]
    assert "&lt;none&gt;" in html


@pytest.mark.parametrize("days", [1, 3, 90])
def test_the_chart_of_a_ledger_ends_at_its_total(ledger: Path, days: int):
    with Ledger.open(ledger, read_only=True) as opened:
        facts: Any = opened.summary()
    for number, run in enumerate(facts["runs"]):
        day = date(2026, 3, 30) + timedelta(number * (days - 1))
        run["latest"] = f"{day}T12:00:00+00:00"
    html = parts.timeline(facts)
    assert html.count("<polygon") == 2 * 2
    total = dpacct.display.up(facts["runs"][-1]["total_after"], 4)
    assert html.count(f">{total}</text>") == 2
    assert ("rounds</text>" in html) == (days == 1)
    assert ("Mar</text>" in html) == (days == 3)
    assert ("May 26</text>" in html) == (days == 90)


def test_a_ledger_is_read_and_never_written(ledger: Path):
    before = {file: sha256(file.read_bytes()).hexdigest() for file in ledger.parent.iterdir()}
    with Ledger.open(ledger, read_only=True) as opened:
        fits, why = calculate.may_run(opened, QUESTION)
        expected = opened.would_read(20 * Round(1.3, Poisson(0.1))).upper
        most = opened.remaining(Round(1.3, Poisson(0.1)))
        assert fits
        assert f"would read epsilon {dpacct.display.up(expected, 4)} of 8" in why
        assert f"At most {most} such rounds" in why
        fits, why = calculate.may_run(opened, QUESTION | {"rounds": str(most + 1)})
        assert not fits
        with pytest.raises(DpacctError, match="rounds"):
            calculate.may_run(opened, QUESTION | {"rounds": ""})
    answer("ledgers", path=str(ledger), fields=QUESTION)
    assert before == {f: sha256(f.read_bytes()).hexdigest() for f in ledger.parent.iterdir()}


def test_names_in_a_ledger_stay_text(ledger: Path):
    found = answer("ledgers", path=str(ledger), fields=QUESTION)
    assert "<script>alert(1)</script>" in shown(found["runs"])
    for html in found.values():
        assert not re.search("<script|<b>|<i>", html)


def test_a_ledger_without_a_bound_has_no_chart(tmp_path: Path):
    file = tmp_path / "seeded.ledger"
    with Ledger.open(file, Budget(8, 1e-5)) as opened:
        opened.charge("seeded", 20 * Round(2.0, Poisson(0.1)), private=False)
    found = answer("ledgers", path=str(file), fields=QUESTION)
    assert "no bound" in shown(found["spent"])
    assert "nothing to draw" in found["timeline"]
    missing = answer("ledgers", path=str(tmp_path / "none.ledger"), fields=QUESTION)
    assert "no ledger can be opened" in shown(missing["spent"])
    assert missing["runs"] == ""


def test_charts_are_xml_with_their_finding(ledger: Path):
    found = answer("calculator", fields=FIELDS | {"num_clients": "200", "cohort_size": "20"})
    found |= answer("ledgers", path=str(ledger), fields=QUESTION)
    charts = [svg for html in found.values() for svg in re.findall(r"<svg.*?</svg>", html)]
    assert len(charts) >= 5
    for chart in charts:
        root = ET.fromstring(chart)  # noqa: S314 - of our own
        assert root.get("role") == "img"
        assert root.get("aria-label")
        assert "nan" not in chart


@pytest.mark.parametrize("top", [1e-9, 0.7, 1.0, 3.3, 9.99, 12_345.0])
def test_an_axis_has_few_round_values(top: float):
    scale, grid = draw.axis(top, 100, 100)
    assert 2 <= grid.count("<line") <= 6
    assert scale(0.0) > scale(top) >= draw.TOP


def test_the_process_answers_by_lines():
    request = json.dumps({"tab": "sweep", "fields": SWEEP | {"cohort_size": "300"}})
    command = [sys.executable, "-P", "-m", parts.__name__]
    ran = subprocess.run(
        command, input=f"{request}\n", capture_output=True, text=True, check=True, timeout=120
    )
    ready, *lines, end = map(json.loads, ran.stdout.splitlines())
    assert ready is None
    assert end is None
    assert {name for name, _ in lines} == {"heat", "csv"}
