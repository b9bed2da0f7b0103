from __future__ import annotations

import math
import warnings

import pytest

import dpacct
from dpacct.budget import Budget
from dpacct.errors import Unsupported
from dpacct.interop import (
    DpAccountingPld,
    DpAccountingRdp,
    OpacusPrv,
    OpacusRdp,
    Peer,
    installed_peers,
    peers,
    to_dp_event,
)
from dpacct.interop.peers import ask, import_peer
from dpacct.rounds import Full, Phase, Poisson, Round, Schedule, Uniform

DELTA = 1e-5
KNOWN = 300 * Round(1.36, Poisson(0.1))
S, W = "SelfComposedDpEvent", "SampledWithoutReplacementDpEvent"
PEERS = [DpAccountingRdp(), DpAccountingPld(), OpacusRdp(), OpacusPrv()]


@pytest.fixture(autouse=True)
def _packages() -> None:
    pytest.importorskip("dp_accounting")
    pytest.importorskip("opacus")


def name(value: object) -> str:
    return str(getattr(value, "name", value))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Exact delta of the Gaussian mechanism with shift over noise ``mu``."""

    def below(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    tail = below(-mu / 2 - epsilon / mu)
    return below(mu / 2 - epsilon / mu) - math.exp(epsilon) * tail


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (DpAccountingRdp(), 8.00526),
        pytest.param(DpAccountingPld(), 7.31499, marks=pytest.mark.slow),
        (OpacusRdp(), 7.99731),
        pytest.param(OpacusPrv(), 7.32539, marks=pytest.mark.slow),
    ],
    ids=name,
)
def test_the_known_setting(peer: Peer, expected: float) -> None:
    assert peer.epsilon(KNOWN, DELTA) == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("peer", [DpAccountingRdp(), OpacusRdp()], ids=name)
def test_split_phases_and_zero_out_cost_the_same(peer: Peer) -> None:
    a, b = Round(2.0, Poisson(0.05)), Round(3.0, Poisson(0.1))
    assert peer.epsilon(20 * a + 10 * b, DELTA) == peer.epsilon(5 * a + 10 * b + 15 * a, DELTA)
    zero_out = 20 * Round(2.0, Poisson(0.05), "zero-out")
    assert peer.epsilon(zero_out, DELTA) == peer.epsilon(20 * a, DELTA)
    if isinstance(peer, DpAccountingRdp):
        assert peer.epsilon(Schedule(), DELTA) == pytest.approx(0.0, abs=1e-9)
        fixed = 200 * Round(2.4, Uniform(100, 2000))
        assert peer.epsilon(fixed, 2000**-1.1) == pytest.approx(6.3801, abs=1e-4)


@pytest.mark.parametrize("peer", PEERS, ids=name)
@pytest.mark.parametrize(
    ("adjacency", "everybody"),
    [("replace-one", Full()), ("zero-out", Poisson(1.0))],
)
def test_full_participation_is_a_gaussian(
    peer: Peer, adjacency: str, everybody: Full | Poisson
) -> None:
    schedule = 4 * Round(4.0, everybody, adjacency)
    mu = (2 if adjacency == "replace-one" else 1) * math.sqrt(4) / 4
    epsilon = peer.epsilon(schedule, DELTA)
    # None undercounts; PRV adds its tolerance of 0.01, Renyi what the conversion loses.
    assert gaussian_delta(mu, epsilon) <= DELTA
    assert gaussian_delta(mu, epsilon * 0.88) >= DELTA


@pytest.mark.parametrize(
    ("peer", "schedule", "call"),
    [
        (
            DpAccountingRdp(),
            200 * Round(2.4, Uniform(100, 2000)),
            f"RdpAccountant(REPLACE_ONE), {S}({W}(2000, 100, GaussianDpEvent(1.2)), 200)",
        ),
        (
            DpAccountingPld(),
            3 * Round(2.0, Poisson(0.5), "replace-one"),
            f"PLDAccountant(REPLACE_ONE), {S}(PoissonSampledDpEvent(0.5, GaussianDpEvent(2.0)), 3)",
        ),
        (OpacusRdp(), KNOWN, "RDPAccountant, history [(1.36, 0.1, 300)]"),
        (
            OpacusPrv(),
            4 * Round(4.0, Full(), "replace-one"),
            "PRVAccountant, history [(2.0, 1.0, 4)]",
        ),
    ],
    ids=name,
)
def test_an_answer_has_the_call_that_gives_it(peer: Peer, schedule: Schedule, call: str) -> None:
    assert peer.call(schedule) == call
    many = Schedule(Phase(Round(2.0 + k, Full()), 1) for k in range(99))
    assert len(peer.call(many)) < 250


@pytest.mark.slow
def test_replacing_costs_more_than_removing() -> None:
    replaced = 300 * Round(1.36, Poisson(0.1), "replace-one")
    assert DpAccountingPld().epsilon(replaced, DELTA) > DpAccountingPld().epsilon(KNOWN, DELTA)


@pytest.mark.parametrize("peer", PEERS, ids=name)
def test_what_a_peer_does_not_know_is_refused(peer: Peer) -> None:
    relations, records = ("add-remove", "replace-one", "zero-out"), Poisson(0.1, records=3)
    cases = [(Uniform(1, 20), relation, f"fixed size under {relation}") for relation in relations]
    if peer == DpAccountingRdp():
        _, (scheme, relation, _), _ = cases
        assert math.isfinite(peer.epsilon(2 * Round(2.0, scheme, relation), DELTA))
        del cases[1]
    if peer != DpAccountingPld():
        cases.append((Poisson(0.1), "replace-one", "Poisson sampling under replace-one"))
    truncated = Poisson(0.1, max_cohort=8, num_clients=40)
    cases += [(scheme, None, "not asked about") for scheme in (records, truncated)]
    for scheme, relation, said in cases:
        with pytest.raises(Unsupported, match=said):
            peer.epsilon(2 * Round(2.0, scheme, relation), DELTA)


def test_events_say_what_happened() -> None:
    import dp_accounting as dp

    schedule = 3 * Round(2.0, Poisson(0.5)) + Round(1.0) + 2 * Round(2.0, Poisson(0.5))
    assert to_dp_event(schedule) == dp.ComposedDpEvent(
        [
            dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(2.0)), 5),
            dp.GaussianDpEvent(1.0),
        ]
    )
    whole = dp.SampledWithoutReplacementDpEvent(20, 1, dp.GaussianDpEvent(1.0))
    assert to_dp_event(7 * Round(2.0, Uniform(1, 20))) == dp.SelfComposedDpEvent(whole, 7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("peer", "expected"), [(DpAccountingRdp(), 1.36057), (OpacusRdp(), 1.35986)], ids=name
)
def test_calibration_by_peers(peer: DpAccountingRdp | OpacusRdp, expected: float) -> None:
    found = peer.noise_multiplier(Budget(8, DELTA), rounds=300, sampling_rate=0.1)
    assert found == pytest.approx(expected, abs=1e-5)


def test_the_installed_ones_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [peer.name for peer in installed_peers()] == [peer.name for peer in PEERS]
    there = peers.find_spec
    monkeypatch.setattr(peers, "find_spec", lambda name: there(name) if name != "opacus" else None)
    assert [peer.name for peer in installed_peers()] == ["dp-accounting RDP", "dp-accounting PLD"]


def test_what_a_peer_says_beside_its_answer_is_not_passed_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # One drops orders and logs that, the other advises other orders in a warning.
        assert DpAccountingRdp().epsilon(3 * Round(1.0, Poisson(0.1)), DELTA) > 0
        assert OpacusRdp().epsilon(3 * Round(50.0, Poisson(0.01)), DELTA) > 0
    assert capfd.readouterr() == ("", "")


def test_a_peer_that_fails_or_is_missing_is_unsupported() -> None:
    for question, said in (
        (lambda: int("many"), "found no answer: invalid literal"),
        (lambda: math.exp(1e4), "found no answer: math range error"),
        (lambda: math.nan, "answered NaN"),
    ):
        with pytest.raises(Unsupported, match=f"Somebody {said}"):
            ask("Somebody", question)
    assert ask("Somebody", lambda: math.inf) == math.inf
    with pytest.raises(Unsupported, match=r"Nobody's is not installed: .*pip install"):
        import_peer("no_such_accountant", "Nobody's")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accountant", "setting", "delta", "shown"),
    [
        ("pld", (0.614, 517_989 * 1024 / 13e12, 100_000), 1.1e-10, 1.7003),
        ("gdp", (0.614, 517_989 * 1024 / 13e12, 100_000), 1.1e-10, 0.2614),
        ("prv", (1.0, 0.01, 1000), 1e-13, 4.1458),
        ("gdp", (0.5, 0.001, 1000), 1e-6, 0.9764),
    ],
)
def test_the_peers_of_the_page_are_below_an_epsilon_that_is_achieved(
    accountant: str, setting: tuple[float, float, int], delta: float, shown: float
) -> None:
    """The figures of docs/explanation/when-accountants-fall-short.md."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from opacus.accountants import GaussianAccountant, PRVAccountant

    noise, rate, rounds = setting
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if accountant == "pld":
            step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
            peer = PLDAccountant(value_discretization_interval=1e-3).compose(step, rounds)
        else:
            peer = {"prv": PRVAccountant, "gdp": GaussianAccountant}[accountant]()
            peer.history = [setting]
        theirs = peer.get_epsilon(delta)
    # Rounding decides the figure of the page: on another processor it has other digits.
    assert theirs == pytest.approx(shown, rel=0.03)
    assert theirs < dpacct.epsilon(rounds * Round(noise, Poisson(rate)), delta=delta).lower
