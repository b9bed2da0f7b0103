"""Smooth steps between small and large losses: Phi((loss - center) / width), 0 left and 1 right.

A step is an entire function of the loss, and |Phi(x + iy)| <= Phi(x) e^{y^2 / 2}.

Derivation: docs/derivations/few-large-losses.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array


@dataclass(frozen=True, slots=True)
class Step:
    """Phi((loss - center) / width), both in units of the loss and above 0."""

    center: float
    width: float

    def above(self, loss: Array) -> Array:
        """The step itself: the share that counts as large."""
        return self.shares(loss)[1]

    def below(self, loss: Array) -> Array:
        """One minus the step."""
        return self.shares(loss)[0]

    def shares(self, loss: Array) -> tuple[Array, Array]:
        """One minus the step, and the step; both to their own relative accuracy."""
        x = (loss - self.center) / self.width
        least = tails(np.abs(x))
        return np.where(x > 0, least, 1 - least), np.where(x > 0, 1 - least, least)

    def relative_error(self, loss: Array, loss_error: Array, *, above: bool) -> Array:
        """Of either share, given the absolute error of the loss; at most 1 is meaningful."""
        at = (self.center - loss if above else loss - self.center) / self.width
        moved = (loss_error + 4 * UNIT * (np.abs(loss) + self.center)) / self.width
        # The tail of a Gaussian falls at x by less than the share max(x, 0) + 1 per unit.
        rate = (np.maximum(at, 0.0) + 1) * (moved + 4 * UNIT * np.abs(at)) * 1.1
        # The larger share is one minus the other, which is at most a half.
        return rate + FUNCTION_ERROR + 2 * UNIT

    def above_near(self, low: Array, high: Array, angle: Array) -> Array:
        """Bound of |step| where the real part of the loss is in [low, high], the other <= angle."""
        return self._near(
            (self.center - high) / self.width, (low - self.center) / self.width, angle
        )

    def below_near(self, low: Array, high: Array, angle: Array) -> Array:
        """The same of one minus the step."""
        return self._near(
            (low - self.center) / self.width, (self.center - high) / self.width, angle
        )

    def _near(self, largest: Array, other: Array, angle: Array) -> Array:
        growth = np.exp(np.minimum((angle / self.width) ** 2 / 2, 700.0))
        direct, indirect = tails(largest) * growth, 1 + tails(other) * growth
        return np.minimum(direct, indirect) * (1 + 1e-9) + 1e-300


def tails(x: Array) -> Array:
    """1 - Phi(x), to the accuracy of `math.erfc`; below 1e-300 it may be 0."""
    scaled = (x * math.sqrt(0.5)).ravel()
    found = np.fromiter(map(math.erfc, scaled.tolist()), np.float64, scaled.size)
    return 0.5 * found.reshape(np.shape(x))
