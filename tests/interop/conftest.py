from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpacct import Budget, Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with Ledger.open(tmp_path / "l.ledger", Budget(50, 1e-5)) as opened:
        yield opened


@pytest.fixture
def run(ledger: Ledger) -> Any:
    return ledger.start_run("opacus")
