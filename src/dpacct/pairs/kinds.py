"""The kinds of pairs of distributions that bound releases. `dominating` says which bounds which.

All pairs lie on the line, in units in which the shift is one. phi is the density of
N(0, sigma^2) and r(x) = 1 - q + q e^{(2x-1)/(2 sigma^2)}.

* `SampledGaussianPair`, remove: P = phi r against Q = phi. Add: P = phi against Q = phi r.
* `SymmetrizedPair`: the pair of the trade-off function C_q(f) of Dong, Roth, Su (2022), f the
  Gaussian's: losses log r where r > 1 with the masses of the remove pair, their mirror image,
  and an atom at zero.
* `ReplacementPair`: P = phi(x) r(x) against Q = phi(x) r(-x), a client that sends 1 or -1.
* `GeneralPair`: any other pair, by functions of its loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dpacct.budget import Interval
from dpacct.numerics.rounding import Array, Bounds, ComplexArray


class Direction(StrEnum):
    """The neighbor with output law P. Each direction composes with itself."""

    REMOVE = "remove"
    ADD = "add"


@dataclass(frozen=True, slots=True)
class SampledGaussianPair:
    """phi r against phi (remove) or phi against phi r (add), with the r of the module's head."""

    sampling_rate: float
    noise_std: float
    direction: Direction


@dataclass(frozen=True, slots=True)
class SymmetrizedPair:
    """The pair of C_q(Gaussian), the same in both directions."""

    sampling_rate: float
    noise_std: float


@dataclass(frozen=True, slots=True)
class ReplacementPair:
    """(1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1). The other direction is a mirror image."""

    sampling_rate: float
    noise_std: float


class GeneralPair:
    """A pair P, Q by functions of its loss L = log dP/dQ. Subclasses are frozen and hashable.

    The moment M(c) = E_P[e^{cL}; L finite] is E_Q[(P/Q)^{1+c}]. P may have mass where Q has none
    (an infinite loss). Then M(c) leaves it out.

    Attributes:
        infinite_mass: an upper bound of P(L = infinity).
        largest_loss: an upper bound of the finite losses, infinite if there is none.
        from_moments: whether moments may say more of a release beside others than this pair.
    """

    infinite_mass = 0.0
    from_moments = False
    largest_loss = math.inf

    def delta(self, epsilon: float) -> Interval:
        """Return bounds of E_P[(1 - e^{eps - L})_+], eps >= 0, infinite losses included."""
        raise NotImplementedError

    def epsilon_at(self, delta: float) -> Interval | None:
        """Return bounds of eps(delta), or None if a search by `delta` has to find them."""
        del delta
        return None

    def log_moment(self, tilts: Array) -> Bounds:
        """Return bounds of log M(c) for tilts c >= -1. Shape (k,)."""
        raise NotImplementedError

    def renyi_moment(self, order: float) -> Bounds:
        """Return bounds of log E_Q[(P/Q)^order], order > 0, infinite losses included. Shape ()."""
        moment = self.log_moment(np.array([order - 1]))
        # An infinite loss has no part in moments of orders below one.
        infinite = self.infinite_mass > 0.0 and order > 1.0
        return Bounds(moment.lower[0], np.where(infinite, math.inf, moment.upper[0]))

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """Return log M(c), and mean and variance of the loss under e^{cL} P, without proof."""
        raise NotImplementedError

    def characteristic(self, tilt: float, frequencies: Array) -> tuple[ComplexArray, Array]:
        """Return phi(t) - 1 for phi(t) = E_P[e^{(c + it) L}; L finite] / M(c), and its error.

        Shape (k,). The second array bounds the absolute error of the first. Frequencies are
        multiples of a step: 0, step, 2 step, and so on.
        """
        raise NotImplementedError

    def decay(self, tilt: float, frequencies: Array) -> Array:
        """Return bounds of |phi(t')| for all t' >= t, of shape (k,). Atoms do not decay."""
        del tilt
        return np.ones_like(frequencies)

    def atoms(self) -> GeneralPair | None:
        """Return the finite losses that have a mass, as an `AtomicPair`, or None if not known."""
        return None

    def density_decay(self, tilt: float, frequencies: Array) -> Array:
        """Return bounds of the part of phi(t') without `atoms`, for all t' >= t, of shape (k,)."""
        return self.decay(tilt, frequencies)


class AdditivePair(GeneralPair):
    """A pair for all releases with some ``rho``, where rhos of releases add up."""

    rho: float
    from_moments = True

    def with_sum(self, rho: float) -> AdditivePair:
        """Return the pair of releases with this rho in all."""
        raise NotImplementedError
