"""Tilted losses of the remove pair without the far end of its tail.

Where rates are tiny the largest losses carry less probability than any delta that is asked for,
and yet they dominate the moments. Without x > X the rest is a measure P' <= P, and
delta'(eps) <= delta(eps) <= delta'(eps) + P(x > X in some round). Its moments are integrals over
u = (2x - 1) / (2 sigma^2) up to a sharp end, by Gauss-Legendre panels.

Derivation: docs/derivations/inversion.md.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.fourier import Weighted, characteristic_shift
from dpacct.numerics.quadrature import ERROR_FACTOR, panel_nodes
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds, ComplexArray, positive_sum
from dpacct.pairs.panels import PanelBounds, node_errors, panel_edges, suprema_beyond
from dpacct.tight.laws.decay import log_decay, log_of_power

_ACCURACY = 46.0
# e^u must not overflow, and bounds to first order need errors that are small.
_FARTHEST_END, _MOST_SLACK = 690.0, 0.01


def lost_mass(sampling_rate: float, noise_std: float, end: float) -> float:
    """P(u > end) of one round of the remove pair, rounded up."""
    x = noise_std**2 * end + 0.5
    scale = noise_std * math.sqrt(2)
    without, with_client = math.erfc(x / scale) / 2, math.erfc((x - 1) / scale) / 2
    mass = (1 - sampling_rate) * without + sampling_rate * with_client
    # erfc's relative error is that of its argument times 2 (argument^2 + 1).
    return mass * (1 + UNIT * (64 + 32 * (x / scale) ** 2)) + 1e-300


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
    """Tilted losses of one kind of round, ``count`` times, remove direction.

    Args:
        sampling_rate: q in (0, 1/2].
        noise_std: sigma in units of the shift.
        count: how often the round occurs.
        tilt: c > 0.
        frequency: the largest |t| that will be asked for.
        end: the largest u that is kept, above 0.
    Raises:
        NotConverged: too many panels would be needed.
    """

    def __init__(
        self,
        sampling_rate: float,
        noise_std: float,
        count: float,
        tilt: float,
        frequency: float,
        end: float,
    ) -> None:
        q, sigma, a = sampling_rate, noise_std, 1 + tilt
        if end > _FARTHEST_END:
            raise NotConverged("the losses of so little noise are too large")
        self._count = count
        reach = math.sqrt(2 * (_ACCURACY + math.log(count)))
        start = -reach / sigma - 0.5 / sigma**2
        edges = panel_edges(a, q, sigma, end, frequency, start)
        u, weights = panel_nodes(edges)
        loss = np.log1p(q * np.expm1(u))
        exponent = a * loss - (sigma * u + 0.5 / sigma) ** 2 / 2
        top = float(exponent.max())
        mass = weights * np.exp(exponent - top)
        total, sum_error = positive_sum(mass.ravel())
        bounds = PanelBounds(q, sigma**2, edges)
        size = 1.02 * ERROR_FACTOR * bounds.half * bounds.peak(a, top) / total
        log_scale = math.log(sigma / math.sqrt(2 * math.pi))
        # Left of the first panel r <= 1, and phi has at most the mass e^(-reach^2 / 2).
        log_total = math.log(total) + top + log_scale
        tail = math.exp(min(-(reach**2) / 2 - log_total, 700.0))

        loss_error, weight_error = node_errors(q, sigma, edges, u, weights, loss)
        relative = a * loss_error + weight_error + UNIT * (5 * np.abs(a * loss) + 32)
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
        # log of the density in l, h = g r^a / p, at the nodes and at the panels' ends.
        norm = math.log(total) + top + math.log(q)
        edge_exponent = (a + 1) * np.log1p(q * np.expm1(edges)) - edges
        edge_exponent -= (sigma * edges + 0.5 / sigma) ** 2 / 2
        gap = float(np.max(np.diff(u.ravel())))
        rise = gap**2 / 8 * (sigma**2 + (a + 1) / 4) + 1e-3
        maxima = 1.0 if a + 1 <= 4 * sigma**2 else 2.0
        self._log_variation = suprema_beyond(exponent + loss - u - norm, edge_exponent - norm)
        self._log_variation += rise + math.log(2 * maxima)
        right = np.cumsum(weight.reshape(u.shape).sum(axis=1)[::-1])[::-1]
        self._left = 1 - right + 2 * slack + 1e-11

    @property
    def mean_and_variance(self) -> tuple[float, float]:
        """Of the tilted loss; nothing is proven of them."""
        mean = float(self._weight @ self._loss)
        return mean, float(self._weight @ (self._loss - mean) ** 2)

    def log_decay(self, first: float, number: int) -> Array:
        """See `tilted.TiltedLosses.log_decay`."""
        some = slice(None, None, 1 + len(self._left) // 64)
        parts = (self._left[None, some], self._log_variation[None, some])
        return self._count * log_decay(first, number, *parts)[0]

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """See `tilted.TiltedLosses.log_characteristic`."""
        law = Weighted(self._loss, self._weight, None, self._weight * self._relative)
        shift, error = characteristic_shift(step, number, law)
        frequencies = step * np.arange(float(number))
        return log_of_power(
            shift, error + frequencies * self._phase_error + self._quadrature, self._count
        )
