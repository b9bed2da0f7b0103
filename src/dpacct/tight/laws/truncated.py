"""Tilted losses of a sampled pair without the far end of its tail.

Where rates are tiny the largest losses carry less probability than any delta that is asked for,
and yet they dominate the moments. Without x > X the rest is a measure P' <= P, and
delta'(eps) <= delta(eps) <= delta'(eps) + P(x > X in some round). Its moments are integrals over
u = (2x - 1) / (2 sigma^2) up to a sharp end, by Gauss-Legendre panels: of phi r^(1+c) in the remove
direction, of phi r^(-c) in the add direction, where the losses are -log r.

Derivation: docs/derivations/inversion.md.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.fourier import Weighted, characteristic_shift
from dpacct.numerics.quadrature import ERROR_FACTOR, panel_nodes
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds, ComplexArray, positive_sum
from dpacct.pairs.dominating import AchievedPair
from dpacct.pairs.panels import LossFunction
from dpacct.tight.laws.decay import decay_table, doubled, log_decay, log_of_power
from dpacct.tight.laws.shifted import PanelMasses, shifted_bounds

_ACCURACY = 46.0
# e^u must not overflow, and bounds to first order need errors that are small.
_FARTHEST_END, _MOST_SLACK = 690.0, 0.01
# Frequencies, from the first one on, at which the bounds of `shifted` are evaluated.
_SHIFTED = 140


def lost_mass(sampling_rate: float, noise_std: float, end: float, shift: float = 1.0) -> float:
    """(1-q) N(0) + q N(shift) of all u > end, rounded up; the shift is 1, 0 or -1."""
    x = noise_std**2 * end + 0.5
    scale = noise_std * math.sqrt(2)
    without, with_client = math.erfc(x / scale) / 2, math.erfc((x - shift) / scale) / 2
    mass = (1 - sampling_rate) * without + sampling_rate * with_client
    # erfc's relative error is that of its argument times 2 (argument^2 + 1).
    return mass * (1 + UNIT * (64 + 32 * ((abs(x) + 1) / scale) ** 2)) + 1e-300


def end_for(sampling_rate: float, noise_std: float, mass: float) -> float:
    """About the u beyond which P has the given mass; what is lost is computed by `lost_mass`."""
    low, high = 0.0, 40.0 / noise_std + 1 / noise_std**2
    for _ in range(40):
        middle = (low + high) / 2
        if lost_mass(sampling_rate, noise_std, middle) > mass:
            low = middle
        else:
            high = middle
    return high


class TruncatedLosses:
    """Tilted losses of one kind of round, ``count`` times.

    Args:
        pair: with a rate of at most 1/2.
        count: how often the round occurs.
        tilt: c > 0.
        frequency: the largest |t| that will be asked for.
        end: the largest u that is kept.
    Raises:
        NotConverged: too many panels would be needed.
    """

    def __init__(
        self, pair: AchievedPair, count: float, tilt: float, frequency: float, end: float
    ) -> None:
        law, sigma, order = LossFunction(pair), pair.noise_std, 1 + tilt
        if end > _FARTHEST_END:
            raise NotConverged("the losses of so little noise are too large")
        self._count = count
        reach = math.sqrt(2 * (_ACCURACY + math.log(count)))
        start = law.start(tilt, reach)
        edges = law.edges(tilt, start, end, frequency)
        u, weights = panel_nodes(edges)
        loss, base = law(u)
        exponent = order * loss + base + law.log_density(u)
        top = float(exponent.max())
        mass = weights * np.exp(exponent - top)
        total, sum_error = positive_sum(mass.ravel())
        bounds = law.bounds(edges)
        size = 1.02 * ERROR_FACTOR * bounds.half * bounds.peak(order, top) / total
        log_scale = math.log(sigma / math.sqrt(2 * math.pi))
        log_total = math.log(total) + top + log_scale
        log_tail = law.log_mass_before(start, tilt, reach)
        tail = math.exp(min(log_tail - log_total, 700.0))

        loss_error, base_error, weight_error = law.errors(edges, u, weights)
        relative = order * loss_error + base_error + weight_error
        relative += UNIT * (5 * np.abs(order * loss) + 2 * np.abs(base) + 32)
        relative += 2 * UNIT * (np.abs(exponent - top) + abs(top))
        weight = mass.ravel() / total
        self._weight, self._loss = weight, loss.ravel()
        common = float(relative.ravel() @ weight) * 1.01 + sum_error + 64 * UNIT
        slack = common + float(size.sum()) + tail
        if not slack <= _MOST_SLACK:
            raise NotConverged("the panels of the tail are too wide")
        rounding = 2 * FUNCTION_ERROR * (abs(math.log(total)) + abs(top) + abs(log_scale))
        self.log_moment = Bounds(
            np.array(log_total - rounding - 1.01 * slack),
            np.array(log_total + rounding + 1.01 * slack),
        )
        self._relative = relative.ravel() + slack
        self._phase_error = float((loss_error.ravel() + 8 * UNIT * np.abs(self._loss)) @ weight)
        # |e^{itl} - 1| <= min(1 + |r^{it}|, |t l| max(1, |r^{it}|)), |r^{it}| <= e^{|t arg r|}.
        wave = np.exp(np.minimum(frequency * bounds.angle, 700.0))
        swing = np.minimum(1 + wave, frequency * bounds.loss * wave)
        self._quadrature = float(np.sum(size * swing)) + 2.1 * tail
        each = weight.reshape(u.shape).sum(axis=1)
        (loss_end,), (base_end,) = law(np.array([end]))
        at_end = float(order * loss_end + base_end + law.log_density(np.array([end]))[0]) - top
        self._panels = PanelMasses(
            *(law, tilt, edges),
            masses=each * (1 + 2 * slack) + 2 * size,
            tail=2 * tail,
            end=2 * math.exp(min(at_end, 700.0)) / total,
        )

    @property
    def mean_and_variance(self) -> tuple[float, float]:
        """Of the tilted loss; nothing is proven of them."""
        mean = float(self._weight @ self._loss)
        return mean, float(self._weight @ (self._loss - mean) ** 2)

    def log_decay(self, first: float, number: int) -> Array:
        """See `tilted.TiltedLosses.log_decay`."""
        known = np.empty(doubled(number))
        known[:_SHIFTED] = shifted_bounds(decay_table(first, len(known))[:_SHIFTED], self._panels)
        known[_SHIFTED:] = known[min(_SHIFTED, len(known)) - 1]
        nothing = np.ones((1, 1))
        return self._count * log_decay(first, number, nothing, nothing, known[None, :])[0]

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """See `tilted.TiltedLosses.log_characteristic`."""
        law = Weighted(self._loss, self._weight, None, self._weight * self._relative)
        shift, error = characteristic_shift(step, number, law)
        frequencies = step * np.arange(float(number))
        return log_of_power(
            shift, error + frequencies * self._phase_error + self._quadrature, self._count
        )
