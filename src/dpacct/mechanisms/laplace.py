"""Laplace noise on numbers with a bounded l1 norm, and the exponential mechanism.

Both have a symmetric pair with losses in [-eps, eps]: a density that grows as e^{y/2}, and atoms at
the ends. With the mass T at the loss eps, P has the mass T e^{-eps} at -eps and between them the
density w e^{(y - eps)/2}, w = (1 - T (1 + e^{-eps})) / (2 (1 - e^{-eps})). Then

    delta(y) = T v (2 - v) + 2 w v^2,  v = 1 - e^{(y - eps)/2},  abs(y) <= eps,
    M(s) = N(s + 1/2) / N(1/2),        N(z) = T cosh(z eps) + w sinh(z eps) / z.

T = 1/2 is Laplace noise with w = 1/4. T = 0 is the pair of all mechanisms whose losses lie in an
interval of length eps. Derivation: docs/derivations/mechanisms.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpacct import validate
from dpacct.budget import Interval
from dpacct.errors import InvalidParameter
from dpacct.mechanisms.pure import release_epsilon
from dpacct.numerics.rounding import (
    FUNCTION_ERROR,
    UNIT,
    Array,
    Bounds,
    ComplexArray,
    decimal,
    decimal_above,
)
from dpacct.pairs.atoms import AtomicPair
from dpacct.pairs.dominating import Direction, DominatingPair, GeneralPair, LossBound, Mechanism
from dpacct.rounds import Adjacency, AdjacencyName

# Below this exponent differences of hyperbolic functions are summed as series of so many terms.
_SERIES_BELOW, _TERMS = 6.0, 26
# N is even in z and has no zero on the real line, so z = 0 may be moved by next to nothing.
_LEAST = 1e-150


@dataclass(frozen=True)
class HalfPowerPair(GeneralPair):
    """The pair of the module's head.

    Attributes:
        epsilon: the largest loss, above 0, exact up to two roundings.
        top: T, the mass of P at the largest loss, in [0, 1 / (1 + e^{-eps})).
    """

    epsilon: float
    top: float

    @property
    def largest_loss(self) -> float:  # type: ignore[override]
        """The loss of the upper atom, rounded up."""
        return self.epsilon * (1 + 4 * UNIT)

    @property
    def _density(self) -> float:
        """w of the module's head."""
        return self.top / 2 + (1 - 2 * self.top) / (-2 * math.expm1(-self.epsilon))

    def _parts(self, a: float) -> tuple[float, float, float]:
        """Return 2 cosh(a eps), 2 sinh(a eps) and 2 N(a), all without a factor e^{a eps}."""
        ch, sh = 1 + math.exp(-2 * a * self.epsilon), -math.expm1(-2 * a * self.epsilon)
        return ch, sh, self.top * ch + self._density * sh / a

    def delta(self, epsilon: float) -> Interval:
        """See `GeneralPair`. Error: a few roundings, more where eps is next to the largest loss."""
        v = -math.expm1(min(0.0, (epsilon - self.epsilon) / 2))
        off = 4 * UNIT * (epsilon + self.epsilon)
        value = self.top * v * (2 - v) + 2 * self._density * v * v
        # The derivative in v is at most 2 T + 4 w v, and dv/dy at most 1/2.
        slack = 64 * UNIT * value + off * (2 * self.top + 4 * self._density * v) * 1.01
        slack += 2 * self._density * off**2
        if epsilon >= self.largest_loss:
            return Interval(0.0, 0.0)
        return Interval(max(0.0, value - slack), min(1.0, value + slack))

    def log_moment(self, tilts: Array) -> Bounds:
        """See `GeneralPair`. Error: some roundings of the exponent c eps, and of M(c) - 1."""
        c = np.asarray(tilts, dtype=np.float64)
        a = np.maximum(np.abs(c + 0.5), _LEAST)
        shrunk = np.exp(-2 * a * self.epsilon)
        common = self.top * (1 + shrunk)
        common = common + self._density * -np.expm1(-2 * a * self.epsilon) / a
        value = (a - 0.5) * self.epsilon + np.log(common)
        error = FUNCTION_ERROR * (8 + np.abs(np.log(common)) + 4 * (a + 1) * self.epsilon)
        # M(c) - 1 without cancellation.
        excess, off = self._excess(c, a)
        near = np.abs(excess) < 0.5
        small = np.where(near, excess, 0.0)
        value = np.where(near, np.log1p(small), value)
        close = 2.1 * np.where(near, off, 0.0) + FUNCTION_ERROR * np.abs(value)
        error = np.where(near, close, error)
        return Bounds(value - error, value + error)

    def _excess(self, c: Array, a: Array) -> tuple[Array, Array]:
        """Return M(c) - 1 = (N(a) - N(1/2)) / N(1/2), with the factor c (1 + c), and its error.

        The error is relative to the terms, which cancel where no series is summed.
        """
        eps = self.epsilon
        with np.errstate(over="ignore", invalid="ignore"):
            atoms = 2 * np.sinh((1 + c) * eps / 2) * np.sinh(c * eps / 2)
            between = np.sinh(a * eps) / a - 2 * math.sinh(min(eps / 2, 700.0))
            # sinh(a e) / a - sinh(e / 2) / (1/2) = sum of e^{2k+1} (a^{2k} - 4^{-k}) / (2k+1)!.
            ratio, term, powers = np.zeros_like(a), eps, np.zeros_like(a)
            for k in range(1, _TERMS):
                term *= eps * eps / (2 * k * (2 * k + 1))
                powers = powers * a * a + 0.25 ** (k - 1)
                ratio = ratio + term * powers
            series = c * (1 + c) * ratio
            short = np.maximum(a, 0.5) * eps < _SERIES_BELOW
            grown = self.top * atoms + self._density * np.where(short, series, between)
            terms = np.sinh(a * eps) / a + 2 * math.sinh(min(eps / 2, 700.0))
            size = self.top * np.abs(atoms) + self._density * np.where(short, np.abs(series), terms)
            whole = 1 / (2 * math.exp(-min(eps, 1400.0) / 2))
            excess, error = grown / whole, size / whole * FUNCTION_ERROR * (8 + (a + 1) * eps)
        return np.where(np.isfinite(excess), excess, np.inf), error

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """See `GeneralPair`."""
        eps, a = self.epsilon, tilt + 0.5
        size = max(abs(a), 0.02 / eps)
        ch, sh, whole = self._parts(size)
        top, w = self.top, self._density
        first = top * eps * sh + w * (eps * ch / size - sh / size**2)
        second = top * eps**2 * ch
        second += w * (eps**2 * sh / size - 2 * eps * ch / size**2 + 2 * sh / size**3)
        slope = first / whole
        value = float(self.log_moment(np.array([tilt])).upper[0])
        # Next to the middle the mean of the loss is linear in the tilt.
        mean = slope * a / size
        return value, mean, max(second / whole - slope**2, 1e-300)

    def characteristic(self, tilt: float, frequencies: Array) -> tuple[ComplexArray, Array]:
        """See `GeneralPair`: phi(t) - 1 = (N(a + it) - N(a)) / N(a), a = c + 1/2."""
        eps, a = self.epsilon, max(abs(tilt + 0.5), _LEAST)
        ch, sh, whole = self._parts(a)
        top, w, t = self.top, self._density, frequencies
        versed, sine = 2 * np.sin(t * eps / 2) ** 2, np.sin(t * eps)
        z = a + 1j * t
        atoms = -ch * versed + 1j * (sh * sine)
        between = (-sh * versed + 1j * (ch * sine - sh / a * t)) / z
        shift: ComplexArray = (top * atoms + w * between) / whole
        size = top * (ch * versed + sh * np.abs(sine))
        size += w * (sh * versed + ch * np.abs(sine) + sh / a * t) / np.abs(z)
        if tilt + 0.5 < 0.0:
            shift = np.conj(shift)
        return shift, UNIT * (48 * size / whole + 16 * t * eps * (1 + size / whole))

    def atoms(self) -> AtomicPair | None:
        """See `GeneralPair`."""
        if self.top == 0.0:
            return None
        losses = np.array([self.epsilon, -self.epsilon])
        masses = self.top * np.array([1.0, max(math.exp(-self.epsilon), 1e-300)])
        error = 2 * FUNCTION_ERROR + 4 * UNIT * self.epsilon
        return AtomicPair(losses, masses, 0.0, 2 * UNIT * self.epsilon, error)

    def decay(self, tilt: float, frequencies: Array) -> Array:
        """See `GeneralPair`. Only the part between the atoms decays."""
        ch, _, whole = self._parts(max(abs(tilt + 0.5), _LEAST))
        return np.minimum(self.top * ch / whole + self.density_decay(tilt, frequencies), 1.0)

    def density_decay(self, tilt: float, frequencies: Array) -> Array:
        """See `GeneralPair`: |sinh(z eps) / z| <= cosh(a eps) / |z|."""
        a = max(abs(tilt + 0.5), _LEAST)
        ch, _, whole = self._parts(a)
        return self._density / np.hypot(a, frequencies) * ch / whole


@dataclass(frozen=True, init=False, repr=False, slots=True)
class Laplace(Mechanism):
    """One release of a sum of vectors, with independent Laplace noise on each number.

    The unit of the sensitivity is the largest l1 norm of one client's contribution: 1 for a
    histogram to which a client adds one entry. A contribution that comes or goes moves the sum by
    up to one unit, a replaced one by two.

    Args:
        noise_multiplier: scale of the noise / largest l1 norm of one client's contribution, 0.001
            to 1e10. The same number whatever the adjacency.
        epsilon: instead, the epsilon of the release alone under its adjacency.
        adjacency: the neighboring relation. Default: add-remove.
    Raises:
        InvalidParameter: none or both of noise and epsilon, or a value out of range.
    Source: docs/derivations/mechanisms.md.
    """

    noise_multiplier: float
    adjacency: Adjacency

    def __init__(
        self,
        noise_multiplier: float | None = None,
        *,
        epsilon: float | None = None,
        adjacency: Adjacency | AdjacencyName = Adjacency.ADD_REMOVE,
    ) -> None:
        relation = Adjacency.parse(adjacency)
        shift = _shift(relation)
        if (noise_multiplier is None) == (epsilon is None):
            rule = "Laplace noise has either a noise multiplier or an epsilon"
            raise InvalidParameter("noise_multiplier", noise_multiplier, rule)
        if noise_multiplier is None:
            low, high = validate.NOISE_MULTIPLIER_RANGE
            ends = (shift / high, shift / low)
            epsilon = validate.within("epsilon", epsilon, "its epsilon", ends)
            noise_multiplier = shift / epsilon
            while decimal(noise_multiplier) * decimal(epsilon) < shift:
                # Rounded up, so that ten releases of 0.07 cost no more than 0.7.
                noise_multiplier = math.nextafter(noise_multiplier, math.inf)
        object.__setattr__(self, "noise_multiplier", validate.noise_multiplier(noise_multiplier))
        object.__setattr__(self, "adjacency", relation)

    @property
    def epsilon(self) -> float:
        """The epsilon of the release alone, rounded up: the largest shift / scale of the noise."""
        return _epsilon(self.adjacency, self.noise_multiplier)

    @property
    def loss_bound(self) -> LossBound:
        """The largest shift / scale of the noise, exactly."""
        return LossBound(_exact_epsilon(self.adjacency, self.noise_multiplier))

    def scale_noise(self, factor: float) -> Laplace:
        """Return the release with ``factor`` times its noise."""
        return Laplace(factor * self.noise_multiplier, adjacency=self.adjacency)

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return Lap(1) against Lap(0): all of the largest l1 norm in one number is the worst."""
        del direction
        return {HalfPowerPair(self.epsilon, 0.5): 1}

    def achieved_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the same: one client contributes the largest number."""
        return self.proven_pairs(direction)


def _shift(adjacency: Adjacency) -> float:
    """Return the largest l1 distance between neighbors, in contributions."""
    return 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0


def _exact_epsilon(adjacency: Adjacency, noise_multiplier: float) -> Fraction:
    return Fraction(_shift(adjacency)) / decimal(noise_multiplier)


@lru_cache(maxsize=256)
def _epsilon(adjacency: Adjacency, noise_multiplier: float) -> float:
    return decimal_above(_exact_epsilon(adjacency, noise_multiplier))


# The place of t, as a share of epsilon.
_SHARE = 0.6


@dataclass(frozen=True, init=False, repr=False, slots=True)
class ExponentialMechanism(Mechanism):
    """A choice of one candidate y, with probability proportional to e^{epsilon u(y) / (2 D)}.

    The unit of the sensitivity is D: the score u of a candidate differs by at most D between
    neighbors. Where all scores rise or fall together, e^{epsilon u(y) / D} has the same cost.
    Report noisy max with Gumbel noise of scale 2 D / epsilon is the same release. With Laplace or
    exponential noise it is another one.

    Args:
        epsilon: of one release, 1e-10 to 600.
        adjacency: the neighboring relation under which D holds.
    Raises:
        InvalidParameter: a value out of range.
    Source: Dong, Durfee, Rogers 2020 (arXiv:1909.13830), section 3, and
        docs/derivations/mechanisms.md.
    """

    epsilon: float
    adjacency: Adjacency
    # Scores that depend on earlier releases choose t again.
    has_choice = True

    def __init__(
        self,
        epsilon: float,
        adjacency: Adjacency | AdjacencyName = Adjacency.ADD_REMOVE,
    ) -> None:
        object.__setattr__(self, "epsilon", release_epsilon(epsilon))
        object.__setattr__(self, "adjacency", Adjacency.parse(adjacency))

    @property
    def loss_bound(self) -> LossBound:
        """Epsilon."""
        return LossBound(decimal(self.epsilon))

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the pair of all losses in an interval of length epsilon."""
        del direction
        return {HalfPowerPair(self.epsilon, 0.0): 1}

    def achieved_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the losses t and t - epsilon, t = 0.6 epsilon.

        The scores of some candidates rise by D, and those of all others fall by D. The other
        scores decide t. Near this one the cost of five to a thousand releases is largest.
        """
        pair = self.pair_at(_SHARE)
        return {pair if direction is Direction.REMOVE else pair.swapped(): 1}

    def pair_at(self, share: float) -> AtomicPair:
        """Return the pair of the losses t and t - epsilon, t = ``share`` * epsilon."""
        high = share * self.epsilon
        # P(L = t) = (1 - e^{t - eps}) / (1 - e^{-eps}).
        top = math.expm1(high - self.epsilon) / math.expm1(-self.epsilon)
        rest = -math.exp(high - self.epsilon) * math.expm1(-high) / -math.expm1(-self.epsilon)
        losses = np.array([high, high - self.epsilon])
        error = 8 * FUNCTION_ERROR + UNIT * (8 + 4 * self.epsilon)
        return AtomicPair(losses, np.array([top, rest]), 0.0, 4 * UNIT * self.epsilon, error)

    def alone_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the proven pair: at each epsilon other scores, with another t, reach its delta."""
        return self.proven_pairs(direction)
