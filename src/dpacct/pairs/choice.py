"""A pair that is drawn in public: one of several, with the same probabilities under P and Q.

Who sees the choice sees a release of one of the pairs. Every quantity is a mean: delta and moments
of the pairs with their probabilities, and the characteristic function with those tilted by M_i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpacct.budget import Interval
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds, ComplexArray
from dpacct.pairs.kinds import GeneralPair


@dataclass(frozen=True)
class ChoicePair(GeneralPair):
    """One of ``pairs``, which have no infinite losses.

    Attributes:
        pairs: the pairs.
        probabilities: their probabilities, above 0. They may be off by a relative error of 1e-9,
            and then add up to at most 1 + 2e-9.
    """

    pairs: tuple[GeneralPair, ...]
    probabilities: tuple[float, ...]

    @property
    def largest_loss(self) -> float:
        """That of any of the pairs."""
        return max(pair.largest_loss for pair in self.pairs)

    def delta(self, epsilon: float) -> Interval:
        """See `GeneralPair`."""
        parts = [pair.delta(epsilon) for pair in self.pairs]
        lower = sum(p * part.lower for p, part in zip(self.probabilities, parts, strict=True))
        upper = sum(p * part.upper for p, part in zip(self.probabilities, parts, strict=True))
        slack = UNIT * (2 * len(parts) + 4)
        return Interval(lower * (1 - slack), min(1.0, upper * (1 + slack)))

    def log_moment(self, tilts: Array) -> Bounds:
        """See `GeneralPair`."""
        logs = np.log(self.probabilities)[:, None]
        parts = [pair.log_moment(tilts) for pair in self.pairs]
        lower = np.logaddexp.reduce(logs + np.array([part.lower for part in parts]), axis=0)
        upper = np.logaddexp.reduce(logs + np.array([part.upper for part in parts]), axis=0)
        slack = 4 * FUNCTION_ERROR * len(parts) * (1 + np.abs(upper) + np.abs(logs).max())
        return Bounds(lower - slack, upper + slack)

    def _shares(self, logs: list[float]) -> Array:
        """Return the probabilities of the pairs under the tilt, from log M_i."""
        terms = np.log(self.probabilities) + np.array(logs)
        return np.exp(terms - np.logaddexp.reduce(terms))

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """See `GeneralPair`."""
        parts = [pair.cumulants(tilt) for pair in self.pairs]
        shares = self._shares([part[0] for part in parts])
        log_moment = np.logaddexp.reduce(
            np.log(self.probabilities) + np.array([part[0] for part in parts])
        )
        means = np.array([part[1] for part in parts])
        mean = float(shares @ means)
        variance = float(shares @ (np.array([part[2] for part in parts]) + (means - mean) ** 2))
        return float(log_moment), mean, variance

    def _bounded_shares(self, tilt: float) -> tuple[Array, float]:
        """Return the shares and a bound of their absolute errors, added up."""
        parts = [pair.log_moment(np.array([tilt])) for pair in self.pairs]
        middle = [float(part.lower[0] + part.upper[0]) / 2 for part in parts]
        width = max(float(part.upper[0] - part.lower[0]) for part in parts)
        size = max(map(abs, [*middle, *map(math.log, self.probabilities)]))
        return self._shares(middle), 2 * width + 16 * FUNCTION_ERROR * (1 + size)

    def characteristic(self, tilt: float, frequencies: Array) -> tuple[ComplexArray, Array]:
        """See `GeneralPair`."""
        shares, share_error = self._bounded_shares(tilt)
        value = np.zeros(len(frequencies), dtype=np.complex128)
        error, largest = np.zeros(len(frequencies)), np.zeros(len(frequencies))
        for share, pair in zip(shares.tolist(), self.pairs, strict=True):
            shift, off = pair.characteristic(tilt, frequencies)
            value += share * shift
            error += share * off
            largest = np.maximum(largest, np.abs(shift) + off)
        return value, (error + share_error * largest) * (1 + 1e-9) + 4 * UNIT * np.abs(value)

    def decay(self, tilt: float, frequencies: Array) -> Array:
        """See `GeneralPair`."""
        shares, share_error = self._bounded_shares(tilt)
        parts = [pair.decay(tilt, frequencies) for pair in self.pairs]
        return shares @ np.array(parts) + 2 * share_error
