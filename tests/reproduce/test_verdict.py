"""Verdicts on known runs, against intervals that scipy.stats computes in another way."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from html import escape
from typing import Any

import pytest
from markdown_it import MarkdownIt
from scipy import stats

from dpacct.errors import InvalidParameter
from dpacct.reproduce import PaperTable, Records, judge, parse_table, picture, spread
from dpacct.reproduce.table import FIGURES, MEASURES
from dpacct.reproduce.verdict import _compared

# A run is known by the version of torch, too.
pytestmark = pytest.mark.needs("torch")

TEXT = """
title = "t"
source = "s"
seeds = [0, 1, 2, 3]
printed_runs = 5
[printed]
data = "digits"
method = "dp-fedavg"
[[column]]
name = "x 1"
value = 1
[[column]]
name = "x 2"
value = 2
[[row]]
name = "one"
options = { q = 0.1 }
printed = [50.0, 60.0]
spread = [1.0, 2.0]
[[row]]
name = "two"
options = { q = 0.2 }
printed = [48.0, "-"]
[[claim]]
says = "one is better"
better = "one"
than = "two"
"""


def played(table: PaperTable, records: Records, value: Any) -> None:
    for cell, setting in table.settings():
        accuracy = value(cell, setting["public_seed"])
        history = [{"round": n, "megabytes": n, "epsilon": 0.5 + n / 2, "accuracy": at}
                   for n, at in ((1, accuracy - 5), (2, accuracy))]  # fmt: skip
        result = {"accuracy": accuracy, "train_accuracy": accuracy + 3, "history": history}
        records.need([setting], lambda _, found=result: found)


@pytest.fixture
def table() -> PaperTable:
    # Columns share a setting if nothing tells them apart.
    text = TEXT.replace("value = 1", "value = 1\noptions = { rounds = 1 }")
    return parse_table(text.replace("value = 2", "value = 2\noptions = { rounds = 2 }"), "x.toml")


@pytest.mark.parametrize("seed", range(20))
def test_a_cell_agrees_where_welch_does_not_reject(table, seed):
    draws = stats.norm(0.8 * (seed % 4), 1 + seed / 10).rvs(3 + seed % 3, random_state=seed)
    cell = replace(table.cells[0], printed=0.0, spread=1.5)
    theirs = stats.ttest_ind_from_stats(
        draws.mean(), draws.std(ddof=1), len(draws), 0.0, 1.5, 5, equal_var=False
    )
    verdict = _compared(table, cell, [*map(float, draws)])
    assert (verdict == "agrees") is bool(theirs.pvalue >= 0.05)
    assert verdict == "agrees" or (verdict == "above") is bool(draws.mean() > 0)


def test_a_verdict_needs_three_runs_and_claims_are_paired(table, tmp_path):
    # Partitions differ by much more than methods do.
    gaps = {0: 1.0, 1: 1.4, 2: 0.8, 3: 1.1}

    def value(cell: Any, seed: int) -> float:
        return 50 + 10 * seed + (gaps[seed] if cell.row == "one" else 0)

    records = Records(tmp_path / "runs.jsonl")
    played(replace(table, seeds=(0, 1)), records, value)
    early = judge(table, records)
    assert {one.verdict for one in early.cells} == {"open"}
    assert early.claims[0].verdict == "open"
    played(table, records, value)
    late = judge(table, records)
    test = stats.ttest_1samp([*gaps.values()], 0)
    low, high = test.confidence_interval(0.95)
    claim = late.claims[0]
    assert claim.verdict == "reproduced"
    assert claim.difference == pytest.approx(statistics.mean(gaps.values()))
    assert claim.error == pytest.approx((high - low) / 2)
    assert claim.printed is None
    assert late.counts()["agrees"] >= 1
    reversed_ = replace(table, claims=(replace(table.claims[0], better="two", than="one"),))
    assert judge(reversed_, records).claims[0].verdict == "contradicted"
    assert judge(table, records, tiny=True).claims[0].verdict == "open"
    page = late.markdown()
    assert "| one | 66.08 ±12." in page
    assert " / 50 ±1 agrees |" in page
    assert "| one is better | - | +1.07 ±" in page


@pytest.mark.parametrize(
    ("measure", "target", "expected"),
    [("accuracy", None, 50), ("best_accuracy", None, 50), ("train_accuracy", None, 53),
     ("gap", None, 3), ("validation_accuracy", None, 50),
     ("rounds_to", 45, 1), ("rounds_to", 47, 2), ("rounds_to", 60, None)],
)  # fmt: skip
def test_measures_are_read_off_a_run(table, tmp_path, measure, target, expected):
    records = Records(tmp_path / "runs.jsonl")
    played(table, records, lambda *_: 50.0)
    found = judge(replace(table, measure=measure, target=target), records).cells[0].values
    assert found == ({} if expected is None else dict.fromkeys(table.seeds, expected))


@pytest.mark.parametrize("figure", ["column", "round", "epsilon", "messages", "megabytes"])
def test_each_figure_has_a_curve_for_each_row(table, tmp_path, figure):
    records = Records(tmp_path / "runs.jsonl")
    played(table, records, lambda _, seed: 50.0 + seed)
    drawn = picture(judge(replace(table, figure=figure), records))
    names = [curve.name for curve in drawn.panels[0].curves if not curve.plain]
    assert drawn.title.startswith("t: ")
    assert drawn.title.endswith("of 3 verdicts agree")
    assert names == ["one", "two"]
    curve = drawn.panels[0].curves[0]
    assert [*curve.x] == {"column": [1, 2], "epsilon": [1.0, 1.5]}.get(figure, [1, 2])
    assert curve.lower is not None
    assert curve.lower[-1] == 50.0 < curve.y[-1] == 51.5


@pytest.mark.parametrize("name", [*MEASURES])
@pytest.mark.parametrize("figure", [*FIGURES])
@pytest.mark.parametrize("result", [{}, {"history": [{"round": 1}]}, {"accuracy": 5, "cohort": 0}])
def test_a_run_that_lacks_figures_has_no_value(table, tmp_path, name, figure, result):
    records = Records(tmp_path / "runs.jsonl")
    records.need([setting for _, setting in table.settings()], lambda _: result)
    target = 50.0 if name == "rounds_to" else None
    judged = judge(replace(table, measure=name, target=target, figure=figure), records)
    assert picture(judged)
    kept = name == "accuracy" and "accuracy" in result
    assert all(bool(one.values) is kept for one in judged.cells)


def test_a_proven_epsilon_is_never_rounded_down(table, tmp_path):
    records = Records(tmp_path / "runs.jsonl")
    records.need([setting for _, setting in table.settings()], lambda _: {"epsilon": 2.004})
    _, [[_, first, *_], *_] = judge(replace(table, measure="epsilon"), records).grid()
    assert float(first.partition(" ")[0]) >= 2.004


def test_names_in_a_file_are_text_on_its_page(tmp_path):
    foreign = "a | <b> [x](y) $z_{"
    text = TEXT.replace('"one"', f'"{foreign}"').replace('"t"', f'"{foreign}"')
    page = judge(parse_table(text, "x"), Records(tmp_path / "runs.jsonl")).markdown()
    html = MarkdownIt("commonmark").enable("table").render(page)
    assert html.count("<table>") == 2
    assert html.count("<td>") == 2 * 3 + 4
    assert html.count(escape(foreign)) == 2
    assert "<b>" not in html


def test_runs_are_played_once_and_shared(tmp_path):
    book, done = Records(tmp_path / "runs.jsonl"), []
    settings = [{"method": "a", "run": run} for run in range(4)]

    def play(setting: Any) -> dict[str, Any]:
        done.append(setting["run"])
        return {"accuracy": 10.0 + setting["run"], "epsilon": float("inf")}

    Records(book.path).need(settings[1::2], play)
    assert done == [1, 3]
    book.need(settings, play)
    assert done == [1, 3, 0, 2]
    assert sorted(book.values("accuracy", method="a")) == [10, 11, 12, 13]
    assert book.values("epsilon", run=1) == [None]
    [first, *_] = book
    assert set(first.made["packages"]) == {"numpy", "scipy", "torch"}
    assert first.made["seconds"] >= 0


def forged(**result: Any) -> str:
    return json.dumps({"setting": {}, "result": result})


@pytest.mark.parametrize(
    "line",
    [
        "{", "[]", '{"setting": 1, "result": {}}', "{}", "[" * 10**5,
        forged(accuracy="<b>"), forged(accuracy=True), forged(epsilon=math.nan),
        forged(accuracy=10**400), forged(train_accuracy=1e200), forged(cohort=[]),
        forged(history=None), forged(history={}), forged(history=[5]),
        forged(history=[{"accuracy": 1.0}]), forged(history=[{"round": 1, "accuracy": "x"}]),
    ],
)  # fmt: skip
def test_a_damaged_line_is_named(tmp_path, line):
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps({"setting": {}, "result": {}}) + f"\n{line}\n", encoding="utf-8")
    with pytest.raises(InvalidParameter, match="line 2 is no finished run, remove the half line"):
        list(Records(file))


def test_spread_is_mean_and_sample_deviation():
    assert spread([1.0, 2.0, 3.0]) == "2.00 ±1.00"
    assert spread([1.5]) == "1.50"
    assert spread([]) == "-"
