"""Releases computed on one random sample of the clients.

`Sampled(release, rate)` draws each client into a sample with probability q, once, and computes the
release on the sample. The release may be a schedule: many releases on one sample. If P and Q are
its distributions with and without the client and L = dP/dQ, the sample makes (1 - q) Q + q P of P,
and the loss log(1 - q + q L) of log L. So with k = e^eps,

    remove:  delta(eps) = q delta_1(log((k - 1 + q) / q)),
    add:     delta(eps) = (1 - k (1 - q)) delta_2(log(q k / (1 - k (1 - q)))), 0 for k (1 - q) >= 1,

delta_1 and delta_2 those of the release without the sample.

Rule 1: neighbors differ by a client that is there or not (add-remove), or that sends zero
(zero-out), and a client outside the sample is as one that is not there. So the size of the sample
is not released: noise and divisors are fixed numbers.
Rule 2: many releases on one sample are one release. Nothing else is computed from the data between
the first and the last one because of their results.

Proof: docs/derivations/sampled.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

from dpacct import validate
from dpacct.budget import Interval
from dpacct.epochs import ShuffledEpoch
from dpacct.errors import InvalidParameter, NotConverged
from dpacct.mechanisms.pure import Promise
from dpacct.numerics.rounding import UNIT, Bounds
from dpacct.pairs.atoms import AtomicPair, HullPair
from dpacct.pairs.dominating import (
    Direction,
    DominatingPair,
    LossBound,
    PairsOf,
    achieved_pairs,
    basic_composition,
    has_renyi,
    pairs_of,
    proven_pairs,
)
from dpacct.renyi.curve import RenyiCurve
from dpacct.rounds import Adjacency, Poisson, Release, Round, Schedule, Uniform, as_schedule
from dpacct.tight.composition import Composition
from dpacct.tight.engines import chernoff_delta, composed_delta, composed_epsilon
from dpacct.tight.profiles import ReleaseOfSchedule, finite_pairs, kinds_within

# A loss up to here has an exponential.
_LARGEST = 600.0
# Relative, above the rounding of the ratios of the module's head.
_ROUNDING = 16 * UNIT


@dataclass(frozen=True, init=False, repr=False)
class Sampled(ReleaseOfSchedule):
    """A schedule computed on one Poisson sample of the clients.

    ``20 * Sampled(Laplace(epsilon=0.5), 0.1)`` draws a fresh sample for each release.
    ``Sampled(20 * Laplace(epsilon=0.5), 0.1)`` draws one sample for all twenty, and costs eight
    times as much.

    Args:
        release: a release or a schedule, as without the sample.
        rate: the probability q with which a client is in the sample, in (0, 1).
    Raises:
        InvalidParameter: the rate is out of range, or the theorem does not cover the release:
            replace-one, cohorts of fixed or largest size, shuffled batches, and promises under
            zero-out.
    Source: docs/derivations/sampled.md.

    >>> import dpacct
    >>> from dpacct import Laplace, Sampled
    >>> round(dpacct.epsilon(1 * Sampled(20 * Laplace(epsilon=0.5), 0.1), delta=1e-5).upper, 4)
    6.0717
    """

    schedule: Schedule
    rate: float

    def __init__(self, release: Schedule | Release, rate: float) -> None:
        base = as_schedule(release)
        if not base.rounds:
            raise InvalidParameter("schedule", base, "a sample has at least one release")
        q = validate.sampling_rate(rate, "rate")
        if q == 1.0:
            rule = "the rate of a sample lies in (0, 1)"
            raise InvalidParameter("rate", rate, rule, "Leave the sample out.")
        if base.adjacency is Adjacency.REPLACE_ONE:
            rule = "a sample hides whether a client is there, not what a replaced one sends"
            hint = "Choose add-remove or zero-out."
            raise InvalidParameter("adjacency", "replace-one", rule, hint)
        for kind in kinds_within(base):
            if _counts_clients(kind):
                rule = f"the size of a sample is secret, and {kind!r} depends on it"
                raise InvalidParameter("rate", rate, rule, "Choose Poisson rounds.")
            if isinstance(kind, Promise) and base.adjacency is Adjacency.ZERO_OUT:
                rule = f"{kind!r} says nothing of a client outside the sample, who is not there"
                raise InvalidParameter("adjacency", "zero-out", rule, "Choose add-remove.")
        object.__setattr__(self, "schedule", base)
        object.__setattr__(self, "rate", q)

    def of(self, schedule: Schedule) -> Sampled:
        """See `ReleaseOfSchedule`."""
        return Sampled(schedule, self.rate)

    @property
    def loss_bound(self) -> LossBound | None:
        """log(1 + q (e^eps - 1)) and q delta, with the sums of the releases, rounded up."""
        inner = basic_composition(self.schedule)
        if inner is None or inner.epsilon > _LARGEST:
            return inner
        most = math.nextafter(float(inner.epsilon), math.inf)
        grown = math.log1p(self.rate * math.expm1(most)) * (1 + 2 * _ROUNDING)
        return LossBound(Fraction(grown), inner.delta * Fraction(self.rate))

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the pair of the module's head."""
        return {_pair(self, direction, proven_pairs): 1}

    def achieved_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the same of the achieved pairs: a client sends all that it may on each release."""
        known = pairs_of(self.schedule.distinct(), achieved_pairs, direction)
        return {_pair(self, direction, achieved_pairs): 1} if known else {}

    def __repr__(self) -> str:
        return f"Sampled({self.schedule!r}, {self.rate!r})"


def _counts_clients(kind: Release) -> bool:
    sampling = kind.sampling if isinstance(kind, Round) else None
    counted = isinstance(sampling, Poisson) and sampling.num_clients is not None
    return counted or isinstance(sampling, Uniform) or isinstance(kind, ShuffledEpoch)


@lru_cache(maxsize=64)
def _pair(release: Sampled, direction: Direction, pairs: PairsOf) -> _SampledPair:
    return _SampledPair(release, direction, pairs)


class _SampledPair(HullPair):
    """The pair of the module's head. Alone it is exact, and composed between finite pairs."""

    def __init__(self, release: Sampled, direction: Direction, pairs: PairsOf) -> None:
        self._release, self._direction, self._pairs = release, direction, pairs
        self._inner = Composition.of_schedule(release.schedule, pairs, direction)
        mass = self._inner.infinite_mass if direction is Direction.REMOVE else 0.0
        most = self._inner.largest_loss
        rate = release.rate
        self.infinite_mass = release.rate * mass * (1 + _ROUNDING)
        if direction is Direction.ADD:
            self.largest_loss = -math.log1p(-rate) * (1 + _ROUNDING)
        elif most <= _LARGEST:
            self.largest_loss = math.log1p(rate * math.expm1(most)) * (1 + _ROUNDING)

    def delta(self, epsilon: float) -> Interval:
        """See `GeneralPair`: exact up to the bounds of delta of the releases."""
        rate, share = self._release.rate, self._release.rate
        if self._direction is Direction.ADD:
            if epsilon >= self.largest_loss:
                return Interval(0.0, 0.0)
            # 1 - k (1 - q), without cancellation at k = 1.
            share = rate - (1 - rate) * math.expm1(epsilon)
            if share <= _ROUNDING:
                return Interval(0.0, max(0.0, share) + _ROUNDING)
            inner = math.log(rate / share) + epsilon
        elif epsilon > _LARGEST:
            inner = epsilon - math.log(rate)
        else:
            inner = math.log1p(math.expm1(epsilon) / rate)
        # Delta falls, so each bound has the epsilon on its side.
        off = _ROUNDING * (1 + inner) * (1 + rate / share)
        lower, upper = self._at(inner + off).lower, self._at(max(0.0, inner - off)).upper
        share_off = _ROUNDING * (1 + rate / share)
        return Interval(
            max(0.0, share * lower * (1 - share_off)), min(1.0, share * upper * (1 + share_off))
        )

    def epsilon_at(self, delta: float) -> Interval | None:
        """See `GeneralPair`. In the remove direction delta / q is that of the releases."""
        rate = self._release.rate
        if self._direction is Direction.ADD:
            return None
        if delta >= rate:
            return Interval(0.0, 0.0)
        target = delta / rate
        ends = (
            composed_epsilon(self._inner, math.nextafter(target, end)) for end in (math.inf, 0.0)
        )
        lower, upper = (
            e + math.log(rate) if e > _LARGEST else math.log1p(rate * math.expm1(e))
            for e in (next(ends).lower, next(ends).upper)
        )
        return Interval(lower * (1 - _ROUNDING), upper * (1 + _ROUNDING))

    def _at(self, epsilon: float) -> Interval:
        try:
            return composed_delta(self._inner, epsilon)
        except NotConverged:
            return Interval(0.0, chernoff_delta(self._inner, epsilon))

    @cached_property
    def hull(self) -> AtomicPair:
        """See `HullPair`."""
        above = self._pairs is not achieved_pairs
        pairs = finite_pairs(self._release.schedule, self._pairs)
        pair = pairs[Direction.REMOVE][0 if above else 1]
        # Where P has no mass, Q has an infinite loss in the other direction.
        lacking = pairs[Direction.ADD][0].infinite_mass if above else 0.0
        rate = self._release.rate
        under_q = pair.masses * np.exp(-pair.losses)
        # No term cancels, however near the rate is to 0 or 1.
        losses = np.append(pair.losses + math.log(rate), -math.inf)
        losses = np.logaddexp(math.log1p(-rate), losses)
        under_q = np.append(under_q, lacking)
        masses = (1 - rate) * under_q + rate * np.append(pair.masses, 0.0)
        loss_error, mass_error = pair.errors
        error = mass_error + loss_error + 8 * UNIT * (2 + float(np.abs(pair.losses).max()))
        loss_error += 8 * UNIT * (1 - math.log(rate) + float(np.abs(losses).max()))
        infinite = rate * pair.infinite_mass
        if self._direction is Direction.ADD:
            losses, masses, infinite = -losses, under_q, 0.0
        kept = masses > 1e-300
        return AtomicPair(losses[kept], masses[kept], infinite, loss_error, error)

    def renyi_moment(self, order: float) -> Bounds:
        """Return bounds of log E_Q[(P/Q)^order], order > 1.

        x^a is convex, so the sample's moment is at most 1 - q + q M, M that of the releases. If no
        loss is infinite, the finite pair has a better bound.
        """
        if order <= 1.0 or not self.hull.infinite_mass:
            return super().renyi_moment(order)
        if not all(has_renyi(kind) for kind in self._release.schedule.distinct()):
            return Bounds(np.array(0.0), np.array(math.inf))
        rate, moment = self._release.rate, (order - 1) * self._curve.upper(order)
        value = float(np.logaddexp(math.log1p(-rate), math.log(rate) + moment))
        return Bounds(np.array(0.0), np.array(value + _ROUNDING * (1 + abs(moment))))

    @cached_property
    def _curve(self) -> RenyiCurve:
        return RenyiCurve(self._release.schedule)
