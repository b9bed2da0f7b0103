"""The pairs of a Poisson round that reveals the size of its cohort.

The size m of the cohort is Bin(N, q), whatever the clients hold. Given m, the cohort is a uniform
subset of m of the N clients. So the round is one of fixed size m, with noise z_m and the rate
m / N, and m is published. With s = m / N and k = e^eps, and noise z for z_m, the profile of a
fixed size H_m is at most, and at fixed data sets,

    a client sends zero, at most:  sup s N(1) - k s N(0) - (k - 1) (1 - s) N(-1)     (remove)
                                   sup s N(0) - (k - 1 + s) N(1)                     (add)
    the others send -C:            the first one, and sup s N(0) - k s N(1) - (k - 1) (1 - s) N(-1)
    a client is replaced, at most: sup s N(1) - (k - 1 + s) N(-1)                    (both)
    the others send -C:            the same, and sup (1 - k (1 - s)) N(-1) - k s N(1)
    a client comes or goes, both:  sup s N(1) - (1 - s) (k / (1 - q) - 1) N(-1)      (remove)
                                   sup (1 - s) (1 / (1 - q) - k) N(-1) - k s N(1)    (add)

and H = E_m H_m. In the last one m counts the client, and N is the size of the larger data set.

Rule 1: H_m is convex in s and falls as z_m grows. So sizes may be joined in bins: above, the mass
of a bin moves to its ends such that its mean stays, at the least noise; below, it moves to its
mean, at the most noise.
Rule 2: a set that is nearly the best makes H_m too small by a share of its terms, which is charged.

Derivation: docs/derivations/revealed-sizes.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np

from dpacct.budget import Interval
from dpacct.numerics.binomial import log_masses
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds
from dpacct.numerics.special import ndtr
from dpacct.pairs.atoms import AtomicPair, HullPair, Side, between
from dpacct.pairs.kinds import Direction
from dpacct.rounds import Adjacency, Poisson, Round

# z_m is z (m / (q N)) to this power, by what has the fixed noise.
_POWERS = {"sum": 0.0, "client": 0.5, "mean": 1.0}
# Sizes within so many deviations of the mean are known one by one, in so many bins a deviation.
# Bins beyond grow by this factor, and have at most the largest mass of their sizes for each.
_REACH, _BINS, _GROWTH = 9.5, 16, 1.1
# Knots are nearly even up to this share of the spread of the loss, and then grow by this factor.
_EVEN, _STEP, _LAST, _LARGEST = 0.25, 0.015, 1e-28, 600.0
_LEAST = 1e-300


class _Bins(NamedTuple):
    """Logarithms of masses, rates and noise of fixed-size rounds, shape (n, 1)."""

    log_mass: Array
    rates: Array
    noise: Array


def _log_mass(n: int, rate: float, sizes: Array) -> tuple[Array, Array]:
    """Return about log P(m = size), 0 < size <= n, and bounds of the absolute errors."""
    logs = np.full(len(sizes), n * math.log(rate))
    errors = UNIT * (16 * np.abs(logs) + 16)
    inner = sizes < n
    logs[inner], errors[inner] = log_masses(n, rate, 1, sizes[inner] - 1)
    return logs, errors


def _bins(round_: Round, sampling: Poisson, *, above: bool) -> _Bins:
    """Return bins whose mixture has a profile above, or below, that of all sizes. Rule 1."""
    n, q = sampling.num_clients or 1, sampling.sampling_rate
    mean, spread = n * q, math.sqrt(n * q * (1 - q))
    low = max(1.0, math.floor(mean - _REACH * spread - 20))
    high = min(float(n), math.ceil(mean + _REACH * spread + 20))
    sizes = np.arange(low, high + 1)
    logs, errors = _log_mass(n, q, sizes)
    starts = np.arange(0, len(sizes), max(1, int(spread / _BINS)))
    ends = np.append(starts[1:], len(sizes)) - 1
    mass = np.exp(logs + (errors if above else -errors))
    first, last = sizes[starts], sizes[ends]

    def noise(size: Array) -> Array:
        level = round_.noise_multiplier * (size / mean) ** _POWERS[sampling.reveals_size or "sum"]
        return level * (1 + (-16 if above else 16) * UNIT)

    parts: list[tuple[Array, Array, Array]] = []
    if not above:
        whole = np.add.reduceat(mass, starts)
        middle = np.add.reduceat(mass * sizes, starts) / whole
        parts += [(np.log(whole) - 1e-11, middle / n * (1 - 1e-11), noise(last))]
    else:
        reach = np.repeat(np.maximum(last - first, 1.0), ends - starts + 1)
        place = (sizes - np.repeat(first, ends - starts + 1)) / reach
        for share, ends_at in ((1 - place, first), (place, last)):
            part = np.add.reduceat(mass * share, starts)
            held = part > 0.0
            parts += [(np.log(part[held]) + 1e-11, (ends_at / n)[held], noise(first)[held])]
        # Masses rise up to the mean and fall from there on.
        for start, end, rising in ((1.0, low, 1), (high + 1, n + 1.0, 0)):
            if start < end:
                count = math.ceil(math.log(end / start) / math.log(_GROWTH)) + 1
                edges = np.floor(np.geomspace(start, end, count))[1:-1]
                edges = np.unique(np.append(edges, [start, end]))
                logs, errors = _log_mass(n, q, edges[1:] - 1 if rising else edges[:-1])
                weight = np.log(np.diff(edges)) + logs + errors + 1e-11
                # The profile of a client that comes falls in s. It is below the sum of both ends.
                both = (edges[1:] - 1, edges[:-1])
                comes = round_.adjacency is Adjacency.ADD_REMOVE
                parts += [(weight, end / n, noise(edges[:-1])) for end in both[: 1 + comes]]
    if round_.adjacency is Adjacency.ADD_REMOVE:
        # Nobody is drawn, which is likelier without the client.
        nobody = n * math.log1p(-q) * (1 + (-16 if above else 16) * UNIT) - (0 if above else 1e-11)
        parts.append((np.array([nobody]), np.array([_LEAST]), noise(np.ones(1))))
    columns = [np.concatenate(column)[:, None] for column in zip(*parts, strict=True)]
    columns[1] = np.minimum(columns[1] * (1 + (4 if above else -4) * UNIT), 1.0)
    return _Bins(*columns)


# Profiles: each returns a value and the sum of its terms, of bins (n, 1) at epsilons (k,).

_Profile = Callable[[_Bins, Array], tuple[Array, Array]]


def _terms(plus: Array, *minus: Array) -> tuple[Array, Array]:
    return plus - sum(minus), plus + sum(minus)


def _opposed(bins: _Bins, epsilons: Array) -> tuple[Array, Array]:
    """sup s N(1) - k s N(0) - (k - 1) (1 - s) N(-1): of a half-line {x > x0}."""
    _, s, z = bins
    k, left = np.exp(epsilons), -np.expm1(-epsilons)
    odds = 4 * np.exp(-(z**-2)) * left * (1 - s) / s * np.exp(-epsilons)
    x = z**2 * (epsilons + np.log((1 + np.sqrt(1 + odds)) / 2)) + 0.5
    others = k * left * (1 - s) * ndtr((-1 - x) / z)
    return _terms(s * ndtr((1 - x) / z), s * k * ndtr(-x / z), others)


def _opposed_back(bins: _Bins, epsilons: Array) -> tuple[Array, Array]:
    """sup s N(0) - k s N(1) - (k - 1) (1 - s) N(-1): of an interval, or of no set."""
    _, s, z = bins
    k, left = np.exp(epsilons), -np.expm1(-epsilons)
    rest = np.log(left + _LEAST) + np.log((1 - s) / s + _LEAST)
    odds = 4 * np.exp(np.minimum(2 * epsilons + rest - z**-2, 10.0))
    root = np.sqrt(np.maximum(1 - odds, 0.0))
    value = size = np.zeros(1)
    for end, sign in ((1 + root, 1.0), (np.minimum(odds, 1.0) / (1 + root), -1.0)):
        x = 0.5 + z**2 * (np.log(np.maximum(end, _LEAST) / 2) - epsilons)
        others = k * left * (1 - s) * ndtr((x + 1) / z)
        part, terms = _terms(s * ndtr(x / z), s * k * ndtr((x - 1) / z), others)
        value, size = value + sign * part, size + terms
    # From here on no set has more than nothing.
    return np.where(odds > 1.001, 0.0, value), np.where(odds > 1.001, 0.0, size)


def _half_line(own: Array, other: Array, off: Array, mu: Array) -> tuple[Array, Array]:
    """sup own N(mu) - other N(0). ``off`` times `UNIT` bounds the errors of both factors."""
    own, other = np.maximum(own, _LEAST), np.maximum(other, _LEAST)
    level = np.log(other) - np.log(own)
    near, far = ndtr(mu / 2 - level / mu), ndtr(-mu / 2 - level / mu)
    value, size = _terms(own * near, other * far)
    return value, size + off * (near + far)


def _mixed(shift: float) -> _Profile:
    """sup s N(shift) - (k - 1 + s) N(0), a half-line."""

    def profile(bins: _Bins, epsilons: Array) -> tuple[Array, Array]:
        _, s, z = bins
        return _half_line(s, np.expm1(epsilons) + s, np.zeros(1), shift / z)

    return profile


def _mixed_back(bins: _Bins, epsilons: Array) -> tuple[Array, Array]:
    """sup (1 - k (1 - s)) N(0) - k s N(2), a half-line."""
    _, s, z = bins
    k = np.exp(epsilons)
    return _half_line(s - (1 - s) * np.expm1(epsilons), k * s, k, 2 / z)


def _gone(rate: float) -> _Profile:
    """sup s N(2) - (1 - s) (k / (1 - q) - 1) N(0), a half-line."""

    def profile(bins: _Bins, epsilons: Array) -> tuple[Array, Array]:
        _, s, z = bins
        rest = (np.expm1(epsilons) + rate) / (1 - rate)
        # Near s = 1, and in bins that are moved by a rounding, the factor has its absolute error.
        return _half_line(s, (1 - s) * rest, s * rest, 2 / z)

    return profile


def _come(rate: float, *, proven: bool) -> _Profile:
    """sup (1 - s) (1 / (1 - q) - k) N(0) - k s N(2), a half-line."""

    def profile(bins: _Bins, epsilons: Array) -> tuple[Array, Array]:
        _, s, z = bins
        # It falls in s, and the rates of bins below are rounded down.
        s = s if proven else np.minimum(s * (1 + 2.1e-11), 1.0)
        own = (rate - (1 - rate) * np.expm1(epsilons)) / (1 - rate)
        return _half_line((1 - s) * own, np.exp(epsilons) * s, 1 / (1 - rate) + s, 2 / z)

    return profile


def _profiles(round_: Round, *, proven: bool) -> tuple[_Profile, _Profile]:
    """Return the profiles of both directions."""
    if round_.adjacency is Adjacency.ZERO_OUT:
        return _opposed, _mixed(1.0) if proven else _opposed_back
    if round_.adjacency is Adjacency.REPLACE_ONE:
        return _mixed(2.0), _mixed(2.0) if proven else _mixed_back
    return _gone(round_.sampling_rate), _come(round_.sampling_rate, proven=proven)


def _values(profile: _Profile, bins: _Bins, epsilons: Array) -> tuple[Array, Array]:
    """Return bounds of the mean of a profile over bins, shape (k,). Rule 2."""
    value, size = profile(bins, epsilons)
    _, s, z = bins
    # Arguments of the normal distribution are at most about 40 where its value is above 1e-300.
    off = UNIT * (4e4 + 64 * (epsilons + z**-2 - np.log(s))) * size
    weights = np.exp(bins.log_mass)
    lower = (weights * np.maximum(value - off - np.exp(epsilons) * _LEAST, 0.0)).sum(axis=0)
    upper = (weights * (value + off)).sum(axis=0)
    slack = 4 * UNIT * len(s)
    return np.maximum(lower * (1 - slack) - _LEAST, 0.0), upper * (1 + slack) + _LEAST


class _RevealedPair(HullPair):
    """The pair of the module's head: exact for one round, composed between knots."""

    def __init__(self, round_: Round, direction: Direction, *, proven: bool) -> None:
        self._proven = proven
        self._bins, sides, pairs = _pairs(round_, proven=proven)
        number = 0 if direction is Direction.REMOVE else 1
        self._profile, self._last = sides[number]
        self._pair = pairs[number]
        self._comes = round_.adjacency is Adjacency.ADD_REMOVE
        self._shift = 2.0 if round_.adjacency is Adjacency.REPLACE_ONE else 1.0
        self.infinite_mass = self._pair.infinite_mass

    @property
    def hull(self) -> AtomicPair:  # type: ignore[override]
        """See `HullPair`."""
        return self._pair

    def delta(self, epsilon: float) -> Interval:
        """See `GeneralPair`."""
        if epsilon > _LARGEST:
            return Interval(0.0, min(1.0, self.delta(_LARGEST).upper))
        lower, upper = _values(self._profile, self._bins, np.array([epsilon]))
        return Interval(min(1.0, float(lower[0])), min(1.0, float(upper[0])))

    def renyi_moment(self, order: float) -> Bounds:
        """Return bounds of log E_Q[(P/Q)^a], a = order.

        A mass M of infinite losses is worth a K^(a-1) M up to the last knot K. Above, the profile
        is at most E_m s times that of N(1) against N(0), or of N(2), and this part of the moment
        at most E_m s E[L^a; L > K].
        """
        finite = self.hull.log_moment(np.array([order - 1]))
        if self._comes and order > 1.0:
            # All clients are drawn: an infinite loss, if the client is one of them.
            return Bounds(np.array(-math.inf), np.array(math.inf))
        if not self._proven or order <= 1.0:
            return Bounds(np.array(-math.inf), finite.upper[0])
        logs, s, z = self._bins
        z, last = z / self._shift, self._last
        beyond = (order - 0.5) / z - z * last * (1 - 1e-12)
        tail = logs + np.log(s) + order * (order - 1) / (2 * z**2) * (1 + 1e-12)
        # Phi(x) <= e^{-x^2 / 2} for x <= 0.
        tail = tail - np.minimum(beyond, 0.0) ** 2 / 2 * (1 - 1e-12)
        lost = math.log(order * self.infinite_mass) + (order - 1) * last
        upper = np.logaddexp.reduce([finite.upper[0], lost, np.logaddexp.reduce(tail, axis=None)])
        return Bounds(np.array(-math.inf), upper + FUNCTION_ERROR * (8 + len(s)) * (1 + abs(upper)))


@lru_cache(maxsize=16)
def _pairs(
    round_: Round, *, proven: bool
) -> tuple[_Bins, list[tuple[_Profile, float]], tuple[AtomicPair, AtomicPair]]:
    """Return the bins, and of both directions the profiles, last knots and finite pairs."""
    sampling = cast("Poisson", round_.sampling)
    bins, profiles = _bins(round_, sampling, above=proven), _profiles(round_, proven=proven)
    own, other = (_side(profile, bins, round_) for profile in profiles)
    number = 0 if proven else 1
    last = [(p, float(s.epsilons[-1])) for p, s in zip(profiles, (own, other), strict=True)]
    return bins, last, (between(own, other)[number], between(other, own)[number])


def _side(profile: _Profile, bins: _Bins, round_: Round) -> Side:
    even = _EVEN * round_.sampling_rate / max(round_.noise_multiplier, 1.0)
    knots = even * np.sinh(np.arange(0.0, math.asinh(_LARGEST / even) / _STEP) * _STEP)
    # Coarsely at first: beyond the last knot next to no loss lies.
    upper = _values(profile, bins, knots[::16])[1]
    last = int(np.argmax(upper < _LAST)) if upper[-1] < _LAST else len(upper) - 1
    knots = knots[: 16 * max(last, 1) + 1]
    lower, upper = _values(profile, bins, knots)
    lower[-1] = 0.0
    return Side(knots, lower, np.minimum(np.minimum.accumulate(upper), 1.0))


@lru_cache(maxsize=64)
def revealed_pair(round_: Round, direction: Direction, *, proven: bool) -> HullPair:
    """Return the proven or the achieved pair of a round that reveals the size of its cohort."""
    return _RevealedPair(round_, direction, proven=proven)
