"""Runs with correlated noise in schedule files, and in the words that files share with ledgers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import dpacct
from dpacct import Budget, Ledger, Poisson, Round
from dpacct.correlated import (
    Correlated,
    Strategy,
    banded,
    buffered_toeplitz,
    independent,
    square_root,
    toeplitz,
)
from dpacct.errors import InvalidParameter
from dpacct.items import read_alone, release_entry
from dpacct.ledger import Event
from dpacct.ledger.record.events import covers
from dpacct.schedules import dump_schedule, load_schedule

STRATEGIES = {
    "independent": independent(12),
    "square-root": square_root(12, 3),
    "whole square-root": square_root(12),
    "toeplitz": toeplitz([1.0, 0.1, 1 / 3], 12),
    "buffered-toeplitz": buffered_toeplitz(12, [(0.3, 0.9), (0.1, 0.5)]),
    "banded": banded(np.tril(np.triu(np.random.default_rng(0).random((12, 12)), -2)) + np.eye(12)),
}
ENTRY: dict[str, Any] = {
    "noise_multiplier": 2.5,
    "strategy": "square-root",
    "steps": 12,
    "bands": 3,
    "min_separation": 4,
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("sampling", [None, Poisson(0.1)])
def test_every_strategy_survives_a_file(name, sampling, tmp_path):
    strategy: Strategy = STRATEGIES[name]
    separation = 12 if sampling is not None else 4
    release = Correlated(1 / 7, strategy, min_separation=separation, sampling=sampling)
    entry = release_entry(release, alone=True)
    assert read_alone(entry) == release
    assert entry["strategy"] in name
    plan = release + 3 * Round(2.0, Poisson(0.1))
    for suffix in (".toml", ".json"):
        file = tmp_path / f"plan{suffix}"
        dump_schedule(plan, file)
        assert load_schedule(file) == plan


def test_a_file_as_people_write_it(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(
        'adjacency = "zero-out"\n[[rounds]]\nmechanism = "correlated"\nnoise_multiplier = 4.27\n'
        'strategy = "square-root"\nsteps = 2000\nbands = 100\nmin_separation = 100\n'
        "participations = 20\n"
    )
    expected = Correlated(
        4.27,
        square_root(2000, 100),
        min_separation=100,
        participations=20,
        adjacency="zero-out",
    )
    assert load_schedule(file) == 1 * expected


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"strategy": "root"}, "strategy"),
        ({"strategy": 3}, "strategy"),
        ({"strategy": "independent"}, "bands"),
        ({"strategy": "toeplitz"}, "bands"),
        ({"strategy": "toeplitz", "bands": None}, "coefficients"),
        ({"steps": 0}, "steps"),
        ({"steps": None}, "steps"),
        ({"bands": 13}, "bands"),
        ({"noise_multiplier": None}, "noise_multiplier"),
        ({"participations": 4}, "participations"),
        ({"sampling_rate": 0.1, "min_separation": 2}, "bands"),
    ],
)
def test_bad_entries_are_named(changes, name):
    entry = {key: value for key, value in (ENTRY | changes).items() if value is not None}
    with pytest.raises(InvalidParameter) as caught:
        read_alone({"mechanism": "correlated", "adjacency": "add-remove"} | entry)
    assert caught.value.name == name


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_ledger_charges_a_whole_run(name, tmp_path):
    release = Correlated(8.0, STRATEGIES[name], min_separation=4, participations=3)
    with Ledger.open(tmp_path / "ledger", Budget(8.0, 1e-5)) as ledger:
        ledger.charge("keyboard", release)
        ledger.start_run("planned", plan=1 * release).reserve(Event(release)).commit()
        assert ledger.verify().sound
        spent = ledger.upper_epsilon()
    with Ledger.open(tmp_path / "ledger") as ledger:
        assert ledger.upper_epsilon() == spent
        assert list(ledger.runs[1].plan or ()) == [(release, 1)]
    # Two equal Gaussians, by an adaptive bound that is a little larger.
    assert spent >= dpacct.epsilon(2 * release, delta=1e-5).upper


def test_its_entry_has_one_form():
    release = Correlated(3.0, square_root(12, 3), min_separation=4, adjacency="zero-out")
    text = json.loads(json.dumps(release_entry(release, alone=True)))
    assert text == {
        "mechanism": "correlated",
        "noise_multiplier": 3.0,
        "strategy": "square-root",
        "steps": 12,
        "bands": 3,
        "min_separation": 4,
        "participations": 3,
        "adjacency": "zero-out",
    }
    assert read_alone(text) == release
    for wrong in (
        {"participations": 4},
        {"strategy": "toeplitz"},
        {"bands": 40},
        {"noise": 3.0},
        {"adjacency": "other"},
    ):
        with pytest.raises(InvalidParameter):
            read_alone(text | wrong)


def test_more_noise_is_covered_by_a_plan():
    release = Correlated(3.0, square_root(12, 3), min_separation=4)
    assert covers(release, release.scale_noise(1.5))
    assert not covers(release, release.scale_noise(0.5))
    assert not covers(release, Correlated(3.0, square_root(12, 4), min_separation=4))
