"""The privacy loss of one kind of round on a grid: a law that dominates it, and a dominated one.

Where the grid lies is free. Next to a near-atom of the loss (outcomes that say little, of a round
with a tiny rate or little noise) a grid point is put where the near-atom is.

Derivation: docs/derivations/grid.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpacct.numerics.rounding import UNIT
from dpacct.pairs.dominating import Direction, SymmetrizedPair
from dpacct.tight.grid.cells import Cells, Spacing, integrate
from dpacct.tight.grid.masses import Atom, GridMasses, grid_masses
from dpacct.tight.grid.pieces import GaussianPiece, SampledPiece

# A near-atom lies this share of a step right of its grid point, rather than left of it.
_MARGIN = 1e-9


@dataclass(frozen=True, slots=True)
class GridLaw:
    """Tilted masses on the points offset + k step, k = first, first + 1, ...

    The masses are those of P times e^{c loss - log_scale}.

    Attributes:
        masses: of the dominating and of the dominated law.
        beyond: tilted mass that both leave out, to be charged to the upper one.
        offset, offset_error: loss of the point 0, and the error of that.
        log_scale, log_scale_error: see above.
    """

    masses: GridMasses
    beyond: float
    offset: float
    offset_error: float
    log_scale: float
    log_scale_error: float


def sampled_law(
    rate: float,
    noise: float,
    direction: Direction,
    tilt: float,
    step: float,
    accuracy: float,
    tolerance: float,
) -> GridLaw:
    """A round of the sampled Gaussian pair.

    Args:
        rate, noise, direction: of the pair; rate in (0, 1).
        tilt: c > 0.
        step: h > 0, a number with few bits.
        accuracy: tails of about e^-accuracy are left out.
        tolerance: relative error of the quadrature.
    """
    mirrored = direction is Direction.ADD
    order = -tilt if mirrored else 1 + tilt
    piece = SampledPiece(order, rate, noise, accuracy)
    base = math.log1p(-rate)
    center = _center_of_atom(rate, noise, step) - base
    # In the orientation of the loss the grid point lies left of the atom.
    center += (1 if mirrored else -1) * _MARGIN * step
    start = center - math.floor(center / step) * step
    cells = integrate(piece, Spacing(step, start, tilt, mirrored), tolerance)
    offset = -(base + start) if mirrored else base + start
    constant = math.log(noise) - 0.5 * math.log(2 * math.pi) + order * base
    size = abs(math.log(noise)) + abs(order * base) + abs(piece.peak) + 4
    return GridLaw(
        grid_masses(cells, tilt, step, Atom()),
        piece.reach.beyond,
        offset,
        UNIT * (12 * abs(base) + 4 * step),
        piece.peak + constant,
        32 * UNIT * size,
    )


def gaussian_law(
    precision: float, kinds: int, tilt: float, step: float, accuracy: float, tolerance: float
) -> GridLaw:
    """All rounds of full participation: the loss is N(precision / 2, precision).

    ``precision`` is a sum of ``kinds`` terms, with their roundings.
    """
    deviation, relative = math.sqrt(precision), UNIT * (kinds + 8)
    piece = GaussianPiece(precision * (0.5 + tilt), deviation, accuracy, relative)
    start = -_MARGIN * step
    cells = integrate(piece, Spacing(step, start, tilt), tolerance)
    log_moment = precision * tilt * (1 + tilt) / 2
    scale = log_moment - math.log(deviation * math.sqrt(2 * math.pi))
    return GridLaw(
        grid_masses(cells, tilt, step, Atom()),
        piece.reach.beyond,
        start,
        4 * UNIT * step,
        scale,
        (32 * UNIT + relative) * (log_moment + abs(math.log(deviation)) + 4),
    )


def symmetrized_law(
    pair: SymmetrizedPair, tilt: float, step: float, accuracy: float, tolerance: float
) -> GridLaw:
    """A round of the pair of C_q: both signs of the loss, and an atom at 0."""
    q, sigma = pair.sampling_rate, pair.noise_std
    shift = -math.log1p(-q)
    rising = SampledPiece(1 + tilt, q, sigma, accuracy, shift, 0.0)
    log_atom, atom_error = _log_atom(q, sigma)
    unit = math.log(sigma) - 0.5 * math.log(2 * math.pi)
    peak = max(rising.peak, log_atom - unit)
    rising = SampledPiece(1 + tilt, q, sigma, accuracy, shift, 0.0, peak)
    falling = SampledPiece(-tilt, q, sigma, accuracy, shift, 0.0, peak)
    parts = [
        integrate(rising, Spacing(step, shift, tilt), tolerance, 0),
        integrate(falling, Spacing(step, shift, tilt, mirrored=True), tolerance, 0),
    ]
    first = min(part.first for part in parts)
    count = max(part.first + len(part.error) for part in parts) - first
    right, left, error = np.zeros((count, 2)), np.zeros((count, 2)), np.zeros(count)
    for part in parts:
        rows = slice(part.first - first, part.first - first + len(part.error))
        right[rows] += part.right
        left[rows] += part.left
        error[rows] += part.error
    size = abs(math.log(sigma)) + abs(peak) + 4
    atom = Atom(math.exp(log_atom - unit - peak), atom_error + 32 * UNIT * size)
    return GridLaw(
        grid_masses(Cells(first, right, left, error), tilt, step, atom),
        rising.reach.beyond + falling.reach.beyond,
        0.0,
        0.0,
        peak + unit,
        32 * UNIT * size,
    )


def _log_atom(q: float, sigma: float) -> tuple[float, float]:
    """log of (1 - q) P(|x| <= 1/2) for x ~ N(0, sigma^2), and a bound of its error."""
    y = 0.5 / sigma
    if y > 0.5:
        inside = 1 - math.erfc(y / math.sqrt(2))
    else:
        # Integral of e^{-t^2/2} over [-y, y]: an alternating series that shrinks.
        term, total, k = y, y, 0
        while abs(term) > 1e-18 * y:
            k += 1
            term *= -y * y / (2 * k) * (2 * k - 1) / (2 * k + 1)
            total += term
        inside = total * math.sqrt(2 / math.pi)
    return math.log1p(-q) + math.log(inside), 200 * UNIT


def _center_of_atom(rate: float, noise: float, step: float) -> float:
    """log of P over Q of the outcomes of the remove pair within half a step of the usual one.

    Any value serves; the closer it is, the less is lost where most of the mass lies in one cell.
    """
    loss = _log_ratio(rate, (0.0 - 0.5) / noise**2)
    for _ in range(3):
        low, high = (
            _scaled_normal(rate, noise, loss - step / 2),
            _scaled_normal(rate, noise, loss + step / 2),
        )
        under_q = math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))
        low, high = low - 1 / noise, high - 1 / noise
        shifted = math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))
        if under_q < 1e-6:
            break
        loss = math.log1p(rate * (shifted - under_q) / under_q)
    return loss


def _log_ratio(rate: float, exponent: float) -> float:
    return float(np.logaddexp(math.log1p(-rate), math.log(rate) + exponent))


def _scaled_normal(rate: float, noise: float, loss: float) -> float:
    """x / sigma at which log r is ``loss``."""
    odds = math.expm1(min(loss, 700.0)) / rate
    if odds <= -1:
        return -math.inf
    return noise * math.log1p(odds) + 0.5 / noise
