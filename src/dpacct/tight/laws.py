"""Losses of one kind of round under an exponential tilt: characteristic functions and their decay.

For a pair (P, Q) with loss L = log dP/dQ and a tilt c > 0 let P_c be P weighted by e^{cL}. Its
characteristic function is phi(t) = E_P[e^{(c + it) L}] / E_P[e^{cL}]. A contour integral needs phi
with a bound of its error, and a bound of |phi(t')| for all t' >= t. Four laws have both:

* `TiltedLosses`: sampled pairs on the whole line, several kinds in the same arrays,
* `TruncatedLosses`: a sampled pair without the far end of its tail, by Gauss-Legendre panels,
* `SymmetrizedLosses`: the pair of C_q, by panels of the half-line,
* `GeneralLosses`: a pair of a mechanism, which knows both itself.

Decay: |phi(t)| <= left + variation / t, where ``left`` is the mass left of some point and
``variation`` that of the density right of it, and 1 - |phi(t)|^2 >= (1 - |phi(2 t)|^2) / 4. Where
the density is analytic the path of integration is moved off the line: with
u = (2x - 1) / (2 sigma^2) and r = 1 - q + q e^u the Gaussian grows by e^{sigma^2 theta^2 / 2} on
u + i theta, |r| does not grow, and |r^{it}| = e^{-t arg r}.

Derivation: docs/derivations/inversion.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.fourier import Rows, Weighted, characteristic_shift, characteristic_shifts
from dpacct.numerics.quadrature import ERROR_FACTOR, panel_nodes
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds, ComplexArray, positive_sum
from dpacct.pairs.dominating import (
    AchievedPair,
    Direction,
    GeneralPair,
    SampledGaussianPair,
)
from dpacct.pairs.panels import LossFunction, PanelBounds, node_errors, panel_edges, suprema_beyond
from dpacct.pairs.trapezoid import Nodes, log_ratio, mirrored_farthest, mirrored_ratio

# Frequencies grow by the factor 2^(1/4), and are doubled this often.
_PER_DOUBLING, _DOUBLINGS = 4, 30
_BLOCK = 2_000_000


def decay_table(first: float, number: int) -> Array:
    """Return the frequencies at which decay is bounded: first 2^(k/4), shape (number,)."""
    return first * np.exp2(np.arange(float(number)) / _PER_DOUBLING)


def doubled_length(number: int) -> int:
    """Return the number of entries of `decay_table` that bounds at the first ``number`` need."""
    return number + _PER_DOUBLING * _DOUBLINGS


def log_decay(
    first: float, number: int, left: Array, log_variation: Array, known: Array | None = None
) -> Array:
    """Return bounds of log |phi(t')| for every t' >= t, for several laws.

    Args:
        first, number: t runs through `decay_table`.
        left, log_variation: |phi(t)| <= left + e^log_variation / t for each entry, shape (m, n).
        known: other bounds of |phi(t')|, t' >= t, of shape (m, doubled_length(number)).
    Returns:
        Array (m, number), at most 0.
    """
    length = doubled_length(number)
    # 1e-9 pays for the rounding of t.
    log_t = np.log(decay_table(first, length)) - 1e-9
    found = np.empty((len(left), number))
    block = max(1, _BLOCK // (left.shape[1] * length))
    for start in range(0, len(left), block):
        rows = slice(start, start + block)
        wave = np.minimum(log_variation[rows, :, None] - log_t, 1.0)
        bound = np.minimum(1.0, np.min(left[rows, :, None] + np.exp(wave), axis=1))
        if known is not None:
            bound = np.minimum(bound, known[rows])
        deficit = 1 - bound**2
        best = deficit[:, :number].copy()
        for k in range(1, _DOUBLINGS + 1):
            shift = _PER_DOUBLING * k
            np.maximum(best, 0.25**k * deficit[:, shift : shift + number], out=best)
        found[rows] = 0.5 * np.log1p(-np.minimum(best, 1 - 1e-15))
        # One minus a square loses tiny values.
        found[rows] = np.minimum(found[rows], np.log(bound[:, :number] + 1e-300))
    return found


def log_of_power(
    shift: ComplexArray, error: Array, count: float | Array
) -> tuple[ComplexArray, Array]:
    """Return log of (1 + shift)^count, of any shape, with an error bound from that of ``shift``.

    The error is relative to the value returned. Where ``shift`` may be -1, that stands for
    anything of at most its modulus: relative error 2.
    """
    x = np.asarray(shift.real, dtype=np.float64)
    y = np.asarray(shift.imag, dtype=np.float64)
    modulus = np.hypot(1 + x, y)
    # numpy's complex log1p is accurate only in absolute terms next to 1. This error is relative.
    size = np.hypot(x, y)
    near = size < 0.5
    log_modulus = 0.5 * np.log1p(np.where(near, x * (2 + x) + y * y, 0.0))
    log_modulus = np.where(near, log_modulus, np.log(np.maximum(modulus, 1e-300)))
    angle = np.arctan2(y, 1 + x)
    unsure = modulus <= 2 * error
    log_modulus = np.where(unsure, np.log(modulus + error + 1e-300), log_modulus)
    relative = (2 * error + 32 * UNIT * size) / np.maximum(modulus, 1e-300)
    bound = np.where(unsure, math.log(3.0), count * relative)
    log_value = count * log_modulus + 1j * (count * np.where(unsure, 0.0, angle))
    return log_value, bound + 8 * UNIT * (np.abs(log_value) + 1)


# Angles, times sigma, and the largest one.
_ANGLES, _LARGEST_ANGLE = (0.15, 0.3, 0.6, 1.2, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0), 1.5

# Angles, in units of about the best one.
_UNITS = (0.7, 1.0, 1.6)


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


def log_shifted(times: Array, order: float, noise: Array, share: Array) -> Array:
    """Return bounds of log |phi(t')| for every t' >= t >= 0, of several laws on the whole line.

    Args:
        times: t, shape (n,).
        order: a, as for `PanelMasses`.
        noise: of the rounds, shape (m,).
        share: the mean of p = q e^u / r under each tilted law, rounded down, shape (m,).
    Returns:
        Array (m, n), at most 0.
    """
    variance, mean = noise[:, None] ** 2, share[:, None]
    usual = times * mean / variance
    usual = usual / (1 + times * usual)
    best = np.zeros(usual.shape)
    for unit in _UNITS:
        angle = np.minimum(unit * usual, _LARGEST_ANGLE)
        # arg r is at least p sin(angle), and |r|^a grows by at most e^(-2 a tan^2(angle / 2) p).
        turn = times * np.sin(angle) + 2 * min(order, 0.0) * np.tan(angle / 2) ** 2 * (1 + 1e-9)
        # e^{-turn p} lies below its chord over [0, 1].
        gain = mean * -np.expm1(-np.maximum(turn, 0.0)) * (1 - 1e-9)
        growth = variance * angle**2 * (0.5 + 1e-9)
        best = np.minimum(best, growth + np.log1p(-gain))
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


class Law:
    """Tilted losses of some of the rounds.

    Attributes:
        count: how often the law occurs, if it is that of one kind of round.
        log_moment: bounds of the logarithm of its moment, each time.
    """

    count = 1.0
    log_moment: Bounds

    def log_decay(self, first: float, number: int) -> Array:
        """Return bounds of log of the product of all |phi(t')|^count, for every t' >= t.

        ``first``, ``number``: t runs through `decay_table`. Shape (number,), at most 0.
        """
        raise NotImplementedError

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """Return log of the product of all phi(t)^count at t = k step, and a bound of its error.

        The logarithm has any branch with the right exponential. Both arrays have shape (number,).
        The largest frequency is at most the one that the law was made for.

        Raises:
            NotConverged: too many frequencies.
        """
        raise NotImplementedError


class GeneralLosses(Law):
    """Tilted finite losses of a pair that is given by functions of its loss, ``count`` times."""

    def __init__(self, pair: GeneralPair, count: float, tilt: float) -> None:
        self._pair, self.count, self._tilt = pair, count, tilt
        moment = pair.log_moment(np.array([tilt]))
        self.log_moment = Bounds(moment.lower[0], moment.upper[0])

    def log_decay(self, first: float, number: int) -> Array:
        """See `Law`."""
        times = decay_table(first, number) * (1 - 1e-9)
        bound = np.minimum(self._pair.decay(self._tilt, times) * (1 + 1e-12), 1.0)
        return self.count * np.log(np.maximum(bound, 1e-300))

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """See `Law`."""
        frequencies = step * np.arange(float(number))
        shift, error = self._pair.characteristic(self._tilt, frequencies)
        return log_of_power(shift, error, self.count)


class TiltedNodes:
    """Nodes in x of several kinds of rounds under a tilt, laid end to end, one entry per node.

    P weighted by e^{cL} has a density that is e^exponent up to a constant:

    * remove: L = log r(x), exponent (1 + c) log r(x) - x^2 / (2 sigma^2),
    * add: L = -log r(x), exponent -c log r(x) - x^2 / (2 sigma^2),
    * replacement: L = log r(x) - log r(-x), exponent c L + log r(x) - x^2 / (2 sigma^2).

    Args:
        rates, noise: of the rows, rates in (0, 1), shape (m,).
        direction: remove or add, None if a client is replaced.
        tilt: c > 0.
        accuracy: tails and discretization are about e^-accuracy.
        frequency: the largest |t| at which e^{itL} will be integrated.
        max_nodes: how many nodes there may be.
    Raises:
        NotConverged: more would be needed.
    """

    def __init__(
        self,
        rates: Array,
        noise: Array,
        direction: Direction | None,
        tilt: float,
        accuracy: float,
        frequency: float,
        max_nodes: int,
    ) -> None:
        self._rates, self._noise, self._replaced = rates, noise, direction is None
        self._order = order = -tilt if direction is Direction.ADD else 1 + tilt
        a, setting = np.full_like(rates, order), (frequency, max_nodes)
        accuracies = np.full_like(rates, accuracy)
        if direction is None:
            # The density of L falls from here on, too: its logarithm adds a slope of at most 1.
            farthest = mirrored_farthest(a, rates, noise) + 1
            self.grid = Nodes(a, rates, noise, accuracies, farthest, *setting, mirrored=1 - a)
            found = mirrored_ratio(self.grid, rates, noise)
            self._quadratic, ratio, self.loss_error, self._base, self._base_error = found
        else:
            farthest = np.maximum(a, 0.0)
            self.grid = Nodes(a, rates, noise, accuracies, farthest, *setting)
            self._quadratic, ratio, self.loss_error = log_ratio(self.grid, rates, noise)
            self._base = self._base_error = np.zeros_like(ratio)
        self.loss: Array = -ratio if direction is Direction.ADD else ratio
        self.exponent: Array = order * ratio + self._base - self._quadratic

    def exponent_error(self) -> Array:
        """Return a bound of the absolute error of ``exponent``."""
        sizes = 5 * np.abs(self._order * self.loss) + 3 * np.abs(self._base) + 8 * self._quadratic
        return abs(self._order) * self.loss_error + self._base_error + UNIT * sizes

    def log_slope(self) -> Array:
        """Return log of |dL/dx|: that of p(x) / sigma^2, or of (p(x) + p(-x)) / sigma^2."""
        log_p = _log_probability(self.grid, self._rates, self._noise, self.grid.x)
        if self._replaced:
            there = _log_probability(self.grid, self._rates, self._noise, -self.grid.x)
            log_p = np.logaddexp(log_p, there)
        return log_p - self.grid.spread(2 * np.log(self._noise))

    def bend(self) -> Array:
        """Return a bound of -(log h)'' in x, one entry per row. h is the density of L."""
        most = (abs(self._order) + 1) / 4
        if self._replaced:
            most = (self._order - 1) / 4 + 3.25
        return (1 + most / self._noise**2) / self._noise**2

    def maxima(self) -> Array:
        """Return the largest number of maxima of h right of any point, one entry per row."""
        usual = np.where(self._order + 1 <= 4 * self._noise**2, 1.0, 2.0)
        return np.full_like(usual, 5.0) if self._replaced else usual

    def shares(self) -> Array:
        """Return p, of which `log_shifted` takes the mean."""
        return np.exp(_log_probability(self.grid, self._rates, self._noise, self.grid.x))

    def log_shifted(self, times: Array, mean_share: Array) -> Array:
        """Return bounds of log |phi(t')| <= 0, t' >= t, by a path off the line, of shape (m, n).

        There is no such bound if a client is replaced. ``mean_share``: the mean of the nodes'
        ``shares``, rounded down, one entry per row.
        """
        if self._replaced:
            return np.zeros((len(mean_share), len(times)))
        return log_shifted(times, self._order, self._noise, mean_share)


def _log_probability(grid: Nodes, rates: Array, noise: Array, x: Array) -> Array:
    """Return log p(x), p = q e^u / r."""
    log_odds = grid.spread(np.log(rates) - np.log1p(-rates))
    return -np.logaddexp(0.0, -((x - 0.5) / grid.spread(noise**2) + log_odds))


# Nodes of each row at which the decay is bounded, where there are many rows and where not.
_FEW, _MANY = 10, 64
# Bound of the growth of |p| off the line, including the error of the sum of weights. See `Nodes`.
_STRIP = 4000.0


class TiltedLosses(Law):
    """Tilted losses of several distinct rounds.

    Args:
        nodes: nodes of the integrals, made for the largest requested |t|.
        noise: noise std in units of the shift, shape (m,).
        counts: how often each round occurs, shape (m,).
    """

    def __init__(self, nodes: TiltedNodes, noise: Array, counts: Array) -> None:
        self._nodes, self._counts, self._grid = nodes, counts, nodes.grid
        grid = self._grid
        drop = grid.spread(np.maximum.reduceat(nodes.exponent, grid.starts)) - nodes.exponent
        weights = np.exp(-drop)
        sums = [positive_sum(weights[start:stop]) for start, stop in self._slices()]
        totals = np.array([total for total, _ in sums])
        self._sum_error = [error for _, error in sums]
        self._weights = weights / grid.spread(totals)
        self._weight_error = nodes.exponent_error() + UNIT * (2 * drop + 32)
        self._tails = 1.26 * noise / grid.step * grid.ends(weights) / totals

    def _bounds_of_decay(self) -> tuple[Array, Array]:
        """Return at some nodes of each row the mass to the left, and log variation to the right.

        Returns:
            Two arrays of shape (m, n).
        """
        grid = self._grid
        common = self._common()
        log_density = np.log(np.maximum(self._weights, 1e-320)) - self._nodes.log_slope()
        log_density += self._weight_error + grid.spread(common)
        log_density -= grid.spread(np.log(grid.step))
        # Between nodes the logarithm of a density rises above its larger end by at most step^2 / 8
        # of its curvature.
        rise = grid.step**2 / 8 * self._nodes.bend() + 1e-6
        maxima = self._nodes.maxima()
        # Every node gives a valid bound. Some dozens are enough.
        some = _MANY if len(grid.counts) <= 8 else _FEW
        last = grid.counts[:, None] - 1
        column = np.arange(int(last.max()) + 1)
        index = grid.starts[:, None] + np.minimum(column, last)
        density, weights = log_density[index], self._weights[index]
        highest = np.maximum.accumulate(density[:, ::-1], axis=1)[:, ::-1]
        # A rise that large makes the bound void: left is then above one.
        growth = np.where(rise < 50.0, np.exp(np.minimum(rise, 50.0)), math.inf)
        between = np.maximum(weights[:, :-1], weights[:, 1:]) + 1e-300
        mass = np.cumsum(between, axis=1) * growth[:, None]
        mass = np.concatenate([np.zeros((len(grid.counts), 1)), mass], axis=1)
        chosen = (np.linspace(0.0, 1.0, some) * last).astype(np.int64)
        left = np.take_along_axis(mass, chosen, axis=1) + 1e-12
        left += (self._tails + 2 * common)[:, None]
        log_variation = np.take_along_axis(highest, chosen, axis=1)
        return left, log_variation + (rise + np.log(2 * maxima))[:, None]

    def _slices(self) -> list[tuple[int, int]]:
        starts = self._grid.starts
        return [(int(s), int(s + n)) for s, n in zip(starts, self._grid.counts, strict=True)]

    def log_decay(self, first: float, number: int) -> Array:
        """See `Law`."""
        left, log_variation = self._bounds_of_decay()
        found = log_decay(first, number, left, log_variation)
        times = decay_table(first, number) * (1 - 1e-9)
        found = np.minimum(found, self._nodes.log_shifted(times, self._mean_share()))
        return self._counts @ found

    def _mean_share(self) -> Array:
        """Return the mean of p under the law of each row, rounded down, at least 0."""
        shares, grid = self._nodes.shares(), self._grid
        mean = grid.sum(shares * self._weights * (1 - self._weight_error))
        common = self._common() + 2.5 * self._tails + grid.summation_error
        return np.maximum(mean * (1 - 1e-9) - common - _STRIP * grid.discretization, 0.0)

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """See `Law`."""
        quadrature = 2.5 * (self._grid.discretization + self._tails)
        error = self._weight_error + self._grid.spread(self._common())
        losses = self._nodes.loss
        phases = self._nodes.loss_error + 8 * UNIT * np.abs(losses)
        law = Rows(
            losses, self._weights, error * self._weights, self._grid.starts, self._grid.counts
        )
        phase_error = self._grid.sum(phases * self._weights) * (1 + 1e-9)
        log_value = np.zeros(number, dtype=np.complex128)
        total_error = np.zeros(number)
        frequencies = step * np.arange(float(number))
        for rows, shift, rounding in characteristic_shifts(step, number, law):
            size = rounding + frequencies * phase_error[rows, None] + quadrature[rows, None]
            value, value_error = log_of_power(shift, size, self._counts[rows, None])
            log_value += value.sum(axis=0)
            total_error += value_error.sum(axis=0)
        # Adding the rows up rounds once more for each.
        adding = UNIT * len(self._counts) * np.abs(log_value)
        return log_value, total_error * (1 + 1e-9) + adding

    def _common(self) -> Array:
        """Return relative error of the sum by which each weight is divided: the mean of theirs."""
        mean = self._grid.sum(self._weight_error * self._weights)
        return mean * (1 + 1e-9) + np.array(self._sum_error) + 64 * UNIT


# Tails of panels have about e^-46 of the mass, more where a law occurs often.
_ACCURACY = 46.0
# e^u must not overflow, and bounds to first order need errors that are small.
_FARTHEST_END, _MOST_SLACK = 690.0, 0.01
# Frequencies, from the first one on, at which the bounds of `shifted_bounds` are evaluated.
_SHIFTED = 140
_LEAST_SIGMA = 0.04


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


class PanelLaw:
    """A tilted law on the nodes of panels: its moment and its characteristic function.

    Args:
        loss, mass: at the nodes, of one shape, with positive masses.
        relative, loss_error: of each mass, and of each loss.
        size: quadrature error of each panel, and the mass left of the first.
        swing: growth of these errors for integrals of e^{itL} - 1.
        log_scale: logarithm of the unit of the masses.
        falling: masses at minus the losses, with the same errors.
        atom: mass at 0.
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
        falling: Array | None = None,
        atom: float = 0.0,
    ) -> None:
        loss, mass, relative = loss.ravel(), mass.ravel(), relative.ravel()
        both = mass if falling is None else mass + falling.ravel()
        total, sum_error = positive_sum(both)
        total += atom
        if not total > 0.0:
            raise NotConverged("there are no losses between the steps")
        self.total, self.loss, self.weight, self.size = total, loss, mass / total, size / total
        self.falling = None if falling is None else falling.ravel() / total
        self._both = both / total
        common = float(relative @ self._both) * 1.01 + sum_error + 64 * UNIT
        self.slack = common + float(self.size.sum()) + 1e-290 / total
        if not self.slack <= _MOST_SLACK:
            raise NotConverged("the panels of the losses are too wide")
        log_total = math.log(total) + log_scale
        off = 2 * FUNCTION_ERROR * (abs(math.log(total)) + abs(log_scale)) + 1.01 * self.slack
        self.log_moment = Bounds(np.array(log_total - off), np.array(log_total + off))
        self._relative = relative + self.slack
        self._phase_error = float((loss_error.ravel() + 8 * UNIT * np.abs(loss)) @ self._both)
        self._quadrature = float(self.size @ swing)

    def shift(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """Return phi(t) - 1 at t = k step, phi the mean of e^{itL}, and a bound of its error."""
        law = Weighted(self.loss, self.weight, self.falling, self._both * self._relative)
        shift, error = characteristic_shift(step, number, law)
        frequencies = step * np.arange(float(number))
        return shift, error + frequencies * self._phase_error + self._quadrature

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


class PanelLosses(Law):
    """Losses of one kind of round on panels, ``count`` times."""

    def __init__(self, law: PanelLaw, count: float) -> None:
        self._law, self.count, self.log_moment = law, count, law.log_moment

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """See `Law`."""
        return log_of_power(*self._law.shift(step, number), self.count)


class TruncatedLosses(PanelLosses):
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
        super().__init__(PanelLaw(*nodes, size, swings, at.log_scale), count)
        self._panels = self._law.masses(law, tilt, edges, at.top)

    def log_decay(self, first: float, number: int) -> Array:
        """See `Law`."""
        known = np.empty(doubled_length(number))
        known[:_SHIFTED] = shifted_bounds(decay_table(first, len(known))[:_SHIFTED], self._panels)
        known[_SHIFTED:] = known[min(_SHIFTED, len(known)) - 1]
        nothing = np.ones((1, 1))
        return self.count * log_decay(first, number, nothing, nothing, known[None, :])[0]


class SymmetrizedLosses(PanelLosses):
    """Tilted losses of one kind of round with the pair of C_q, ``count`` times.

    With u > 0, l = log r, a = 1 + c the tilted law has the density g r^a at the loss l, g r^(1-a)
    at the loss -l, and an atom at 0 with the mass (1 - q) (1 - erfc(1 / (sigma sqrt 8))), all
    divided by their sum.

    Args:
        sampling_rate: q in (0, 1).
        noise_std: sigma in units of the shift.
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
        last = min(end, (a + reach_for(count) * sigma - 0.5) / sigma**2)
        edges = panel_edges(a, q, sigma, last, frequency)
        u, weights = panel_nodes(edges)
        ratio = LossFunction(SampledGaussianPair(q, sigma, Direction.REMOVE))
        (loss, _), log_scale = ratio(u), math.log(sigma / math.sqrt(2 * math.pi))
        gaussian = log_scale + ratio.log_density(u)
        top = max(0.0, float((gaussian + a * loss).max()))
        rising = weights * np.exp(gaussian + a * loss - top)
        falling = weights * np.exp(gaussian + (1 - a) * loss - top)
        atom = (1 - q) * (1 - math.erfc(1 / (sigma * math.sqrt(8)))) * math.exp(-top)
        loss_error, weight_error = node_errors(q, sigma, edges, u, weights, loss)
        relative = a * loss_error + weight_error + UNIT * (5 * a * loss + 8 * abs(log_scale) + 96)
        relative += 2 * UNIT * (np.abs(gaussian + a * loss) + top)
        bounds = PanelBounds(q, sigma**2, edges)
        # The Gaussian factor's own scale belongs to the integrand.
        size = bounds.peak(a, top - log_scale)
        size += bounds.peak(0.0, top - log_scale) * bounds.power(1 - a)
        size *= 1.02 * ERROR_FACTOR * bounds.half
        tail = 0.0 if last == end else _tail(q, sigma, a, float(u[-1, -1]), top)
        swings = swing(frequency, bounds.angle, bounds.loss)
        law = PanelLaw(
            *(loss, rising, relative, loss_error),
            *(np.append(size, tail), np.append(swings, 2.0), top),
            *(falling, atom),
        )
        super().__init__(law, count)
        # Density in l > 0, h = g r^a / p: its supremum right of each panel's start, and the
        # remaining mass. Between points it rises by at most a curvature.
        norm = math.log(law.total) + top + math.log(q)
        edge_density = (a + 1) * ratio(edges)[0] - edges + log_scale + ratio.log_density(edges)
        highest = suprema_beyond(gaussian + (a + 1) * loss - u - norm, edge_density - norm)
        points = np.concatenate([[0.0], u.ravel(), edges[-1:]])
        rise = float(np.max(np.diff(points))) ** 2 / 8 * (sigma**2 + (a + 1) / 4) + 1e-3
        maxima = 1.0 if a + 1 <= 4 * sigma**2 else 2.0
        each = law.weight.reshape(u.shape).sum(axis=1)
        left = 1 - np.cumsum(each[::-1])[::-1] + 2 * law.slack + 1e-11
        some = slice(None, None, 1 + len(left) // 64)
        self._decay = left[None, some], (highest + rise + math.log(2 * maxima))[None, some]

    def log_decay(self, first: float, number: int) -> Array:
        """See `Law`."""
        return self.count * log_decay(first, number, *self._decay)[0]


def _tail(q: float, sigma: float, a: float, last: float, top: float) -> float:
    """Bound twice the tail of phi r^a beyond u (`pairs.symmetrized`) for both terms, over e^top."""
    log_last = float(np.logaddexp(np.log1p(-q), math.log(q) + last))
    log_tail = a * log_last - (sigma * last + 0.5 / sigma) ** 2 / 2 - top
    return 4 * 1.26 / math.sqrt(2 * math.pi) * math.exp(min(log_tail, 700.0))
