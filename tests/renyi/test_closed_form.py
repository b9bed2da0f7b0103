"""Lemmas of DP-Fed-LS and the bound of Wang et al.: never below what they bound."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mpmath import mp, mpf

import dpacct
from dpacct.calibration.noise_rule import LEMMA_3, LEMMA_4, order_limit
from dpacct.errors import InvalidParameter
from dpacct.pairs.moments import log_moment, symmetrized_log_moment
from dpacct.rounds import Poisson, Round
from tests.oracles import uniform
from tests.strategies import FEWER, log_uniform, noise_multipliers, orders, sampling_rates

Setting = tuple[float, float, float]


@st.composite
def lemma_settings(draw: st.DrawFn, least_variance: float) -> Setting:
    """(real order, q, nu) inside condition (S), often on its edge, where it is tightest.

    Orders between 2 and 3 are drawn often: there the proof has its one term that may grow.
    """
    order = draw(
        st.one_of(st.integers(2, 60), st.floats(1.0001, 2.0), st.floats(2.0, 3.0), st.floats(3, 60))
    )
    edge = st.just(math.sqrt(least_variance) * (1 + 1e-12))
    nu = draw(st.one_of(edge, log_uniform(math.sqrt(least_variance) * 1.000001, 1e3)))
    rate = math.exp(-1.5 * (order - 1) / nu**2) / (order * (1 + nu**2)) * (1 - 1e-9)
    return float(order), rate * draw(st.one_of(st.just(1.0), log_uniform(1e-9, 1.0))), nu


SETTINGS = {LEMMA_3: lemma_settings(2 / 3), LEMMA_4: lemma_settings(5 / 9)}
LEMMAS = pytest.mark.parametrize("form", [LEMMA_3, LEMMA_4], ids=["lemma 3", "lemma 4"])


# No form is below what it bounds.


@LEMMAS
@FEWER
@given(data=st.data())
def test_no_form_is_below_any_known_divergence(form, data):
    """For fixed cohorts the achieved one, and where it was compared the proven one of C_q."""
    setting = data.draw(SETTINGS[form])
    assume(not form.violations(*setting))
    order, q, nu = setting
    bound = form.renyi(order, q, nu)
    for a in (order, 1 - order):
        assert log_moment(a, q, nu).lower / (order - 1) <= bound
    if form is LEMMA_3:
        assert symmetrized_log_moment(order, q, nu).lower / (order - 1) <= bound


@FEWER
@given(setting=SETTINGS[LEMMA_3])
def test_lemma_3_follows_from_the_bound_that_its_proof_starts_with(setting):
    """Wang, Balle, Kasiviswanathan 2019, theorem 9, at integers."""
    order, q, nu = max(2.0, math.floor(setting[0])), *setting[1:]
    assume(not LEMMA_3.violations(order, q, nu))
    assert uniform.wang_renyi(order, q, nu) <= mpf(LEMMA_3.renyi(order, q, nu))


def real_order_bound(order: float, q: float, nu: float, *, fixed: bool) -> float:
    """The bound of M - 1 that the proof at real orders ends with, before its last step."""
    x = 1 / nu**2
    first, second = math.expm1(x), x * (math.e - 2.5)
    if not fixed:
        first = first / 2 if order >= 2 else (first + x) / 2
    return order * q * q * (first + (second if order >= 2 else 0.0))


@LEMMAS
@FEWER
@given(data=st.data())
def test_the_proof_at_real_orders_lies_between_the_moments_and_the_lemma(form, data):
    setting = data.draw(SETTINGS[form])
    assume(not form.violations(*setting))
    order, q, nu = setting
    fixed = form is LEMMA_3
    moment = symmetrized_log_moment if fixed else log_moment
    between = real_order_bound(order, q, nu, fixed=fixed)
    assert float(moment(order, q, nu).lower) / (order - 1) <= between * (1 + 1e-9)
    assert between <= form.renyi(order, q, nu)


@given(x=st.floats(1e-6, 1.8), order=st.floats(2.0, 3.0))
def test_the_third_term_of_the_proof_stays_below_its_value_at_integers(x, order):
    assert (order - 2) / order * math.exp(1.5 * (3 - order) * x) <= 1.0


@LEMMAS
@given(order=log_uniform(1.01, 1e4), q=log_uniform(1e-12, 1.0), nu=log_uniform(0.1, 1e4))
def test_the_formula_is_rounded_up(form, order, q, nu):
    exact = Fraction(form.coefficient) * Fraction(q) ** 2 * Fraction(order) / Fraction(nu) ** 2
    found = Fraction(form.renyi(order, q, nu))
    assert exact <= found <= exact * (1 + Fraction(1, 10**14))


# Conditions.


@pytest.mark.parametrize(
    ("form", "setting", "words"),
    [
        (LEMMA_3, (2, 1e-3, math.sqrt(0.66)), ["nu^2 is 0.66 and must be at least 0.666667"]),
        (LEMMA_4, (2, 1e-3, math.sqrt(0.55)), ["nu^2 is 0.55 and must be at least 0.555556"]),
        (LEMMA_3, (2, 0.4, 1.0), ["order - 1 is 1 and must be at most"]),
        (LEMMA_4, (9, 0.01, 1.0), ["order - 1 is 8 and must be at most"]),
        (LEMMA_4, (50, 0.5, 0.5), ["nu^2", "order - 1"]),
    ],
)
def test_what_is_violated_is_said(form, setting, words):
    found = form.violations(*setting)
    assert len(found) == len(words)
    for sentence, start in zip(found, words, strict=True):
        assert sentence.startswith(start)


@given(order=st.integers(2, 60), nu=log_uniform(0.82, 100.0))
def test_the_order_ends_where_the_condition_says(order, nu):
    """alpha - 1 <= (2 nu^2 / 3) log(1 / (q alpha (1 + nu^2))), solved for q."""
    edge = math.exp(-1.5 * (order - 1) / nu**2) / (order * (1 + nu**2))
    assert order_limit(order, edge, nu) == pytest.approx(order - 1, rel=1e-9)
    for form in (LEMMA_3, LEMMA_4):
        assert form.violations(order, edge * 0.999, nu) == ()
        assert form.violations(order, edge * 1.001, nu) != ()


def test_the_accountant_of_published_forms_is_refused_by_name():
    with pytest.raises(InvalidParameter, match="Take rdp, which is never above them"):
        dpacct.epsilon(Round(1.0, Poisson(0.1)), delta=1e-5, accountant="closed-form")


@given(
    order=st.one_of(orders(1e-3, 100.0), st.integers(2, 64).map(float)),
    rate=sampling_rates(1e-5),
    noise=noise_multipliers(0.2, 100.0),
)
def test_the_bound_of_wang_et_al_is_never_below_the_moments(order, rate, noise):
    """So no accountant computes it."""
    with mp.workdps(50):
        published = (mpf(order) - 1) * uniform.wang_renyi(order, rate, noise)
        assert mpf(float(symmetrized_log_moment(order, rate, noise).lower)) <= published


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
    assert float(uniform.wang_renyi(order, rate, noise)) == pytest.approx(theirs, rel=1e-9)
