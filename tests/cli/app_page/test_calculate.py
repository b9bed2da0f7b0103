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
from base64 import b64decode
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import dpacct
from dpacct import Budget, DpacctError, Epoch, Ledger, Poisson, Round
from dpacct_cli import words
from dpacct_cli.app_page import calculate, parts
from dpacct_cli.commands.compare import read_costs

FIELDS = {
    "solve": "epsilon", "noise_multiplier": "1", "sampling": "poisson", "num_clients": "60000",
    "cohort_size": "600", "epochs": "10",
    "epsilon": "3", "delta": "1e-6", "adjacency": "zero-out",
}  # fmt: skip
RATE = {"num_clients": None, "cohort_size": None, "epochs": None, "rounds": "300"}
SWEEP = FIELDS | {"noise_multiplier": "0.8..1.2/0.2", "cohort_size": "300,1200"}
QUESTION = {"ledger": "0", "noise_multiplier": "1.3", "sampling_rate": "0.1", "rounds": "20"}


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


def job_of(more: dict[str, Any]) -> dict[str, Any]:
    """The fields of a job without those that are None."""
    return {name: text for name, text in (FIELDS | more).items() if text is not None}


def answer(tab: str, **request: Any) -> dict[str, str]:
    return dict(parts.TABS[tab](request))


def shown(html: str) -> str:
    """What a reader sees of HTML."""
    return unescape(re.sub(r"<[^>]*>", " ", html))


# Each way to take part, with two of the questions.
@pytest.mark.sampled(8)
@pytest.mark.parametrize("solve", ["epsilon", "noise", "rounds"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        RATE | {"sampling_rate": "0.02"},
        {"sampling": "allocation", "num_clients": "2000", "cohort_size": "100"},
        {"sampling": "shuffle", "noise_multiplier": "4", "epochs": "3"},
        {"adjacency": "replace-one", "epochs": None, "rounds": "50"},
    ],
)
def test_commands_and_code_print_the_number_of_the_page(dpacct: Any, solve: str, more: Any):
    # The browser leaves out what does not apply, and what is solved for.
    left = {"noise": ["noise_multiplier"], "rounds": ["epochs", "rounds"]}
    job = calculate.read_job(
        job_of({"epsilon": "6"} | more | {"solve": solve} | dict.fromkeys(left.get(solve, [])))
    )
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
    shown_ways = [*parts.ways(job)]
    assert [html.count("<td>-</td><td>-</td>") for html in shown_ways] == [4, 3, 2, 1, 0]
    assert "The smallest epsilon is" in shown_ways[-1]
    assert [way.name for way in job.ways()] == ["poisson", "allocation", "uniform", "shuffle"]
    (cost,) = read_costs(job.ways()[1:2], 1e-6)
    assert cost.ends[1] == dpacct.epsilon(2 * Epoch(1.0, 10), delta=1e-6).upper
    assert not calculate.read_job(job_of(RATE | {"sampling_rate": "0.5"})).ways()


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
        ({"cohort_size": {}}, "Batch size is empty."),
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
    found = answer("calculator", fields=job_of(RATE | {"sampling_rate": "0.01"}))
    assert "no curve" in found["curve"]
    assert "right" in found["risk"]


def test_the_sweep_is_the_table_of_explore(dpacct: Any, tmp_path: Path):
    html = answer("sweep", fields=SWEEP)["heat"]
    file = tmp_path / "sweep.csv"
    command = shown(html[html.index("<pre") :]).partition("sweep.csv")[0].split()[1:]
    assert dpacct(f"{' '.join(command)} '{file}'").code == 0
    link = re.search('href="data:text/csv;base64,(.*?)" download="sweep.csv"', html)
    assert link is not None
    assert b64decode(link[1]) == file.read_bytes()
    rows = [*csv.DictReader(file.read_text(encoding="utf-8").splitlines())]
    assert html.count("<td>") == 6 + 3  # With the names of the rows
    inside = sum(float(row["epsilon_upper"]) <= 3 for row in rows)
    assert f"{inside} of 6 settings are within epsilon 3" in html


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epochs": "1..9", "noise_multiplier": "1..9"}, "a chart has 1 to 8 curves"),
        ({"noise_multiplier": "1", "cohort_size": "100"}, "a chart has 1 to 8 curves"),
        ({"noise_multiplier": "1..21/0.1", "cohort_size": "100,200"}, "These are 402 cells"),
        ({"noise_multiplier": "1..7.1/0.1", "cohort_size": "100,200"}, "a map has at most 60"),
        ({"noise_multiplier": "2..1"}, "a range goes up"),
        ({"epsilon": "x"}, "Epsilon budget is 'x'"),
    ],
)
def test_a_sweep_that_is_no_map_is_refused(wrong: Any, said: str):
    found = answer("sweep", fields=SWEEP | wrong)
    assert said in shown(found["heat"])
    assert "data:text/csv" not in found["heat"]


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
    answer("ledgers", ledgers=[str(ledger)], fields=QUESTION)
    assert before == {f: sha256(f.read_bytes()).hexdigest() for f in ledger.parent.iterdir()}


def test_names_in_a_ledger_stay_text(ledger: Path):
    found = answer("ledgers", ledgers=[str(ledger)], fields=QUESTION)
    assert "<script>alert(1)</script>" in shown(found["runs"])
    for html in found.values():
        assert not re.search("<script|<b>|<i>", html)


def test_a_ledger_without_a_bound_has_no_chart(tmp_path: Path):
    file = tmp_path / "seeded.ledger"
    with Ledger.open(file, Budget(8, 1e-5)) as opened:
        opened.charge("seeded", 20 * Round(2.0, Poisson(0.1)), private=False)
    found = answer("ledgers", ledgers=[str(file)], fields=QUESTION)
    assert "no bound" in shown(found["spent"])
    assert "at least one round that is bounded" in shown(found["timeline"])
    missing = answer("ledgers", ledgers=[str(tmp_path / "none.ledger")], fields=QUESTION)
    assert "no ledger can be opened" in shown(missing["spent"])
    assert missing["runs"] == ""


def test_pictures_are_images_with_their_finding(ledger: Path):
    found = answer("calculator", fields=FIELDS | {"num_clients": "200", "cohort_size": "20"})
    found |= answer("ledgers", ledgers=[str(ledger)], fields=QUESTION)
    for name in ("curve", "ways", "timeline"):
        images = re.findall(r'<img class=".*?" alt="(.+?)" src="(.*?)">', found[name])
        assert len(images) == (2 if name == "timeline" else 1)
        for finding, source in images:
            assert unescape(finding) in shown(found[name])
            root = ET.fromstring(b64decode(source.partition(",")[2]))  # noqa: S314 - of our own
            assert root.tag.endswith("svg")
    total = re.search("<strong>(.*?)</strong>", found["spent"])
    assert total is not None
    assert f"Epsilon {total[1]} of 8 is spent" in shown(found["timeline"])
    assert len(re.findall("[●○]", found["risk"])) == 100


def test_the_process_answers_by_lines():
    request = json.dumps({"tab": "sweep", "fields": SWEEP | {"cohort_size": "300"}})
    command = [sys.executable, "-P", "-m", parts.__name__]
    ran = subprocess.run(
        command, input=f"{request}\n", capture_output=True, text=True, check=True, timeout=3600
    )
    lines = [*map(json.loads, ran.stdout.splitlines())]
    assert {name for name, _ in lines} == {"heat"}
    assert "of 3 settings are within" in lines[-1][1]
