"""What is printed in fewer digits is on the safe side of its quantity, on a page and with -q."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dpacct import Poisson, Round, epsilon
from dpacct.display import safe

STEPS = "--rounds 100 --delta 1e-5"
# What is asked, the place of the exact number in the JSON answer, its line on the page, and its
# safe side. Each is asked with several values, so that the nearest decimal is on either side.
ASKED: dict[str, tuple[str, tuple[str, ...], str, int]] = {
    "noise": (f"calibrate --eps {{}} {STEPS} --q .013", ("noise_multiplier",), "noise mult", 1),
    "rate": (f"calibrate --solve q --eps {{}} {STEPS} --noise 1", ("sampling_rate",), "sampl", -1),
    "delta": (
        "calibrate --solve delta --eps {} --rounds 100 --noise 1.1 --q .03", ("delta",), "delta", 1,
    ),
    "scale": ("calibrate --eps {} --schedule plan.csv", ("noise_scale",), "noise scale", 1),
    "at": ("delta --noise 1.36 --rounds 300 --q .1 --eps {}", ("delta", "upper"), "delta", 1),
    "upper": (f"epsilon --noise {{}} {STEPS} --q .03", ("epsilon", "upper"), "epsilon", 1),
    "lower": (f"epsilon --noise {{}} {STEPS} --q .03", ("epsilon", "lower"), "epsilon", -1),
}  # fmt: skip
VALUES = ("0.9", "1.7", "2.9")


@pytest.mark.parametrize("name", ASKED)
def test_a_printed_number_is_on_its_safe_side(dpacct: Any, name: str, folder: Path) -> None:
    phases = "rounds,noise_multiplier\n3,9\n4,8\n"
    (folder / "plan.csv").write_text(phases, encoding="utf-8")
    words, place, label, side = ASKED[name]
    shorter = 0
    for value in VALUES:
        line = words.format(value)
        exact: Any = json.loads(dpacct(f"{line} --json").out)
        for key in place:
            exact = exact[key]
        page = next(row for row in dpacct(line).out.splitlines() if row.strip().startswith(label))
        numbers = [part for part in page.split() if part[:1].isdigit()]
        shown = Decimal(numbers[1 if name == "lower" else 0])
        assert side * shown >= side * Decimal(repr(exact)), f"{shown} for {exact}"
        shorter += shown != Decimal(repr(exact))
        if name != "lower":
            quiet = Decimal(dpacct(f"{line} -q").out.strip())
            assert side * quiet >= side * Decimal(repr(exact))
    assert shorter >= 2


def test_the_printed_rounds_fit_and_one_more_does_not(dpacct: Any) -> None:
    line = "calibrate --solve rounds --eps 2 --noise 1.1 --q .03 --delta 1e-5"
    rounds = int(dpacct(f"{line} -q").out)
    page = next(row for row in dpacct(line).out.splitlines() if row.strip().startswith("rounds"))
    assert int(page.split()[1].replace(",", "")) == rounds
    step = Round(1.1, Poisson(0.03))
    spent = [epsilon(n * step, delta=1e-5).upper for n in (rounds, rounds + 1)]
    assert spent[0] <= 2.0 < spent[1]


@pytest.mark.parametrize(
    ("quantity", "side"),
    [
        ("noise_multiplier", 1),
        ("delta", 1),
        ("upper", 1),
        ("sampling_rate", -1),
        ("rounds", -1),
        ("lower", -1),
    ],
)
def test_each_quantity_has_its_side(quantity: str, side: int) -> None:
    for value in (0.123456789, 0.987654321, 123456.789, 1 / 3, 2 / 3):
        shown = Decimal(safe(quantity, value, 4))
        assert side * shown > side * Decimal(repr(value))
        assert abs(shown / Decimal(repr(value)) - 1) < Decimal("1e-3")
    assert safe(quantity, 0.25, 4) == "0.25"
