"""Evidence that noise is missing somewhere: in a round, a tensor, a block or a coordinate.

A sum over a whole run hides a round without noise, and a sum over a model hides a coordinate. So
each part has a test of its own, and all tests share one error.

**One value.** y is a released value, in standard deviations of its charged noise. It is noise plus
a term that does not depend on this noise. For a fraction f < 1, the ratio of two densities

    e_f(y) = exp(-(1 / f^2 - 1) y^2 / 2) / f

has expectation at most 1 if the noise has at least its charged size, and is large if the noise is f
times as large. The same holds for 1 - w + w e_f(y), which is large if a share of values is silent.

**One part.** So the product over the values of a part has expectation at most 1, too. It is above
2^(12 k) for k values without noise.

**All parts.** A weighted mean of such products has expectation at most 1 again. It is at least
1 / a with probability at most a, for every mask and every rule of stopping that follow from past
releases. The proof, and which faults are found, are in docs/derivations/auditing.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpacct.numerics.rounding import Array

# Of the charged noise, if a whole part is quieter.
FRACTIONS = (0.97, 0.93, 0.85, 0.7, 0.5, 0.3, 0.15, 0.05)
# If some values of a part are silent: f, far above the grid of secure noise and of float32, and w.
SILENT, SHARE = 2.0**-16, 2.0**-4
# Neighboring coordinates that are tested together in a single round.
BLOCK = 32
# Tensors and blocks of a round, tensors and coordinates of the run.
_KINDS = 4
# Rounding of a sum of up to 2^29 squares, and of logarithms.
_ROUNDING = 2.0**-24


class NoiseEvidence:
    """Evidence against noise of the charged size, collected round by round.

    Args:
        sizes: the number of coordinates of each tensor, in the order of the released vector.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._tensors = np.repeat(np.arange(len(sizes)), sizes)
        self._blocks = np.arange(len(self._tensors)) // BLOCK
        # Of each coordinate over the rounds: values, their squares, and log of the product for
        # values of which some are silent.
        self._sums = np.zeros((3, len(self._tensors)))
        self._rounds = 0
        self._total, self._most = -math.inf, (-math.inf, "")

    def see(self, values: Array, rounding: Array | float, carried: NDArray[np.bool_]) -> None:
        """Add a round.

        Args:
            values: released values minus what is known beside the noise, in standard deviations of
                the charged noise, float64 [d]. Any other term that does not depend on this round's
                noise may remain.
            rounding: at least the distance of a value from an unrounded one, float64 [d].
            carried: whether a coordinate has noise in this round, bool [d]. It follows from earlier
                rounds alone.
        """
        self._rounds += 1
        # A value that was rounded toward zero is not smaller noise.
        squares = (np.abs(values) + rounding) ** 2
        silent = math.log(SHARE / SILENT) - (SILENT**-2 - 1) / 2 * squares
        mixed = np.logaddexp(math.log1p(-SHARE), silent)
        sums = np.where(carried, np.stack([np.ones_like(squares), squares, mixed]), 0.0)
        self._sums += sums
        # All rounds together have weight 1, however many they are.
        weight = -math.log(self._rounds * (self._rounds + 1))
        for name, parts in (("tensor", self._tensors), ("block", self._blocks)):
            self._add(_added(parts, sums), f"round {self._rounds}, {name}", weight)

    def conclude(self) -> tuple[float, str]:
        """Return log E and the part that shows most. E >= 1 / a has a probability of at most a.

        Call it once, after the last round.
        """
        self._add(_added(self._tensors, self._sums), "tensor")
        self._add(self._sums, "coordinate")
        return self._total, self._most[1]

    def _add(self, sums: Array, name: str, log_weight: float = 0.0) -> None:
        """Add the mean evidence of parts [3, p], rounded down."""
        terms, squares, mixed = sums
        log_wealth = mixed - _ROUNDING * np.abs(mixed)
        for fraction in FRACTIONS:
            gain, cost = -math.log(fraction) * terms, (fraction**-2 - 1) / 2 * squares
            log_wealth = np.logaddexp(log_wealth, gain * (1 - _ROUNDING) - cost * (1 + _ROUNDING))
        log_wealth += log_weight - math.log(_KINDS * (len(FRACTIONS) + 1) * len(log_wealth))
        place = int(np.argmax(log_wealth))
        self._total = float(np.logaddexp.reduce(log_wealth, initial=self._total))
        self._most = max(self._most, (float(log_wealth[place]), f"{name} {place + 1}"))


def _added(parts: NDArray[np.int64], sums: Array) -> Array:
    """Return sums [3, p] over the coordinates [3, d] of each part."""
    return np.array([np.bincount(parts, weights=row) for row in sums], dtype=np.float64)
