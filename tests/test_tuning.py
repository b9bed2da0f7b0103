"""The best of several runs: against quadrature, published bounds, and dp-accounting."""

from __future__ import annotations

import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

import dpacct
from dpacct import Budget, Laplace, Ledger, Poisson, Round, best_of, tuning
from dpacct.errors import InvalidParameter
from dpacct.renyi.curve import RenyiCurve
from dpacct.tuning import BestOf, Runs

LAWS = ("poisson:10", "geometric:10", "negative-binomial:10,0.5", "logarithmic:10")


@pytest.mark.parametrize(
    ("mu", "achieved", "renyi"), [(0.5, 2.25403, 3.98786), (1.0, 4.88652, 8.46142)]
)
def test_poisson_runs_of_gaussians_have_the_known_bracket(
    mu: float, achieved: float, renyi: float
) -> None:
    # Values of an independent prototype: the best order over a fine grid, and quadrature.
    found = dpacct.epsilon(1 * best_of(Round(1 / mu), "poisson:10"), delta=1e-5)
    assert renyi * (1 - 1e-5) <= found.upper <= renyi * (1 + 3e-4)
    assert found.lower == pytest.approx(achieved, rel=1e-4)
    assert found.lower <= achieved * (1 + 1e-5)


def generating(law: str) -> tuple[mpmath.mpf, mpmath.mpf]:
    """E[K] and P(K = 0), from the masses of K themselves."""
    runs = Runs.parse(law)
    if runs.kind == "poisson":
        return mpmath.mpf(runs.mean), mpmath.exp(-runs.mean)
    g, s = mpmath.mpf(runs.parameter), mpmath.mpf(runs.shape)
    masses, weight = [], mpmath.mpf(1)
    for k in range(1, 2500):
        # P(K = k) is proportional to (1 - g)^k times the product of (j + s) / (j + 1).
        weight = (1 - g) if k == 1 else weight * (1 - g) * (k - 1 + s) / k
        masses.append(weight)
    total = mpmath.fsum(masses)
    return mpmath.fsum(k * m for k, m in enumerate(masses, 1)) / total, mpmath.mpf(0)


@pytest.mark.parametrize("law", LAWS)
def test_the_law_has_its_mean_and_its_masses(law: str) -> None:
    runs = Runs.parse(law)
    mean, none = generating(law)
    assert float(mean) == pytest.approx(runs.mean, rel=1e-9)
    assert float(none) == pytest.approx(runs.none, abs=1e-300)
    # All outcomes together, and two halves.
    whole = runs.mass(np.array([1.0]), np.array([0.0]))[0]
    halves = runs.mass(np.array([0.5, 0.5]), np.array([0.5, 0.0])).sum()
    assert whole == pytest.approx(1 - runs.none, rel=1e-12)
    assert halves == pytest.approx(whole, rel=1e-12)
    # Next to the best outcome the density is E[K].
    assert runs.mass(np.array([1e-9]), np.array([0.0]))[0] == pytest.approx(1e-9 * runs.mean)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("order", [1.5, 3.0, 8.0])
def test_the_moment_lies_above_that_of_the_largest_and_the_smallest_loss(
    law: str, order: float
) -> None:
    runs = Runs.parse(law)
    mean, none = map(float, generating(law))

    def slope(x: np.ndarray) -> np.ndarray:
        if runs.kind == "poisson":
            return mean * np.exp(mean * (x - 1))
        g, s = runs.parameter, runs.shape
        return mean * g ** (s + 1) * (1 - (1 - g) * x) ** (-s - 1)

    # The trapezoid rule is exact to all digits for such densities.
    y, step = np.linspace(-13.0, order + 13.0, 8001, retstep=True)
    upper = RenyiCurve(1 * best_of(Round(1.0), law)).upper(order)
    for sign in (1, -1):
        log_p = norm.logpdf(y - 1) + np.log(slope(norm.cdf(sign * (y - 1))))
        log_q = norm.logpdf(y) + np.log(slope(norm.cdf(sign * y)))
        moment = none + float(np.exp(order * log_p + (1 - order) * log_q).sum()) * step
        assert math.log(moment) / (order - 1) <= upper * (1 + 1e-9)


def test_the_probability_of_no_run_keeps_the_bound_above_zero() -> None:
    # Without f(0), a mean below one and little loss would give log(0.1) / (a - 1) < 0.
    release = best_of(Round(1000.0), "poisson:0.1")
    curve = RenyiCurve(1 * release)
    assert all(curve.upper(order) >= 0.0 for order in (1.1, 2.0, 10.0))
    found = dpacct.epsilon(1 * release, delta=1e-6)
    assert 0.0 <= found.lower <= found.upper


@pytest.mark.parametrize("shape", [1.0, 0.5, 0.0])
def test_negative_binomial_runs_agree_with_dp_accounting(shape: float) -> None:
    peer = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    accountant = rdp.RdpAccountant()
    event = peer.dp_event.RepeatAndSelectDpEvent(peer.GaussianDpEvent(2.0), 10, shape)
    theirs = accountant.compose(event).get_epsilon(1e-5)
    ours = dpacct.epsilon(1 * best_of(Round(2.0), f"negative-binomial:10,{shape}"), delta=1e-5)
    assert ours.upper == pytest.approx(theirs, rel=1e-3)


def test_more_runs_cost_more_and_all_cost_at_least_the_lower_end() -> None:
    uppers = []
    for mean in (2, 5, 20):
        found = dpacct.epsilon(1 * best_of(3 * Round(3.0), f"geometric:{mean}"), delta=1e-5)
        assert 0.0 < found.lower <= found.upper
        uppers.append(found.upper)
    assert uppers == sorted(uppers)


def test_it_composes_calibrates_and_is_charged_as_one_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fewer orders and points: less tight, and as proven.
    monkeypatch.setattr(tuning, "_GAPS", np.geomspace(0.2, 200.0, 10))
    monkeypatch.setattr(tuning, "_FINER", 10)
    monkeypatch.setattr(tuning, "_POINTS", 200)
    one_try = 100 * Round(4.0, Poisson(0.05))
    best = best_of(one_try, "geometric:5")
    plan = Laplace(epsilon=0.1) + 1 * best + 1000 * Round(1.0, Poisson(0.01))
    alone = dpacct.epsilon(1 * best, delta=1e-5).upper
    assert alone < dpacct.epsilon(plan, delta=1e-5).upper
    # The lower bound of a sampled run is 0, and says nothing false.
    assert dpacct.epsilon(1 * best, delta=1e-5).lower == 0.0
    found = dpacct.calibrate(schedule=1 * best, epsilon=0.5, delta=1e-5)
    (scaled,) = found.schedule.distinct()
    assert isinstance(scaled, BestOf)
    assert found.epsilon.upper <= 0.5
    assert scaled.runs == best.runs
    with Ledger.open(tmp_path / "x", Budget(4.0, 1e-5), adjacency="zero-out") as ledger:
        ledger.charge(best, name="tuning")
        assert ledger.rounds == 1
        assert ledger.upper_epsilon() <= alone * (1 + 1e-6)
        assert ledger.verify().sound
    with Ledger.open(tmp_path / "x") as ledger:
        kept = next(iter(ledger.runs[0].plan or ())).round
        assert isinstance(kept, BestOf)
        assert kept.schedule.scale_noise(1.0).distinct().keys() == {
            Round(4.0, Poisson(0.05), "zero-out")
        }


@pytest.mark.parametrize(
    "law",
    ["poisson", "poisson:0", "poisson:x", "geometric:0.5", "uniform:3", "negative-binomial:10", ""],
)
def test_an_unknown_law_is_refused(law: str) -> None:
    with pytest.raises(InvalidParameter, match="best_of"):
        best_of(Round(1.0), law)


def test_a_run_has_rounds_and_is_no_tuning() -> None:
    with pytest.raises(InvalidParameter, match="at least one round"):
        best_of(dpacct.Schedule(), "poisson:3")
    with pytest.raises(InvalidParameter, match="no tuning of its own"):
        best_of(best_of(Round(1.0), "poisson:3"), "poisson:3")
