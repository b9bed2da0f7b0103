"""Writers killed at random points, alone and in crowds; `benchmarks/ledger_kills.py` does more."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.ledger_kills import kill_writers


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("kills", "crowd"), [(20, False), (20, True)])
def test_no_released_round_is_ever_missing(tmp_path: Path, kills: int, *, crowd: bool) -> None:
    found = kill_writers(tmp_path, kills, seed=20, crowd=crowd)
    assert found.problems == []
    assert found.kills == kills
    assert found.charged >= found.printed
    # The kills hit writers at work: between releases, and between reserve and commit.
    assert found.printed > 0
    assert found.uncommitted > 0
    assert found.creations >= kills // 10 - 1
