"""Claims of several phases, and claims that are true to their printed digits."""

from __future__ import annotations

import pytest

from dpacct import Poisson, Round
from dpacct.budget import Interval
from dpacct.claims import Claim, Verdict, judge, parse_claims
from dpacct.claims.judge import compare, facts_of
from dpacct.errors import InvalidParameter

CLAIM = """
[source]
name = "a paper"
[[claim]]
id = "a"
place = "table 1"
epsilon = {epsilon}
delta = 5e-7
adjacency = "add-remove"
"""
PHASES = """
[[claim{reading}.phase]]
rounds = 440
noise_multiplier = 0.8074993170669363
sampling_rate = 0.022755555555555557
[[claim{reading}.phase]]
rounds = 1
noise_multiplier = 10.0
"""
READING = '[[claim.reading]]\nwords = "as run"\n' + PHASES.format(reading=".reading")


def claim(text: str) -> Claim:
    return parse_claims(text, "a.toml").claims[0]


@pytest.mark.parametrize("phases", [PHASES.format(reading=""), READING])
def test_a_training_and_a_histogram_are_one_claim(phases: str) -> None:
    true, false = (
        judge(claim(CLAIM.format(epsilon=epsilon) + phases)) for epsilon in ("6.0", "5.9")
    )
    assert (true.verdict, false.verdict) == (Verdict.PROVEN, Verdict.REFUTED)
    reading = false.readings[0].reading
    training = 440 * Round(0.8074993170669363, Poisson(0.022755555555555557))
    assert reading.schedule == training + Round(10.0)
    assert reading.only is None
    # dp-accounting's PLD accountant says 5.9596.
    assert true.readings[0].epsilon is not None
    assert true.readings[0].epsilon.upper == pytest.approx(5.9596, abs=1e-3)
    assert false.readings[0].noise is None
    assert false.readings[0].noise_scale is not None
    assert 1.0 < false.readings[0].noise_scale < 1.1
    facts = facts_of(false)["readings"][0]
    assert [phase["rounds"] for phase in facts["phases"]] == [440, 1]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("rounds = 3\n", "rounds belongs to a round, and this reading has a phase"),
        ('sampling = "full"\n', "sampling belongs to a round"),
        ('mechanism = { name = "zcdp", rho = 1 }\n', "phase belongs to a round"),
    ],
)
def test_phases_stand_alone(more: str, words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        claim(CLAIM.format(epsilon=6) + more + PHASES.format(reading=""))


def test_a_bad_phase_is_named() -> None:
    text = CLAIM.format(epsilon=6) + "[[claim.phase]]\nrounds = 3\nsigma = 1\n"
    with pytest.raises(InvalidParameter, match="claim 'a': phase 1: the key 'sigma'"):
        claim(text)


@pytest.mark.parametrize(
    ("printed", "bounds", "verdict"),
    [
        ("3.34", (3.3413, 3.3414), Verdict.ROUNDED),
        ("3.34", (3.3448, 3.34499), Verdict.ROUNDED),
        ("3.34", (3.3449, 3.345), Verdict.REFUTED),
        ("3.34", (3.33, 3.3449), Verdict.ROUNDED),
        ("3.34", (3.33, 3.346), Verdict.OPEN),
        ("3.34", (17.85, 17.86), Verdict.REFUTED),
        ("3.34", (3.33, 3.34), Verdict.PROVEN),
        ("3.340", (3.3413, 3.3414), Verdict.REFUTED),
        # A whole number is chosen, and so is a power of ten.
        ("8", (8.1, 8.2), Verdict.REFUTED),
        ("1e-2", (0.0101, 0.0102), Verdict.REFUTED),
        ("", (8.1, 8.2), Verdict.REFUTED),
    ],
)
def test_printed_digits_end_half_a_unit_above(
    printed: str, bounds: tuple[float, float], verdict: Verdict
) -> None:
    stated = float(printed or 8)
    assert compare(stated, Interval(*bounds), printed) is verdict


def test_the_digits_of_the_file_count() -> None:
    gaussian = 'rounds = 5\nsampling = "full"\nnoise_multiplier = 2.8284271247\n'
    text = CLAIM.replace("5e-7", "1e-5")
    two, three = (claim(text.format(epsilon=one) + gaussian) for one in ("3.34", "3.340"))
    assert (two.printed, three.printed) == ("3.34", "3.340")
    assert judge(two).verdict is Verdict.ROUNDED
    assert judge(three).verdict is Verdict.REFUTED
