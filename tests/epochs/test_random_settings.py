"""Random settings of the whole range against the contour integral, more of them when slow."""

from __future__ import annotations

import math

import pytest

from evidence.epochs_range.scan import GOAL, is_inside, scan


@pytest.mark.slow
def test_random_settings_are_narrow_and_hold_the_truth() -> None:
    for setting in scan(25, seed=11):
        assert setting.width <= GOAL
        assert setting.lower <= setting.upper
        assert math.isnan(setting.delta_truth) or is_inside(setting)
