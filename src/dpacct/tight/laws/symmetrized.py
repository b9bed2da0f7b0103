"""Tilted losses of the pair of C_q, as `sampled` has them for sampled Gaussian pairs.

With u = (2x - 1) / (2 sigma^2) > 0, l = log r, a = 1 + c and
g(u) = sigma / sqrt(2 pi) e^{-(sigma u + 1/(2 sigma))^2 / 2}, the tilted law has the density
g r^a at the loss l, g r^(1-a) at the loss -l, and an atom at 0 with the mass
(1 - q) (1 - erfc(1 / (sigma sqrt 8))), all divided by their sum.

As in `truncated`, the losses beyond some u may be left out.

Derivation: docs/derivations/inversion.md, with the quadrature of uniform-sampling.md.
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
_LEAST_SIGMA = 0.04
# Bounds to first order need errors that are small.
_MOST_SLACK = 0.01


class SymmetrizedLosses:
    """Tilted losses of one kind of round, ``count`` times.

    Args:
        sampling_rate: q in (0, 1).
        noise_std: sigma in units of the shift.
        count: how often the round occurs.
        tilt: c > 0.
        frequency: the largest |t| that will be asked for.
        end: the largest u that is kept; losses of both signs beyond are left out.
    Raises:
        NotConverged: too many panels would be needed, or sigma is below 0.04.
    """

    def __init__(
        self,
        sampling_rate: float,
        noise_std: float,
        count: float,
        tilt: float,
        frequency: float,
        end: float = math.inf,
    ) -> None:
        q, sigma, a = sampling_rate, noise_std, 1 + tilt
        if sigma <= _LEAST_SIGMA:
            raise NotConverged("the loss of so little noise is nearly an atom")
        self._count, self._setting = count, (q, sigma, a)
        reach = sigma * math.sqrt(2 * (_ACCURACY + math.log(count)))
        edges = panel_edges(a, q, sigma, min(end, (a + reach - 0.5) / sigma**2), frequency)
        edges[-1] = min(edges[-1], end)
        u, weights = panel_nodes(edges)
        loss = _log_ratio(q, u)
        log_scale = math.log(sigma / math.sqrt(2 * math.pi))
        gaussian = log_scale - ((sigma * u + 0.5 / sigma) ** 2) / 2
        top = max(0.0, float((gaussian + a * loss).max()))
        rising = weights * np.exp(gaussian + a * loss - top)
        falling = weights * np.exp(gaussian + (1 - a) * loss - top)
        atom = (1 - q) * (1 - math.erfc(1 / (sigma * math.sqrt(8)))) * math.exp(-top)
        sampled, sum_error = positive_sum((rising + falling).ravel())
        total = sampled + atom
        # log of the density in l, h = g r^a / p, at the nodes and at the panels' ends.
        norm = math.log(total) + top + math.log(q)
        self._edges, self._u, self._log_density = edges, u, gaussian + (a + 1) * loss - u - norm
        edge_gaussian = log_scale - (sigma * edges + 0.5 / sigma) ** 2 / 2
        self._edge_density = (a + 1) * _log_ratio(q, edges) - edges + edge_gaussian - norm
        self._rising, self._falling = rising.ravel() / total, falling.ravel() / total
        self._loss = loss.ravel()

        loss_error, weight_error = node_errors(q, sigma, edges, u, weights, loss)
        relative = a * loss_error + weight_error + UNIT * (5 * a * loss + 8 * abs(log_scale) + 96)
        relative += 2 * UNIT * (np.abs(gaussian + a * loss) + top)
        self._phase_error = loss_error.ravel() + 8 * UNIT * self._loss
        bounds = PanelBounds(q, sigma**2, edges)
        # The Gaussian factor's own scale belongs to the integrand.
        size = bounds.peak(a, top - log_scale)
        size += bounds.peak(0.0, top - log_scale) * bounds.power(1 - a)
        size *= 1.02 * ERROR_FACTOR * bounds.half / total
        self._tail = 0.0 if edges[-1] == end else _tail(q, sigma, a, float(u[-1, -1]), top) / total
        both = self._rising + self._falling
        common = float(relative.ravel() @ both) * 1.01 + sum_error + 64 * UNIT
        self._slack = common + float(size.sum()) + self._tail
        if not self._slack <= _MOST_SLACK:
            raise NotConverged("the panels of the losses are too wide")
        self._relative = relative.ravel() + self._slack
        value = math.log(total) + top
        rounding = FUNCTION_ERROR * (abs(math.log(total)) + top) + 1.01 * self._slack
        self.log_moment = Bounds(np.array(value - rounding), np.array(value + rounding))
        # |e^{itl} - 1| <= min(1 + |r^{it}|, |t l| max(1, |r^{it}|)), |r^{it}| <= e^{|t arg r|}.
        wave = np.exp(np.minimum(frequency * bounds.angle, 700.0))
        swing = np.minimum(1 + wave, frequency * bounds.loss * wave)
        self._quadrature = float(np.sum(size * swing)) + 2 * self._tail

    @property
    def mean_and_variance(self) -> tuple[float, float]:
        """Of the tilted loss; nothing is proven of them."""
        mean = float((self._rising - self._falling) @ self._loss)
        second = float((self._rising + self._falling) @ self._loss**2)
        return mean, second - mean**2

    def log_decay(self, first: float, number: int) -> Array:
        """See `tilted.TiltedLosses.log_decay`."""
        _, sigma, a = self._setting
        # Density in l where l > 0: its supremum right of each panel's start, and the mass left.
        points = np.concatenate([[0.0], self._u.ravel(), self._edges[-1:]])
        rise = float(np.max(np.diff(points))) ** 2 / 8 * (sigma**2 + (a + 1) / 4) + 1e-3
        highest = suprema_beyond(self._log_density, self._edge_density)
        maxima = 1.0 if a + 1 <= 4 * sigma**2 else 2.0
        log_variation = highest + rise + math.log(2 * maxima)
        right = np.cumsum(self._rising.reshape(self._u.shape).sum(axis=1)[::-1])[::-1]
        left = 1 - right + 2 * self._slack + 1e-11
        some = slice(None, None, 1 + len(left) // 64)
        parts = (left[None, some], log_variation[None, some])
        return self._count * log_decay(first, number, *parts)[0]

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """See `tilted.TiltedLosses.log_characteristic`."""
        both = self._rising + self._falling
        law = Weighted(self._loss, self._rising, self._falling, both * self._relative)
        shift, error = characteristic_shift(step, number, law)
        frequencies = step * np.arange(float(number))
        error += frequencies * float(self._phase_error @ both) + self._quadrature
        return log_of_power(shift, error, self._count)


def _log_ratio(q: float, u: Array) -> Array:
    """log r at u >= 0."""
    return np.log1p(q * np.expm1(np.minimum(u, 700.0))) + np.maximum(u - 700.0, 0.0)


def _tail(q: float, sigma: float, a: float, last: float, top: float) -> float:
    """Twice the tail of phi r^a beyond u, as in `pairs.symmetrized`, for both terms; over e^top."""
    log_last = float(np.logaddexp(np.log1p(-q), math.log(q) + last))
    log_tail = a * log_last - (sigma * last + 0.5 / sigma) ** 2 / 2 - top
    return 4 * 1.26 / math.sqrt(2 * math.pi) * math.exp(min(log_tail, 700.0))
