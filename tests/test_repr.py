"""A repr is one line and can be pasted back."""

import pytest

import dpacct
from dpacct import Full, Poisson, Round, Schedule, Uniform


@pytest.mark.parametrize(
    "value",
    [
        Round(1.5, Poisson(0.1)),
        Round(1.5, Uniform(5, 20), "zero-out"),
        Round(2.0, Full(), "replace-one"),
        300 * Round(1.0, Poisson(0.1)),
        2 * Round(1.0, Poisson(0.1)) + 3 * Round(0.7, Full()),
        Schedule(),
    ],
)
def test_a_repr_evaluates_to_its_value(value: object) -> None:
    names = {name: getattr(dpacct, name) for name in dpacct.__all__}
    assert eval(repr(value), names) == value
    assert "\n" not in repr(value)
