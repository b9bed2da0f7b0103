from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from dpacct.errors import NotConverged
from dpacct.tight.game.laws import Kernel
from dpacct.tight.game.play import Frame, play_lower, play_upper, prepare

# Step log 2: all ratios are powers of two, so that fractions play the game exactly.
STEP = float(np.log(2.0))
LAWS = [
    Kernel(-1, np.array([0.25, 0.25, 0.5]), 0.0),
    Kernel(-2, np.array([0.125, 0.0, 0.375, 0.5]), 0.0),
    Kernel(0, np.array([0.5, 0.0, 0.5]), 0.0),
]


def exact_game(laws: list[Kernel], rounds: int, reach: int) -> dict[int, Fraction]:
    """w_T at the losses k log 2, |k| <= reach, without transforms, tilt or frame."""

    def start(k: int) -> Fraction:
        return max(Fraction(0), 1 - Fraction(2) ** -k)

    here = {k: start(k) for k in range(-reach - 4 * rounds, reach + 4 * rounds + 1)}
    for t in range(rounds):
        span = reach + 4 * (rounds - t - 1)
        here = {
            k: max(
                sum(
                    (
                        Fraction(float(m)) * here[k + law.first + j]
                        for j, m in enumerate(law.masses)
                    ),
                    Fraction(law.infinite),
                )
                for law in laws
            )
            for k in range(-span, span + 1)
        }
    return here


def check_plays(
    laws: list[Kernel], rounds: int, frame: Frame, near: float, *, below_too: bool = True
) -> None:
    """Check both plays at the losses -4 to 4 that the frame has, and how close they are."""
    exact = exact_game(laws, rounds, 5)
    upper, lower = (prepare(laws, frame, upper=side) for side in (True, False))
    above = play_upper([(upper, rounds)] if rounds else [], frame)
    below = play_lower([(lower, rounds)] if rounds else [], frame)
    assert np.isfinite(above).all()
    for k in range(max(-4, frame.first), min(5, frame.first + frame.size)):
        value = float(exact[k])
        assert value <= above[k - frame.first] <= value * (1 + near) + 1e-8
        if below_too:
            assert value * (1 - near) - 1e-8 <= below[k - frame.first] <= value


@pytest.mark.parametrize("tilt", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_both_plays_enclose_the_exact_game(tilt, rounds):
    check_plays(LAWS, rounds, Frame(STEP, -30, 61, tilt), 1e-6)


@pytest.mark.parametrize(
    ("laws", "rounds", "frame", "near"),
    [
        # An infinite loss counts above and not below.
        ([*LAWS[:2], Kernel(0, np.array([0.5, 0.0, 0.25]), 0.25)], 3, (-40, 81, 1.0), math.inf),
        # A narrow frame stays on its side.
        (LAWS, 5, (-3, 6, 1.0), math.inf),
        # Beyond the top the value grows by no more than it can: laws of at most one under either
        # hypothesis; counting one up there is a tenth too much.
        ([LAWS[0], LAWS[2]], 4, (-30, 36, 0.6), 0.03),
        # Ratios beyond what a double holds, as where epsilon is in the hundreds.
        (LAWS, 3, (-700, 1800, 0.1), 1e-6),
    ],
    ids=["infinite", "narrow", "top", "wide"],
)
def test_the_ends_of_frames_are_on_the_safe_side(laws, rounds, frame, near):
    check_plays(laws, rounds, Frame(STEP, *frame), near, below_too=near == math.inf)


@pytest.mark.parametrize("tilt", [0.2, 1.0])
@pytest.mark.parametrize(
    ("first", "size", "window"),
    # The last one is narrower than a law.
    [(-30, 61, 45), (-9, 19, 14), (-5, 12, 10), (-3, 7, 2)],
)
def test_windows_enclose_the_exact_game(tilt, first, size, window):
    exact = exact_game(LAWS, 5, 5)
    frame = Frame(STEP, first, size, tilt)
    upper, lower = (prepare(LAWS, frame, upper=side, window=window) for side in (True, False))
    above = play_upper([(upper, 5)], frame, window)
    below = play_lower([(lower, 5)], frame, window)
    assert len(above) == len(below) == window
    for k in range(max(-4, first), min(4, first + window - 1) + 1):
        value = float(exact[k])
        assert below[k - first] <= value <= above[k - first]
        if window == 45:
            assert above[k - first] <= value * (1 + 1e-3)
            assert below[k - first] >= value * (1 - 1e-3)


def test_the_order_of_the_phases_counts():
    frame = Frame(STEP, -40, 81, 1.0)
    first, second = (prepare([law], frame, upper=True) for law in (LAWS[1], LAWS[2]))
    both = prepare(LAWS[:2], frame, upper=True)
    one = play_upper([(both, 1), (second, 2)], frame)
    other = play_upper([(second, 2), (both, 1)], frame)
    assert not np.allclose(one, other, rtol=1e-6, atol=0)
    assert np.allclose(
        play_upper([(first, 1), (second, 1)], frame)[20:60],
        play_upper([(second, 1), (first, 1)], frame)[20:60],
        rtol=1e-9,
    )


def test_a_frame_of_too_many_magnitudes_is_refused():
    with pytest.raises(NotConverged, match="orders of magnitude"):
        Frame(1.0, -600, 1200, 2.0)
