"""A ledger in a fresh folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dpacct import Ledger
from ledgers import BUDGET, MANY


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.ledger"


@pytest.fixture(autouse=True)
def _few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each point of a report's picture is an epsilon; every day a few of them are enough."""
    if MANY == 1:
        monkeypatch.setattr("dpacct.ledger.report.facts._POINTS", 3)


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.open(path, BUDGET) as opened:
        yield opened
