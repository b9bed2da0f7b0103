"""Coarse cases in which each term of the proof decides: without it a bound is on the wrong side.

Thresholds are set so high that what is left out or cut off is seen. The truth is the answer with
the usual thresholds, which is known to 1e-8 and compared with oracles elsewhere.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpacct.numerics.rounding import Array
from dpacct.pairs import trapezoid
from dpacct.pairs.moments import log_moment
from dpacct.pairs.panels import LossFunction
from dpacct.tight import engines
from dpacct.tight.composition import Composition, TruncatedComposition
from dpacct.tight.contour import Contour, tilt_at_epsilon
from dpacct.tight.engines import AtDelta, AtEpsilon, _plain, composed_delta, composed_epsilon
from dpacct.tight.laws import TiltedLosses, TiltedNodes
from dpacct.tight.panel_laws import PanelIntegrand, PanelLaw
from tests.tight.compositions import ADD, COHORT, REMOVE, REPLACE, Kind, compose, pair_of

MOST = 1e-5
# Some of the rounds matter hardly, but not so little: a few per cent of delta.
LEAST = [(0.1, 1.3, 100), (2e-6, 1.0, 3)]
KINDS = [REMOVE, ADD, REPLACE, COHORT]


def hundred(kind: Kind) -> Composition:
    return compose([(0.1, 2.0, 100)], kind)


def test_rounds_that_are_left_out_are_paid_for(monkeypatch):
    composition = compose(LEAST)
    truth = composed_epsilon(composition, MOST)
    monkeypatch.setattr(engines, "_NEGLIGIBLE", 0.3)
    _, lost = composition.without_least(0.3 * MOST)
    assert 0.1 * MOST < lost < 0.3 * MOST
    coarse = composed_epsilon(composition, MOST)
    assert coarse.lower <= truth.upper
    assert coarse.upper >= truth.lower
    # Paid for as an equal part of the target.
    kept = compose(LEAST[:1])
    assert coarse.upper >= composed_epsilon(kept, MOST - lost).lower


def test_rounds_that_are_left_out_are_added_to_delta(monkeypatch):
    rounds = [(0.1, 1.3, 4), (1e-3, 3.0, 20)]
    truth = composed_delta(compose(rounds), 0.01)
    monkeypatch.setattr(engines, "_NEGLIGIBLE", 0.3)
    found = composed_delta(compose(rounds), 0.01)
    assert found.width > 1e-3 * found.upper
    assert found.lower <= truth.upper
    assert found.upper >= truth.lower


@pytest.mark.parametrize("kind", KINDS)
def test_tails_that_are_cut_off_are_paid_for(kind):
    composition = hundred(kind)
    truth = composed_epsilon(composition, MOST)
    rest = TruncatedComposition.losing(composition, 0.3 * MOST)
    assert 0.1 * MOST < rest.lost < 0.31 * MOST
    at_delta = _plain(AtDelta(MOST), rest, rest.lost)
    assert at_delta.lower <= truth.upper
    assert at_delta.upper >= truth.lower
    at_epsilon = _plain(AtEpsilon(truth.upper), rest, rest.lost)
    assert at_epsilon.lower <= MOST * (1 + 1e-6)
    assert at_epsilon.upper >= MOST * (1 - 1e-6)
    if composition.direction is ADD:
        # There the far tail is that of losses below zero.
        return
    # Without what is lost neither would hold.
    assert _plain(AtDelta(MOST), rest, 0.0).upper < truth.lower
    assert _plain(AtEpsilon(truth.upper), rest, 0.0).upper < MOST * (1 - 1e-6)


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("kind", KINDS)
def test_aliases_are_subtracted(kind, factor, monkeypatch):
    """With few nodes the sum is far above delta: by those of larger epsilons for a large tilt."""
    composition = hundred(kind)
    epsilon = composed_epsilon(composition, MOST).upper
    monkeypatch.setattr("dpacct.tight.contour._ALIAS", 1.0)
    tilt, _ = tilt_at_epsilon(composition, epsilon)
    line = Contour(composition, factor * tilt, epsilon, math.log(MOST), 0.0)
    found = line.delta(epsilon)
    assert found.lower <= MOST <= found.upper
    # Each term, as the trapezoid sum has it, is inside what is subtracted.
    apart = 2 * math.pi / line._step
    shares = [
        math.exp(k * line._tilt * apart) * composed_delta(composition, epsilon + k * apart).lower
        for k in (1, 2)
    ]
    assert sum(shares) <= line._aliases(epsilon)
    assert sum(shares) > (1e-4 * MOST if factor >= 1.0 else 0.0)
    assert found.upper >= MOST + sum(shares)


@pytest.mark.parametrize("kind", KINDS)
def test_the_cut_off_line_is_added(kind, monkeypatch):
    composition = hundred(kind)
    epsilon = composed_epsilon(composition, MOST).upper
    monkeypatch.setattr("dpacct.tight.contour._TRUNCATION", 1.0)
    tilt, _ = tilt_at_epsilon(composition, epsilon)
    for factor in (0.6, 1.0):
        line = Contour(composition, factor * tilt, epsilon, math.log(MOST), 0.0)
        found = line.delta(epsilon)
        assert found.lower <= MOST * (1 + 1e-7)
        assert found.upper >= MOST * (1 - 1e-7)
        assert found.width > 1e-4 * MOST
        line._horizon, line._cut = -1.0, 0.0
        bare = line.delta(epsilon)
        assert bare.lower > MOST or bare.upper < MOST


def test_both_ends_of_a_pair_of_c_q_are_lost():
    plan = compose([(0.1, 8.0, 10)], COHORT)
    rest = TruncatedComposition.losing(plan, 1e-3)
    (end,) = rest.ends
    x = 64.0 * end + 0.5
    tails = [0.5 * math.erfc((x - shift) / (8.0 * math.sqrt(2))) for shift in (0.0, 1.0)]
    above, below = 0.9 * tails[0] + 0.1 * tails[1], tails[0]
    assert rest.lost >= 10 * (above + below)
    assert rest.lost <= 10 * (above + below) * 1.1


def test_wide_panels_are_paid_for():
    """Waves of which a panel has several are integrated badly, and the error says so."""
    pair, tilt, start, end = LossFunction(pair_of(0.3, 1.0)), 2.0, -8.0, 6.0

    def law(panels: int, frequency: float) -> PanelLaw:
        at = PanelIntegrand(pair, tilt, np.linspace(start, end, panels + 1), frequency)
        nodes = (at.loss, at.mass, at.relative, at.loss_error)
        return PanelLaw(*nodes, at.size, at.swing, at.log_scale)

    seen = 0.0
    for frequency in (20.0, 40.0, 60.0, 80.0):
        coarse, error = law(16, frequency).shift(frequency / 4, 5)
        fine, _ = law(400, frequency).shift(frequency / 4, 5)
        off = np.abs(coarse - fine)
        assert np.all(off <= error + 1e-12)
        seen = max(seen, float(off.max()))
    assert seen > 1e-9


@pytest.mark.parametrize("direction", [REMOVE, ADD, None])
@pytest.mark.parametrize("accuracy", [4.0, 7.0])
def test_tails_and_steps_of_nodes_are_paid_for(direction, accuracy):
    setting = (np.array([0.2]), np.array([1.5]))

    def law(accuracy: float) -> TiltedLosses:
        nodes = TiltedNodes(*setting, direction, 3.0, accuracy, 2.0, 100_000)
        return TiltedLosses(nodes, setting[1], np.array([1.0]))

    coarse, fine = law(accuracy), law(44.0)
    times = 0.5 * np.arange(5)
    (value, error), (exact, _) = (some.log_characteristic(0.5, 5) for some in (coarse, fine))
    assert np.all(np.abs(np.exp(exact - value) - 1) <= np.expm1(error))
    # The bound of what a step leaves out is far above the truth: what lies beyond the ends alone.
    coarse._grid.discretization = np.zeros(1)
    _, error = coarse.log_characteristic(0.5, 5)
    x = fine._grid.x
    beyond = (x < coarse._grid.x[0]) | (x > coarse._grid.x[-1])
    wave = np.exp(1j * np.multiply.outer(times, fine._nodes.loss[beyond])) - 1
    off = np.abs(wave @ fine._weights[beyond])
    assert np.all(off <= np.expm1(error))
    assert off.max() > 1e-11


@pytest.mark.parametrize("order", [2.5, 6.0, -3.0])
@pytest.mark.parametrize("accuracy", [2.0, 4.0])
def test_moments_of_few_nodes_enclose_the_truth(order, accuracy, monkeypatch):
    truth = log_moment(order, 0.4, 0.8)
    monkeypatch.setattr(trapezoid, "_ACCURACY", accuracy)
    monkeypatch.setattr(trapezoid, "_surely_small", lambda a, *_, **__: np.zeros(len(a), bool))
    found = trapezoid._direct(np.array([order]), np.array([0.4]), np.array([0.8]), mirrored=False)
    assert found.lower[0] <= truth.upper
    assert truth.lower <= found.upper[0]
    assert found.upper[0] - found.lower[0] > 1e-2


@pytest.mark.parametrize("order", [2.5, 6.0, -3.0])
def test_tails_of_a_moment_are_added(order, monkeypatch):
    """Nodes as close as ever end at two standard deviations."""

    class Short(trapezoid.Nodes):
        def __init__(self, a: Array, q: Array, sigma: Array, _: Array, *rest: Array) -> None:
            super().__init__(a, q, sigma, np.full_like(a, 30.0), *rest)
            inside = np.abs(self.x - order * (order > 0)) < 2.0 * sigma[0]
            self.x, self.starts = self.x[inside], np.zeros(1, np.int64)
            self.counts = np.array([len(self.x)])

    truth = log_moment(order, 0.4, 0.8)
    monkeypatch.setattr(trapezoid, "Nodes", Short)
    found = trapezoid._direct(np.array([order]), np.array([0.4]), np.array([0.8]), mirrored=False)
    assert found.lower[0] < truth.lower - 1e-3
    assert truth.lower <= found.upper[0]


@pytest.mark.parametrize("route", ["_direct", "_excess"])
@pytest.mark.parametrize("order", [2.5, 6.0, -3.0])
def test_errors_of_the_nodes_of_a_moment_are_paid_for(order, route, monkeypatch):
    """Losses and densities are as far off as they say."""
    truth, exact = log_moment(order, 0.4, 0.8), trapezoid._at_nodes

    def off(*arguments: object, mirrored: bool) -> trapezoid._Nodes:
        found = exact(*arguments, mirrored=mirrored)
        return found._replace(
            loss=found.loss * (1 + 1e-7),
            loss_error=found.loss_error + 1.01e-7 * np.abs(found.loss),
            log_density=found.log_density + 1e-7,
            density_error=found.density_error + 1.01e-7,
        )

    monkeypatch.setattr(trapezoid, "_at_nodes", off)
    setting = (np.array([order]), np.array([0.4]), np.array([0.8]))
    found = getattr(trapezoid, route)(*setting, mirrored=False)
    assert found.lower[0] <= truth.upper
    assert truth.lower <= found.upper[0]
    assert found.upper[0] - found.lower[0] > 1e-8
