from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpacct import validate
from dpacct.errors import DpacctError, InvalidParameter


def probability(value: object) -> float:
    return validate.probability("fpr", value)


def positive_probability(value: object) -> float:
    return validate.positive_probability("fpr", value)


CHECKS = [
    probability,
    positive_probability,
    validate.rounds,
    validate.noise_multiplier,
    validate.sampling_rate,
    validate.delta,
    validate.epsilon,
    validate.target_epsilon,
    validate.order,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("1.0", "text"),
        (b"1", "bytes"),
        (True, "a truth value"),
        (False, "a truth value"),
        (None, "nothing"),
        ([1.0], "of the type list"),
        (1 + 0j, "of the type complex"),
        (np.array([1.0]), "of the type ndarray"),
    ],
    ids=repr,
)
def test_the_type_is_blamed_where_it_is_the_fault(check, value, kind):
    with pytest.raises(InvalidParameter) as caught:
        check(value)
    assert caught.value.rule.startswith(f"it has to be a number, not {kind}: ")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, -1.5, 10**400, -(10**400), 10**5000],
    ids=["nan", "inf", "-inf", "-1.5", "huge", "huge negative", "longer than str()"],
)
def test_the_type_is_not_blamed_for_a_number_out_of_range(check, value):
    with pytest.raises(InvalidParameter) as caught:
        check(value)
    assert "it has to be" not in str(caught.value)


@pytest.mark.parametrize(
    ("check", "inside", "outside"),
    [
        (validate.rounds, [1, 1.0, 10**12], [0, -1, 0.5, 2.5, 10**12 + 1]),
        (validate.noise_multiplier, [1e-3, 1, 1e10], [0, 9.99e-4, -1.0, 1.0001e10]),
        (validate.sampling_rate, [1e-150, 0.1, 1], [0, 5e-324, 9.9e-151, -0.1, 1.0000001, 10]),
        (validate.delta, [5e-324, 1e-5, 0.999], [0, 1, -1e-5, 2]),
        (validate.epsilon, [0, 1e-300, 1e300], [-1e-300, -1]),
        (validate.target_epsilon, [1e-300, 8, 1e300], [0, -0.0, -1]),
        (validate.order, [math.nextafter(1, 2), 2, 1e7], [1, 0.5, -3, 1.1e7]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_ends_of_each_range(check, inside, outside):
    for value in inside:
        assert check(value) == value
    for value in outside:
        with pytest.raises(InvalidParameter) as caught:
            check(value)
        assert caught.value.value == value


@given(st.floats(min_value=1e-3, max_value=1e10), st.sampled_from([float, np.float64, Fraction]))
def test_a_number_comes_back_as_plain_float(value, kind):
    checked = validate.noise_multiplier(kind(value))
    assert type(checked) is float
    assert checked == value


@given(st.integers(1, 10**12), st.sampled_from([int, float, np.int64, np.float64]))
def test_a_count_comes_back_as_plain_int(value, kind):
    checked = validate.rounds(kind(value))
    assert type(checked) is int
    assert checked == value


def test_the_message_says_name_value_range_and_a_way_out():
    with pytest.raises(InvalidParameter) as caught:
        validate.sampling_rate(10)
    error = caught.value
    assert str(error) == (
        "sampling_rate is 10; a sampling rate lies in (0, 1]. Did you mean 0.1 (10 %)?"
    )
    with pytest.raises(InvalidParameter) as of_text:
        validate.noise_multiplier("1.0")
    assert str(of_text.value) == (
        "noise_multiplier is '1.0'; it has to be a number, not text: "
        "a noise multiplier lies in [0.001, 1e+10]."
    )
    assert error.describe("--q").startswith("--q is 10; ")
    assert (error.name, error.value) == ("sampling_rate", 10)


@pytest.mark.parametrize(
    ("rate", "meant"),
    [
        (97.65625, "0.01024 (1 / 97.65625)"),  # 50,000 examples, batches of 512
        (390.625, "0.00256 (1 / 390.625)"),
        (12.5, "0.125 (12.5 %)"),
        (33.3333333, "0.333333333 (33.3333333 %)"),
        (100.0, "1 (100 %)"),
    ],
)
def test_a_rate_above_one_is_taken_for_per_cents_or_for_its_inverse(rate, meant):
    with pytest.raises(InvalidParameter) as caught:
        validate.sampling_rate(rate)
    assert str(caught.value).endswith(f"Did you mean {meant}?")
    assert 0.0 < validate.sampling_rate(float(meant.split()[0])) <= 1.0


def test_no_way_out_is_offered_where_there_is_none():
    for value in (0, -0.5, 101, 1e9):
        with pytest.raises(InvalidParameter) as caught:
            validate.sampling_rate(value)
        assert caught.value.hint == ""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@given(value=st.one_of(st.text(), st.floats(), st.integers(), st.binary()))
@example(value=2**53 + 1)
def test_any_value_is_accepted_or_refused_in_one_line(check, value):
    error = None
    try:
        number = check(value)
    except InvalidParameter as refusal:
        error = refusal
    if error is None:
        assert math.isfinite(number)
        assert number == value or number == floor(Fraction(value))
    else:
        assert "\n" not in str(error)
        assert error.rule in str(error)


def floor(value: Fraction) -> float:
    """The largest float that is not above the value, by its binary digits alone."""
    exponent = max(value.numerator.bit_length() - value.denominator.bit_length() - 54, -1074)
    digits = math.floor(value / Fraction(2) ** exponent)
    spare = max(digits.bit_length() - 53, 0)
    return math.ldexp(digits >> spare, exponent + spare)


BETWEEN_FLOATS = st.one_of(
    st.fractions(min_value=Fraction(1, 1000), max_value=1),
    st.integers(1, 10**9).map(lambda n: Fraction(n, 10**9 + 7)),
    st.floats(1e-3, 1.0).map(lambda x: np.longdouble(x) * (1 - np.longdouble(2) ** -60)),
)


@pytest.mark.parametrize("check", CHECKS[2:], ids=lambda check: check.__name__)
@given(value=BETWEEN_FLOATS)
@example(value=Fraction(1, 3))
@example(value=Fraction(2, 3))
def test_what_no_float_holds_is_rounded_to_the_side_that_costs_more(check, value):
    """Less noise, a smaller delta or epsilon, a larger sampling rate: never a bound below."""
    exact = Fraction(*value.as_integer_ratio())
    try:
        number = check(value)
    except InvalidParameter:
        return
    below = floor(exact)
    if check is validate.sampling_rate and below != exact:
        assert number == math.nextafter(below, 1)
    else:
        assert number == below


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (validate.sampling_rate, 1 + Fraction(1, 10**30)),
        (validate.sampling_rate, Fraction(1, 10**400)),
        (validate.delta, Fraction(1, 10**400)),
        (validate.noise_multiplier, Fraction(1, 1000) - Fraction(1, 10**30)),
        (validate.epsilon, -Fraction(1, 10**400)),
        (validate.target_epsilon, 2**1024 - 1),
    ],
)
def test_a_number_just_outside_its_range_is_not_rounded_into_it(check, value):
    with pytest.raises(InvalidParameter):
        check(value)


def test_errors_can_be_caught_as_the_builtin_they_are():
    assert issubclass(InvalidParameter, ValueError)
    assert issubclass(InvalidParameter, DpacctError)
