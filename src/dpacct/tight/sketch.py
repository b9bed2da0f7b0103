"""Few kinds of rounds in the place of thousands."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpacct.numerics.rounding import Array

# Of more kinds of rounds than this those that are much alike are merged: so many rates, and so many
# noises for each.
MANY = 500
_RATES, _NOISES = 24, 12
_LARGEST = 600.0


def cells(rates: Array, noise: Array) -> list[NDArray[np.int64]]:
    """Rounds that are much alike: their numbers, by cells."""
    found: list[NDArray[np.int64]] = []
    for same in np.array_split(np.argsort(rates, kind="stable"), _RATES):
        order = same[np.argsort(noise[same], kind="stable")]
        found += np.array_split(order, _NOISES)
    return [cell for cell in found if cell.size]


def alike(rates: Array, noise: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Rates, noise and counts of some hundred rounds that cost about the same, for searches."""
    if len(rates) <= MANY:
        return rates, noise, counts
    rows: list[list[float]] = []
    for cell in cells(rates, noise):
        number = float(counts[cell].sum())
        rate = float(counts[cell] @ rates[cell]) / number
        # What each adds to the total where there are many: the variance of r under Q.
        grown = np.expm1(np.minimum(noise[cell] ** -2, _LARGEST)) * (rates[cell] / rate) ** 2
        mean = float(counts[cell] @ grown) / number
        rows.append([rate, math.log1p(mean) ** -0.5, number])
    new_rates, new_noise, new_counts = np.array(rows).T
    return new_rates, new_noise, new_counts


def above(rates: Array, noise: Array, counts: Array) -> tuple[Array, Array, Array]:
    """The same of rounds that cost at least as much.

    A round costs no less where its rate is higher or its noise lower.
    """
    if len(rates) <= MANY:
        return rates, noise, counts
    rows = [
        [float(rates[cell].max()), float(noise[cell].min()), float(counts[cell].sum())]
        for cell in cells(rates, noise)
    ]
    new_rates, new_noise, new_counts = np.array(rows).T
    return new_rates, new_noise, new_counts
