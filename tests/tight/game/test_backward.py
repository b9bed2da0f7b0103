from __future__ import annotations

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


@pytest.mark.parametrize("tilt", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_both_plays_enclose_the_exact_game(tilt: float, rounds: int) -> None:
    exact = exact_game(LAWS, rounds, 4)
    frame = Frame(STEP, -30, 61, tilt)
    stages = prepare(LAWS, frame, upper=True), prepare(LAWS, frame, upper=False)
    above = play_upper([(stages[0], rounds)] if rounds else [], frame)
    below = play_lower([(stages[1], rounds)] if rounds else [], frame)
    for k in range(-4, 5):
        value = float(exact[k])
        assert above[k + 30] >= value
        assert above[k + 30] <= value * (1 + 1e-6) + 1e-8
        assert value * (1 - 1e-6) - 1e-8 <= below[k + 30] <= value


@pytest.mark.parametrize("tilt", [0.2, 1.0])
@pytest.mark.parametrize(("first", "size", "window"), [(-30, 61, 45), (-9, 19, 14), (-5, 12, 10)])
def test_windows_enclose_the_exact_game(tilt: float, first: int, size: int, window: int) -> None:
    rounds = 5
    exact = exact_game(LAWS, rounds, 5)
    frame = Frame(STEP, first, size, tilt)
    upper, lower = (prepare(LAWS, frame, upper=side, window=window) for side in (True, False))
    above = play_upper([(upper, rounds)], frame, window)
    below = play_lower([(lower, rounds)], frame, window)
    assert len(above) == len(below) == window
    for k in range(-4, min(4, first + window - 1) + 1):
        value = float(exact[k])
        assert below[k - first] <= value <= above[k - first]
        if window == 45:
            assert above[k - first] <= value * (1 + 1e-3)
            assert below[k - first] >= value * (1 - 1e-3)


def test_a_window_may_be_narrower_than_a_law() -> None:
    exact = exact_game(LAWS, 3, 4)
    frame = Frame(STEP, -3, 7, 0.5)
    above = play_upper([(prepare(LAWS, frame, upper=True, window=2), 3)], frame, 2)
    below = play_lower([(prepare(LAWS, frame, upper=False, window=2), 3)], frame, 2)
    for place, k in enumerate((-3, -2)):
        assert below[place] <= float(exact[k]) <= above[place]


def test_an_infinite_loss_counts_above_and_not_below() -> None:
    laws = [*LAWS[:2], Kernel(0, np.array([0.5, 0.0, 0.25]), 0.25)]
    exact, frame = exact_game(laws, 3, 4), Frame(STEP, -40, 81, 1.0)
    above = play_upper([(prepare(laws, frame, upper=True), 3)], frame)
    below = play_lower([(prepare(laws, frame, upper=False), 3)], frame)
    for k in range(-4, 5):
        assert below[k + 40] <= float(exact[k]) <= above[k + 40]


def test_a_narrow_frame_stays_on_its_side() -> None:
    exact = exact_game(LAWS, 5, 3)
    frame = Frame(STEP, -3, 6, 1.0)
    above = play_upper([(prepare(LAWS, frame, upper=True), 5)], frame)
    below = play_lower([(prepare(LAWS, frame, upper=False), 5)], frame)
    for k in range(-3, 3):
        assert below[k + 3] <= float(exact[k]) <= above[k + 3]


def test_the_order_of_the_phases_counts() -> None:
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


def test_a_frame_of_too_many_magnitudes_is_refused() -> None:
    with pytest.raises(NotConverged, match="orders of magnitude"):
        Frame(1.0, -600, 1200, 2.0)


def test_beyond_the_top_the_value_grows_by_no_more_than_it_can() -> None:
    """Laws of at most one under either hypothesis; counting one up there is a tenth too much."""
    laws = [LAWS[0], LAWS[2]]
    exact, frame = exact_game(laws, 4, 3), Frame(STEP, -30, 36, 0.6)
    above = play_upper([(prepare(laws, frame, upper=True), 4)], frame)
    for k in range(-3, 3):
        assert float(exact[k]) <= above[k + 30] <= 1.03 * float(exact[k])


def test_a_frame_of_many_losses_and_little_tilt() -> None:
    """Ratios beyond what a double holds, as where epsilon is in the hundreds."""
    exact, frame = exact_game(LAWS, 3, 4), Frame(STEP, -700, 1800, 0.1)
    above = play_upper([(prepare(LAWS, frame, upper=True), 3)], frame)
    assert np.isfinite(above).all()
    for k in range(-4, 5):
        assert float(exact[k]) <= above[k + 700] <= float(exact[k]) * (1 + 1e-6)
