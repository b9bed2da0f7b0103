"""The figures of other libraries in the documentation, from these libraries."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest

import dpacct
from benchmarks.calibration import BUDGET, RATE, ROUNDS, dp_accounting_noise, opacus_noise
from benchmarks.peers import DISTINCT
from dpacct import Full, Poisson, Round, Uniform
from dpacct.display import down, up
from dpacct.interop import DpAccountingPld, DpAccountingRdp, OpacusPrv, OpacusRdp
from dpacct.tuning import best_of

ROOT = Path(__file__).resolve().parents[2]
NAMES = (
    "README.md", "docs/how-to/other-libraries.md", "docs/how-to/flower.md",
    "docs/derivations/tuning.md", "evidence/epochs_range/README.md",
)  # fmt: skip
PAGE = "".join((ROOT / name).read_text(encoding="utf-8") for name in NAMES)
DELTA = 1e-5
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


def says(*figures: str) -> None:
    for figure in figures:
        assert figure in PAGE


@pytest.mark.parametrize(
    ("accountant", "stops", "exact"),
    [
        ("prv", 0.86792, None),
        ("rdp", 0.93140, 0.93039),
        ("gdp", 0.74219, 0.74127),
    ],
)
def test_what_opacus_asks_for(accountant: str, stops: float, exact: float | None) -> None:
    pytest.importorskip("opacus", reason="opacus is not installed")
    pytest.importorskip("dpacct.interop.opacus")
    from opacus.accountants.utils import get_noise_multiplier

    setting = {
        "target_epsilon": 3, "target_delta": DELTA, "sample_rate": 1 / 40, "epochs": 4,
        "accountant": accountant,
    }  # fmt: skip
    assert get_noise_multiplier(**setting) == pytest.approx(stops, abs=1e-5)
    row = f'| `"{accountant}"` | {stops:.5f} |'
    if exact is not None:
        found = get_noise_multiplier(**setting, epsilon_tolerance=1e-6)
        assert found == pytest.approx(exact, abs=1e-5)
        row += f" {exact:.5f} |"
    says(row)


def test_what_dpacct_asks_for_in_its_place() -> None:
    found = dpacct.calibrate(epsilon=3, delta=DELTA, rounds=160, sampling_rate=1 / 40)
    assert found.noise_multiplier == pytest.approx(0.86619, abs=1e-5)
    says('| `"dpacct"` | 0.86619 | 0.86619 |')


def test_what_our_bounds_say_of_these_settings() -> None:
    limit_theorem = 160 * Round(0.74219, Poisson(1 / 40))
    fixed = 50 * Round(10.0, Uniform(99, 100), "add-remove")
    assert dpacct.epsilon(limit_theorem, delta=DELTA).lower == pytest.approx(4.48, abs=0.005)
    assert dpacct.epsilon(fixed, delta=DELTA).lower == pytest.approx(6.499, abs=1e-3)
    # What Flower says of the latter, 3.189, is compared in `test_flower`.
    says("spends epsilon 4.48", "6.499", "3.189")


def test_what_dp_accounting_asks_for_and_says() -> None:
    library: Any = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    replaced = library.NeighboringRelation.REPLACE_ONE
    rounds = library.SelfComposedDpEvent(library.GaussianDpEvent(10.0), 20)
    truth = dpacct.epsilon(20 * Round(10.0, Full(), "replace-one"), delta=DELTA)
    assert truth.lower == pytest.approx(3.8486, abs=1e-4)
    pld = PLDAccountant(replaced).compose(rounds).get_epsilon(DELTA)
    assert pld == pytest.approx(truth.upper, rel=1e-4)
    for relation in (replaced, library.NeighboringRelation.ADD_OR_REMOVE_ONE):
        renyi = RdpAccountant(neighboring_relation=relation).compose(rounds)
        assert renyi.get_epsilon(DELTA) == pytest.approx(1.9142, abs=1e-4)

    sampled = library.SampledWithoutReplacementDpEvent(2000, 100, library.GaussianDpEvent(2.4))
    renyi = RdpAccountant(neighboring_relation=replaced).compose(sampled, 200)
    assert renyi.get_epsilon(DELTA) == pytest.approx(2.865, abs=1e-3)
    plan = 200 * Round(2.4, Uniform(100, 2000))
    spent = dpacct.epsilon(plan, delta=DELTA)
    assert 3.396 <= spent.lower <= spent.upper <= 3.405

    nested = library.PoissonSampledDpEvent(0.1, library.SelfComposedDpEvent(sampled.event, 4))
    with pytest.raises(library.UnsupportedEventError):
        PLDAccountant().compose(nested)
    says("3.8486", "1.9142", "2.865", "3.396", "3.405")
    # Its noise is over the sensitivity.
    half = library.SampledWithoutReplacementDpEvent(2000, 100, library.GaussianDpEvent(1.2))
    renyi = RdpAccountant(neighboring_relation=replaced).compose(half, 200)
    assert renyi.get_epsilon(DELTA) == pytest.approx(7.531, abs=5e-4)
    says("7.531", "GaussianDpEvent(1.2)", "GaussianDpEvent(2.4)")


@pytest.mark.parametrize(
    ("peer", "noise", "epsilon"),
    [
        (DpAccountingPld(), "PLD 1.28601", "PLD 8.4637"),
        (DpAccountingRdp(), "RDP 1.36057", "RDP 9.302"),
        (OpacusPrv(), "PRV 1.28784", "PRV 8.474"),
        (OpacusRdp(), "RDP 1.35986", "RDP 9.298"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_table_of_the_readme(peer: Any, noise: str, epsilon: str) -> None:
    """Minutes, of which the loss distributions of 300 rounds take most."""
    pytest.importorskip("dp_accounting")
    pytest.importorskip("opacus")
    calibrated = {
        "dp-accounting PLD": dp_accounting_noise,
        "Opacus PRV": opacus_noise,
    }.get(peer.name, lambda: peer.noise_multiplier(BUDGET, ROUNDS, RATE))
    assert calibrated() == pytest.approx(float(noise.split()[1]), abs=1e-5)
    assert peer.epsilon(DISTINCT, DELTA) == pytest.approx(float(epsilon.split()[1]), abs=5e-4)
    says(noise, epsilon)


def test_tuning_beside_dp_accounting() -> None:
    """The table of docs/derivations/tuning.md: best of a random number of Gaussian runs."""
    library: Any = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    from dp_accounting.rdp import RdpAccountant

    for z, runs, shape in ((2.0, "poisson", inf), (2.0, "geometric", 1.0), (1.0, "poisson", inf)):
        event = library.dp_event.RepeatAndSelectDpEvent(library.GaussianDpEvent(z), 10, shape)
        theirs = RdpAccountant().compose(event).get_epsilon(DELTA)
        ours = dpacct.epsilon(1 * best_of(Round(z), f"{runs}:10"), delta=DELTA)
        says(f"| {down(ours.lower, 6)} | {up(ours.upper, 6)} |", f" | {theirs:.4f} |")


@pytest.mark.parametrize("most", [550, 600, 650])
def test_truncated_cohorts_beside_dp_accounting(most: int) -> None:
    library: Any = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    from dp_accounting.pld import PLDAccountant

    event = library.TruncatedSubsampledGaussianDpEvent(50_000, 0.01, most, 1.0)
    theirs = PLDAccountant().compose(event, 1000).get_epsilon(DELTA)
    plan = 1000 * Round(1.0, Poisson(0.01, max_cohort=most, num_clients=50_000))
    ours = dpacct.epsilon(plan, delta=DELTA)
    assert ours.upper <= theirs * (1 + 1e-5)
    says(f"| {most} | [{down(ours.lower, 6)}, {up(ours.upper, 6)}]", f"| {theirs:.6g} |")
