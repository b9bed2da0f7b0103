"""Which cells of a cover to split: those through which the bound exceeds two strategies the most.

The game is played backward on a coarse grid, remembering the choices, and forward from the answer.
Nothing here is proven; any split of a cover is a cover.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpacct.rounding import Array, ComplexArray
from dpacct.tight.game.backward import Frame, Stage

Choices = NDArray[np.int16]


def gains(cells: Stage, plain: Stage, frame: Frame, rounds: int, start: float) -> Array:
    """How much of the probability at the end each cell adds over the plain strategies.

    Args:
        cells, plain: the same kind of round, by the cells of a cover and by two strategies.
        frame: a coarse grid.
        rounds: how many of them.
        start: minus the epsilon at which the bound is asked for.
    Returns:
        One number for each cell, in units of the tilted value at the start.
    """
    weights = frame.weights()
    values = np.maximum(-np.expm1(-frame.losses()), 0.0) * weights
    history: list[tuple[Choices, Array]] = []
    for _ in range(rounds):
        sums = _all_sums(cells, values)
        choice = sums.argmax(axis=0)
        best = np.take_along_axis(sums, choice[None, :], axis=0)[0]
        more = np.maximum(best - _all_sums(plain, values).max(axis=0), 0.0)
        history.append((choice.astype(np.int16), more))
        values = np.minimum(np.maximum(best, 0.0) + cells.beyond, weights)
    found = np.zeros(len(cells.spectra))
    here = np.zeros(frame.size)
    here[min(max(round((start - frame.offset) / frame.step) - frame.first, 0), frame.size - 1)] = 1.0
    for choice, more in reversed(history):
        found += np.bincount(choice, here * more, len(found))
        here = _pushed(cells, here, choice)
    return found


def _all_sums(stage: Stage, values: Array) -> Array:
    spectrum = np.fft.rfft(values, stage.length)
    return np.fft.irfft(stage.spectra * spectrum, stage.length)[:, : len(values)]


def _pushed(stage: Stage, here: Array, choice: Choices) -> Array:
    """Probability, tilted, one round later."""
    used = np.unique(choice[here > 0])
    split = np.where(choice == used[:, None], here, 0.0)
    spectra: ComplexArray = np.fft.rfft(split, stage.length) * np.conj(stage.spectra[used])
    return np.maximum(np.fft.irfft(spectra.sum(axis=0), stage.length)[: len(here)], 0.0)
