"""Which cells of a cover to split: those through which the bound exceeds two strategies the most.

The game is played backward on a coarse grid, remembering the choices, and forward from the answer.
Nothing here is proven; any split of a cover is a cover.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import Array, ComplexArray
from dpacct.tight.game.backward import Frame, Stage

Choices = NDArray[np.int16]

SMALLEST_GAP, LARGEST_GAP = 1e-3, 0.5


def check_gap(gap: float | None) -> None:
    """Refuse a relative width that is out of range.

    Raises:
        InvalidParameter: it is.
    """
    if gap is not None and not SMALLEST_GAP <= gap <= LARGEST_GAP:
        rule = f"a relative gap lies in [{SMALLEST_GAP:g}, {LARGEST_GAP:g}]"
        hint = "What is left below is that of the two strategies, which no cover closes."
        raise InvalidParameter("gap", gap, rule, hint if gap < SMALLEST_GAP else "")


def gains(
    stages: list[tuple[Stage, Stage, int]], frame: Frame, start: float
) -> tuple[float, Array]:
    """How much of the probability at the end each cell adds over the plain strategies.

    Args:
        stages: for each phase the laws of the cells, those of the plain strategies, and how many
            rounds it lasts; a phase without cells has the same law in both.
        frame: a coarse grid.
        start: minus the epsilon at which the bound is asked for.
    Returns:
        The value at the start, and the part of it that each cell adds; tilted.
    """
    weights = frame.weights()
    values = np.maximum(-np.expm1(-frame.losses()), 0.0) * weights
    history: list[tuple[Stage, Choices, Array]] = []
    for cells, plain, rounds in reversed(stages):
        for _ in range(rounds):
            sums = _all_sums(cells, values)
            choice = sums.argmax(axis=0)
            best = np.take_along_axis(sums, choice[None, :], axis=0)[0]
            more = np.maximum(best - _all_sums(plain, values).max(axis=0), 0.0)
            history.append((cells, choice.astype(np.int16), more))
            above = cells.gained * weights + cells.beyond * values[-1]
            values = np.minimum(np.maximum(best, 0.0) + above, weights)
    found = np.zeros(max(len(cells.spectra) for cells, _, _ in stages))
    place = round((start - frame.offset) / frame.step) - frame.first
    place = min(max(place, 0), frame.size - 1)
    here = np.zeros(frame.size)
    here[place] = 1.0
    for cells, choice, more in reversed(history):
        if len(cells.spectra) > 1:
            found += np.bincount(choice, here * more, len(found))
        here = _pushed(cells, here, choice)
    return float(values[place]), found


def _all_sums(stage: Stage, values: Array) -> Array:
    spectrum = np.fft.rfft(values, stage.length)
    return np.fft.irfft(stage.spectra * spectrum, stage.length)[:, : len(values)]


def _pushed(stage: Stage, here: Array, choice: Choices) -> Array:
    """Probability, tilted, one round later."""
    used = np.unique(choice[here > 0])
    split = np.where(choice == used[:, None], here, 0.0)
    spectra: ComplexArray = np.fft.rfft(split, stage.length) * np.conj(stage.spectra[used])
    return np.maximum(np.fft.irfft(spectra.sum(axis=0), stage.length)[: len(here)], 0.0)
