"""Small losses of one kind of round under a tilt, many times: what they add up to by themselves.

Left of the step that tells them from large ones their density is analytic, so the path of
integration is moved off the line there, as in `shifted`; what lies in the step is next to nothing,
and counted with its mass.

Derivation: docs/derivations/few-large-losses.md.
"""

from __future__ import annotations

import numpy as np

from dpacct.numerics.rounding import Array, Bounds, ComplexArray
from dpacct.tight.laws.decay import decay_table, doubled, log_decay, log_of_power
from dpacct.tight.laws.shifted import shifted_bounds
from dpacct.tight.laws.split import SplitLosses

# Frequencies, from the first one on, at which the bounds of `shifted` are evaluated.
_SHIFTED = 140


class SmallLosses:
    """The small part of `SplitLosses`, for `contour.Contour`.

    Attributes:
        count: how often the round occurs.
        log_moment: bounds of the logarithm of the moment of one round.
    """

    def __init__(self, kind: SplitLosses) -> None:
        self._kind, self.count = kind, kind.count
        self.log_moment: Bounds = kind.small.log_moment

    def log_decay(self, first: float, number: int) -> Array:
        """See `contour.Law`."""
        panels, rest = self._kind.small_panels()
        known = np.empty(doubled(number))
        times = decay_table(first, len(known))[:_SHIFTED]
        known[:_SHIFTED] = np.minimum(shifted_bounds(times, panels) + rest, 1.0)
        known[_SHIFTED:] = known[min(_SHIFTED, len(known)) - 1]
        nothing = np.ones((1, 1))
        return self.count * log_decay(first, number, nothing, nothing, known[None, :])[0]

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """See `contour.Law`."""
        return log_of_power(*self._kind.small.shift(step, number), self.count)
