"""The accountant for Flower's own strategies, beside Flower's."""

from __future__ import annotations

import json

import pytest

import dpacct
from dpacct import Budget, Ledger
from dpacct.errors import BudgetExceeded, InvalidParameter

pytest.importorskip("flwr.serverapp", reason="flwr is not installed")

from flwr.serverapp import GaussianPrivacyEvent, PrivacyConfig, SamplingMethod
from flwr.serverapp import NeighboringRelation as Relation

from dpacct.interop.flower import TightAccountant

DELTA = 1e-5
SETTINGS = {
    "poisson": (SamplingMethod.POISSON, Relation.ADD_OR_REMOVE_ONE),
    "fixed": (SamplingMethod.WITHOUT_REPLACEMENT, Relation.REPLACE_ONE),
    "none": (SamplingMethod.NO_AMPLIFICATION, Relation.ADD_OR_REMOVE_ONE),
}


def config(kind: str, population: int = 100, **options) -> PrivacyConfig:
    sampling, relation = SETTINGS[kind]
    return PrivacyConfig(DELTA, population, relation, sampling, **options)


def event(noise: float = 2.0, size: int = 10, population: int = 100) -> GaussianPrivacyEvent:
    return GaussianPrivacyEvent(noise, size, population)


@pytest.mark.parametrize(
    ("kind", "size", "words"),
    [
        ("poisson", 10, {"sampling_rate": 0.1}),
        ("fixed", 10, {"sampling": dpacct.Uniform(10, 100)}),
        ("none", 100, {"sampling": dpacct.Full()}),
        ("none", 99, {"sampling": dpacct.Full(), "adjacency": "replace-one"}),
    ],
)
def test_rounds_are_charged_as_what_they_are(kind, size, words) -> None:
    accountant = TightAccountant(config(kind))
    accountant.compose(event(size=size), 20)
    found = accountant.get_privacy_spent()
    expected = dpacct.epsilon(noise_multiplier=2.0, rounds=20, delta=DELTA, **words)
    assert found.epsilon == expected.upper
    assert (found.num_releases, found.delta, found.accounting_method) == (20, DELTA, "dpacct tight")
    assert accountant.get_delta(found.epsilon) <= DELTA * (1 + 1e-3)


def test_it_is_below_flowers_where_flower_is_right_and_above_where_it_is_not() -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

    found = {}
    for kind, size, noise in (("poisson", 10, 2.0), ("none", 100, 10.0), ("none", 99, 10.0)):
        for name, maker in (("ours", TightAccountant), ("theirs", RdpAccountant)):
            accountant = maker(config(kind))
            accountant.compose(event(noise, size), 50)
            found[kind, size, name] = accountant.get_epsilon(DELTA)
    assert found["poisson", 10, "ours"] < found["poisson", 10, "theirs"]
    assert found["none", 100, "ours"] < found["none", 100, "theirs"]
    # One pair of data sets achieves 6.499: docs/how-to/other-libraries.md.
    assert found["none", 99, "theirs"] == pytest.approx(3.189, abs=1e-3)
    assert 6.499 < found["none", 99, "ours"] < 6.6


def test_nothing_costs_nothing() -> None:
    accountant = TightAccountant(config("poisson"))
    assert (accountant.get_epsilon(DELTA), accountant.num_releases) == (0.0, 0)


def test_a_limit_is_looked_at_and_nothing_counted() -> None:
    accountant = TightAccountant(config("none", max_epsilon=3.0))
    most = next(n for n in range(1, 50) if accountant.would_exceed(event(8.0, 100), count=n)) - 1
    accountant.compose(event(8.0, 100), most)
    assert accountant.get_epsilon(DELTA) <= 3.0
    assert accountant.would_exceed(event(8.0, 100))
    assert not accountant.would_exceed(event(8.0, 100), max_epsilon=9.0)
    assert accountant.num_releases == most
    with pytest.raises(InvalidParameter, match="max_epsilon"):
        TightAccountant(config("none")).would_exceed(event())


def test_the_ledger_is_charged_before_anything_is_handed_out(tmp_path) -> None:
    with Ledger.open(tmp_path / "a", Budget(2, DELTA)) as book:
        accountant = TightAccountant(config("poisson"), run=book.start_run("flower"))
        accountant.compose(event(), 3)
        assert (book.rounds, book.runs[0].committed) == (3, 3)
        with pytest.raises(BudgetExceeded):
            accountant.compose(event(0.5, 50))
        assert accountant.num_releases == 3
    with (
        Ledger.open(tmp_path / "b", Budget(2, 1e-6)) as book,
        pytest.raises(InvalidParameter, match="target_delta"),
    ):
        TightAccountant(config("poisson"), run=book.start_run("flower"))


def test_its_state_comes_back() -> None:
    accountant = TightAccountant(config("poisson"))
    accountant.compose(event(), 3)
    accountant.compose(event(1.5, 20))
    state = json.loads(json.dumps(accountant.state_dict()))
    again = TightAccountant(config("poisson"))
    again.load_state_dict(state)
    assert again.schedule == accountant.schedule
    other = TightAccountant(config("poisson", 200))
    with pytest.raises(InvalidParameter, match="same configuration"):
        other.load_state_dict(state)
    with pytest.raises(InvalidParameter, match="events"):
        again.load_state_dict(state | {"events": [[1.0, 5, -1]]})
    assert again.num_releases == 4


@pytest.mark.parametrize("wrong", [{"event": event(population=99)}, {"event": event(), "count": 0}])
def test_bad_input_is_refused(wrong) -> None:
    accountant = TightAccountant(config("poisson"))
    with pytest.raises(InvalidParameter):
        accountant.compose(**wrong)
    assert accountant.num_releases == 0


def test_flowers_strategy_takes_it() -> None:
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    accountant = TightAccountant(config("none", 10, max_epsilon=8.0))
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), 1.0, 0.5, 10, accountant=accountant
    )
    strategy._compose_release(event(1.0, 10, 10))
    assert strategy.privacy_spent().epsilon == accountant.get_epsilon(DELTA) > 0
