"""Where and how finely the grid engine looks: the step, and the window of the total loss.

The logarithm of M(c) of the upper law over that of the lower one is, divided by c, about the width
of epsilon. It is known before anything is composed, so that the step is chosen by it.

Derivation: docs/derivations/grid.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array
from dpacct.numerics.search import minimize_unimodal
from dpacct.tight.composition import Composition
from dpacct.tight.grid.cells import MAX_CELLS
from dpacct.tight.grid.law import GridLaw, gaussian_law, sampled_law, symmetrized_law
from dpacct.tight.grid.masses import EXCESS_COST

Side = Literal["upper", "lower"]
Laws = list[tuple[GridLaw, int]]

# One round's tails, relative to the wrap-around.
_TAILS = 2.0
_MAX_BUILDS = 10
# Gap of log M(c) from which on it is extrapolated.
_COARSE = 0.01
# Points kept of each law to choose the ends of the window.
_THINNED = 1000


@dataclass(frozen=True, slots=True)
class GridPlan:
    """A composition on a grid, and the window of its total loss.

    Attributes:
        tilt: c.
        step: h.
        laws: the rounds on the grid, with their counts.
        offset: loss of the point 0 of the total.
        first, size: the window, in points.
        outside: bound of the tilted mass outside.
        finest: the smallest step that is affordable.
    """

    tilt: float
    step: float
    laws: Laws
    offset: float
    first: int
    size: int
    outside: float
    finest: float


def masses_of(law: GridLaw, side: Side) -> Array:
    """One of both laws."""
    return law.masses.upper if side == "upper" else law.masses.lower


def make_plan(
    composition: Composition,
    tilt: float,
    log_width: float,
    accuracy: float,
    step: float | None = None,
    start: float = math.inf,
) -> GridPlan:
    """A plan whose two sides of log M(c) differ by at most ``log_width``, if that is affordable.

    Args:
        composition, tilt: what is composed, under which c > 0.
        log_width: see above; where the grid would be too large, the finest that is not.
        accuracy: tilted mass of about e^-accuracy is left out.
        step: fixes the step instead.
        start: the first step to try.
    Raises:
        NotConverged: the grid would be too large with the step given, or too coarse to be useful.
    """
    if step is not None:
        fixed = few_bits(step)
        laws = _grid_laws(composition, tilt, fixed, accuracy)
        ends = _choose_ends(laws, fixed, accuracy)
        return _with_window(tilt, fixed, laws, ends, accuracy, fixed)
    step = few_bits(min(start, _first_step(composition, tilt)))
    for _ in range(_MAX_BUILDS):
        laws = _grid_laws(composition, tilt, step, accuracy)
        gap = log_gap(laws)
        if not math.isfinite(gap):
            step = few_bits(step / 32)
            continue
        ends = _choose_ends(laws, step, accuracy)
        finest = _finest(laws, step, _window(laws, step, ends, accuracy))
        if step < finest:
            step = few_bits(1.03 * finest)
        elif gap <= log_width or step <= 1.05 * finest:
            return _with_window(tilt, step, laws, ends, accuracy, finest)
        else:
            shrink = max(0.9 * math.sqrt(log_width / gap), 1 / 64)
            step = few_bits(max(1.02 * finest, step * shrink))
    raise NotConverged("no step of the grid is fine enough")


def _first_step(composition: Composition, tilt: float) -> float:
    """A coarse step, small against the spread of the loss and of its weights."""
    return min(0.25 / (1 + tilt), math.sqrt(composition.cumulants(tilt).variance))


def _finest(laws: Laws, step: float, window: tuple[float, float]) -> float:
    """The smallest step that is affordable."""
    widest = step * max(len(law.masses.upper) for law, _ in laws)
    return max((window[1] - window[0]) / (0.98 * MAX_CELLS), widest / (0.5 * MAX_CELLS))


def predict_cells(
    composition: Composition, tilt: float, log_width: float, accuracy: float
) -> float:
    """How many cells `make_plan` would want: from a coarse grid, as the gap goes like step^2."""
    step = few_bits(_first_step(composition, tilt))
    for _ in range(_MAX_BUILDS):
        laws = _grid_laws(composition, tilt, step, accuracy)
        gap = log_gap(laws)
        if gap < _COARSE:
            ends = _choose_ends(laws, step, accuracy)
            bottom, top = _window(laws, step, ends, accuracy)
            widest = 2 * step * max(len(law.masses.upper) for law, _ in laws)
            return max(widest, top - bottom) / (step * min(1.0, math.sqrt(log_width / gap)))
        shrink = max(math.sqrt(0.5 * _COARSE / gap), 1 / 64) if math.isfinite(gap) else 1 / 8
        step = few_bits(step * shrink)
    raise NotConverged("no step of the grid is fine enough")


def few_bits(step: float) -> float:
    """At most ``step``, with 20 significant bits, so that multiples of it are exact."""
    mantissa, exponent = math.frexp(step)
    return math.ldexp(math.floor(mantissa * 2**20) / 2**20, exponent)


def log_gap(laws: Laws) -> float:
    """Logarithm of the ratio of the upper and the lower M(c); infinite where a law is empty."""
    gap = 0.0
    for law, count in laws:
        low = float(law.masses.lower.sum()) - EXCESS_COST * law.masses.excess
        if low <= 0:
            return math.inf
        gap += count * math.log(float(law.masses.upper.sum()) / low)
    return gap


def _grid_laws(composition: Composition, tilt: float, step: float, accuracy: float) -> Laws:
    if composition.replaced.rates.size:
        raise NotConverged("there is no grid for the losses of replaced clients")
    rounds = composition.sampled_rounds + 1
    accuracy += _TAILS + math.log(rounds)
    tolerance = max(1e-14, min(1e-11, 1e-9 / rounds))
    found: Laws = []
    for rate, noise, count in zip(
        composition.rates.tolist(),
        composition.noise.tolist(),
        composition.counts.tolist(),
        strict=True,
    ):
        law = sampled_law(rate, noise, composition.direction, tilt, step, accuracy, tolerance)
        found.append((law, int(count)))
    if composition.precision > 0:
        full, kinds = composition.precision, composition.kinds
        law = gaussian_law(full, kinds, tilt, step, accuracy, tolerance)
        found.append((law, 1))
    for pair, count in composition.symmetrized:
        found.append((symmetrized_law(pair, tilt, step, accuracy, tolerance), count))
    return found


def _log_growth(masses: Array, law: GridLaw, tilt: float, step: float) -> float:
    """Upper bound of log of the mean of e^{tilt loss} under the masses."""
    loss = law.offset + step * (law.masses.first + np.arange(len(masses)))
    with np.errstate(divide="ignore"):
        exponent = tilt * loss + np.log(masses)
    top = float(np.max(exponent))
    mean = float(np.exp(exponent - top).sum()) / float(masses.sum())
    size = abs(tilt) * float(np.max(np.abs(loss)))
    # Masses below 1e-320 have logarithms beyond -740.
    return top + math.log(mean) + UNIT * (16 * size + 8 * len(masses) + 8000)


def _total_growth(laws: Laws, tilt: float, step: float) -> float:
    """Upper bound of log E e^{tilt loss} of the tilted total, of the upper and the lower law."""
    upper = math.fsum(n * _log_growth(law.masses.upper, law, tilt, step) for law, n in laws)
    lower = math.fsum(n * _log_growth(law.masses.lower, law, tilt, step) for law, n in laws)
    return max(upper, lower)


def _choose_ends(laws: Laws, step: float, accuracy: float) -> tuple[float, float]:
    """The tilts, added and subtracted, whose Chernoff bounds make the window narrow."""
    thinned: list[tuple[Array, Array, int]] = []
    variance = 0.0
    for law, count in laws:
        masses = law.masses.upper
        size = 1 + len(masses) // _THINNED
        starts = np.arange(0, len(masses), size)
        bins = np.add.reduceat(masses / float(masses.sum()), starts)
        masses = np.asarray(np.maximum(bins, 1e-300), dtype=np.float64)
        middle = law.masses.first + starts + size / 2
        loss = np.asarray(law.offset + step * middle, dtype=np.float64)
        variance += count * float(masses @ (loss - float(masses @ loss)) ** 2)
        thinned.append((masses, loss, count))

    def reach(tilt: float) -> float:
        total = 0.0
        for masses, loss, count in thinned:
            exponent = tilt * loss + np.log(masses)
            top = float(np.max(exponent))
            total += count * (top + math.log(float(np.exp(exponent - top).sum())))
        return (total + accuracy) / abs(tilt)

    base = math.log(2 * accuracy / max(variance, step**2)) / 2
    high = minimize_unimodal(lambda t: reach(math.exp(t)), base, (base - 9, base + 9), 0.1)
    low = minimize_unimodal(lambda t: reach(-math.exp(t)), base, (base - 9, base + 9), 0.1)
    return math.exp(high), math.exp(low)


def _window(
    laws: Laws, step: float, ends: tuple[float, float], accuracy: float
) -> tuple[float, float]:
    """Losses below and above which the total has tilted mass of at most e^-accuracy each."""
    high, low = ends
    top = (_total_growth(laws, high, step) + accuracy) / high
    bottom = -(_total_growth(laws, -low, step) + accuracy) / low
    return bottom, top


def _with_window(
    tilt: float,
    step: float,
    laws: Laws,
    ends: tuple[float, float],
    accuracy: float,
    finest: float,
) -> GridPlan:
    bottom, top = _window(laws, step, ends, accuracy)
    cells = (top - bottom) / step + 4
    if cells > MAX_CELLS:
        raise NotConverged(f"the grid needs {cells:.3g} cells, more than {MAX_CELLS}")
    size = 1 << max(4, math.ceil(math.log2(max(cells, 1.0))))
    offset = math.fsum(n * law.offset for law, n in laws)
    first = math.floor((bottom - offset) / step - (size - cells) / 2) - 2
    outside = 2.1 * math.exp(-accuracy)
    return GridPlan(tilt, step, laws, offset, first, size, outside, finest)
