"""delta(eps) of a composition by contour inversion of its moments.

With M(s) = product over rounds of E_P[e^{s L}] and any c > 0,

    delta(eps) = (1 / 2 pi i) * integral over Re s = c of M(s) e^{-s eps} / (s (s + 1)) ds.

The trapezoid sum in t = Im s with step eta is the sum over k of e^{2 pi c k / eta}
delta(eps + 2 pi k / eta), all terms non-negative: an upper bound, and minus bounds of the terms
k != 0 a lower bound. Derivation and rounding: docs/derivations/inversion.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpacct.budget import Interval
from dpacct.dominating import (
    Direction,
    DominatingPair,
    SampledGaussianPair,
    SymmetrizedPair,
)
from dpacct.errors import NotConverged
from dpacct.moments import log_moment
from dpacct.rdp_uniform import symmetrized_log_moment
from dpacct.rounding import UNIT, Array, Bounds, weighted_sum
from dpacct.search import bracket_root, minimize_unimodal
from dpacct.symmetrized_losses import SymmetrizedLosses
from dpacct.tilted import TiltedLosses

# Aliases and the truncated part of the contour are about e^-34 and e^-26 of the result; where an
# atom of the loss keeps the latter larger, up to e^-16 is taken into the bracket.
_ALIAS = 34.0
_TRUNCATION, _LEAST_TRUNCATION = 26.0, 16.0
_MAX_FREQUENCIES = 20_000
_LEAST_NOISE = 0.05
# Tilts, in units of c, for the Chernoff bound of the aliases from the right.
_CHERNOFF_TILTS = (1.1, 1.25, 1.5, 2.0, 3.0)
# Frequencies at which the decay of the integrand is bounded: 4 steps times powers of sqrt(2).
_TABLE_LENGTH = 40
_LOG_TILTS, _TILT_TOLERANCE = (-14.0, 14.0), 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """Sampled Gaussian pairs of one direction, with multiplicities.

    Attributes:
        rates, noise, counts: of the rounds with a rate below one, shape (m,).
        precision: sum of count / noise^2 over the rounds of full participation.
        direction: remove or add.
        symmetrized: pairs of C_q and how often each occurs.
        kinds: number of distinct pairs, for rounding.
    """

    rates: Array
    noise: Array
    counts: Array
    precision: float
    direction: Direction
    symmetrized: tuple[tuple[SymmetrizedPair, int], ...] = ()
    kinds: int = 1

    @classmethod
    def of(cls, pairs: dict[DominatingPair, int], direction: Direction) -> Composition:
        """The composition of pairs that all have this direction."""
        plain = {p: n for p, n in pairs.items() if isinstance(p, SampledGaussianPair)}
        sampled = {pair: n for pair, n in plain.items() if pair.sampling_rate < 1.0}
        return cls(
            np.array([pair.sampling_rate for pair in sampled]),
            np.array([pair.noise_std for pair in sampled]),
            np.array([float(n) for n in sampled.values()]),
            sum(n / p.noise_std**2 for p, n in plain.items() if p.sampling_rate == 1.0),
            direction,
            tuple((p, n) for p, n in pairs.items() if isinstance(p, SymmetrizedPair)),
            len(pairs),
        )

    def log_moment(self, tilt: float) -> Bounds:
        """Bounds of log M(c), c > 0."""
        order = 1 + tilt if self.direction is Direction.REMOVE else -tilt
        sampled = weighted_sum(log_moment(order, self.rates, self.noise), self.counts)
        full = self.precision * tilt * (1 + tilt) / 2
        lower, upper = float(sampled.lower) + full, float(sampled.upper) + full
        for pair, count in self.symmetrized:
            moment = symmetrized_log_moment(1 + tilt, pair.sampling_rate, pair.noise_std)
            lower += count * float(moment.lower)
            upper += count * float(moment.upper)
        slack = UNIT * (4 * self.kinds + 16) * upper
        return Bounds(np.array(lower - slack), np.array(upper + slack))

    def laws(self, tilt: float, frequency: float) -> list[TiltedLosses | SymmetrizedLosses]:
        """The tilted losses of the sampled rounds."""
        found: list[TiltedLosses | SymmetrizedLosses] = []
        if self.rates.size:
            parts = (self.rates, self.noise, self.counts, self.direction)
            found.append(TiltedLosses(*parts, tilt, frequency))
        for pair, count in self.symmetrized:
            setting = (pair.sampling_rate, pair.noise_std, float(count))
            found.append(SymmetrizedLosses(*setting, tilt, frequency))
        return found


class Contour:
    """The integrand of one composition on one vertical line, ready for any epsilon.

    Args:
        composition: what is composed.
        tilt: c > 0, best near the saddle point of the epsilons that will be asked for.
        epsilon, log_delta: about where delta will be asked for, and its logarithm there.
    Raises:
        NotConverged: the loss is too close to an atom, so that the integrand decays too slowly.
    """

    def __init__(
        self, composition: Composition, tilt: float, epsilon: float, log_delta: float
    ) -> None:
        self._tilt = tilt
        self._log_moment = composition.log_moment(tilt)
        self._chernoff = [(f * tilt, _log_chernoff(composition, f * tilt)) for f in _CHERNOFF_TILTS]
        # The distance 2 pi / step of the aliases, far enough to both sides.
        turn = max(
            (_ALIAS - log_delta) / tilt,
            min((top - c * epsilon - log_delta + _ALIAS) / (c - tilt) for c, top in self._chernoff),
        )
        self._step = 2 * math.pi / turn
        last, log_rest = self._last_frequency(composition)
        self._t: Array = self._step * np.arange(math.ceil(last / self._step) + 1.0)
        # Beyond the last node: (1 / pi) * integral of |M(c + i t)| / t^2, relative to M(c).
        self._truncation = 1.01 * math.exp(log_rest) / (math.pi * last)

        s = tilt + 1j * self._t
        log_value = composition.precision / 2 * (s * (1 + s) - tilt * (1 + tilt))
        rounding = UNIT * (composition.kinds + 8)
        error = rounding * composition.precision * np.abs(s) * np.abs(1 + s)
        for law in composition.laws(tilt, float(self._t[-1])):
            sampled, sampled_error = law.log_characteristic(self._t)
            log_value, error = log_value + sampled, error + sampled_error
        self._log_value = log_value
        self._error = error
        self._kernel = 1 / (s * (1 + s))
        self._weights = np.full(len(self._t), self._step / math.pi)
        self._weights[0] /= 2

    def _last_frequency(self, composition: Composition) -> tuple[float, float]:
        """Where the contour may be cut, and a bound of log |M(c + i t) / M(c)| from there on."""
        first = 4 * self._step
        table = first * np.exp(0.5 * math.log(2.0) * np.arange(_TABLE_LENGTH))
        decay = -composition.precision / 2 * table**2
        for law in composition.laws(self._tilt, 0.0):
            decay = decay + law.log_decay(table)
        rest = decay - np.log(table / table[0])
        # An atom that hardly matters leaves a floor: then all that more nodes can give.
        reachable = table <= _MAX_FREQUENCIES * self._step
        lowest = float(np.min(rest[reachable]))
        enough = np.flatnonzero(reachable & (rest <= max(-_TRUNCATION, lowest + 1.0)))
        if lowest > -_LEAST_TRUNCATION:
            raise NotConverged(
                "the contour integrand decays too slowly: the loss is nearly an atom"
            )
        return float(table[enough[0]]), float(decay[enough[0]])

    def delta(self, epsilon: float) -> Interval:
        """Lower and upper bound of delta at one epsilon >= 0."""
        c = self._tilt
        phase = self._t * epsilon
        value = np.exp(self._log_value - 1j * phase) * self._kernel
        error = self._error + 4 * UNIT * (phase + np.abs(self._log_value)) + 64 * UNIT
        total = float(self._weights @ value.real)
        # |v| (e^error - 1); a large error is added to the logarithm first, so that none is clipped.
        size = self._log_value.real
        with np.errstate(over="ignore"):
            grown = np.exp(size + error)
        near = np.exp(size) * np.expm1(np.minimum(error, 1.0))
        off = np.where(error < 1, near, grown) + 2 * UNIT * len(phase) * np.exp(size)
        slack = float(self._weights @ (np.abs(self._kernel) * off)) * (1 + 1e-9)
        slack += self._truncation
        if not math.isfinite(total + slack):
            raise NotConverged("the contour sum is not finite")
        upper_exponent = float(self._log_moment.upper) - c * epsilon
        upper_scale = math.exp(upper_exponent) if upper_exponent < 700.0 else math.inf
        lower_scale = math.exp(min(float(self._log_moment.lower) - c * epsilon, 700.0))
        spread = 8 * UNIT * (abs(float(self._log_moment.upper)) + c * epsilon + 8)
        upper = max(slack, total + slack) * upper_scale * (1 + spread)
        lower = max(0.0, total - slack) * lower_scale * (1 - spread) - self._aliases(epsilon)
        return Interval(max(0.0, min(lower, 1.0)), min(1.0, upper))

    def _aliases(self, epsilon: float) -> float:
        """Upper bound of the terms k != 0: for k < 0 delta <= 1, for k > 0 Chernoff."""
        c, turn = self._tilt, 2 * math.pi / self._step
        left = 1 / math.expm1(min(c * turn, 700.0))
        right = math.inf
        for tilt, log_upper in self._chernoff:
            gap = (tilt - c) * turn
            exponent = log_upper - tilt * epsilon - gap
            right = min(right, math.exp(min(exponent, 700.0)) / -math.expm1(-gap))
        return (left + right) * 1.01


def _require_noise(composition: Composition) -> None:
    if np.any(composition.noise < _LEAST_NOISE):
        raise NotConverged("the loss of so little noise is nearly an atom")


def _log_chernoff(composition: Composition, tilt: float) -> float:
    """log of M(c) c^c / (1 + c)^(1 + c): times e^{-c eps} it bounds delta(eps), any c > 0."""
    log_constant = tilt * math.log(tilt) - (1 + tilt) * math.log1p(tilt)
    return float(composition.log_moment(tilt).upper) + log_constant


def inversion_delta(composition: Composition, epsilon: float) -> Interval:
    """delta(eps) of one direction of a composition, eps >= 0.

    Error: inside the interval; relative width typically 1e-9 and less.
    Raises:
        NotConverged: see `Contour`.
    """

    def log_bound(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        return _log_chernoff(composition, tilt) - tilt * epsilon

    _require_noise(composition)
    log_tilt = minimize_unimodal(log_bound, 1.0, _LOG_TILTS, _TILT_TOLERANCE)
    log_delta = min(0.0, log_bound(log_tilt) - 2.0)
    contour = Contour(composition, math.exp(log_tilt), epsilon, log_delta)
    return contour.delta(epsilon)


def inversion_epsilon(composition: Composition, delta: float) -> Interval:
    """eps(delta) of one direction of a composition, at least 0.

    Error: inside the interval; relative width typically 1e-9 and less.
    Raises:
        NotConverged: see `Contour`.
    """
    log_delta = math.log(delta)

    def bound(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        return (_log_chernoff(composition, tilt) - log_delta) / tilt

    _require_noise(composition)
    log_tilt = minimize_unimodal(bound, 1.0, _LOG_TILTS, _TILT_TOLERANCE)
    guess = max(bound(log_tilt), 1e-9)
    contour = Contour(composition, math.exp(log_tilt), 0.9 * guess, log_delta)

    def above(epsilon: float) -> float:
        return math.log(max(contour.delta(epsilon).upper, 1e-320)) - log_delta

    def below(epsilon: float) -> float:
        return math.log(max(contour.delta(epsilon).lower, 1e-320)) - log_delta

    upper = lower = 0.0
    if above(0.0) > 0:
        upper = bracket_root(above, guess, (0.0, 4 * guess + 1), 1e-10 * guess, guess / 8)[1]
        if above(upper) > 0:
            raise NotConverged("no bracket of epsilon was found on the contour")
    if upper > 0:
        tolerance = 1e-10 * guess
        lower = bracket_root(below, upper, (0.0, upper), tolerance, 100 * tolerance)[0]
        if below(lower) <= 0:
            lower = 0.0
    return Interval(min(lower, upper), upper)
