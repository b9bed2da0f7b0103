"""Losses of one kind of round under a tilt, on panels of Gauss-Legendre nodes.

* `TruncatedLosses`: a sampled pair without the far end of its tail,
* `SymmetrizedLosses`: the pair of C_q, on the half-line.

Decay: the path of integration is moved off the line. With u = (2x - 1) / (2 sigma^2) and
r = 1 - q + q e^u the Gaussian grows by e^{sigma^2 theta^2 / 2} on u + i theta, |r| does not grow,
and |r^{it}| = e^{-t arg r}.

Derivation: docs/derivations/inversion.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.fourier import shift_of_nodes
from dpacct.numerics.quadrature import ERROR_FACTOR, panel_nodes
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds, ComplexArray, positive_sum
from dpacct.numerics.special import dot
from dpacct.pairs.dominating import AchievedPair, Direction, SampledGaussianPair, SymmetrizedPair
from dpacct.pairs.panels import LossFunction, suprema_beyond
from dpacct.tight.laws import Law, decay_table, doubled_length, log_decay, log_of_power

# Angles, times sigma, and the largest one.
_ANGLES, _LARGEST_ANGLE = (0.15, 0.3, 0.6, 1.2, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0), 1.5
# Tails of panels have about e^-46 of the mass, more where a law occurs often.
_ACCURACY = 46.0
# e^u must not overflow, and bounds to first order need errors that are small.
_FARTHEST_END, _MOST_SLACK = 690.0, 0.01
# Frequencies, from the first one on, at which the bounds of `shifted_bounds` are evaluated.
_SHIFTED = 140
_LEAST_SIGMA = 0.04


class PanelMasses(NamedTuple):
    """A tilted law on panels in u, relative to its whole mass, with all masses rounded up.

    Attributes:
        pair, tilt: of the round, and c > -1.
        edges: of the panels, shape (m + 1,).
        masses: of the panels, shape (m,).
        tail: mass left of the first panel.
        end: density in u at the last edge, where the law ends sharply.
    """

    pair: LossFunction
    tilt: float
    edges: Array
    masses: Array
    tail: float
    end: float


def shifted_bounds(times: Array, law: PanelMasses) -> Array:
    """Return bounds, at most 1, of |phi(t')| for every t' >= t >= 0, shaped like ``times``."""
    pair, tilt, noise = law.pair, law.tilt, law.pair.noise
    p, opposite = pair.probabilities(law.edges)
    best = np.ones_like(times)
    for unit in _ANGLES:
        angle = min(unit / noise, _LARGEST_ANGLE)
        growth = math.exp((noise * angle) ** 2 / 2)
        # arg r grows with u: on each panel it is at least that of the left edge.
        turn = np.arctan2(p[:-1] * math.sin(angle), 1 - p[:-1] + p[:-1] * math.cos(angle))
        if pair.replaced:
            # So does -arg r(-x) with -u, and r(-x)^-c may grow: |r(-x)| is at least its real part,
            # and that at least 1 - q.
            there = opposite[1:]
            turn += np.arctan2(there * math.sin(angle), 1 - there + there * math.cos(angle))
            swollen = _swelling(-tilt, opposite, angle)
            before = 1.0
            if tilt > 0:
                with np.errstate(over="ignore", divide="ignore"):
                    swollen = np.minimum(swollen, (1 - opposite) ** -tilt * (1 + 1e-9))
                    versed = 2 * math.sin(angle / 2) ** 2
                    before = (1 - opposite[0] * versed) ** -tilt * (1 + 1e-9)
            swollen = np.concatenate([[before], swollen[:-1], swollen[-1:]])
        else:
            swollen = _swelling(-tilt if pair.added else 1 + tilt, p, angle)
        if not np.isfinite(swollen).all():
            # Further off the line it grows even more.
            break
        # This exceeds the rounding of the last factors.
        swept = law.masses * swollen[1 : len(p)]
        waves = np.exp(-np.multiply.outer(times, turn * (1 - 1e-9))) @ swept
        rest = law.tail * swollen[0] + angle * law.end * swollen[-1]
        best = np.minimum(best, growth * (1 + 1e-9) * (waves + rest))
        if angle == _LARGEST_ANGLE:
            break
    return best


def _swelling(order: float, p: Array, angle: float) -> Array:
    """Return the possible growth of |r^a| off the line, left of each edge.

    |r|^2 falls by the factor 1 - 4 p (1 - p) sin^2(angle / 2), which matters where a < 0.
    """
    if order >= 0:
        return np.ones_like(p)
    most = np.where(p < 0.5, 4 * p * (1 - p), 1.0)
    log_growth = order / 2 * np.log1p(-most * math.sin(angle / 2) ** 2)
    with np.errstate(over="ignore"):
        return np.exp(log_growth * (1 + 1e-9))


def lost_mass(sampling_rate: float, noise_std: float, end: float, shift: float = 1.0) -> float:
    """Return the mass of (1-q) N(0) + q N(shift) at u > end, rounded up. Shifts are 1, 0 or -1."""
    x = noise_std**2 * end + 0.5
    scale = noise_std * math.sqrt(2)
    without, with_client = math.erfc(x / scale) / 2, math.erfc((x - shift) / scale) / 2
    mass = (1 - sampling_rate) * without + sampling_rate * with_client
    # erfc's relative error is that of its argument times 2 (argument^2 + 1).
    return mass * (1 + UNIT * (64 + 32 * ((abs(x) + 1) / scale) ** 2)) + 1e-300


def end_for(sampling_rate: float, noise_std: float, mass: float) -> float:
    """Estimate the u beyond which P has the given mass. `lost_mass` bounds the lost mass."""
    low, high = 0.0, 40.0 / noise_std + 1 / noise_std**2
    for _ in range(40):
        middle = (low + high) / 2
        if lost_mass(sampling_rate, noise_std, middle) > mass:
            low = middle
        else:
            high = middle
    return high


def reach_for(count: float) -> float:
    """Return the number of standard deviations to integrate the Gaussian over for these rounds."""
    return math.sqrt(2 * (_ACCURACY + math.log(count)))


class PanelIntegrand:
    """g e^{base + (1 + c) L} of one pair on panels, with all errors, in units of e^log_scale.

    Attributes:
        loss, mass, relative, loss_error: at the nodes, of shape (m, n). ``relative`` is the
            relative error of the mass, ``loss_error`` the absolute error of the loss.
        size: quadrature error of each panel, shape (m,).
        swing: growth of that error for integrals of e^{itL} - 1, t up to ``frequency``.
        bounds: suprema over the ellipses of the panels.
    """

    def __init__(self, law: LossFunction, tilt: float, edges: Array, frequency: float) -> None:
        order = 1 + tilt
        u, weights = panel_nodes(edges)
        self.loss, base = law(u)
        exponent = order * self.loss + base + law.log_density(u)
        self.top = float(exponent.max())
        self.log_scale = self.top + math.log(law.noise / math.sqrt(2 * math.pi))
        self.mass: Array = weights * np.exp(exponent - self.top)
        self.loss_error, base_error, weight_error = law.errors(edges, u, weights)
        self.relative: Array = order * self.loss_error + base_error + weight_error
        self.relative += UNIT * (5 * np.abs(order * self.loss) + 2 * np.abs(base) + 64)
        self.relative += 2 * UNIT * (np.abs(exponent - self.top) + abs(self.top))
        self.bounds = law.bounds(edges)
        self.size: Array = (
            1.02 * ERROR_FACTOR * self.bounds.half * self.bounds.peak(order, self.top)
        )
        self.swing = swing(frequency, self.bounds.angle, self.bounds.loss)


def swing(frequency: float, angle: Array, loss: Array) -> Array:
    """Return bounds of |e^z - 1|, z = itL, on ellipses: at most 1 + |e^z|, and |z| e^{|Re z|}."""
    # A bound that overflows is useless, and 1 + wave is finite.
    wave = np.exp(np.minimum(frequency * angle, 700.0))
    with np.errstate(over="ignore"):
        return np.minimum(1 + wave, frequency * loss * wave)


class PanelLaw(Law):
    """A tilted law on nodes, once.

    Args:
        loss, mass: of the nodes, of one shape, with positive masses.
        relative, loss_error: of each mass, and of each loss.
        size: quadrature error of each panel, and the mass left of the first.
        swing: growth of these errors for integrals of e^{itL} - 1.
        log_scale: logarithm of the unit of the masses.
    Attributes:
        log_moment: bounds of the logarithm of the whole mass, which is ``total`` in their unit.
        weight, size: masses and errors relative to the whole mass.
        slack: relative error of the whole mass.
    """

    def __init__(
        self,
        loss: Array,
        mass: Array,
        relative: Array,
        loss_error: Array,
        size: Array,
        swing: Array,
        log_scale: float,
    ) -> None:
        total, sum_error = positive_sum(mass.ravel())
        if not total > 0.0:
            raise NotConverged("there are no losses between the steps")
        self.total, self.weight, self.size = total, mass.ravel() / total, size / total
        self._loss, self._loss_error, relative = loss.ravel(), loss_error.ravel(), relative.ravel()
        common = dot(relative, self.weight) * 1.01 + sum_error + 64 * UNIT
        self.slack = common + float(self.size.sum()) + 1e-290 / total
        if not self.slack <= _MOST_SLACK:
            raise NotConverged("the panels of the losses are too wide")
        log_total = math.log(total) + log_scale
        off = 2 * FUNCTION_ERROR * (abs(math.log(total)) + abs(log_scale)) + 1.01 * self.slack
        self.log_moment = Bounds(np.array(log_total - off), np.array(log_total + off))
        self._relative = relative + self.slack
        self._quadrature = dot(self.size, swing)

    def shift(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """Return phi(t) - 1 at t = k step, phi the mean of e^{itL}, and a bound of its error."""
        nodes = (self._loss, self.weight, self._relative, self._loss_error)
        shift, error = shift_of_nodes(step * np.arange(float(number)), *nodes)
        return shift, error + self._quadrature

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """See `Law`."""
        return log_of_power(*self.shift(step, number), self.count)

    def masses(self, law: LossFunction, tilt: float, edges: Array, top: float) -> PanelMasses:
        """Return the panels between ``edges``, rounded up."""
        each = self.weight.reshape(len(self.size) - 1, -1).sum(axis=1)
        (loss,), (base,) = law(edges[-1:])
        exponent = float((1 + tilt) * loss + base + law.log_density(edges[-1:])[0]) - top
        return PanelMasses(
            *(law, tilt, edges),
            masses=each * (1 + 2 * self.slack) + 2 * self.size[:-1],
            tail=2 * float(self.size[-1]),
            end=2 * math.exp(min(exponent, 700.0)) / self.total,
        )


class TruncatedLosses(PanelLaw):
    """Tilted losses of one kind of round without the far end of their tail, ``count`` times.

    Where rates are tiny the largest losses carry less probability than any delta that is asked for,
    and yet they dominate the moments. Without u > end the rest is a measure P' <= P, and
    delta'(eps) <= delta(eps) <= delta'(eps) + P(u > end in some round).

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
        if end > _FARTHEST_END:
            raise NotConverged("the losses of so little noise are too large")
        law, reach = LossFunction(pair), reach_for(count)
        start = law.start(tilt, reach)
        edges = law.edges(tilt, start, end, frequency)
        at = PanelIntegrand(law, tilt, edges, frequency)
        tail = math.exp(min(law.log_mass_before(start, tilt, reach) - at.log_scale, 700.0))
        size, swings = np.append(at.size, tail), np.append(at.swing, 2.1)
        nodes = (at.loss, at.mass, at.relative, at.loss_error)
        super().__init__(*nodes, size, swings, at.log_scale)
        self.count, self._panels = count, self.masses(law, tilt, edges, at.top)

    def log_decay(self, first: float, number: int) -> Array:
        """See `Law`."""
        known = np.empty(doubled_length(number))
        known[:_SHIFTED] = shifted_bounds(decay_table(first, len(known))[:_SHIFTED], self._panels)
        known[_SHIFTED:] = known[min(_SHIFTED, len(known)) - 1]
        nothing = np.ones((1, 1))
        return self.count * log_decay(first, number, nothing, nothing, known[None, :])[0]


class SymmetrizedLosses(PanelLaw):
    """Tilted losses of one kind of round with the pair of C_q, ``count`` times.

    With u > 0, l = log r, a = 1 + c the tilted law has the density g r^a at the loss l, g r^(1-a)
    at the loss -l, and an atom at 0 with the mass (1 - q) (1 - erfc(1 / (sigma sqrt 8))), all
    divided by their sum.

    Args:
        pair: with a rate q in (0, 1).
        count: how often the round occurs.
        tilt: c > 0.
        frequency: the largest requested |t|.
        end: the largest u that is kept. Losses of both signs beyond are left out.
    Raises:
        NotConverged: too many panels would be needed, or sigma is below 0.04.
    Derivation: docs/derivations/inversion.md, with the quadrature of uniform-sampling.md.
    """

    def __init__(
        self,
        pair: SymmetrizedPair,
        count: float,
        tilt: float,
        frequency: float,
        end: float = math.inf,
    ) -> None:
        q, sigma, a = pair.sampling_rate, pair.noise_std, 1 + tilt
        if sigma <= _LEAST_SIGMA:
            raise NotConverged("the loss of so little noise is nearly an atom")
        last = min(end, (a + reach_for(count) * sigma - 0.5) / sigma**2)
        ratio, back = (LossFunction(SampledGaussianPair(q, sigma, d)) for d in Direction)
        edges = ratio.edges(tilt, 0.0, last, frequency)
        u = panel_nodes(edges)[0]
        # Losses above 0 are those of the remove pair, and losses below 0 those of the add pair.
        at, falling = (PanelIntegrand(law, tilt, edges, frequency) for law in (ratio, back))
        less, scale = math.exp(falling.top - at.top), at.log_scale
        atom = (1 - q) * (1 - math.erfc(1 / (sigma * math.sqrt(8)))) * math.exp(-scale)
        tail = 0.0 if last == end else _tail(q, sigma, a, float(u[-1, -1]), scale)
        # Three units, one for each part, are brought to one.
        units = abs(at.top) + abs(falling.top) + 8 * (abs(scale) + abs(scale - at.top)) + 16
        relative = [part.relative.ravel() + 2 * UNIT * units for part in (at, falling)]
        super().__init__(
            np.concatenate([at.loss.ravel(), falling.loss.ravel(), [0.0]]),
            np.concatenate([at.mass.ravel(), less * falling.mass.ravel(), [atom]]),
            np.concatenate([*relative, [16 * UNIT]]),
            np.concatenate([at.loss_error.ravel(), falling.loss_error.ravel(), [0.0]]),
            np.append(at.size + less * falling.size, tail),
            np.append(at.swing, 2.0),
            scale,
        )
        self.count = count
        # Density in l > 0, h = g r^a / p: its supremum right of each panel's start, and the
        # remaining mass. Between points it rises by at most a curvature.
        norm = math.log(self.total) + at.top + math.log(q)
        inner, ends = ((a + 1) * ratio(x)[0] - x + ratio.log_density(x) - norm for x in (u, edges))
        highest = suprema_beyond(inner, ends)
        points = np.concatenate([[0.0], u.ravel(), edges[-1:]])
        rise = float(np.max(np.diff(points))) ** 2 / 8 * (sigma**2 + (a + 1) / 4) + 1e-3
        maxima = 1.0 if a + 1 <= 4 * sigma**2 else 2.0
        each = self.weight[: u.size].reshape(u.shape).sum(axis=1)
        left = 1 - np.cumsum(each[::-1])[::-1] + 2 * self.slack + 1e-11
        some = slice(None, None, 1 + len(left) // 64)
        self._decay = left[None, some], (highest + rise + math.log(2 * maxima))[None, some]

    def log_decay(self, first: float, number: int) -> Array:
        """See `Law`."""
        return self.count * log_decay(first, number, *self._decay)[0]


def _tail(q: float, sigma: float, a: float, last: float, top: float) -> float:
    """Bound twice the tail of phi r^a beyond u for both terms, over e^top."""
    log_last = float(np.logaddexp(np.log1p(-q), math.log(q) + last))
    log_tail = a * log_last - (sigma * last + 0.5 / sigma) ** 2 / 2 - top
    return 4 * 1.26 / math.sqrt(2 * math.pi) * math.exp(min(log_tail, 700.0))


PanelPair = AchievedPair | SymmetrizedPair


def panel_law(
    pair: PanelPair, count: float, tilt: float, frequency: float, end: float = math.inf
) -> PanelLaw:
    """Return the tilted losses of one kind of round, up to those of u = ``end``."""
    if isinstance(pair, SymmetrizedPair):
        return SymmetrizedLosses(pair, count, tilt, frequency, end)
    return TruncatedLosses(pair, count, tilt, frequency, end)
