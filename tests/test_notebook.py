"""What a notebook shows of a value: a small table in which names stay text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dpacct import Budget, Ledger, Poisson, Round


def words(value: Any) -> str:
    html = value._repr_html_()
    assert html.count("<tr>") <= 5
    assert "<b>" not in html
    assert len(repr(value)) < 200
    return " ".join(re.sub("<[^>]*>", " ", html).split())


def test_a_ledger_and_its_report_are_small_tables(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.ledger", Budget(8, 1e-5), unit="<b>person</b>") as ledger:
        assert "epsilon 0 spent, of 8, at delta 1e-05" in words(ledger)
        ledger.charge("run", 10 * Round(2.0, Poisson(0.1)))
        shown = words(ledger)
        assert "spent, of 8" in shown
        assert "rounds 10 charged, in 1 runs" in shown
        report = ledger.report_document()
        assert report.headline[:40] in words(report)
        assert repr(report).startswith("<Report ")


def test_a_data_set_and_a_federation_are_small_tables() -> None:
    torch = pytest.importorskip("torch")
    from dpacct import fl
    from dpacct.fl.data import PartitionedClients, load
    from dpacct.fl.data.partitions import iid
    from dpacct.fl.models import build_model

    digits = load("digits")
    assert "data set digits 10 classes" in words(digits)
    assert repr(digits.train) == "<Examples, 1,437 of 1 x 8 x 8>"
    run = fl.Federation(
        build_model("logistic", digits), torch.nn.functional.cross_entropy,
        PartitionedClients(digits.train, iid(len(digits.train), 20)),
        clip_norm=1.0, sampling=fl.Poisson(0.3), budget=Budget(8, 1e-5), rounds=2,
        local=fl.SGD(lr=1.0, epochs=1, batch_size=10),
    )  # fmt: skip
    assert "Federation 0 of 2 rounds noise multiplier" in words(run)
    assert "planned, at delta 1e-05" in words(run)
    run.run()
    assert repr(run) == "<Federation, 2 of 2 rounds>"
