"""The pages of evidence show what the recorded runs say."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

import dpacct
from dpacct import Full, Poisson, Round, Schedule, Uniform
from evidence.longer_training.runs import CLAIMS
from evidence.mnist_smoothing import runs
from evidence.natural_clients.play import difference
from evidence.natural_clients.runs import TASKS
from evidence.pages import EVIDENCE, home, markdown, put_tables, tables_of
from evidence.records import Record, Records, spread
from evidence.strokes import stroke

NAMES = sorted(
    path.parent.name
    for path in EVIDENCE.glob("*/play.py")
    if "def tables(" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", NAMES)
def test_tables_of_the_page_are_those_of_the_runs(name):
    module: ModuleType = import_module(f"evidence.{name}.play")
    shown = tables_of(EVIDENCE / module.PAGE)
    assert shown == module.tables(Records(EVIDENCE / module.RUNS))


@pytest.mark.parametrize("name", NAMES)
def test_no_recorded_run_spent_more_than_its_target(name):
    module = import_module(f"evidence.{name}.play")
    records = list(Records(EVIDENCE / module.RUNS))
    assert records
    for record in records:
        if record.setting.get("epsilon") is not None and "epsilon" in record.result:
            assert record.result["epsilon"] <= record.setting["epsilon"]


def plan_of(name: str, record: Record) -> tuple[Schedule, float] | None:
    """The rounds of a recorded run, and their delta. None if it says too little."""
    own, result = record.setting, record.result
    noise = result.get("noise_multiplier", own.get("noise_multiplier"))
    # Runs without noise have an epsilon of some thousand, which takes long.
    if not noise or result.get("epsilon", 1e9) > 1e3:
        return None
    if name == "mnist_smoothing":
        # What is known of a noise is a record of its own.
        return runs.plan_of(own["sampling"], noise) if own.get("quantity") == "cost" else None
    if name == "longer_training":
        claim = CLAIMS[own["claim"]]
        sampling = Uniform(claim.cohort, claim.population)
        return claim.rounds * Round(noise, sampling), claim.delta
    rounds, rate, delta = {
        "cifar_methods": (own.get("rounds"), 0.1, 1 / 500),
        "natural_clients": (own.get("rounds"), own.get("sampling_rate"), _population(own) ** -1.1),
        "normec_beta": (result.get("rounds", 300), own.get("sampling_rate"), 1e-5),
    }.get(name, (None, None, None))
    if rounds is None or rate is None or delta is None:
        return None
    return rounds * Round(noise, Full() if rate == 1 else Poisson(rate)), delta


def _population(setting: dict[str, Any]) -> int:
    return TASKS[setting["data"]].population if setting.get("data") in TASKS else 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["cifar_methods", "longer_training", "mnist_smoothing", "natural_clients", "normec_beta"],
)
def test_recorded_epsilons_are_those_of_today(name):
    module = import_module(f"evidence.{name}.play")
    shown: dict[tuple[Schedule, float], set[float]] = {}
    for record in Records(EVIDENCE / module.RUNS):
        if (plan := plan_of(name, record)) is not None:
            shown.setdefault(plan, set()).add(record.result["epsilon"])
    assert shown
    for (schedule, delta), found in shown.items():
        spent = dpacct.epsilon(schedule, delta=delta)
        for epsilon in found:
            assert epsilon == pytest.approx(spent.upper, rel=2e-5)


def test_the_cost_of_every_noise_of_the_mnist_runs_is_recorded():
    records = Records(EVIDENCE / "mnist_smoothing" / "runs.jsonl")
    found = runs.costs(records)
    assert len(found) == 24
    for one in found:
        cost = runs.known_cost(records, one["sampling"], one["noise_multiplier"])
        assert cost["epsilon_achieved"] < cost["epsilon"] < 9


def test_records_are_played_once_and_kept(tmp_path):
    book = Records(tmp_path / "runs.jsonl")
    settings = [{"method": "a", "run": run} for run in range(4)]
    played: list[int] = []

    def play(setting: object) -> dict[str, float]:
        assert isinstance(setting, dict)
        played.append(setting["run"])
        return {"accuracy": 10.0 + setting["run"]}

    Records(book.path, part=(1, 2)).need(settings, play)
    assert played == [1, 3]
    book.need(settings, play)
    assert played == [1, 3, 0, 2]
    assert sorted(book.values("accuracy", method="a")) == [10, 11, 12, 13]
    assert book.values("accuracy", method="b") == []


def test_a_replay_into_a_folder_of_its_own_starts_without_runs(tmp_path):
    page = "pictures/README.md"
    assert home(None, page) == EVIDENCE
    assert home(tmp_path / "new", page) == tmp_path / "new"
    assert (tmp_path / "new" / page).read_text("utf-8") == (EVIDENCE / page).read_text("utf-8")
    assert not list((tmp_path / "new").rglob("*.jsonl"))
    (tmp_path / "new" / page).write_text("begun", encoding="utf-8")
    assert (home(tmp_path / "new", page) / page).read_text("utf-8") == "begun"


@pytest.mark.parametrize("name", NAMES)
def test_every_page_can_be_replayed_from_nothing(name):
    text = (EVIDENCE / name / "play.py").read_text(encoding="utf-8")
    assert "add_into(" in text
    assert "EVIDENCE / PAGE" not in text
    assert "EVIDENCE / RUNS" not in text


def test_a_record_says_by_what_it_was_made(tmp_path):
    book = Records(tmp_path / "runs.jsonl")
    book.need([{"run": 0}], lambda _: {"accuracy": 1.0})
    [record] = book
    assert record.made["dpacct"] == dpacct.__version__
    assert set(record.made["packages"]) == {"numpy", "scipy", "torch"}
    assert record.made["seconds"] >= 0.0
    assert "commit" in record.made


def test_spread_is_mean_and_sample_deviation():
    assert spread([1.0, 2.0, 3.0]) == "2.00 ±1.00"
    assert spread([1.5]) == "1.50"
    assert spread([]) == "-"


def test_runs_that_share_nothing_are_not_paired():
    one, other = {0: 1.0, 1: 3.0}, {0: 0.0, 1: 2.0}
    assert difference(one, other, paired=True) == "+1.00 (0.00)"
    assert difference(one, other, paired=False) == "+1.00 (1.41)"
    assert difference({0: 1.0}, other, paired=False) == "+1.00"
    assert difference({}, other, paired=False) == "-"


def test_no_two_lines_of_a_picture_are_alike_in_grey():
    strokes = [stroke(place) for place in range(35)]
    assert len({(s["linestyle"], s["marker"]) for s in strokes}) == len(strokes)


def test_tables_are_replaced_between_their_comments(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- table: a -->\nold\n<!-- end -->\n"
        "<!-- table: b -->\n<!-- end -->\n<!-- table: kept -->\nas is\n<!-- end -->\nafter\n"
    )
    table = markdown(["x", "y"], [["1", "2"]])
    put_tables(page, {"a": table, "b": r"\1"})
    shown = "| x | y |\n| --- | --- |\n| 1 | 2 |"
    assert tables_of(page) == {"a": shown, "b": r"\1", "kept": "as is"}
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")
    with pytest.raises(SystemExit, match="no place"):
        put_tables(page, {"c": table})
