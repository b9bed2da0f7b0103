from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dpacct.numerics.rounding import Bounds
from dpacct.tight.composition import Composed
from dpacct.tight.laws import Law


class Laws(Composed):
    """Laws of given counts and moments, whatever the tilt."""

    def __init__(
        self, moments: list[tuple[float, Bounds]], precision: float = 1.0, kinds: int = 1
    ) -> None:
        self.precision, self.kinds, self._laws = precision, kinds, list[Law]()
        for count, moment in moments:
            law = Law()
            law.count, law.log_moment = count, moment
            self._laws.append(law)

    def laws(self, tilt: float, frequency: float) -> list[Law]:
        del tilt, frequency
        return self._laws


@pytest.mark.parametrize("scale", [1.0, 0.0], ids=["both ends", "the lower one"])
def test_roundings_of_either_end_are_paid_for(scale: float) -> None:
    """In exact rational numbers, of moments below and above one."""
    rng = np.random.default_rng(4)
    for _ in range(300):
        kinds, precision, tilt = int(rng.integers(1, 9)), scale * rng.exponential(), 3.7
        laws = [
            (
                float(rng.integers(1, 10**9)),
                Bounds(np.array(-rng.exponential()), np.array(scale * rng.normal())),
            )
            for _ in range(kinds)
        ]
        found = Laws(laws, precision, kinds).log_moment(tilt)
        full = Fraction(precision) * Fraction(tilt) * (1 + Fraction(tilt)) / 2
        low, high = (
            full + sum(Fraction(n) * Fraction(float(bounds[end])) for n, bounds in laws)
            for end in (0, 1)
        )
        assert Fraction(float(found.lower)) <= low
        assert Fraction(float(found.upper)) >= high


def test_several_tilts_have_the_shape_that_was_asked_for() -> None:
    laws = [(2.0, Bounds(np.array(0.5), np.array(0.5)))]
    found = Laws(laws).log_moment(np.array([1.0, 2.0]))
    assert found.upper == pytest.approx([2.0, 4.0])
    assert found.lower.shape == (2,)
    assert Laws(laws).log_moment(1.0).upper.shape == ()
