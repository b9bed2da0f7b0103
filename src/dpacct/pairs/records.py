"""The pairs of special Poisson sampling: users with many rows, and public choices of such pairs.

A user with many rows is a mixture of Gaussians against one Gaussian. Each of k records joins a
round independently with probability q. With r the ratio of densities,

    P = sum_j Bin(k, q)(j) N(j, sigma^2),   Q = N(0, sigma^2),
    r(x) = sum_j w_j e^{(2 j x - j^2) / (2 sigma^2)},   w_j = Bin(k, q)(j),

or P and Q exchanged (add). As a polynomial in y = e^{x / sigma^2}, r has the coefficients of
(1 - q + q y)^k times e^{-j^2 / (2 sigma^2)}, a multiplier sequence (Laguerre): all its roots are
real and negative. So with m(x) = sum_j j w_j e^{...} / r(x), on x + i theta sigma^2, |theta| < pi,

    r cos(theta / 2)^k <= |r| <= r,    arg r >= m sin(theta),    |arg r| <= k theta.

Integrals of phi r^{a + it} are trapezoid sums on the real line. With step h they are off by at most
2 B / (e^{2 pi d / h} - 1) of I(a), for any d < pi sigma^2, and

    B = exp(d^2 / (2 sigma^2) + |t| k d / sigma^2) cos(d / (2 sigma^2))^{k min(a, 0)}.

A cohort that is cut to a largest size is a `ChoicePair` (`truncated`).

Derivation: docs/derivations/epochs.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.fourier import shift_of_nodes
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds, ComplexArray, positive_sum
from dpacct.numerics.search import bracket_root
from dpacct.numerics.special import dot, ndtr
from dpacct.pairs.atoms import Side
from dpacct.pairs.kinds import Direction, GeneralPair

# Tails and discretization may add e^-44, relative to the result. Terms of r below e^-46 of the
# largest one are left out.
_ACCURACY, _NEGLIGIBLE = 44.0, 46.0
# Distances from the real line that are tried, in units of min(sigma, sigma^2).
_STRIPS = np.geomspace(0.003, 2.9, 40)
# Nodes whose ratios are computed and kept together, and how many nodes there may be.
_BLOCK, _KEPT, _MOST_NODES = 1024, 4096, 2_000_000
# Angles of `decay`, in units of about the best one.
_UNITS, _LARGEST_ANGLE = (0.5, 0.7, 1.0, 1.6), 1.5
# Knots of finite pairs for each deviation of the noise, and delta and epsilon at the last one.
_KNOTS, _LAST, _LARGEST = 128, 1e-28, 600.0
# Losses of two knots differ by more than this. Next to the largest loss they differ by less.
_RISE = 1e-12
# Steps back from about the root, in deviations of the noise, until losses are surely below it.
_STEPS_BACK = (1 / 128, 1 / 32, 1 / 8, 0.5, 2.0, 8.0)


class _Ratios(NamedTuple):
    """log r and m at nodes, and bounds of the absolute errors of log r, shape (n,)."""

    log_ratio: Array
    mean: Array
    error: Array


class LossNodes(NamedTuple):
    """Losses, their weights, relative errors of weights and absolute ones of losses, shape (n,)."""

    losses: Array
    weights: Array
    relative: Array
    loss_error: Array


class _Tilted(NamedTuple):
    """Weights of e^{cL} P at nodes, adding up to one, their relative errors, and log M(c)."""

    at: _Ratios
    weights: Array
    error: Array
    log_moment: float
    log_error: float


@lru_cache(maxsize=64)
def _log_weights(rate: float, records: int) -> tuple[Array, float]:
    """Return log of the probabilities of Bin(k, q), and a bound of their absolute errors."""
    j = np.arange(float(records))
    steps = np.log((records - j) / (j + 1)) + (math.log(rate) - math.log1p(-rate))
    logs = np.concatenate([[0.0], np.cumsum(steps)]) + records * math.log1p(-rate)
    size = float(np.abs(steps).sum()) + abs(records * math.log1p(-rate))
    return logs, UNIT * (records + 16) * (size + 1)


@lru_cache(maxsize=_KEPT)
def _block(rate: float, noise: float, records: int, step: float, number: int) -> _Ratios:
    """Return the ratios at the nodes ``number`` * 1024 + i, times the step, i < 1024."""
    x = step * (number * _BLOCK + np.arange(float(_BLOCK)))
    return ratios_at(rate, noise, records, x)


def ratios_at(rate: float, noise: float, records: int, x: Array) -> _Ratios:
    """Return log r, m and errors at increasing points x, shape (n,)."""
    logs, weight_error = _log_weights(rate, records)
    count = np.arange(float(records + 1))
    inverse = noise**-2
    base = logs - count**2 * (inverse / 2)
    # The exponents are concave in j, and their peak moves to the right with x.
    ends = base + np.multiply.outer(x[[0, -1]], count * inverse)
    low = int(np.argmax(ends[0] >= ends[0].max() - _NEGLIGIBLE))
    high = records + 1 - int(np.argmax(ends[1][::-1] >= ends[1].max() - _NEGLIGIBLE))
    some = slice(low, high)
    exponent = base[some] + np.multiply.outer(x, count[some] * inverse)
    top = exponent.max(axis=1)
    terms = np.exp(exponent - top[:, None])
    total = terms.sum(axis=1)
    mean = (terms @ count[some]) / total
    # What is left out is at most (k + 1) e^-46, and the sum has at most k + 1 terms.
    size = np.abs(logs[some]).max() + (high**2 * inverse) + high * inverse * np.abs(x)
    error = weight_error + UNIT * (8 * size + 2 * (high - low) + 32)
    error += (records + 1) * math.exp(-_NEGLIGIBLE)
    return _Ratios(top + np.log(total), mean, error)


@dataclass(frozen=True)
class RecordsPair(GeneralPair):
    """A user with up to k records, each of which joins with probability q < 1.

    Attributes:
        sampling_rate: q, below 1.
        noise_std: sigma, in units of what one record moves.
        records: k.
        direction: remove is the mixture against the Gaussian, add the other way round.
    """

    sampling_rate: float
    noise_std: float
    records: int
    direction: Direction

    @property
    def largest_loss(self) -> float:
        """Of the add direction, -k log(1 - q). There is none in the remove direction."""
        if self.direction is Direction.REMOVE:
            return math.inf
        return -self.records * math.log1p(-self.sampling_rate) * (1 + 8 * UNIT)

    def delta(self, epsilon: float) -> Interval:
        """See `GeneralPair`: the worst event is a half-line, as r increases."""
        remove = self.direction is Direction.REMOVE
        if not remove and epsilon >= self.largest_loss:
            return Interval(0.0, 0.0)
        x = np.array([self._root(epsilon if remove else -epsilon)])
        lower, upper = self._beyond(x, np.array([epsilon]))
        return Interval(float(lower[0]), float(upper[0]))

    def _beyond(self, x: Array, epsilons: Array) -> tuple[Array, Array]:
        """Return bounds of delta at epsilons >= 0, with losses next to x. All of shape (n,).

        The half-line that begins at x is an event, so its advantage is a lower bound. If x lies
        beyond the root, where losses are epsilon, then delta counts the points in between as well.
        Their losses are at most epsilon + gap, so they add up to (e^gap - 1) e^epsilon of their
        mass, which is at most that beyond a point on the other side of the root.
        """
        remove, k, sigma = self.direction is Direction.REMOVE, self.records, self.noise_std
        sign = 1.0 if remove else -1.0
        at = ratios_at(self.sampling_rate, sigma, k, x)
        gap = np.maximum(sign * at.log_ratio - epsilons, 0.0) + at.error
        high, low = self._masses(x)
        scale = np.exp(np.minimum(epsilons, 700.0))
        middle = high - scale * low
        _, weight_error = _log_weights(self.sampling_rate, k)
        farthest = np.maximum(np.abs(x), np.abs(k - x)) / sigma
        relative = weight_error + UNIT * (64 + 8 * farthest**2 + 2 * k)
        rounding = (relative + 4 * UNIT * (1 + epsilons)) * (high + scale * low) + 1e-300
        between = scale * self._masses(self._outside(x, epsilons))[1]
        past_root = 1.01 * np.expm1(np.minimum(gap, 700.0)) * between
        upper = np.clip(middle + rounding + past_root, 0.0, 1.0)
        return np.clip(middle - rounding, 0.0, 1.0), upper

    def _masses(self, x: Array) -> tuple[Array, Array]:
        """Return P and Q of the half-lines of large losses that begin at x, each of shape (n,)."""
        sign = 1.0 if self.direction is Direction.REMOVE else -1.0
        logs, _ = _log_weights(self.sampling_rate, self.records)
        shifts = (np.arange(float(self.records + 1)) - x[:, None]) / self.noise_std
        mixture = ndtr(sign * shifts) @ np.exp(logs)
        plain = ndtr(-sign * x / self.noise_std)
        return (mixture, plain) if sign > 0 else (plain, mixture)

    def _outside(self, x: Array, epsilons: Array) -> Array:
        """Return points whose losses are proven to be at most epsilon, else the end of the line."""
        sign = 1.0 if self.direction is Direction.REMOVE else -1.0
        outside, left = np.full(len(x), -sign * math.inf), np.arange(len(x))
        for step in _STEPS_BACK:
            y = x[left] - sign * step * self.noise_std
            at = ratios_at(self.sampling_rate, self.noise_std, self.records, y)
            proven = sign * at.log_ratio + at.error <= epsilons[left]
            outside[left[proven]] = y[proven]
            left = left[~proven]
            if not len(left):
                break
        return outside

    def side(self) -> Side:
        """Return delta at many epsilons from 0 on, until it is next to nothing."""
        sign = 1.0 if self.direction is Direction.REMOVE else -1.0
        first, parts = self._root(0.0), list[tuple[Array, Array, Array]]()
        while not parts or (
            parts[-1][2][-1] > _LAST and parts[-1][0][0] + _RISE < parts[-1][0][-1] < _LARGEST
        ):
            x = first + sign * self.noise_std * np.arange(len(parts), len(parts) + 1, 1 / _KNOTS)
            x = np.sort(x)
            losses = sign * ratios_at(self.sampling_rate, self.noise_std, self.records, x).log_ratio
            epsilons = np.maximum(losses, 0.0)
            if not parts:
                epsilons[np.argmin(np.abs(x - first))] = 0.0
            rows = (epsilons, *self._beyond(x, epsilons))
            parts.append(tuple(row[:: int(sign)] for row in rows))  # type: ignore[arg-type]
        epsilons, lower, upper = (np.concatenate(column) for column in zip(*parts, strict=True))
        # Next to the largest loss, losses stop to grow.
        rising = np.append(True, np.diff(np.maximum.accumulate(epsilons)) > _RISE)
        rising[1:] &= epsilons[1:] < self.largest_loss - _RISE
        epsilons, lower, upper = epsilons[rising], lower[rising], upper[rising]
        if self.largest_loss < _LARGEST:
            ends = zip((epsilons, lower, upper), (self.largest_loss, 0.0, 0.0), strict=True)
            epsilons, lower, upper = (np.append(row, end) for row, end in ends)
        lower[-1] = 0.0
        return Side(epsilons, lower, np.minimum.accumulate(upper))

    def _root(self, level: float) -> float:
        """Return about the point where log r reaches a level."""
        k, sigma = self.records, self.noise_std

        def short(x: float) -> float:
            ratio = ratios_at(self.sampling_rate, sigma, k, np.array([x])).log_ratio
            return level - float(ratio[0])

        # log r lies between log w_0 and, for x > 0, k x / sigma^2.
        ends = (-40 * sigma - k, 40 * sigma + k + sigma**2 * max(level, 0.0))
        return bracket_root(short, 0.5, ends, 0.0)[1]

    def _tilted(self, tilt: float, frequency: float = 0.0) -> tuple[_Tilted, float]:
        """Return the law of e^{cL} P at nodes, and the discretization error of its integrals."""
        a = 1 + tilt if self.direction is Direction.REMOVE else -tilt
        sigma, k = self.noise_std, self.records
        variance = sigma**2
        # The integrand falls at least like a Gaussian left of min(a, 0) m(0) and right of a k.
        accuracy = _ACCURACY + (a * (1 - a) * k * k / (2 * variance) if 0 < a < 1 else 0.0)
        strip = _STRIPS * min(sigma, variance)
        grown = strip**2 / (2 * variance) + frequency * k * strip / variance
        grown += k * min(a, 0.0) * np.log(np.cos(np.minimum(strip / (2 * variance), 1.57)))
        steps = np.where(strip < 2.9 * variance, 2 * math.pi * strip / (accuracy + grown), 0.0)
        best = int(np.argmax(steps))
        # Powers of two, so that nodes are exact and blocks serve several tilts.
        step = 2.0 ** math.floor(math.log2(float(steps[best])))
        discrete = 2.02 * math.exp(float(grown[best]) - 2 * math.pi * float(strip[best]) / step)
        reach = sigma * math.sqrt(2 * accuracy)
        at_zero = ratios_at(self.sampling_rate, sigma, k, np.zeros(1))
        first = math.floor((min(a, 0.0) * float(at_zero.mean[0]) - reach) / step / _BLOCK)
        last = math.ceil((max(a, 0.0) * k + reach) / step / _BLOCK)
        if (last - first) * _BLOCK > _MOST_NODES:
            raise NotConverged(f"the moment integral needs {(last - first) * _BLOCK} nodes")
        blocks = [_block(self.sampling_rate, sigma, k, step, n) for n in range(first, last)]
        at = _Ratios(*(np.concatenate(column) for column in zip(*blocks, strict=True)))
        x = step * np.arange(float(first * _BLOCK), float(last * _BLOCK))
        exponent = a * at.log_ratio - x**2 / (2 * variance)
        top = float(exponent.max())
        weights = np.exp(exponent - top)
        total, sum_error = positive_sum(weights)
        # Each tail is at most that of a Gaussian that begins at its last node.
        tails = 1.26 * sigma / step * float(weights[0] + weights[-1]) / total
        scale = math.log(step / sigma) - 0.5 * math.log(2 * math.pi)
        error = abs(a) * at.error + UNIT * (8 * np.abs(exponent) + 8 * abs(top) + 64)
        log_moment = top + math.log(total) + scale
        mean_error = dot(weights, error) / total
        log_error = 1.02 * (mean_error + tails + discrete + sum_error)
        log_error += FUNCTION_ERROR * (abs(top) + abs(math.log(total)) + abs(scale) + 1)
        tilted = _Tilted(at, weights / total, error + log_error, log_moment, log_error)
        return tilted, discrete + tails

    def log_moment(self, tilts: Array) -> Bounds:
        """See `GeneralPair`. Error: inside the bounds, about 1e-13."""
        values = [self._tilted(tilt)[0] for tilt in np.asarray(tilts, dtype=np.float64).tolist()]
        logs = np.array([part.log_moment for part in values])
        errors = np.array([part.log_error for part in values])
        return Bounds(logs - errors, logs + errors)

    def _losses(self, at: _Ratios) -> Array:
        return at.log_ratio if self.direction is Direction.REMOVE else -at.log_ratio

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """See `GeneralPair`."""
        tilted, _ = self._tilted(tilt)
        losses = self._losses(tilted.at)
        mean = dot(tilted.weights, losses)
        variance = dot(tilted.weights, (losses - mean) ** 2)
        return tilted.log_moment, mean, max(variance, 1e-300)

    def nodes(self, tilt: float, frequency: float) -> tuple[LossNodes, float]:
        """Return the nodes of phi(t) - 1, and what it is off by besides, for t up to a frequency.

        The second number is of min(t, 1).
        """
        tilted, off = self._tilted(tilt, frequency)
        # The integrals at t and at 0 are off by as much each. Nodes without weight are left out.
        kept = tilted.weights > 1e-40
        losses, weights = self._losses(tilted.at)[kept], tilted.weights[kept]
        nodes = LossNodes(losses, weights, tilted.error[kept] + 4 * UNIT, tilted.at.error[kept])
        return nodes, 4 * off + 1e-39 * len(tilted.weights)

    def characteristic(self, tilt: float, frequencies: Array) -> tuple[ComplexArray, Array]:
        """See `GeneralPair`."""
        nodes, rest = self.nodes(tilt, float(frequencies[-1]))
        shift, size = shift_of_nodes(frequencies, *nodes)
        return shift, size + rest * np.minimum(frequencies, 1.0)

    def decay(self, tilt: float, frequencies: Array) -> Array:
        """See `GeneralPair`: the path of integration is moved off the line by i theta sigma^2.

        Error: |phi| <= e^{theta^2 sigma^2 / 2} E e^{-u m}, u = t sin(theta) + 2 min(a, 0)
            tan(theta / 2)^2.
        """
        tilted, off = self._tilted(tilt)
        a = 1 + tilt if self.direction is Direction.REMOVE else -tilt
        variance = self.noise_std**2
        kept = tilted.weights > 1e-20
        weights, mean = tilted.weights[kept], tilted.at.mean[kept]
        average = dot(weights, mean)
        usual = frequencies * average / variance
        usual = usual / (1 + frequencies * usual)
        best = np.ones_like(frequencies)
        for unit in _UNITS:
            angle = np.minimum(unit * usual, _LARGEST_ANGLE)
            turn = frequencies * np.sin(angle) + 2 * min(a, 0.0) * np.tan(angle / 2) ** 2 * 1.000001
            gain = np.array([dot(weights, -np.expm1(-max(u, 0.0) * mean)) for u in turn])
            slack = 1e-9 * gain + 1e-15 + off
            bound = np.exp(variance * angle**2 * (0.5 + 1e-9)) * (1 - gain + slack)
            best = np.minimum(best, np.where(turn >= 0.0, bound, 1.0))
        return np.minimum.accumulate(best)


@dataclass(frozen=True)
class ChoicePair(GeneralPair):
    """One of ``pairs``, drawn in public with the same probabilities under P and Q.

    Who sees the choice sees a release of one of the pairs. Every quantity is a mean: delta and
    moments of the pairs with their probabilities, and the characteristic function with those tilted
    by M_i. The pairs have no infinite losses.

    Attributes:
        pairs: the pairs.
        probabilities: their probabilities, above 0. They may be off by a relative error of 1e-9,
            and then add up to at most 1 + 2e-9.
    """

    pairs: tuple[RecordsPair, ...]
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
        mean = dot(shares, means)
        variance = dot(shares, (np.array([part[2] for part in parts]) + (means - mean) ** 2))
        return float(log_moment), mean, variance

    def _bounded_shares(self, tilt: float) -> tuple[Array, float]:
        """Return the shares and a bound of their absolute errors, added up."""
        parts = [pair.log_moment(np.array([tilt])) for pair in self.pairs]
        middle = [float(part.lower[0] + part.upper[0]) / 2 for part in parts]
        width = max(float(part.upper[0] - part.lower[0]) for part in parts)
        size = max(map(abs, [*middle, *map(math.log, self.probabilities)]))
        return self._shares(middle), 2 * width + 16 * FUNCTION_ERROR * (1 + size)

    def characteristic(self, tilt: float, frequencies: Array) -> tuple[ComplexArray, Array]:
        """See `GeneralPair`. The nodes of all pairs are summed at once."""
        shares, share_error = self._bounded_shares(tilt)
        parts = [pair.nodes(tilt, float(frequencies[-1])) for pair in self.pairs]
        columns = zip(*(part[0] for part in parts), strict=True)
        losses, weights, relative, off = map(np.concatenate, columns)
        weights = weights * np.repeat(shares, [len(part[0].losses) for part in parts])
        shift, error = shift_of_nodes(frequencies, losses, weights, relative, off)
        # The shares are off as well, and |phi_i(t) - 1| is at most 2 or t times the mean loss.
        rest = dot(shares, np.array([part[1] for part in parts]))
        sizes = [dot(part[0].weights, np.abs(part[0].losses)) for part in parts]
        moved = share_error * np.minimum(2.0, 1.01 * max(sizes) * frequencies)
        return shift, error + 1.01 * rest * np.minimum(frequencies, 1.0) + moved

    def decay(self, tilt: float, frequencies: Array) -> Array:
        """See `GeneralPair`."""
        shares, share_error = self._bounded_shares(tilt)
        parts = [pair.decay(tilt, frequencies) for pair in self.pairs]
        return shares @ np.array(parts) + 2 * share_error
