"""Compositions of pairs with atoms and a density, such as Laplace noise, without a blur.

The composition of (A_i + D_i), atoms and density, n_i times each, is the sum of two measures:

* only atoms, prod A_i^{n_i}: a lattice, whose delta(eps) is a finite sum,
* at least one density, prod (A_i + D_i)^{n_i} - prod A_i^{n_i}: its integrand decays, and so does a
  contour.

With M_i = A_i + D_i for the moments, rho = prod (A_i / M_i)^{n_i} is the share of the first one.

Derivation: docs/derivations/mechanisms.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array, Bounds, ComplexArray
from dpacct.pairs.atoms import AtomicPair, convolved
from dpacct.pairs.dominating import GeneralPair
from dpacct.tight.composition import Composed, Composition, Cumulants
from dpacct.tight.contour import Bounding, Contour, log_delta_estimate, tilt_at_epsilon
from dpacct.tight.laws import Law, decay_table, log_of_power

# Below this share of the moment the second measure is a difference of equal numbers.
_LEAST_REST = 1e-6
# The share of epsilon that a blur of the second measure may add.
_BLUR = 5e-8

Parts = tuple[tuple[GeneralPair, AtomicPair, int], ...]


def _sides(parts: Parts) -> tuple[list[tuple[GeneralPair, int]], list[tuple[GeneralPair, int]]]:
    """Return the pairs, and their atoms, with their counts."""
    return [(pair, n) for pair, _, n in parts], [(atoms, n) for _, atoms, n in parts]


class RestLaw(Law):
    """The measure with at least one density, under a tilt.

    Raises:
        NotConverged: it is next to nothing.
    """

    def __init__(self, parts: Parts, tilt: float) -> None:
        self._parts, self._tilt = parts, tilt
        at = np.array([tilt])
        whole, atoms, size = Bounds(at * 0, at * 0), Bounds(at * 0, at * 0), 1.0
        for pair, some, count in parts:
            part, mine = pair.log_moment(at), some.log_moment(at)
            whole = Bounds(whole.lower + count * part.lower, whole.upper + count * part.upper)
            atoms = Bounds(atoms.lower + count * mine.lower, atoms.upper + count * mine.upper)
            size += count * float(np.abs(part.upper[0]) + np.abs(mine.upper[0]))
        log_ratio = float(atoms.upper[0] + atoms.lower[0] - whole.upper[0] - whole.lower[0]) / 2
        self._ratio = math.exp(min(log_ratio, 0.0))
        self._rest = -math.expm1(min(log_ratio, 0.0))
        wide = float(atoms.upper[0] - atoms.lower[0] + whole.upper[0] - whole.lower[0])
        #: Absolute error of the ratio, and so of the rest.
        self._off = 1.01 * self._ratio * wide + 16 * UNIT * size
        if not self._rest > max(_LEAST_REST, 4 * self._off):
            raise NotConverged("atoms are nearly all of the losses")
        relative = 1.4 * self._off / self._rest + 16 * UNIT
        log_rest = math.log(self._rest)
        self.log_moment = Bounds(
            whole.lower[0] + log_rest - relative, whole.upper[0] + log_rest + relative
        )
        self._relative = relative

    def log_decay(self, first: float, number: int) -> Array:
        """See `Law`: (A + B)^n - A^n, B the bound of the density, over (A + D)^n - A^n."""
        times = decay_table(first, number) * (1 - 1e-9)
        grown = np.zeros(number)
        log_ratio = 0.0
        at = np.array([self._tilt])
        for pair, atoms, count in self._parts:
            # The share of the atoms, rounded up, and the bound of the density by the same unit.
            share = float(atoms.log_moment(at).upper[0] - pair.log_moment(at).lower[0])
            density = pair.density_decay(self._tilt, times) * (1 + 1e-12)
            grown = grown + count * np.log1p(density / math.exp(share) * (1 + 1e-12))
            log_ratio += count * share
        bound = np.expm1(np.minimum(grown, 600.0)) * math.exp(min(log_ratio, 0.0))
        decay = bound / (self._rest - self._off) * (1 + 1e-9)
        return np.log(np.clip(decay, 1e-300, 1.0))

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """See `Law`."""
        frequencies = step * np.arange(float(number))
        both: list[tuple[ComplexArray, Array]] = []
        for pairs in _sides(self._parts):
            total = np.zeros(number, dtype=np.complex128)
            error = np.zeros(number)
            for pair, count in pairs:
                shift, off = pair.characteristic(self._tilt, frequencies)
                value, value_error = log_of_power(shift, off, float(count))
                total, error = total + value, error + value_error
            both.append((np.exp(total), np.expm1(np.minimum(error, 5.0)) * np.exp(total.real)))
        (every, every_error), (atoms, atoms_error) = both
        value = (every - self._ratio * atoms) / self._rest
        error = (every_error + self._ratio * atoms_error + self._off * np.abs(atoms)) / self._rest
        error = 1.01 * error + (self._relative + 16 * UNIT) * np.abs(value) + 16 * UNIT / self._rest
        return log_of_power(value - 1, error, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class RestComposition(Composed):
    """The second measure of the module's head."""

    parts: Parts
    kinds: int
    precision: float = 0.0

    def laws(self, tilt: float, frequency: float) -> list[Law]:
        """Return all pairs together: they do not factor."""
        del frequency
        return [RestLaw(self.parts, tilt)]

    def cumulants(self, tilt: float) -> Cumulants:
        """Return cumulants of the second measure, without proof."""
        sums = [
            np.sum([count * np.array(pair.cumulants(tilt)) for pair, count in pairs], axis=0)
            for pairs in _sides(self.parts)
        ]
        value, mean, variance = map(float, sums[0])
        atoms, atoms_mean, atoms_variance = map(float, sums[1])
        ratio = min(math.exp(min(atoms - value, 0.0)), 1 - _LEAST_REST)
        rest_mean = (mean - ratio * atoms_mean) / (1 - ratio)
        second = variance + mean**2 - ratio * (atoms_variance + atoms_mean**2)
        spread = second / (1 - ratio) - rest_mean**2
        return Cumulants(value + math.log1p(-ratio), rest_mean, max(spread, 1e-300))


class AtomsApart(Bounding):
    """Bounds of delta near one epsilon, of both measures together.

    Raises:
        NotConverged: some pair has no atoms that are known, too many, or other losses are among
            them.
    """

    def __init__(self, composition: Composition, epsilon: float) -> None:
        parts = _parts(composition)
        self._atoms = atoms_alone(composition)
        rest = RestComposition(parts, composition.kinds)
        tilt, at = tilt_at_epsilon(rest, epsilon)
        log_delta = min(0.0, log_delta_estimate(tilt, at, epsilon))
        # Where the loss has a density a blur costs its variance times that.
        width = _BLUR * max(epsilon, 1 / tilt)
        self._rest = Contour(rest, tilt, epsilon, log_delta, width, at.variance)

    def delta_and_slope(self, epsilon: float) -> tuple[Interval, float]:
        """See `Bounding`."""
        rest, slope = self._rest.delta_and_slope(epsilon)
        atoms = self._atoms.delta(epsilon)
        upper = min(1.0, (rest.upper + atoms.upper) * (1 + 4 * UNIT))
        lower = (rest.lower + atoms.lower) * (1 - 4 * UNIT)
        falling = slope * rest.upper - self._atoms.falling(epsilon)
        return Interval.bracket(lower, upper), falling / max(upper, 1e-300)


def atoms_alone(composition: Composition) -> AtomicPair:
    """Return the first measure of the module's head.

    Raises:
        NotConverged: see `AtomsApart`.
    """
    atoms_together = convolved(tuple((atoms, count) for _, atoms, count in _parts(composition)))
    if atoms_together is None:
        raise NotConverged("the atoms are too many, or not equally spaced")
    return atoms_together


def _parts(composition: Composition) -> Parts:
    """Return the pairs with their atoms and counts."""
    if composition.precision or composition.sampled_pairs() or composition.symmetrized:
        raise NotConverged("rounds have no atoms")
    parts: list[tuple[GeneralPair, AtomicPair, int]] = []
    for pair, count in composition.general:
        atoms = pair.atoms()
        if not isinstance(atoms, AtomicPair):
            raise NotConverged("the atoms of some pair are not known")
        parts.append((pair, atoms, count))
    return tuple(parts)
