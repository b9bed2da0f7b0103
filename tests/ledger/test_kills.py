"""Several hundred writers killed at random points; `benchmarks/ledger_kills.py` does 10,000."""

from __future__ import annotations

from pathlib import Path

from benchmarks.ledger_kills import kill_writers

KILLS = 300


def test_no_released_round_is_ever_missing(tmp_path: Path) -> None:
    found = kill_writers(tmp_path, KILLS, seed=20)
    assert found.problems == []
    assert found.kills == KILLS
    assert found.charged >= found.printed
    # The kills hit writers at work: between releases, and between reserve and commit.
    assert found.printed > 0
    assert found.uncommitted > 0
    assert found.creations >= KILLS // 10 - 1
