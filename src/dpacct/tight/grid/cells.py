"""Integrals of one round's tilted loss over the cells of a grid, with error bounds.

An outcome with a loss y right of a grid point, 0 <= y <= h, is split between this point and the
next such that its mass under P and under Q is preserved: under P the share
(1 - e^-y) / (1 - e^-h) goes right, and under the tilt e^{cl} another e^{c (h - y)} times that.
What goes to either side from either half of a cell is all that `law` needs. Every term is
non-negative, so that these integrals are accurate relative to the mass of their cell.

Derivation: docs/derivations/grid.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.quadrature import NODES, panel_nodes
from dpacct.numerics.rounding import UNIT, Array
from dpacct.tight.grid.pieces import Piece

# Gauss-Legendre rules on half a cell: positive nodes and their weights, correctly rounded.
_RULES = {
    4: ([0.33998104358485626, 0.8611363115940526], [0.6521451548625461, 0.34785484513745385]),
    6: (
        [0.2386191860831969, 0.6612093864662645, 0.932469514203152],
        [0.46791393457269104, 0.3607615730481386, 0.17132449237917036],
    ),
    10: (
        [
            0.14887433898163122,
            0.4333953941292472,
            0.6794095682990244,
            0.8650633666889845,
            0.9739065285171717,
        ],
        [
            0.29552422471475287,
            0.26926671930999635,
            0.21908636251598204,
            0.1494513491505806,
            0.06667134430868814,
        ],
    ),
}
_BLOCK_NODES = 100_000
_MAX_PANELS = 300_000
# Cells that share a bound of their rounding errors.
_CHUNK = 32
MAX_CELLS = 1 << 21


@dataclass(frozen=True, slots=True)
class Spacing:
    """The grid in the coordinate of a piece: points start + k step, and the tilt.

    ``mirrored``: the loss is a constant minus the coordinate, as in the add direction.
    """

    step: float
    start: float
    tilt: float
    mirrored: bool = False

    def shares(self, offset: Array) -> tuple[Array, Array]:
        """Tilted shares of the right and the left end, ``offset`` right of the left end."""
        h, c = self.step, self.tilt
        scale = -1 / math.expm1(-h)
        right = -np.expm1(-offset) * np.exp(c * (h - offset)) * scale
        left = -np.expm1(offset - h) * np.exp(-(c + 1) * offset) * scale
        return right, left


@dataclass(frozen=True, slots=True)
class Cells:
    """Tilted masses that each cell sends to its ends; cell k lies between points k and k + 1.

    Attributes:
        first: index of the first cell, in increasing order of the loss.
        right, left: what goes to either end from the lower and from the upper half; shape (n, 2).
        error: absolute error bound of each of these and of their sums, shape (n,).
    """

    first: int
    right: Array
    left: Array
    error: Array


def integrate(piece: Piece, spacing: Spacing, tolerance: float, lowest: int | None = None) -> Cells:
    """The cells of one piece.

    Args:
        piece, spacing: what is integrated, and where.
        tolerance: relative quadrature error wanted; what it becomes is in ``error``.
        lowest: the first cell, where the piece has a hard left end at a grid point.
    Raises:
        NotConverged: more than `MAX_CELLS` cells or too many panels, or (1 + tilt) step > 1.
    """
    h, start = spacing.step, spacing.start
    if (1 + spacing.tilt) * h > 1.0:
        raise NotConverged("the step of the grid is too large for the tilt")
    ends = piece.at(np.array([piece.reach.low, piece.reach.high]))[0]
    first = math.floor((float(ends[0]) - start) / h) if lowest is None else lowest
    count = max(1, math.ceil((float(ends[1]) - start) / h) - first)
    if count > MAX_CELLS:
        raise NotConverged(f"the grid of one round needs {count} cells")
    edges = start + h * np.arange(first, first + count + 1.0)
    right, left = np.zeros((count, 2)), np.zeros((count, 2))
    error = np.zeros(count)

    radius = piece.smoothness(edges[:-1], edges[1:], spacing.tilt) / h
    rho = 8 * radius - 6.5
    rough = np.ones(count, dtype=bool)
    for order in _RULES:
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = 12.5 * (rho + 6.5) * np.maximum(rho, 0.5) ** (-2.0 * (order - 1))
        chosen = np.flatnonzero(rough & (rho > 2) & (relative <= tolerance))
        if chosen.size:
            _smooth(piece, spacing, order, edges, chosen, right, left)
            rough[chosen] = False
            error[chosen] = relative[chosen]
    mass = (right + left).sum(axis=1)
    error *= mass
    remaining = np.flatnonzero(rough)
    if remaining.size:
        error[remaining] = _rough(piece, spacing, edges, remaining, right, left)
    mass = (right + left).sum(axis=1)
    starts = np.arange(0, count, _CHUNK)
    ends = np.append(edges[starts[1:]], edges[-1])
    relative = np.repeat(piece.rounding(edges[starts], ends), _CHUNK)[:count]
    error = error * 1.01 + mass * (relative + UNIT * (200 + 8 * spacing.tilt * h))
    if lowest is not None:
        # The hard end is known as well as the start of the grid.
        error[0] += mass[0] * UNIT * 32 * (1 + abs(start) / h)
    if spacing.mirrored:
        # The halves of each cell were told apart in the orientation of the loss already.
        return Cells(-(first + count), right[::-1], left[::-1], error[::-1])
    return Cells(first, right, left, error)


def _smooth(
    piece: Piece,
    spacing: Spacing,
    order: int,
    edges: Array,
    chosen: np.ndarray,
    right: Array,
    left: Array,
) -> None:
    """A rule with ``order`` nodes on each half of the chosen cells."""
    h = spacing.step
    positive, weights = (np.array(part) for part in _RULES[order])
    nodes = np.concatenate([-positive[::-1], positive])
    weights = np.concatenate([weights[::-1], weights]) * (h / 4)
    low = h / 4 * (1 + nodes)
    offsets = np.concatenate([low, h / 2 + low])
    distance = h - offsets if spacing.mirrored else offsets
    to_right, to_left = spacing.shares(distance)
    lower = distance < h / 2
    both = np.concatenate([weights, weights])
    columns = np.stack(
        [
            both * to_right * lower,
            both * to_right * ~lower,
            both * to_left * lower,
            both * to_left * ~lower,
        ],
        axis=1,
    )
    block = max(1, _BLOCK_NODES // len(offsets))
    for begin in range(0, len(chosen), block):
        some = chosen[begin : begin + block]
        sums = piece.density(edges[some, None] + offsets) @ columns
        right[some], left[some] = sums[:, :2], sums[:, 2:]


def _rough(
    piece: Piece, spacing: Spacing, edges: Array, chosen: np.ndarray, right: Array, left: Array
) -> Array:
    """Panels in the other variable on each half of the chosen cells; returns their errors."""
    h, reach = spacing.step, piece.reach
    bounds = edges[chosen, None] + np.array([0.0, h / 2, h])
    bounds = np.clip(piece.panel_variable(bounds), reach.low, reach.high)
    begin, end = bounds[:, :2].ravel(), bounds[:, 1:].ravel()
    cell = np.repeat(chosen, 2)
    upper = np.tile([False, True], len(chosen)) ^ spacing.mirrored
    pieces = np.ceil((end - begin) / piece.panel_width(begin, end)).astype(np.int64)
    if int(pieces.sum()) > _MAX_PANELS:
        raise NotConverged("the loss needs too many panels")
    owner = np.repeat(np.arange(len(begin)), pieces)
    inside = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    width = ((end - begin) / np.maximum(pieces, 1))[owner]
    low = begin[owner] + inside * width
    high = np.where(inside + 1 == pieces[owner], end[owner], low + width)
    error = np.zeros(len(edges) - 1)
    sums = np.zeros((2, 2, len(edges) - 1))
    # On the ellipse around a panel the loss is at most 4 h away from the cell.
    supremum = 4 / -math.expm1(-h) * math.exp(min(6 * (spacing.tilt + 1) * h, 700.0))
    unit_nodes, unit_weights = panel_nodes(np.array([0.0, 2.0]))
    block = max(1, _BLOCK_NODES // NODES)
    for start in range(0, len(owner), block):
        part = slice(start, start + block)
        cells = cell[owner[part]]
        center, half = (low[part] + high[part]) / 2, (high[part] - low[part]) / 2
        nodes, weights = low[part, None] + half[:, None] * unit_nodes, half[:, None] * unit_weights
        coordinate, mass = piece.at(nodes)
        offset = coordinate - edges[cells, None]
        if spacing.mirrored:
            offset = h - offset
        to_right, to_left = spacing.shares(np.clip(offset, 0.0, h))
        mass = mass * weights
        right_part, left_part = (mass * to_right).sum(axis=1), (mass * to_left).sum(axis=1)
        side = upper[owner[part]].astype(np.int64)
        np.add.at(sums[0], (side, cells), right_part)
        np.add.at(sums[1], (side, cells), left_part)
        # The offset is a difference of two coordinates.
        moved = UNIT * 32 * (np.abs(edges[cells]) + abs(spacing.start) + h) / h
        total = mass.sum(axis=1) * math.exp(min((spacing.tilt + 1) * h, 700.0))
        lost = piece.panel_error(center, half) * supremum + moved * total
        np.add.at(error, cells, lost)
    right[chosen], left[chosen] = sums[0].T[chosen], sums[1].T[chosen]
    return error[chosen]
