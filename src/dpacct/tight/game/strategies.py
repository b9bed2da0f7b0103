"""The one-dimensional pairs of a round of fixed-size sampling, and lower bounds of their cost.

*remove*: crowd and replacement at -C, the client at +C. *add*: the same in the other order. Both
have closed forms. With mu = 2/z and gamma = e^loss,

    remove:  H = q Delta_mu(k),      e^k = 1 + (gamma - 1)/q,              -H' = Phi(-mu/2 - k/mu),
    add:     H = q s Delta_mu(k),    s = 1 - (1-q)(gamma-1)/q,  e^k = gamma/s,
             -H' = (1-q) Phi(mu/2 - k/mu) + q Phi(-mu/2 - k/mu).

Each side of either pair becomes a law on a grid that is dominated by it: tangents at the middles of
the intervals of the grid. Derivation: docs/derivations/fixed-size-game.md.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct.numerics.rounding import UNIT, Array, Bounds
from dpacct.tight.game.laws import Points, Side, dominated_side, line_ends
from dpacct.tight.game.theorem import bounds, gaussian_profile, normal


def middles(points: Points, step: float) -> Array:
    """Return the middles of the intervals between points, as losses."""
    return np.asarray(0.5 * step * (points[:-1] + points[1:]), dtype=np.float64)


def touching_side(touching: tuple[Bounds, Bounds], points: Points, step: float) -> Side:
    """Return masses below the profile, from bounds of it and of its slope at the middles."""
    lines = line_ends(points, step, middles(points, step), *touching)
    return dominated_side(points, step, lines.lower, lines.upper)


def gaussian_pair(_: float, noise: float, losses: Array) -> tuple[Bounds, Bounds]:
    """Bound H and -H' for full participation, at any rate: H = Delta_mu(loss)."""
    mu = 2 / noise
    plain = gaussian_profile(losses, mu, np.zeros(losses.shape))
    profile = bounds(np.ones(losses.shape), plain, np.zeros(losses.shape))
    return profile, _spread(plain.far, _far_error(losses, mu, np.zeros(losses.shape)))


def remove_pair(rate: float, noise: float, losses: Array) -> tuple[Bounds, Bounds]:
    """Return bounds of H and of -H' for the remove pair."""
    mu = 2 / noise
    k = np.log1p(np.expm1(losses) / rate)
    plain = gaussian_profile(k, mu, 20 + 20 * losses)
    profile = bounds(np.full(losses.shape, rate), plain, np.zeros(losses.shape))
    return profile, _spread(plain.far, _far_error(k, mu, 20 + 20 * losses))


def add_pair(rate: float, noise: float, losses: Array) -> tuple[Bounds, Bounds]:
    """Bound H and -H' for the add pair, which has nothing beyond its largest loss."""
    # Where s is small all that is known is H <= q s, and H = 0 where it is negative.
    mu = 2 / noise
    missing = (1 - rate) / rate * np.expm1(losses)
    kept, spare = 1 - missing, 64 * UNIT * (1 + missing)
    inside = kept > 2.0**-20
    kept = np.where(inside, kept, 1.0)
    lost = 32 * (1 + missing) / kept
    k = losses - np.log(kept)
    plain = gaussian_profile(k, mu, lost + 20 * losses)
    profile = bounds(rate * kept, plain, lost)
    error = _far_error(k, mu, lost + 20 * losses)
    slope = (1 - rate) * plain.near + rate * plain.far
    steep = _spread(slope, plain.relative + error)
    most = np.where(inside, profile.upper, rate * np.maximum(1 - missing + spare, 0.0))
    return Bounds(profile.lower * inside, most), Bounds(steep.lower * inside, steep.upper)


def replacement_line(rate: float, noise: float, losses: Array) -> tuple[Bounds, Bounds]:
    """Return a line below the profile of the replacement pair that nearly touches it at each loss.

    For any threshold t, P(x > t) - gamma Q(x > t) <= H(gamma), with P = (1-q) N(0) + q N(1) and
    Q = (1-q) N(0) + q N(-1). At t the ratio of the densities is about gamma.

    Returns:
        Bounds of the line's values at the losses, and of minus its slope. Both are 0 if only
        rounding errors are left.
    """
    odds = (1 - rate) / rate * math.exp(min(0.5 / noise**2, 700.0))
    at = noise**2 * (losses / 2 + np.arcsinh(np.minimum(odds * np.sinh(losses / 2), 1e300)))
    arguments = [(mean - at) / noise for mean in (0.0, 1.0, -1.0)]
    crowd, near, far = (normal(x) for x in arguments)
    gamma = np.exp(losses)
    first, second = (1 - rate) * crowd + rate * near, (1 - rate) * crowd + rate * far
    largest = (np.abs(at) + 1) / noise
    error = UNIT * 1.01 * (48 + 12 * largest + 12 * largest**2)
    value = first - gamma * second - error * (first + gamma * second) - 1e-180
    kept = value > 0.0
    low, high = second * (1 - error) * kept, second * (1 + error) * kept
    return Bounds(np.where(kept, value, 0.0), first), Bounds(low, high)


def _far_error(k: Array, mu: float, error: Array) -> Array:
    """Return relative error of Phi(x), x = -mu/2 - k/mu, in units of roundoff."""
    x = np.abs(mu / 2 + k / mu)
    return (1 + x) * (26 * (mu + np.abs(k) / mu) + (error + 10 * np.abs(k)) / mu + 4 * x) + 96


def _spread(value: Array, error: Array) -> Bounds:
    off = 1.01 * UNIT * value * error + 1e-180
    return Bounds(np.maximum(value - off, 0.0), value + off)


def remove_tails(rate: float, noise: float, losses: Array) -> Array:
    """Estimate P(loss > these) of the remove pair, the largest of all pairs, without proof."""
    mu = 2 / noise
    k = np.log1p(np.expm1(np.minimum(losses, 700.0)) / rate)
    return rate * normal(mu / 2 - k / mu)
