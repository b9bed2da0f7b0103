"""The ledger of an audit: it refuses nothing, and is gone behind it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from dpacct.budget import Budget
from dpacct.ledger import Ledger

# Nothing is refused: what is audited is what was charged.
_NO_LIMIT = sys.float_info.max


@contextmanager
def passing_ledger(delta: float) -> Generator[Ledger]:
    """A ledger in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="dpacct-") as folder:
        path, budget = Path(folder) / "passing.ledger", Budget(_NO_LIMIT, delta)
        with Ledger.open(path, budget, passing=True) as ledger:
            yield ledger
