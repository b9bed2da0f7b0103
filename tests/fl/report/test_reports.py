"""Whatever epsilon does not cover is called so, wherever it is shown."""

from __future__ import annotations

import csv
import json
import sys
import types
from dataclasses import fields

from dpacct import fl
from dpacct.fl.report import RELEASED, UNPROTECTED, TensorBoardWriter
from tests.fl.problems import federation, linear, make_clients


class Events:
    """What a TensorBoard writer would have written."""

    tags: list[str]

    def __init__(self, _):
        Events.tags = []

    def add_scalar(self, tag, *_):
        Events.tags.append(tag)

    def flush(self):
        pass


def test_every_field_of_a_report_is_released_or_marked(tmp_path, monkeypatch):
    module = types.SimpleNamespace(SummaryWriter=Events)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    lines, table = tmp_path / "a.jsonl", tmp_path / "a.csv"
    writers = [fl.JSONLinesWriter(lines), fl.CSVWriter(table), TensorBoardWriter(tmp_path / "t")]
    with federation(linear(), make_clients([5] * 4), callbacks=writers, rounds=1) as run:
        report = run.run()
    with table.open(newline="") as stream:
        [cells] = csv.DictReader(stream)
    for field in fields(fl.RoundReport):
        assert field.name in RELEASED or field.name in {"diagnostics", "seconds"}
    # Its owner alone reads what no epsilon covers.
    for place in (lines, table, tmp_path / "t"):
        assert place.stat().st_mode & 0o077 == 0
    private = ("seconds", *(field.name for field in fields(fl.Diagnostics)))
    for columns in (report.to_dict(), json.loads(lines.read_text()), cells):
        for name in columns:
            assert name in RELEASED or name.startswith(UNPROTECTED)
        assert all(f"{UNPROTECTED}{name}" in columns for name in private)
    assert len(Events.tags) > 10
    for tag in Events.tags:
        assert tag.startswith("unprotected/") or tag.replace("/", "_") in RELEASED
    # A printed report shows nothing private.
    assert str(report).startswith("epsilon <= ")
    assert "zero-out of one client, after round 1 of 1" in f"{report!r}{report}"
    assert not any(name in f"{report!r}{report}" for name in private)


def test_what_is_not_marked_says_nothing_of_the_clients():
    options = {"sampling": fl.Poisson(0.5), "seed": 3, "rounds": 2}
    told = []
    for sizes, scale in (([5] * 8, 1.0), ([9, 1, 3, 2, 7, 0, 0, 40], 100.0)):
        clients = make_clients(sizes)
        for data in clients:
            data.inputs.mul_(scale)
        with federation(linear(), clients, **options) as run:
            rows = [report.to_dict() for report in run]
            words = [f"{report!r}{report}" for report in run]
        told.append((rows, words))
    (ours, words), (theirs, other) = told
    for one, two in zip(ours, theirs, strict=True):
        public = {name for name in one if not name.startswith(UNPROTECTED)}
        assert {n: one[n] for n in public} == {n: two[n] for n in public}
        assert any(one[n] != two[n] for n in one if n not in public)
    assert words == other
