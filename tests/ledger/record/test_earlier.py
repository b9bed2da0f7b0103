"""A ledger of version 0.1 that was charged by larger bounds than today's: sound, and no door."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dpacct import Ledger, Poisson, Round, Uniform
from dpacct.ledger.record.earlier import charged_then, planned_then
from dpacct.rounds import Adjacency
from forgeries import Row, read, write

FIXTURE = Path(__file__).parents[2] / "fixtures" / "v0_1" / "replaced.ledger"
ROUND = Round(1.5, Poisson(0.1), Adjacency.REPLACE_ONE)


@pytest.fixture
def old(path: Path) -> Path:
    shutil.copy(FIXTURE, path)
    return path


def test_what_was_charged_then_is_sound_and_said(old: Path) -> None:
    with Ledger.open(old) as ledger:
        found = ledger.verify()
        # What 0.1 read, from the totals as they stand there.
        assert ledger.upper_epsilon() == pytest.approx(5.642764718312542, rel=1e-12)
    assert found.sound, found.problems
    assert any("charged by a larger bound than today's" in remark for remark in found.remarks)
    assert (found.entries, found.rounds) == (15, 5)


def test_it_goes_on_under_todays_bound(old: Path) -> None:
    with Ledger.open(old) as ledger:
        run = ledger.resume_run(1)
        run.reserve(ROUND).commit()
        run.reserve(Round(3.0, Poisson(0.1), Adjacency.REPLACE_ONE)).abandon("not needed")
        ledger.start_run("late", 3 * ROUND).reserve(ROUND).commit()
        run.finish()
        found = ledger.verify()
        assert found.sound, found.problems


@pytest.mark.parametrize(
    ("entry", "key", "value"),
    [(2, "rounds", 5), (2, "rounds", 4), (2, "noise_multiplier", 1.6), (2, "sampling_rate", 0.09),
     (3, "noise_multiplier", 1.6), (14, "noise_multiplier", 2.1), (14, "sampling_rate", 0.04)],
)  # fmt: skip
def test_a_larger_bound_hides_no_change(old: Path, entry: int, key: str, value: float) -> None:
    rows = [Row(json.loads(json.dumps(row.content)), row.closes) for row in read(old)]
    data = rows[entry - 1].content["data"]
    changed = data["plan"][0] if "plan" in data else data["charged"]
    assert changed[key] != value
    changed[key] = value
    write(old, rows)
    with Ledger.open(old) as ledger:
        (problem,) = ledger.verify().problems
    assert "charges more than its rounds cost" in problem


def test_only_what_was_bounded_otherwise_differs() -> None:
    for relation in Adjacency:
        for sampling in (Poisson(0.1), Uniform(1, 9), None):
            round_ = Round(2.0, sampling, relation)
            differs = relation is Adjacency.REPLACE_ONE and isinstance(sampling, Poisson)
            assert (charged_then(round_) != round_) is differs
            assert (planned_then(3 * round_) is None) is not differs
    assert charged_then(ROUND) == Round(1.5, Uniform(1, 10))
