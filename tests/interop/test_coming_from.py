"""The figures of docs/how-to/other-libraries.md, from the libraries that they are about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dpacct
from dpacct import Full, Poisson, Round, Uniform

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"
PAGE = "".join(
    (HOW_TO / name).read_text(encoding="utf-8") for name in ("other-libraries.md", "flower.md")
)
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
