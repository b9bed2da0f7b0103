"""What `calibrate` refuses, and in which words."""

from __future__ import annotations

import math
from functools import partial

import pytest

import dpacct
from dpacct.calibration.calibrate import SOLVE_FOR
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.rounds import Full, Round, Schedule

calibrate = partial(dpacct.calibrate, accountant="rdp")

MEETS = {"epsilon": 8, "delta": 1e-5}
CONSTANT = {"noise_multiplier": 1.0, "rounds": 300, "sampling_rate": 0.1}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("solve", {**MEETS, "rounds": 3, "solve": "order"}),
        ("accountant", {**MEETS, "rounds": 3, "accountant": "best"}),
        # What is solved for is given too.
        ("noise_multiplier", {**MEETS, **CONSTANT}),
        ("rounds", {**MEETS, **CONSTANT, "solve": "rounds"}),
        ("sampling_rate", {**MEETS, **CONSTANT, "solve": "sampling_rate"}),
        ("epsilon", {**MEETS, **CONSTANT, "solve": "epsilon"}),
        ("delta", {**MEETS, **CONSTANT, "solve": "delta"}),
        # Something is missing.
        ("epsilon", {"delta": 1e-5, "rounds": 3}),
        ("delta", {"epsilon": 8, "rounds": 3}),
        ("noise_multiplier", {**MEETS, "solve": "rounds"}),
        ("noise_multiplier", {**MEETS, "rounds": 3, "solve": "sampling_rate"}),
        ("rounds", {**MEETS, "noise_multiplier": 1.0, "solve": "sampling_rate"}),
        ("delta", {**CONSTANT, "solve": "epsilon"}),
        ("epsilon", {**CONSTANT, "solve": "delta"}),
        ("noise_multiplier", {"delta": 1e-5, "rounds": 3, "solve": "epsilon"}),
        # Out of range.
        ("epsilon", {"epsilon": 0, "delta": 1e-5, "rounds": 3}),
        ("epsilon", {"epsilon": math.inf, "delta": 1e-5, "rounds": 3}),
        ("delta", {"epsilon": 8, "delta": 1.0, "rounds": 3}),
        ("rounds", {**MEETS, "rounds": 2.5}),
        ("rounds", {**MEETS, "rounds": 0}),
        ("sampling_rate", {**MEETS, "rounds": 3, "sampling_rate": 10}),
        ("adjacency", {**MEETS, "rounds": 3, "adjacency": "both"}),
        # Contradictions.
        ("sampling_rate", {**MEETS, "rounds": 3, "sampling_rate": 0.1, "sampling": Full()}),
        ("rounds", {**MEETS, "schedule": 3 * Round(1.0), "rounds": 3}),
        ("noise_multiplier", {**MEETS, "schedule": 3 * Round(1.0), "noise_multiplier": 1.0}),
        ("sampling", {**MEETS, "schedule": 3 * Round(1.0), "sampling": Full()}),
        ("solve", {**MEETS, "schedule": 3 * Round(1.0), "solve": "rounds"}),
        ("solve", {**MEETS, "schedule": 3 * Round(1.0), "solve": "sampling_rate"}),
        ("schedule", {**MEETS, "schedule": Schedule()}),
    ],
)
def test_bad_arguments_are_refused_by_name(name, arguments):
    with pytest.raises(InvalidParameter, match=f"^{name} is ") as caught:
        calibrate(**arguments)
    assert caught.value.name == name


def test_what_can_be_solved_for():
    assert SOLVE_FOR == ("noise", "rounds", "sampling_rate", "epsilon", "delta")


@pytest.mark.parametrize("solve", ["noise", "rounds"])
def test_an_accountant_that_knows_no_bound_says_so(solve):
    parts: dict[str, object] = {"rounds": 10} if solve == "noise" else {"noise_multiplier": 3.0}
    with pytest.raises(Unsupported, match="full participation"):
        calibrate(**MEETS, **parts, sampling_rate=0.1, accountant="gdp", solve=solve)
    with pytest.raises(Unsupported, match="no closed form"):
        calibrate(**MEETS, **parts, sampling_rate=0.9, accountant="closed-form", solve=solve)
