"""Two bounds that were computed apart."""

import pytest

from dpacct import Interval, NotConverged


def test_rounding_is_no_contradiction() -> None:
    assert Interval.bracket(1.0 + 1e-12, 1.0) == Interval(1.0, 1.0 + 1e-12)
    assert Interval.bracket(0.5, 1.0) == Interval(0.5, 1.0)


@pytest.mark.parametrize(("lower", "upper"), [(2.0, 1.0), (1.0, 0.0), (float("nan"), 1.0)])
def test_a_contradiction_is_an_error(lower: float, upper: float) -> None:
    with pytest.raises(NotConverged, match="contradict"):
        Interval.bracket(lower, upper)
