"""`dpacct epsilon --from FILE`: the same answer as the tool, or the record, that wrote the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpacct import Budget, Full, Ledger, Poisson, Round
from tests.cli.test_bad_input import assert_refused

PLAN = 100 * Round(1.1, Poisson(0.01)) + 3 * Round(9.0, Full())


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_schedule_is_that_of_its_option(dpacct: Any, schedule_file: str) -> None:
    data = dpacct(f"epsilon --from {schedule_file} --delta 1e-6 --json").json
    assert data.pop("source") == "schedule"
    assert data == dpacct(f"epsilon --schedule {schedule_file} --delta 1e-6 --json").json


def test_a_ledger_answers_for_whatever_decided_to_stop(dpacct: Any) -> None:
    with Ledger.open("a.ledger", Budget(8, 1e-5)) as ledger:
        run = ledger.start_run("part", 30 * Round(9.0))
        run.reserve(Round(9.0)).commit()
    shown = dpacct("ledger show a.ledger --json").json
    data = dpacct("epsilon --from a.ledger --json").json
    assert data["epsilon"]["upper"] == shown["epsilon_any_stop"] > shown["epsilon"]["upper"]
    assert (data["source"], data["rounds"], data["delta"]) == ("ledger", 1, 1e-5)
    assert dpacct("epsilon --from a.ledger").text == dpacct("ledger show a.ledger").text


def test_an_empty_ledger_has_spent_nothing(dpacct: Any) -> None:
    dpacct("ledger init a.ledger --eps 8")
    assert dpacct("epsilon --from a.ledger --json").json["epsilon"]["upper"] == 0


def test_the_report_of_a_run(dpacct: Any) -> None:
    line = {
        "round": 2, "rounds": 3, "epsilon_lower": 1.5, "epsilon_upper": 1.75, "delta": 1e-6,
        "private": True, "adjacency": "zero-out",
    }  # fmt: skip
    Path("run.report.jsonl").write_text(f'{{"round": 1}}\n{json.dumps(line)}\n')
    data = dpacct("epsilon --from run.report.jsonl --json").json
    assert data["epsilon"] == {"lower": 1.5, "upper": 1.75}
    assert (data["rounds"], data["delta"], data["adjacency"]) == (2, 1e-6, "zero-out")
    told = dpacct("epsilon --from run.report.jsonl").text
    assert "the whole plan counts" in told
    # Whoever wrote the file says so, and no accountant.
    assert "as the file states, not checked" in told
    assert "proven" not in told
    Path("run.report.jsonl").write_text(json.dumps(line | {"private": False}))
    assert dpacct("epsilon --from run.report.jsonl -q").text == "inf\n"
    assert dpacct("epsilon --from run.report.jsonl --json").json["epsilon"]["upper"] is None
    for damage in (
        {"delta": "x"},
        {"epsilon_lower": 2},
        {"epsilon_upper": None},
        {"round": "x" * 999},
    ):
        Path("run.report.jsonl").write_text(json.dumps(line | damage))
        assert_refused(dpacct("epsilon --from run.report.jsonl"), "is not a round of dpacct train")


def test_what_cannot_be_read_or_contradicts(dpacct: Any, schedule_file: str) -> None:
    with Ledger.open("a.ledger", Budget(8, 1e-5)):
        pass
    Path("x.bin").write_bytes(b"hello")
    for name in ("x.json", "x.jsonl", "list.json"):
        Path(name).write_text("[]" if name == "list.json" else "{", encoding="utf-8")
    for words, part in (
        ("nowhere", "--from is 'nowhere'; there is no such file."),
        ("x.bin", "--from is 'x.bin'; it is not a ledger, a .report.jsonl, a schedule,"),
        ("x.json", "--from is 'x.json'; it is not JSON."),
        ("list.json", "--from is 'list.json'; it has to hold one JSON object."),
        ("x.jsonl", "it is not JSON."),
        ("a.ledger --delta 1e-6", "--delta 1e-6 contradicts a.ledger (the ledger says it)"),
        ("a.ledger --clients 100", "--clients 100 contradicts a.ledger"),
        ("a.ledger --accountant rdp", "--accountant rdp contradicts a.ledger"),
        ("a.ledger --noise 1", "--noise 1 contradicts a.ledger"),
        (f"{schedule_file} --batch 3", f"--batch 3 contradicts {schedule_file}"),
    ):
        assert_refused(dpacct(f"epsilon --from {words}"), part)
