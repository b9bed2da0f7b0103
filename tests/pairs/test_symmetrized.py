"""Renyi curves of fixed-size sampling without replacement, one client replaced."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpacct.pairs import moments, panels
from dpacct.pairs.moments import symmetrized_log_moment
from dpacct.renyi.curve import rdp
from dpacct.rounds import Round, Uniform
from tests.oracles import sampled_gaussian, uniform
from tests.strategies import FEWER, noise_multipliers, orders, sampling_rates
from tests.truth import check


def check_moment(order: float, rate: float, noise: float, width: float) -> None:
    with mp.workdps(50):
        truth = mp.log1p(uniform.symmetrized_excess(order, rate, noise))
    check(symmetrized_log_moment(order, rate, noise), truth, width)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("noise", [0.05, 0.2, 1.0, 2.4, 10.0, 100.0, 1000.0])
@pytest.mark.parametrize("rate", [1e-7, 1e-4, 0.01, 0.1, 0.5, 0.9, 0.999999, 1.0])
def test_truth_is_inside_on_a_grid_of_extremes(rate, noise):
    for order in (1.0001, 1.5, 2.0, 7.3, 200.0, 1e4):
        check_moment(order, rate, noise, 1e-9)


@FEWER
@given(order=orders(1e-4, 1e4), rate=sampling_rates(), noise=noise_multipliers())
def test_truth_is_inside_everywhere(order, rate, noise):
    check_moment(order, rate, noise, 1e-9)


@pytest.mark.parametrize(
    ("coarser", "accuracy", "setting"),
    [
        # The tail, which a low accuracy cuts off; then the error of the rule on wide panels.
        (4, 8.0, (2.0, 0.1, 1.0)),
        (4, 8.0, (7.3, 0.5, 2.4)),
        (7, 42.0, (2.0, 0.1, 1.0)),
        (7, 42.0, (20.0, 0.05, 3.0)),
    ],
)
def test_truth_is_inside_on_coarse_panels_too(coarser, accuracy, setting, monkeypatch):
    """At full accuracy both errors drown in rounding; here they are all there is."""

    def panel_edges(*arguments):
        edges = panels.panel_edges(*arguments)
        return np.append(edges[:-1:coarser], edges[-1])

    monkeypatch.setattr(moments, "_ACCURACY", accuracy)
    monkeypatch.setattr(moments, "panel_edges", panel_edges)
    check_moment(*setting, math.inf)


@pytest.mark.parametrize(
    ("order", "rate", "noise"),
    [
        # Where calibration to an epsilon of 1000 and more comes along.
        (2.0, 0.1, 0.1563160479463488),
        (1.0011765713935907, 0.1, 0.006335030709074621),
        (1.000002260329407, 1e-6, 0.0005000000000005002),
    ],
)
def test_tiny_noise_is_no_trouble(order, rate, noise):
    check_moment(order, rate, noise, 1e-9)


@FEWER
@given(order=orders(1e-3, 1e3), rate=sampling_rates(1e-5), noise=noise_multipliers(0.3, 100.0))
def test_bounds_are_close_together_where_people_work(order, rate, noise):
    check_moment(order, rate, noise, 1e-11)


@pytest.mark.slow
@given(
    order=orders(1e-3, 500.0),
    rate=st.sampled_from([1e-6, 1e-3, 0.05, 0.2, 0.5, 0.9]),
    noise=noise_multipliers(0.2),
)
def test_both_routes_are_shown_and_the_smaller_one_counts(order, rate, noise):
    (result,) = rdp(Round(noise, Uniform.at_rate(rate)), orders=[order])
    routes = dict(result.routes)
    assert set(routes) == {"C_q pair", "Wang et al. 2019"}
    assert 0 < result.lower <= result.upper
    assert result.upper == pytest.approx(min(routes.values()), rel=1e-12)
    with mp.workdps(50):
        # Replacing a client moves the sum by twice the clip norm.
        truth = uniform.symmetrized_renyi(order, rate, noise / 2)
        assert truth <= mpf(routes["C_q pair"]) <= truth * (1 + mpf(1e-9))
        achieved = sampled_gaussian.renyi(order, rate, noise / 2)
        assert mpf(result.lower) <= achieved <= mpf(result.lower) * (1 + mpf(1e-9))
