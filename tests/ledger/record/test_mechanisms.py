"""Releases beside the rounds in a ledger: charged, written, read back, planned and verified."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from dpacct import Budget, Ledger, Round, validate
from dpacct.errors import InvalidParameter
from dpacct.items import COUNT, NOISE, RELEASES, Item, Key, read_alone, release_entry
from dpacct.ledger import Event, NoisySum
from dpacct.ledger.record import events
from dpacct.ledger.record.events import covers, in_adjacency
from dpacct.pairs.dominating import Direction, DominatingPair, Mechanism, SampledGaussianPair
from dpacct.rounds import Adjacency


@dataclass(frozen=True)
class Whole(Mechanism):
    """All steps of something, at the cost of one Gaussian."""

    noise_multiplier: float
    steps: int
    adjacency: Adjacency = Adjacency.ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", validate.count("steps", self.steps, "the steps"))
        object.__setattr__(self, "adjacency", Adjacency.parse(self.adjacency))

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        return {SampledGaussianPair(1.0, self.noise_multiplier, direction): 1}

    achieved_pairs = proven_pairs


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Item(Whole, "whole", "{steps} steps", (NOISE, Key("steps", COUNT)))
    monkeypatch.setitem(RELEASES, "whole", row)


def test_a_mechanism_is_charged_like_the_gaussian_that_it_costs(tmp_path: Path) -> None:
    budget = Budget(8.0, 1e-5)
    spent: list[float] = []
    for name, item in (("a", Whole(3.0, 100)), ("b", Round(3.0))):
        with Ledger.open(tmp_path / name, budget) as ledger:
            run = ledger.start_run("planned", plan=4 * item)
            for _ in range(3):
                run.reserve(Event(item)).commit()
            ledger.charge("elsewhere", 2 * item)
            assert ledger.verify().sound
            spent.append(ledger.upper_epsilon())
            assert "100 steps" in ledger.report_markdown() or name == "b"
        with Ledger.open(tmp_path / name) as ledger:
            assert ledger.upper_epsilon() == spent[-1]
            assert list(ledger.runs[0].plan or ()) == [(item, 4)]
    assert spent[0] == pytest.approx(spent[1], rel=1e-9)


def test_its_written_form_is_one_and_read_strictly() -> None:
    item = Whole(1.5, 10, Adjacency.ZERO_OUT)
    text = json.loads(json.dumps(release_entry(item, alone=True)))
    assert text == {
        "mechanism": "whole", "noise_multiplier": 1.5, "steps": 10, "adjacency": "zero-out",
    }  # fmt: skip
    assert read_alone(text) == item
    for wrong in (
        text | {"mechanism": "other"},
        text | {"steps": "x"},
        text | {"more": 1},
        {key: value for key, value in text.items() if key != "steps"},
        text | {"adjacency": "nearby"},
        text | {"steps": 10.5},
    ):
        with pytest.raises((InvalidParameter, TypeError)):
            read_alone(wrong)
    with pytest.raises(InvalidParameter, match="mechanisms of the kinds"):
        release_entry(type("Unknown", (Whole,), {})(1.0, 2), alone=True)


def test_a_plan_covers_the_mechanism_with_more_noise_and_no_other() -> None:
    planned = Whole(1.0, 10)
    assert covers(planned, planned)
    assert covers(planned, Whole(1.5, 10))
    assert not covers(planned, Whole(0.9, 10))
    assert not covers(planned, Whole(1.5, 11))
    assert not covers(planned, Whole(1.5, 10, Adjacency.ZERO_OUT))
    assert not covers(planned, Round(5.0))
    assert not covers(Round(1.0), Whole(5.0, 10))
    assert in_adjacency(planned, "zero-out") == Whole(1.0, 10, Adjacency.ZERO_OUT)
    with pytest.raises(InvalidParameter, match="share one adjacency"):
        in_adjacency(planned, "replace-one")


def test_joint_releases_lower_its_noise() -> None:
    event = Event(Whole(1.0, 10), (NoisySum("update", 1.0), NoisySum("count", 2.0)))
    assert event.charged == Whole(events.joint_noise_multiplier([1.0, 2.0]), 10)
