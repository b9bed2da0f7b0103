"""The bound of Wang, Balle and Kasiviswanathan against its formula and another implementation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpacct import Round, Uniform, rdp
from dpacct.pairs.moments import MAX_WANG_ORDER, log_binomials, wang_log_moment
from tests.oracles import uniform
from tests.strategies import noise_multipliers, orders, sampling_rates


@pytest.mark.parametrize("order", [2, 3, 17, 256, MAX_WANG_ORDER])
def test_logarithms_of_binomial_coefficients(order):
    found = log_binomials(order)
    assert found.shape == (order + 1,)
    assert found[0] == found[-1] == 0.0
    with mp.workdps(50):
        for k in range(1, order, max(1, order // 50)):
            exact = mp.log(mpf(math.comb(order, k)))
            assert abs(mpf(float(found[k])) - exact) <= 4 * mpf(math.ulp(float(exact)))


@given(
    order=st.one_of(orders(1e-3, 100.0), st.integers(2, 64).map(float)),
    rate=sampling_rates(1e-5),
    noise=noise_multipliers(0.2, 100.0),
)
def test_the_published_bound_is_never_below_its_formula(order, rate, noise):
    with mp.workdps(50):
        exact = (mpf(order) - 1) * uniform.wang_renyi(order, rate, noise)
        assert exact <= mpf(wang_log_moment(order, rate, noise)) <= exact * (1 + mpf(1e-9)) + 1e-13


def test_the_published_bound_ends_where_its_sum_gets_long():
    assert wang_log_moment(1e4, 0.1, 1.0) == math.inf
    (result,) = rdp(Round(2.0, Uniform(1, 10)), orders=[1e4])
    assert result.upper < math.inf


@pytest.mark.parametrize(
    ("order", "rate", "noise"), [(2, 0.05, 1.2), (8, 0.05, 1.2), (32, 0.2, 0.7)]
)
def test_dp_accounting_agrees_on_the_published_bound(order, rate, noise):
    event = pytest.importorskip("dp_accounting")
    accountants = pytest.importorskip("dp_accounting.rdp")
    accountant = accountants.RdpAccountant([order], event.NeighboringRelation.REPLACE_ONE)
    sampled = event.SampledWithoutReplacementDpEvent(
        1000, round(1000 * rate), event.GaussianDpEvent(noise)
    )
    accountant.compose(sampled)
    (theirs,) = accountant._rdp
    assert wang_log_moment(order, rate, noise) / (order - 1) == pytest.approx(theirs, rel=1e-9)
