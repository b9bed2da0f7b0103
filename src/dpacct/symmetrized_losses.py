"""Tilted losses of the pair of C_q, as `tilted` has them for sampled Gaussian pairs.

With u = (2x - 1) / (2 sigma^2) > 0, l = log r, a = 1 + c and
g(u) = sigma / sqrt(2 pi) e^{-(sigma u + 1/(2 sigma))^2 / 2}, the tilted law has the density
g r^a at the loss l, g r^(1-a) at the loss -l, and an atom at 0, all divided by I_C(a).

Derivation: docs/derivations/inversion.md, with the quadrature of uniform-sampling.md.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct.errors import NotConverged
from dpacct.half_line import PanelBounds, node_errors, panel_edges
from dpacct.quadrature import ERROR_FACTOR, panel_nodes
from dpacct.rdp_uniform import symmetrized_log_moment
from dpacct.rounding import UNIT, Array, ComplexArray
from dpacct.tilted import MAX_CELLS, characteristic_shift, decay_of, log_of_power

_ACCURACY = 46.0
_LEAST_SIGMA = 0.1


class SymmetrizedLosses:
    """Tilted losses of one kind of round, ``count`` times.

    Args:
        sampling_rate: q in (0, 1).
        noise_std: sigma in units of the shift.
        count: how often the round occurs.
        tilt: c > 0.
        frequency: the largest |t| that will be asked for.
    """

    def __init__(
        self, sampling_rate: float, noise_std: float, count: float, tilt: float, frequency: float
    ) -> None:
        q, sigma, a = sampling_rate, noise_std, 1 + tilt
        if sigma <= _LEAST_SIGMA:
            raise NotConverged("the loss of so little noise is nearly an atom")
        self._count = count
        reach = sigma * math.sqrt(2 * (_ACCURACY + math.log(count)))
        edges = panel_edges(a, q, sigma, (a + reach - 0.5) / sigma**2, frequency)
        u, weights = panel_nodes(edges)
        loss = np.log1p(q * np.expm1(u))
        moment = symmetrized_log_moment(a, q, sigma)
        log_scale = math.log(sigma / math.sqrt(2 * math.pi)) - float(moment.upper)
        exponent = log_scale - ((sigma * u + 0.5 / sigma) ** 2) / 2
        rising = weights * np.exp(exponent + a * loss)
        falling = weights * np.exp(exponent + (1 - a) * loss)

        loss_error, weight_error = node_errors(q, sigma, edges, u, weights, loss)
        slack = 2 * float(moment.upper - moment.lower) + UNIT * (8 * abs(log_scale) + 160)
        self._relative = (a * loss_error + weight_error + 4 * UNIT * a * loss + slack).ravel()
        self._loss, self._loss_error = loss.ravel(), (loss_error + 8 * UNIT * loss).ravel()
        self._rising, self._falling = rising.ravel(), falling.ravel()

        bounds = PanelBounds(q, sigma**2, edges)
        # |e^{itl} - 1| <= min(1 + |r^{it}|, |t l| max(1, |r^{it}|)), |r^{it}| <= e^{|t arg r|}.
        wave = np.exp(np.minimum(frequency * bounds.angle, 700.0))
        swing = np.minimum(1 + wave, frequency * bounds.loss * wave)
        size = bounds.peak(a) + bounds.peak(0.0) * bounds.power(1 - a)
        scale = math.exp(log_scale)
        self._quadrature = 1.02 * ERROR_FACTOR * scale * float(np.sum(bounds.half * size * swing))
        # Twice the tail of phi r^a, as in `rdp_uniform`, for each of two terms.
        last = float(u[-1, -1])
        log_last = float(np.logaddexp(np.log1p(-q), math.log(q) + last))
        log_tail = a * log_last - (sigma * last + 0.5 / sigma) ** 2 / 2
        self._tail = 4 * 1.26 / sigma * scale * math.exp(min(log_tail, 700.0))

        # Density in l where l > 0: its supremum right of each panel's start, and the mass left.
        gap = float(np.max(np.diff(np.concatenate([[0.0], u.ravel(), edges[-1:]]))))
        rise = gap**2 / 8 * (sigma**2 + (a + 1) / 4) + 1e-3
        log_density = (exponent + a * loss - (math.log(q) + u - loss)).ravel()
        highest = np.maximum.accumulate(log_density[::-1])[::-1].reshape(u.shape)[:, 0]
        maxima = 1.0 if a + 1 <= 4 * sigma**2 else 2.0
        self._log_variation = highest + rise + math.log(2 * maxima)
        right = np.cumsum(rising.sum(axis=1)[::-1])[::-1]
        self._left = 1 - right * (1 - slack) + 1e-11 + self._quadrature + self._tail

    def log_decay(self, frequencies: Array) -> Array:
        """See `tilted.TiltedLosses.log_decay`."""
        return self._count * decay_of(frequencies, self._left, self._log_variation)

    def log_characteristic(self, frequencies: Array) -> tuple[ComplexArray, Array]:
        """See `tilted.TiltedLosses.log_characteristic`."""
        if len(self._loss) * len(frequencies) > MAX_CELLS:
            raise NotConverged("the contour needs too many nodes for this round")
        both = self._rising + self._falling
        relative = self._relative + UNIT * (2 * len(both) + 64)
        shift, error = characteristic_shift(
            frequencies, self._loss, both, self._rising - self._falling, both * relative
        )
        error += frequencies * float(self._loss_error @ both) + self._quadrature + self._tail
        return log_of_power(shift, error, self._count)
