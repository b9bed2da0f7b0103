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
from dpacct.pairs.dominating import Direction
from dpacct.pairs.panels import PanelBounds, node_errors, panel_edges, suprema_beyond
from dpacct.tight.laws.decay import decay_table, doubled, log_decay, log_of_power
from dpacct.tight.laws.shifted import PanelMasses, shifted_bounds

_ACCURACY = 46.0
# e^u must not overflow, and bounds to first order need errors that are small.
_FARTHEST_END, _MOST_SLACK = 690.0, 0.01
# Frequencies, from the first one on, at which the bounds of `shifted` are evaluated.
_SHIFTED = 140


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


def start_for(order: float, sampling_rate: float, noise_std: float, reach: float) -> float:
    """The u left of which phi r^order has about e^(-reach^2 / 2) of its mass.

    In the add direction, order < 0, the slope of -order log r is at most that at the peak of phi.
    """
    peak = -0.5 / noise_std**2
    log_odds = math.log1p(-sampling_rate) - math.log(sampling_rate)
    steepest = 1 / (1 + math.exp(min(log_odds - peak, 700.0)))
    return peak - reach / noise_std + min(order, 0.0) * steepest / noise_std**2


class TruncatedLosses:
    """Tilted losses of one kind of round, ``count`` times.

    Args:
        sampling_rate: q in (0, 1/2].
        noise_std: sigma in units of the shift.
        count: how often the round occurs.
        tilt: c > 0.
        frequency: the largest |t| that will be asked for.
        end: the largest u that is kept, above 0.
        direction: remove or add.
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
        direction: Direction = Direction.REMOVE,
    ) -> None:
        remove = direction is Direction.REMOVE
        q, sigma, a = sampling_rate, noise_std, 1 + tilt if remove else -tilt
        if end > _FARTHEST_END:
            raise NotConverged("the losses of so little noise are too large")
        self._count = count
        reach = math.sqrt(2 * (_ACCURACY + math.log(count)))
        start = start_for(a, q, sigma, reach)
        edges = panel_edges(abs(a), q, sigma, end, frequency, start)
        u, weights = panel_nodes(edges)
        loss = np.log1p(q * np.expm1(u))
        exponent = a * loss - (sigma * u + 0.5 / sigma) ** 2 / 2
        top = float(exponent.max())
        mass = weights * np.exp(exponent - top)
        total, sum_error = positive_sum(mass.ravel())
        bounds = PanelBounds(q, sigma**2, edges)
        peak = bounds.peak(max(a, 0.0), top - min(a, 0.0) * bounds.log_smallest)
        size = 1.02 * ERROR_FACTOR * bounds.half * peak / total
        log_scale = math.log(sigma / math.sqrt(2 * math.pi))
        log_total = math.log(total) + top + log_scale
        # Left of the first panel r <= 1, and phi has at most the mass e^(-reach^2 / 2).
        log_tail = -(reach**2) / 2
        if not remove:
            # The logarithm of the integrand has at least the slope reach sigma there.
            first = a * math.log1p(q * math.expm1(start)) - (sigma * start + 0.5 / sigma) ** 2 / 2
            log_tail = first + log_scale - math.log(reach * sigma) + 1e-6 * (1 + abs(first))
        tail = math.exp(min(log_tail - log_total, 700.0))

        loss_error, weight_error = node_errors(q, sigma, edges, u, weights, loss)
        relative = abs(a) * loss_error + weight_error + UNIT * (5 * np.abs(a * loss) + 32)
        relative += 2 * UNIT * (np.abs(exponent - top) + abs(top))
        weight = mass.ravel() / total
        self._weight, self._loss = weight, (loss if remove else -loss).ravel()
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
        norm = math.log(total) + top + math.log(q)
        self._log_variation = _log_variation(a, q, sigma, edges, u, exponent + loss - u, norm)
        each = weight.reshape(u.shape).sum(axis=1)
        self._left = 1 - np.cumsum(each[::-1])[::-1] + 2 * slack + 1e-11
        at_end = a * math.log1p(q * math.expm1(end)) - (sigma * end + 0.5 / sigma) ** 2 / 2 - top
        self._panels = PanelMasses(
            *(a, q, sigma, edges),
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
        some = slice(None, None, 1 + len(self._left) // 64)
        parts = (self._left[None, some], self._log_variation[None, some])
        known = np.empty(doubled(number))
        known[:_SHIFTED] = shifted_bounds(decay_table(first, len(known))[:_SHIFTED], self._panels)
        known[_SHIFTED:] = known[min(_SHIFTED, len(known)) - 1]
        return self._count * log_decay(first, number, *parts, known[None, :])[0]

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """See `tilted.TiltedLosses.log_characteristic`."""
        law = Weighted(self._loss, self._weight, None, self._weight * self._relative)
        shift, error = characteristic_shift(step, number, law)
        frequencies = step * np.arange(float(number))
        return log_of_power(
            shift, error + frequencies * self._phase_error + self._quadrature, self._count
        )


def _log_variation(
    a: float, q: float, sigma: float, edges: Array, u: Array, log_density: Array, norm: float
) -> Array:
    """log of the variation of the density in l, h = g r^a / p, right of each panel's start.

    ``log_density`` is that of h at the nodes u, and ``norm`` is taken from it.
    """
    edge_exponent = (a + 1) * np.log1p(q * np.expm1(edges)) - edges
    edge_exponent -= (sigma * edges + 0.5 / sigma) ** 2 / 2
    gap = float(np.max(np.diff(u.ravel())))
    # Where that is so large that the bound is void, `shifted` has another one.
    rise = gap**2 / 8 * (sigma**2 + (abs(a) + 1) / 4) + 1e-3
    maxima = 1.0 if a + 1 <= 4 * sigma**2 else 2.0
    return suprema_beyond(log_density - norm, edge_exponent - norm) + rise + math.log(2 * maxima)
