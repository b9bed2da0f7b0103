"""Closed forms and the bound of Wang et al.: never below what they bound, silent elsewhere."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mpmath import mp, mpf

import dpacct
from dpacct import rdp
from dpacct.accountant import ACCOUNTANTS
from dpacct.errors import Unsupported
from dpacct.pairs.moments import (
    MAX_WANG_ORDER,
    log_binomials,
    log_moment,
    symmetrized_log_moment,
    wang_log_moment,
)
from dpacct.renyi.closed_form import (
    BUN,
    LEMMA_3,
    LEMMA_4,
    MIRONOV,
    ClosedForm,
    closed_form_renyi,
    forms_for,
    order_limit,
)
from dpacct.rounds import Full, Poisson, Round, Uniform
from tests.oracles import uniform
from tests.strategies import FEWER, log_uniform, noise_multipliers, orders, sampling_rates

CLOSED = ACCOUNTANTS["closed-form"]
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


@st.composite
def mironov_settings(draw: st.DrawFn) -> Setting:
    q = draw(st.one_of(st.just(0.2), log_uniform(1e-9, 0.2)))
    nu = draw(st.one_of(st.just(4.0), log_uniform(4.0, 1e3)))
    low, high = 1 + 1e-6, 1e6
    for _ in range(60):  # the largest order allowed
        middle = math.sqrt(low * high)
        low, high = (low, middle) if MIRONOV.violations(middle, q, nu) else (middle, high)
    return 1 + (low - 1) * draw(st.one_of(st.just(1.0), log_uniform(1e-3, 1.0))), q, nu


@st.composite
def bun_settings(draw: st.DrawFn) -> Setting:
    q = draw(st.one_of(st.just(0.1), log_uniform(1e-9, 0.1)))
    nu = draw(st.one_of(st.just(math.sqrt(5) * (1 + 1e-12)), log_uniform(2.2361, 100.0)))
    limit = -math.log(q) * nu * nu / 2
    return max(2.0, math.floor(2 + (limit - 2) * draw(st.floats(0, 1)))), q, nu


SETTINGS = {
    LEMMA_3.name: lemma_settings(2 / 3),
    LEMMA_4.name: lemma_settings(5 / 9),
    MIRONOV.name: mironov_settings(),
    BUN.name: bun_settings(),
}


def applies(form: ClosedForm, setting: Setting) -> bool:
    return not form.violations(*setting)


# No form is below what it bounds.


@pytest.mark.parametrize("form", [LEMMA_3, LEMMA_4, MIRONOV, BUN], ids=lambda form: form.name)
@FEWER
@given(data=st.data())
def test_no_form_is_below_any_known_divergence(form, data):
    """For fixed cohorts the achieved one, and where it was compared the proven one of C_q."""
    setting = data.draw(SETTINGS[form.name])
    assume(applies(form, setting))
    order, q, nu = setting
    bound = form.renyi(order, q, nu)
    for a in (order, 1 - order):
        assert log_moment(a, q, nu).lower / (order - 1) <= bound
    if form in (LEMMA_3, BUN):
        assert symmetrized_log_moment(order, q, nu).lower / (order - 1) <= bound


@FEWER
@given(setting=SETTINGS[LEMMA_3.name])
def test_lemma_3_follows_from_the_bound_that_its_proof_starts_with(setting):
    """Wang, Balle, Kasiviswanathan 2019, theorem 9, at integers."""
    order, q, nu = max(2.0, math.floor(setting[0])), *setting[1:]
    assume(applies(LEMMA_3, (order, q, nu)))
    assert uniform.wang_renyi(order, q, nu) <= mpf(LEMMA_3.renyi(order, q, nu))


def real_order_bound(order: float, q: float, nu: float, *, fixed: bool) -> float:
    """The bound of M - 1 that the proof at real orders ends with, before its last step."""
    x = 1 / nu**2
    first, second = math.expm1(x), x * (math.e - 2.5)
    if not fixed:
        first = first / 2 if order >= 2 else (first + x) / 2
    return order * q * q * (first + (second if order >= 2 else 0.0))


@pytest.mark.parametrize("form", [LEMMA_3, LEMMA_4], ids=lambda form: form.name)
@FEWER
@given(data=st.data())
def test_the_proof_at_real_orders_lies_between_the_moments_and_the_lemma(form, data):
    setting = data.draw(SETTINGS[form.name])
    assume(applies(form, setting))
    order, q, nu = setting
    fixed = form is LEMMA_3
    moment = symmetrized_log_moment if fixed else log_moment
    between = real_order_bound(order, q, nu, fixed=fixed)
    assert float(moment(order, q, nu).lower) / (order - 1) <= between * (1 + 1e-9)
    assert between <= form.renyi(order, q, nu)


@given(x=st.floats(1e-6, 1.8), order=st.floats(2.0, 3.0))
def test_the_third_term_of_the_proof_stays_below_its_value_at_integers(x, order):
    assert (order - 2) / order * math.exp(1.5 * (3 - order) * x) <= 1.0


@pytest.mark.parametrize("form", [LEMMA_3, LEMMA_4, MIRONOV, BUN], ids=lambda form: form.name)
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
        (MIRONOV, (2, 0.21, 5.0), ["q is 0.21 and must be at most 0.2"]),
        (MIRONOV, (2, 0.1, 3.99), ["nu is 3.99 and must be at least 4"]),
        (MIRONOV, (500, 0.1, 5.0), ["order is 500 and must be at most"]),
        (BUN, (2, 0.11, 5.0), ["q is 0.11 and must be at most 0.1"]),
        (BUN, (2, 1e-9, 2.2), ["rho"]),
        (BUN, (100, 0.05, 5.0), ["order is 100 and must be at most"]),
        (BUN, (2, 0.5, 1.0), ["q is", "rho", "log(1/q)", "order is"]),
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


def test_conditions_of_mironov_by_hand():
    """q = 0.01, sigma = 4: L = log(1 + 1/(q (a-1))), both limits of theorem 11 computed once."""
    q, sigma = 0.01, 4.0

    def limits(order: float) -> tuple[float, float]:
        length = math.log1p(1 / (q * (order - 1)))
        first = sigma**2 * length / 2 - 2 * math.log(sigma)
        second = sigma**2 * length**2 / 2 - math.log(5) - 2 * math.log(sigma)
        return first, second / (length + math.log(q * order) + 1 / (2 * sigma**2))

    for order in (2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 60.0):
        assert (MIRONOV.violations(order, q, sigma) == ()) == (order <= min(limits(order)))


# What a round gets.


@given(
    order=st.integers(2, 40),
    q=log_uniform(1e-6, 0.3),
    nu=log_uniform(0.7, 30.0),
    fixed=st.booleans(),
)
def test_the_smallest_form_that_holds_is_used(order, q, nu, fixed):
    clients = 10**7
    scheme = Uniform(max(1, round(q * clients)), clients) if fixed else Poisson(q)
    round_ = Round(2 * nu if fixed else nu, scheme)
    rate = round_.sampling_rate
    forms = (LEMMA_3, BUN) if fixed else (LEMMA_4, MIRONOV)
    assert forms_for(round_) == (forms, nu)
    holding = [
        form.renyi(order, rate, nu) for form in forms if not form.violations(order, rate, nu)
    ]
    bound, reasons = closed_form_renyi(order, round_)
    if holding:
        assert (bound, reasons) == (min(holding), ())
    else:
        assert bound == math.inf
        assert len(reasons) == 2
        for form, reason in zip(forms, reasons, strict=True):
            assert reason.startswith(f"{form.name}: ")


def test_fixed_cohorts_under_add_remove_use_the_forms_for_poisson():
    """Their pair is that of Poisson sampling with the shift of two clips."""
    assert forms_for(Round(6.0, Uniform(5, 100), "add-remove")) == ((LEMMA_4, MIRONOV), 3.0)


@given(order=st.integers(2, 1000), noise=log_uniform(0.01, 100.0))
def test_full_participation_is_the_gaussian(order, noise):
    for sampling in (Full(), Poisson(1.0)):
        bound, reasons = closed_form_renyi(order, Round(noise, sampling, "zero-out"))
        assert reasons == ()
        assert bound == pytest.approx(order / (2 * noise**2), rel=1e-14)
        assert Fraction(bound) >= Fraction(order) / (2 * Fraction(noise) ** 2)


def test_rounds_without_a_closed_form_are_refused():
    round_ = Round(1.0, Poisson(0.1), "replace-one")
    with pytest.raises(Unsupported, match="Poisson sampling with replace-one"):
        closed_form_renyi(2, round_)
    with pytest.raises(Unsupported, match="Poisson sampling with replace-one"):
        dpacct.epsilon(round_, delta=1e-5, accountant="closed-form")


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
