"""The likelihood ratio of one epoch of random allocation: a mean of independent ratios.

An example takes part in one of t steps, drawn at random. Under Q the ratio is the mean of t
independent W = exp(x / z - 1 / (2 z^2)), x standard normal, and E W = 1. Two laws of the mean:

* Upper: each W is spread to its two neighbors on a grid with the same mean.
* Lower: each W is replaced by the number of its cell. Masses are kept under Q, and with the mean
  of the sum of ratios ("moment"), from which P follows.

Up to a threshold m the grid is equally spaced, so that sums of small W are convolutions. Few W
exceed m, so sums are split by their number j: t choose j times (small)^(t - j) times (large)^j. All
terms are non-negative and no transform is used, so masses keep their relative accuracy in both
tails.

Of few steps, W near 0 matters too. Then the grid is even in log W throughout, and sums of all pairs
of points are brought back to it.

Of an upper law, W left of the first grid point x_0 counts as that point, and W beyond the last one
M as M:

    E(S - k)_+ <= E(S' - k)_+ + E(W - M)_+,    E(k - S)_+ <= E(k - S')_+ + k t P(W < x_0).

Derivation: docs/derivations/epochs.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpacct.epochs.ratios import (
    TAIL,
    RatioLaw,
    merge_by_loss,
    spread,
    spread_to_losses,
    total_by_number,
)
from dpacct.numerics.quadrature import panel_nodes
from dpacct.numerics.rounding import UNIT, Array
from dpacct.numerics.special import ndtr, ndtri

# Values of x outside have a probability of 8e-24.
_FARTHEST = 10.0
# Expected number of large W, and points of the grid of small ones.
_LARGE, _POINTS = 1e-2, 3000
# Points of a sum above which its grid gets coarser, and of a sum next to large W.
_MOST, _FEW = 8000, 300
# Width in x of the cells of one large W, of those of a sum of several, and of panels.
_CELL, _WIDE_CELLS, _PANEL = 0.01, 6, 0.25
# Steps of the grid of losses in a standard deviation of the loss.
_FINENESS = 100
# Up to this many steps the grid is even in log W, with cells of this width in x.
_FEW_STEPS, _EVEN_CELL = 3, 0.0125


class _Atoms(NamedTuple):
    """Positions of sums of W, their masses under Q, and those times the mean there, shape (n,)."""

    place: Array
    q: Array
    moment: Array


@dataclass(frozen=True, eq=False, slots=True)
class _Sum:
    """The law of a sum on a grid: positions ``origin + spacing i``, and the rest as in `_Atoms`."""

    origin: float
    spacing: float
    q: Array
    moment: Array

    @property
    def atoms(self) -> _Atoms:
        place = self.origin + self.spacing * np.arange(float(len(self.q)))
        return _Atoms(place, self.q, self.moment)


def epoch_law(noise: float, steps: int, *, proven: bool) -> RatioLaw:
    """Return the law of the ratio of an epoch, P against Q in the remove direction.

    Args:
        noise: z, 0.05 to 1e5.
        steps: t, 2 to 1e7.
        proven: True for the upper law, False for the lower one.
    """
    return _Epoch(noise, steps, proven=proven).law()


class _Epoch:
    """The sums of W in an epoch, and what an upper law has lost under P and Q so far."""

    def __init__(self, noise: float, steps: int, *, proven: bool) -> None:
        self._noise, self._steps, self._proven = noise, steps, proven
        self._lost_p = self._lost_q = 0.0
        self._mass_error = 0.0

    def _ratio(self, x: Array | float) -> Array:
        return np.exp(np.asarray(x) / self._noise - 0.5 / self._noise**2)

    def _one_ratio(self, values: Array, cells: Array) -> _Atoms:
        """Return the law of W, spread to ``values`` or merged in cells with these inner edges."""
        z = self._noise
        if not self._proven:
            inner = z * np.log(cells) + 0.5 / z
            edges = np.concatenate([[-_FARTHEST], inner, [_FARTHEST + 1 / z]])
            self._count_rounding(edges)
            return _Atoms(values, *_cell_moments(edges, z))
        edges = z * np.log(values) + 0.5 / z
        self._count_rounding(edges)
        q = _spread_masses(edges, z, values)
        q[0] += float(ndtr(edges[0]))
        q[-1] += float(ndtr(-edges[-1]))
        self._lost_p += float(ndtr(1 / z - edges[-1])) * 1.01
        self._lost_q += self._steps * float(ndtr(edges[0])) * 1.01
        return _Atoms(values, q, q * values)

    def _count_rounding(self, edges: Array) -> None:
        """Charge the relative errors of t masses of one W.

        exp(-x^2 / 2) is off by x^2 roundings, and a node of a cell by |x| / width roundings of its
        distance from an end.
        """
        farthest, least = float(np.abs(edges).max()), float(np.diff(edges).min())
        each = 128 + 16 * farthest**2 + 16 * farthest / least
        self._mass_error += self._steps * UNIT * each

    def _set_one_ratio(self) -> None:
        """Set the laws of one small W and one large W, and the threshold between them."""
        z, t = self._noise, self._steps
        x_large, x_last = -float(ndtri(min(_LARGE / t, 0.1))), _FARTHEST + 1 / z
        least, threshold = float(self._ratio(-_FARTHEST)), float(self._ratio(x_large))
        spacing = (threshold - least) / _POINTS
        small = least + spacing * np.arange(float(_POINTS + 1))
        cells = _WIDE_CELLS * math.ceil((x_last - x_large) / (_WIDE_CELLS * _CELL))
        values = np.append(small, self._ratio(np.linspace(x_large, x_last, cells + 1)[1:]))
        one = self._one_ratio(values, np.append(small + spacing / 2, values[len(small) : -1]))
        many = len(small)
        self._small = _Sum(least, spacing, one.q[:many], one.moment[:many])
        self._large = _Atoms(*(part[many:] for part in one))
        self._threshold = threshold

    def law(self) -> RatioLaw:
        """See `epoch_law`."""
        t = self._steps
        if t <= _FEW_STEPS:
            place, q, moment = self._even_sum()
        else:
            self._set_one_ratio()
            parts = zip(*self._parts(), strict=True)
            place, q, moment = (np.concatenate(column) for column in parts)
        kept = q > 1e-280
        place, q, moment = place[kept], q[kept], moment[kept]
        step = math.sqrt(math.log1p(math.expm1(self._noise**-2) / t)) / _FINENESS
        if not self._proven:
            return merge_by_loss(moment / t, q, step, self._mass_error)
        # Positions are sums of some roundings, and of the positions of t values of W.
        errors = (self._mass_error, UNIT * (64 + 16 / self._noise**2 + 64 / self._noise))
        return spread_to_losses(place / t, q, step, (self._lost_p, self._lost_q), errors)

    def _even_sum(self) -> _Atoms:
        """Return the law of the sum of few W, on a grid even in log W until the last sum."""
        z = self._noise
        cells = math.ceil((2 * _FARTHEST + 1 / z) / _EVEN_CELL)
        x = np.linspace(-_FARTHEST, _FARTHEST + 1 / z, cells + 1)
        middle = x if self._proven else (x[:-1] + x[1:]) / 2
        one = mean = self._one_ratio(self._ratio(middle), self._ratio(x[1:-1]))
        for bit in bin(self._steps)[3:]:
            mean = self._even(_outer(mean, mean))
            if bit == "1":
                mean = self._even(_outer(mean, one))
        return mean

    def _even(self, atoms: _Atoms) -> _Atoms:
        """Return the law on the grid even in log W."""
        step = _EVEN_CELL / self._noise
        place, q, moment = atoms
        self._mass_error += self._steps * UNIT * len(q)
        if self._proven:
            first, masses = spread(np.log(place), q, step)
            grid = np.exp(step * (first + np.arange(float(len(masses)))))
            return _Atoms(grid, masses, masses)
        number = np.rint(np.log(place) / step).astype(np.int64)
        first = int(number.min())
        masses = total_by_number(number - first, q)
        grid = np.exp(step * (first + np.arange(float(len(masses)))))
        return _Atoms(grid, masses, total_by_number(number - first, moment))

    def _parts(self) -> Iterator[_Atoms]:
        """Yield the law of the sum of t values of W by the number of large ones."""
        several = self._large
        for j, small in enumerate(self._small_sums()):
            weight = float(math.comb(self._steps, j))
            if j == 0:
                yield small.atoms
                continue
            if j > 1:
                # One large W alone is on a finer grid.
                large = self._on_wide_cells(self._large, 1, weight)
                both = _outer(large if j == 2 else several, large)
                several = self._on_wide_cells(both, j, weight)
            blocks = -(-len(small.q) // _FEW)
            yield _outer(self._coarser(small, blocks).atoms, several, weight)

    def _small_sums(self) -> list[_Sum]:
        """Return the laws of t - j small W for each number j of large ones that matters."""
        t, rho = self._steps, float(self._large.q.sum())
        most, left_out = 0, 1.0
        while left_out > TAIL and most < t:
            most += 1
            left_out *= (t - most + 1) * rho / most
        if most < t:
            # C(t, j) rho^j bounds what is left out under Q, and under P, where one W has its own
            # law and may surely be large.
            self._lost_p += 1.01 * left_out
            self._lost_q += 1.01 * left_out
        empty = _Sum(0.0, self._small.spacing, np.ones(1), np.zeros(1))
        sums = [self._power(t - most) if t > most else empty]
        for done in range(t - most, t):
            before = sums[-1]
            sums.append(self._product(before, self._small, done) if done else self._small)
        return sums[::-1]

    def _power(self, count: int) -> _Sum:
        """Return the law of a sum of ``count`` small W, by doubling and adding one."""
        power, done = self._small, 1
        for bit in bin(count)[3:]:
            power, done = self._product(power, power, done), 2 * done
            if bit == "1":
                power, done = self._product(power, self._small, done), done + 1
        return power

    def _product(self, first: _Sum, second: _Sum, done: int) -> _Sum:
        """Return the law of the sum of two independent sums, ``done`` values of W in the first."""
        q = np.convolve(first.q, second.q)
        if self._proven:
            moment = q
        elif first is second:
            moment = 2 * np.convolve(first.moment, first.q)
        else:
            moment = np.convolve(first.moment, second.q) + np.convolve(first.q, second.moment)
        copies = self._steps / done
        self._mass_error += copies * UNIT * 2 * min(len(first.q), len(second.q))
        whole = _Sum(first.origin + second.origin, first.spacing, q, moment)
        product = self._without_ends(whole, copies)
        if len(product.q) > _MOST:
            product, self._small = self._coarser(product, 2), self._coarser(self._small, 2)
        return product

    def _without_ends(self, whole: _Sum, copies: float) -> _Sum:
        """Return the law without its far ends, each of which counts as the nearest place left.

        ``copies``: how many such sums an epoch has, at most. All of them are charged.
        """
        place, q, moment = whole.atoms
        beyond = np.cumsum((q * place)[::-1])[::-1]
        high = max(int(np.count_nonzero(beyond > TAIL)), 1)
        low = min(int(np.count_nonzero(np.cumsum(q) <= TAIL)), high - 1)
        kept, kept_moment = q[low:high].copy(), moment[low:high].copy()
        left = float(q[:low].sum())
        kept[0] += left
        kept[-1] += float(q[high:].sum())
        if self._proven:
            self._lost_q += 1.01 * copies * left
            if high < len(q):
                self._lost_p += 1.01 * copies * float(beyond[high]) / self._steps
        kept_moment[0] += float(moment[:low].sum())
        kept_moment[-1] += float(moment[high:].sum())
        return _Sum(float(place[low]), whole.spacing, kept, kept_moment)

    def _coarser(self, whole: _Sum, factor: int) -> _Sum:
        """Return the law on every so many points: spread to them, or merged with neighbors."""
        if factor == 1:
            return whole
        blocks = -(-len(whole.q) // factor)
        spare = (0, blocks * factor - len(whole.q))
        q = np.pad(whole.q, spare).reshape(blocks, factor)
        spacing = factor * whole.spacing
        if self._proven:
            share = np.arange(factor) / factor
            masses = np.append(q @ (1 - share), 0.0)
            masses[1:] += q @ share
            return _Sum(whole.origin, spacing, masses, masses)
        moment = np.pad(whole.moment, spare).reshape(blocks, factor).sum(axis=1)
        middle = whole.origin + (spacing - whole.spacing) / 2
        return _Sum(middle, spacing, q.sum(axis=1), moment)

    def _on_wide_cells(self, atoms: _Atoms, number: int, weight: float) -> _Atoms:
        """Return the law of a sum of ``number`` large W on wide cells.

        ``weight``: how often such a sum occurs in an epoch. The excess over the last cell is
        charged so often.
        """
        place, q, moment = atoms
        values = np.append(self._threshold, self._large.place[_WIDE_CELLS - 1 :: _WIDE_CELLS])
        grid = (number - 1) * self._threshold + values
        at = np.clip(np.searchsorted(grid, place, "right") - 1, 0, len(grid) - 2)
        if not self._proven:
            length = len(grid) - 1
            return _Atoms(
                grid[:-1], total_by_number(at, q, length), total_by_number(at, moment, length)
            )
        excess = float(q @ np.maximum(place - grid[-1], 0.0))
        self._lost_p += 1.01 * weight * excess / self._steps
        high = np.clip((place - grid[at]) / (grid[at + 1] - grid[at]), 0.0, 1.0)
        masses = total_by_number(at, q * (1 - high), len(grid)) + total_by_number(at + 1, q * high)
        return _Atoms(grid, masses, masses)


def _outer(first: _Atoms, second: _Atoms, weight: float = 1.0) -> _Atoms:
    """Return the law of the sum of two independent sums, of ``weight`` times the mass."""
    place = np.add.outer(first.place, second.place).ravel()
    q = np.multiply.outer(weight * first.q, second.q).ravel()
    moment = np.multiply.outer(weight * first.moment, second.q)
    moment += np.multiply.outer(weight * first.q, second.moment)
    return _Atoms(place, q, moment.ravel())


def _panels(edges: Array) -> tuple[Array, Array, NDArray[np.int64]]:
    """Return nodes and weights times phi on panels that split the cells, and the panels' cells.

    Error: a panel has a width of at most 1/4 in x. In its Bernstein ellipse |phi| exceeds the
        least phi on the panel by less than e^8, and linear factors that vanish at an end by less
        than 100 times their mean, so that the rule is off by less than 1e-17 relative.
    """
    number = np.maximum(np.ceil(np.diff(edges) / _PANEL), 1).astype(np.int64)
    cell = np.repeat(np.arange(len(number)), number)
    share = (np.arange(len(cell)) - np.repeat(np.cumsum(number) - number, number)) / number[cell]
    x, weights = panel_nodes(np.append(edges[cell] + share * np.diff(edges)[cell], edges[-1]))
    return x, weights * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi), cell


def _spread_masses(edges: Array, z: float, values: Array) -> Array:
    """Return the masses of W, spread to the ends of its cells with the same mean, shape (n,).

    No difference of near values is taken: W - k = k (e^{(x - x_k) / z} - 1).
    """
    x, density, cell = _panels(edges)
    density /= np.diff(values)[cell][:, None]
    low, high = ((values[at][:, None], edges[at][:, None]) for at in (cell, cell + 1))
    to_high = (density * low[0] * np.expm1((x - low[1]) / z)).sum(axis=1)
    to_low = (density * -high[0] * np.expm1((x - high[1]) / z)).sum(axis=1)
    return total_by_number(cell, to_low, len(edges)) + total_by_number(
        cell + 1, to_high, len(edges)
    )


def _cell_moments(edges: Array, z: float) -> tuple[Array, Array]:
    """Return the mass of each cell, and that times the mean of W there, shape (n - 1,)."""
    x, density, cell = _panels(edges)
    ratio = np.exp(x / z - 0.5 / z**2)
    moment = total_by_number(cell, (density * ratio).sum(axis=1))
    return total_by_number(cell, density.sum(axis=1)), moment
