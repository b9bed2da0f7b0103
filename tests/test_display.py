"""Numbers are shortened to the safe side, and words of others stay words."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpacct
from dpacct import Interval, Poisson, Round
from dpacct.display import chosen, down, escaped, html_table, line, up

POSITIVE = st.floats(1e-300, 1e300)


@given(POSITIVE, st.integers(1, 15))
def test_up_is_never_below_and_down_never_above(value, digits):
    written = Decimal(repr(value))
    for shown, sign in ((up(value, digits), 1), (down(value, digits), -1)):
        assert sign * Decimal(shown) >= sign * written
        assert sign * float(shown) >= sign * value
        assert abs(Decimal(shown) - written) <= written * Decimal(10) ** (1 - digits)


@given(POSITIVE, st.integers(1, 15))
def test_a_chosen_number_keeps_its_shortest_decimal_or_goes_to_its_side(value, digits):
    decimal = Decimal(repr(value))
    assert Decimal(chosen(value, digits)) >= decimal
    assert Decimal(chosen(value, digits, least=True)) <= decimal


@pytest.mark.parametrize(
    ("value", "text"),
    [(8.0, "8"), (1e-5, "1e-05"), (0.1, "0.1"), (123456789.0, "1.234568e+08"), (2.5e-8, "2.5e-08")],
)
def test_a_chosen_number_is_as_short_as_it_was(value, text):
    assert chosen(value) == text


@given(st.integers(1, 99999), st.integers(-12, 4))
def test_a_decimal_of_few_digits_is_printed_as_itself(number, power):
    value = float(f"{number}e{power}")
    assert float(up(value)) == value == float(down(value))


def test_zero_and_infinity_are_themselves():
    assert (up(0.0), down(0.0), up(math.inf), down(math.inf)) == ("0", "0", "inf", "inf")


@given(st.text())
def test_what_is_escaped_is_printable_and_nothing_else_changes(words):
    shown = escaped(words)
    assert shown.isprintable()
    if words.isprintable():
        assert shown == words
    assert line(words).isprintable()


def test_what_a_terminal_would_obey_is_spelled_out():
    for words in ("\x1b[31mred", "a\x07", "\u202egnp.exe", "\ud800", "\x9b0m", "a\u200bb", "\x00"):
        shown = escaped(words)
        assert shown.isprintable()
        assert "\\" in shown
    assert escaped("Größe 数 π") == "Größe 数 π"


def test_what_is_long_is_cut_and_says_so():
    assert line("x" * 200) == "x" * 200
    assert line("x" * 10_000_000) == "x" * 200 + "... (10000000 characters)"
    assert line("  a\n b\tc ") == "a b c"


# In a notebook.


def test_an_interval_is_a_table_of_both_sides():
    shown = Interval(1.0 / 3, 2.0 / 3)._repr_html_()
    assert "<th style='text-align:left'>proven</th><td>0.66667</td>" in shown
    assert "<th style='text-align:left'>achieved</th><td>0.33333</td>" in shown


def test_a_calibration_is_a_table():
    found = dpacct.calibrate(epsilon=8, delta=1e-5, rounds=300, sampling_rate=0.1)
    shown = found._repr_html_()
    assert "1.286010" in shown
    assert "proven, at delta 1e-05" in shown
    assert "300 rounds, noise 1.28601, Poisson sampling at rate 0.1" in shown
    plan = 10 * Round(1.0, Poisson(0.1)) + 10 * Round(2.0, Poisson(0.1))
    scaled = dpacct.calibrate(schedule=plan, epsilon=8, delta=1e-5, accountant="rdp")
    assert "noise scale" in scaled._repr_html_()
    risky = dpacct.calibrate(advantage=0.1, rounds=3, accountant="gdp")
    assert "of any attack, proven" in risky._repr_html_()


def test_words_of_others_stay_words():
    shown = html_table([("<b>", 'a "&" b', "\x1b")])
    assert "<b>" not in shown
    assert "&lt;b&gt;" in shown
    assert "&quot;&amp;&quot;" in shown
    assert "\x1b" not in shown


def test_every_error_is_one_printable_line_however_it_is_made() -> None:
    foreign = "a\x1b]0;title\x07b\nc\r\x9b31m\u202ed" + "e" * 100_000
    names = ("DpacctError", "Unsupported", "LedgerError", "BudgetExceeded", "NotConverged")
    made = [getattr(dpacct, name)(foreign) for name in names]
    made += [dpacct.InvalidParameter(*words) for words in ([foreign] * 4, [foreign, 1, "x"])]
    for error in made:
        assert str(error).isprintable()
        assert 10 < len(str(error)) < 5000
