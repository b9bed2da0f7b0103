"""Lists and ranges: exactly the decimals that were typed, and refusals that say what was meant."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct_cli.errors import OptionConflict
from dpacct_cli.explore import sweep
from dpacct_cli.explore.sweep import read_values


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1", ["1"]),
        ("0.8,1,1.2", ["0.8", "1", "1.2"]),
        (" 0.8 , 1 ", ["0.8", "1"]),
        ("1,1,2", ["1", "2"]),
        ("100..300/100", ["100", "200", "300"]),
        ("100..350/100", ["100", "200", "300"]),
        ("1..4", ["1", "2", "3", "4"]),
        ("0.1..0.3/0.1", ["0.1", "0.2", "0.3"]),
        ("1..64*4", ["1", "4", "16", "64"]),
        ("1e-6..1e-4*10", ["0.000001", "0.00001", "0.0001"]),
        ("1e-8..1e-7*10", ["1E-8", "1E-7"]),
        ("1e3..3e3/1e3", ["1000", "2000", "3000"]),
        ("5,1..3", ["5", "1", "2", "3"]),
        ("7..7", ["7"]),
        # The library judges what is no number.
        ("x", ["x"]),
        ("1,,2", ["1", "", "2"]),
    ],
)
def test_what_is_typed_is_what_is_swept(text: str, found: list[str]) -> None:
    assert read_values("--noise", text) == found


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("3..1", "Did you mean 1..3?"),
        ("0.5..1", "a range of decimals has a step"),
        ("1..2/0", "a step is above 0"),
        ("1..2/-1", "a step is above 0"),
        ("1..2*1", "a factor is above 1"),
        ("0..2*2", "begins above 0"),
        ("1..x", "'x' is not a number"),
        ("1..2/nan", "'nan' is not a number"),
        ("1..1e9", "more than 10,000 values"),
    ],
)
def test_a_range_that_is_none_is_refused(text: str, part: str) -> None:
    with pytest.raises(OptionConflict, match="--noise is") as refused:
        read_values("--noise", text)
    assert part in str(refused.value)
    assert "1..9/2" in str(refused.value)


@given(st.integers(1, 400), st.integers(1, 200), st.integers(1, 40))
def test_a_range_never_leaves_its_ends(first: int, more: int, step: int) -> None:
    last = first + more
    text = f"{first / 100}..{last / 100}/{step / 100}"
    found = [Fraction(value) for value in read_values("--noise", text)]
    assert found[0] == Fraction(first, 100)
    assert all(b - a == Fraction(step, 100) for a, b in pairwise(found))
    assert found[-1] <= Fraction(last, 100) < found[-1] + Fraction(step, 100)


def test_no_list_is_longer_than_can_be_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "MOST_VALUES", 3)
    assert len(read_values("--noise", "1..3")) == 3
    with pytest.raises(OptionConflict, match="more than 3 values"):
        read_values("--noise", "1..4")
