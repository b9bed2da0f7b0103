"""Numbers are shortened to the safe side, and words of others stay words."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct.display import chosen, down, escaped, line, up

POSITIVE = st.floats(1e-300, 1e300)


@given(POSITIVE, st.integers(1, 15))
def test_up_is_never_below_and_down_never_above(value: float, digits: int) -> None:
    for shown, sign in ((up(value, digits), 1), (down(value, digits), -1)):
        exact = Decimal(shown)
        assert sign * exact >= sign * Decimal(value)
        assert abs(exact - Decimal(value)) <= Decimal(value) * Decimal(10) ** (1 - digits)


@given(POSITIVE, st.integers(1, 15))
def test_a_chosen_number_keeps_its_shortest_decimal_or_goes_to_its_side(
    value: float, digits: int
) -> None:
    decimal = Decimal(repr(value))
    assert Decimal(chosen(value, digits)) >= decimal
    assert Decimal(chosen(value, digits, least=True)) <= decimal


@pytest.mark.parametrize(
    ("value", "text"),
    [(8.0, "8"), (1e-5, "1e-05"), (0.1, "0.1"), (123456789.0, "1.234568e+08"), (2.5e-8, "2.5e-08")],
)
def test_a_chosen_number_is_as_short_as_it_was(value: float, text: str) -> None:
    assert chosen(value) == text


def test_zero_and_infinity_are_themselves() -> None:
    assert (up(0.0), down(0.0), up(math.inf), down(math.inf)) == ("0", "0", "inf", "inf")


@given(st.text())
def test_what_is_escaped_is_printable_and_nothing_else_changes(words: str) -> None:
    shown = escaped(words)
    assert shown.isprintable()
    if words.isprintable():
        assert shown == words
    assert line(words).isprintable()


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    for words in ("\x1b[31mred", "a\x07", "\u202egnp.exe", "\ud800", "\x9b0m", "a\u200bb", "\x00"):
        shown = escaped(words)
        assert shown.isprintable()
        assert "\\" in shown
    assert escaped("Größe 数 π") == "Größe 数 π"


def test_what_is_long_is_cut_and_says_so() -> None:
    assert line("x" * 200) == "x" * 200
    assert line("x" * 10_000_000) == "x" * 200 + "... (10000000 characters)"
    assert line("  a\n b\tc ") == "a b c"
