"""The published scale of NormEC's page: its model, when a run is given up, its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from dpacct.fl.models import resnet20
from evidence.normec_beta.grid import NORMEC, setting
from evidence.normec_beta.noise import RESNET20
from evidence.normec_beta.scale import CELLS, DATA, SEEDS, lost, scale_settings, scale_table
from evidence.records import Records, trained
from tests.fl.problems import federation, linear, make_clients


def history(accuracies: Sequence[float]) -> list[dict[str, float]]:
    return [{"round": 30 * place, "accuracy": value} for place, value in enumerate(accuracies, 1)]


GROWING = (16.0, 40.0, 80.0, 120.0)


@pytest.mark.parametrize(
    ("accuracies", "norms", "given_up"),
    [
        ((10.0, 9.9, 10.1, 10.0), GROWING, True),
        ((25.0, 9.9, 10.1, 10.0), GROWING, True),
        ((10.0, 9.9, 10.1), GROWING[:3], False),
        ((10.0, 9.9, 10.1, 11.5), GROWING, False),
        ((10.0, 11.5, 10.1, 10.0), GROWING, False),
        ((10.0, 9.9, 10.1, 10.0), (16.0, 40.0, 80.0, 79.0), False),
        ((10.0, 9.9, 10.1, 10.0), (16.0, 16.1, 16.2, 16.3), False),
    ],
)
def test_a_run_is_given_up_at_chance_with_growing_weights_after_120_rounds(
    accuracies,
    norms,
    given_up,
):
    assert lost(history(accuracies), norms) is given_up


def test_the_cells_differ_and_are_played_once_before_any_is_repeated():
    assert len(set(CELLS)) == len(CELLS)
    runs = [int(one["run"] or 0) for one in scale_settings(Records(Path("nowhere")))]
    assert runs == sorted(runs)
    assert len(runs) == len(SEEDS) * len(CELLS)


def test_the_model_is_as_long_as_the_page_says():
    assert sum(p.numel() for p in resnet20(3, 10).parameters()) == RESNET20


def test_a_run_that_is_lost_ends_and_says_after_how_many_rounds():
    def from_the_second(seen: Sequence[Mapping[str, float]]) -> bool:
        return len(seen) > 1

    def begun() -> Any:
        return federation(linear(), make_clients([4, 4]), rounds=4, delta=1e-3)

    whole = trained(begun(), lambda: 10.0, every=1)
    assert "rounds" not in whole
    assert len(whole["history"]) == 4
    ended = trained(begun(), lambda: 10.0, every=1, lost=from_the_second)
    assert ended["rounds"] == 2
    assert len(ended["history"]) == 2
    assert ended["epsilon"] == ended["history"][-1]["epsilon"] < whole["epsilon"]


def test_the_table_has_a_row_a_run_and_says_what_was_given_up(tmp_path):
    records = Records(tmp_path / "runs.jsonl")
    found: list[dict[str, Any]] = [
        {"accuracy": 40.0, "epsilon": 2.0, "history": history([30, 50, 40])},
        {"accuracy": 10.0, "epsilon": 1.0, "history": history([10, 10]), "rounds": 60},
    ]
    for run, result in enumerate(found, 1):
        played = {**result, "noise_multiplier": 32.85, "norm": 99.9}
        wanted = setting(DATA, 20, "printed", NORMEC, 0.01, 0.1, run=run)
        records.need([wanted], lambda _, result=played: result)
    _, _, first, second = scale_table(records).splitlines()
    assert first.startswith("| printed | NormEC | 0.01 | 0.1 | 1 | 32.85 | 2.000 |")
    assert "| 40.00 | 50.00 (60) |" in first
    assert "| 60, given up | 10.00 |" in second
