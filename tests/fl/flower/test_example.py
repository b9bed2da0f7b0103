"""The app of examples/flower, over Flower's messages in one process."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed beside the other test extras")

from flwr.app import Context, RecordDict

from dpacct.ledger import Ledger
from tests.fl.flower.fake import FakeGrid

APP = Path(__file__).resolve().parents[3] / "examples" / "flower"


def test_three_hospitals_train(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    try:
        client = importlib.import_module("hospitals.client")
        server = importlib.import_module("hospitals.server")
        network = FakeGrid([client.app] * 3)
        config = {"folder": str(tmp_path), "rounds": 2}
        server.app(network, Context(7, 1, {}, RecordDict(), config))
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "hospitals"]:
            del sys.modules[name]
    *lines, last = (tmp_path / "rounds.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "round 1 of 2: 3 hospitals",
        "round 2 of 2: 3 hospitals",
    ]
    with Ledger.open(tmp_path / "run.pt.ledger", read_only=True) as book:
        assert (book.runs[0].rounds, book.runs[0].committed) == (2, 2)
        assert last == f"done: epsilon {book.runs[0].epsilon().upper:.4f} at delta 1e-05"
    assert len(network.sent) == 6
