"""delta(eps) of a composition on a grid of losses: the engine for losses that are nearly atoms.

Each round's loss, weighted by e^{cL}, becomes two grid laws, one above and one below it
(`law`); both are composed by Fourier transform (`transform`). With the masses v_k of the
composed law at losses l_k,

    delta(eps) = scale * sum over l_k > eps of v_k e^{-c l_k} (1 - e^{eps - l_k}).

Everything is relative to M(c) e^{-c eps}, so that small deltas keep their digits. Truncation,
wrap-around and rounding are charged: docs/derivations/grid.md.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT
from dpacct.numerics.search import bracket_root
from dpacct.tight.composition import Composition
from dpacct.tight.grid.plan import GridPlan, Side, make_plan, masses_of, predict_cells
from dpacct.tight.grid.transform import Factor, compose
from dpacct.tight.saddle import (
    epsilon_estimate,
    log_chernoff_factor,
    log_delta_estimate,
    tilt_at_delta,
    tilt_at_epsilon,
)

# Relative width of epsilon that steps are chosen for, and the one that sends for smaller ones.
_AIM, _WIDE = 7e-7, 1e-6
_LEAST_EPSILON = 1e-5
_ATTEMPTS = 4
# An attempt that leaves more of the width than this was the last.
_WORTH = 0.7
# What is left out is about e^-32 of delta.
_ACCURACY = 32.0
# Beyond such a tilt one cell already holds too many factors e^{cL}; every tilt proves something.
_LARGEST_TILT = math.exp(14.0)
# Terms further out than this in c (l - eps) are bounded by their masses.
_DECAY = 45.0
# Smaller tilts, and tilts whose Chernoff bounds say how far the total loss reaches.
_LESS, _MORE = (0.25, 0.35, 0.5, 0.7, 0.85), (1.0, 1.2, 1.5, 2.0, 3.0)
_LOOSE = 8.0


class _Side:
    """The upper or the lower law of a composition."""

    def __init__(self, plan: GridPlan, side: Side) -> None:
        c, h = plan.tilt, plan.step
        self._tilt, self._step, self._first = c, h, plan.first
        factors: list[Factor] = []
        scale: list[float] = []
        scale_error = 0.0
        for law, count in plan.laws:
            masses = masses_of(law, side)
            total = float(masses.sum())
            factors.append(Factor(law.masses.first, masses / total, count))
            scale.append(count * (law.log_scale + math.log(total)))
            scale_error += count * (law.log_scale_error + UNIT * (8 * abs(math.log(total)) + 4))
        self.log_scale: float = math.fsum(scale)
        self.log_scale_error: float = scale_error + 4 * UNIT * sum(map(abs, scale))
        composed = compose(factors, plan.first, plan.size)
        self._masses, self._error = composed.masses, composed.error
        self._offset = plan.offset
        terms = min(plan.size, math.ceil(_DECAY / (c * h)) + 2)
        self._decay = np.exp(-c * h * np.arange(terms))

    def sum(self, epsilon: float) -> tuple[float, float]:
        """sum of v_k e^{-c (l_k - eps)} (1 - e^{eps - l_k}) over l_k > eps, and its error."""
        c, h = self._tilt, self._step
        begin = max(0, math.floor((epsilon - self._offset) / h) - self._first)
        masses = self._masses[begin : begin + len(self._decay)]
        if not len(masses):
            return 0.0, math.exp(-_DECAY)
        above = self._offset + h * (self._first + begin) - epsilon
        # The first term may lie just below epsilon and counts for nothing then.
        gap = np.maximum(above + h * np.arange(len(masses)), 0.0)
        weight = self._decay[: len(masses)] * -np.expm1(-gap)
        weight *= math.exp(-c * above)
        value = float(weight @ masses)
        # Rounding of the weights is relative; the sum runs over n terms.
        rounding = (2 * len(masses) + 8 * _DECAY + 64) * UNIT
        size = float(weight @ np.abs(masses))
        error = self._error * float(np.linalg.norm(weight)) * 1.01 + rounding * size
        return value, error + 1.1 * math.exp(-_DECAY)


class GridLoss:
    """Both composed laws of a plan, ready for any epsilon."""

    def __init__(self, plan: GridPlan) -> None:
        self.plan: GridPlan = plan
        self._upper, self._lower = _Side(plan, "upper"), _Side(plan, "lower")
        ratio = self._upper.log_scale - self._lower.log_scale
        beyond = sum(n * law.beyond / float(law.masses.upper.sum()) for law, n in plan.laws)
        excess = sum(n * law.masses.excess / float(law.masses.upper.sum()) for law, n in plan.laws)
        if beyond > 0.01 or excess > 0.01 or ratio > 20.0:
            raise NotConverged("the grid is too coarse for this composition")
        largest = math.exp(log_chernoff_factor(plan.tilt)) * (1 + 1e-9)
        self._lost = largest * (plan.outside + 1.1 * beyond)
        self._excess = largest * (plan.outside + 1.1 * excess * math.exp(max(ratio, 0.0)))
        size = abs(plan.offset) + plan.step * (abs(plan.first) + plan.size)
        self._shift = 8 * UNIT * size + sum(
            n * (law.offset_error + 4 * UNIT * abs(law.offset)) for law, n in plan.laws
        )

    def log_upper(self, epsilon: float) -> float:
        """Upper bound of log delta(eps)."""
        at = max(0.0, epsilon - self._shift)
        value, error = self._upper.sum(at)
        return self._unscaled(self._upper, at, max(0.0, value) + error + self._lost, 1)

    def log_lower(self, epsilon: float) -> float:
        """Lower bound of log delta(eps), minus infinity where nothing is known."""
        at = epsilon + self._shift
        value, error = self._lower.sum(at)
        positive = value - error - self._excess
        if positive <= 0:
            return -math.inf
        return self._unscaled(self._lower, at, positive, -1)

    def _unscaled(self, side: _Side, epsilon: float, value: float, sign: int) -> float:
        exponent = self.plan.tilt * epsilon
        size = abs(side.log_scale) + exponent + abs(math.log(value)) + 1
        error = side.log_scale_error + 16 * UNIT * size
        return side.log_scale - exponent + math.log(value) + sign * error

    def delta(self, epsilon: float) -> Interval:
        """Both bounds of delta at one epsilon >= 0."""
        # Never rounded down to zero.
        upper = math.exp(max(min(0.0, self.log_upper(epsilon)), -700.0)) * (1 + 16 * UNIT)
        lower = math.exp(min(0.0, self.log_lower(epsilon))) * (1 - 16 * UNIT)
        return Interval.bracket(min(1.0, lower), min(1.0, upper))

    def epsilon(self, log_delta: float, guess: float, most: float) -> Interval:
        """Where both bounds cross e^log_delta; found from a guess > 0, at most ``most``."""
        slack = 4 * UNIT * abs(log_delta)

        def above(epsilon: float) -> float:
            return self.log_upper(epsilon) - log_delta + slack

        def below(epsilon: float) -> float:
            return self.log_lower(epsilon) - log_delta - slack

        tolerance = 1e-9 * guess
        move = above(guess) / self.plan.tilt
        start, width = max(guess + move, 0.0), 0.1 * abs(move) + 4 * tolerance
        upper = bracket_root(above, start, (0.0, min(most, 1e9)), tolerance, width)[1]
        if upper <= 0:
            return Interval(0.0, 0.0)
        if above(upper) > 0:
            upper = most
        move = below(upper) / self.plan.tilt if math.isfinite(below(upper)) else -guess / 8
        start, width = max(upper + move, 0.0), 0.1 * abs(move) + 4 * tolerance
        lower = bracket_root(below, start, (0.0, upper), tolerance, width)[0]
        return Interval(lower if below(lower) > 0 else 0.0, upper)


def _narrower_tilt(composition: Composition, tilt: float, epsilon: float) -> float:
    """``tilt``, or less where that makes the total loss reach much less far.

    Next to a phase where few rounds would explain a large loss, the best Chernoff bound puts some
    mass there, which widens the window for nothing.
    """
    tilts = tilt * np.array(_LESS + _MORE)
    try:
        log_moment = composition.log_moment(tilts).upper
    except NotConverged:
        return min(tilt, _LARGEST_TILT)
    bound = log_moment + np.array([log_chernoff_factor(float(c)) for c in tilts]) - tilts * epsilon
    candidates: list[tuple[float, float]] = []
    for k in range(len(_LESS) + 1):
        if bound[k] <= np.min(bound) + _LOOSE:
            far = (log_moment[k + 1 :] - log_moment[k] + _ACCURACY) / (tilts[k + 1 :] - tilts[k])
            candidates.append((float(np.min(far)) - epsilon, float(tilts[k])))
    nearest = min((reach for reach, _ in candidates), default=0.0)
    near = max((c for reach, c in candidates if reach <= 1.5 * nearest), default=tilt)
    return min(near, _LARGEST_TILT)


def _loose(composition: Composition, tilt: float, epsilon: float, log_delta: float) -> float:
    """How far Chernoff's bound lies above delta, in logarithms; at least 0."""
    log_moment = float(composition.log_moment(tilt).upper)
    return max(0.0, log_moment + log_chernoff_factor(tilt) - tilt * epsilon - log_delta)


def grid_delta(composition: Composition, epsilon: float, step: float | None = None) -> Interval:
    """delta(eps) of one direction of a composition, eps >= 0.

    Args:
        composition: what is composed.
        epsilon: where.
        step: of the grid; chosen such that the width is about 1e-6, if affordable.
    Error: inside the interval, which narrows with the square of the step.
    Raises:
        NotConverged: the grid would be too large.
    Source: docs/derivations/grid.md.
    """
    if epsilon >= composition.largest_loss:
        return Interval(0.0, 0.0)
    tilt, _ = tilt_at_epsilon(composition, epsilon)
    tilt = _narrower_tilt(composition, tilt, epsilon)
    log_delta = log_delta_estimate(tilt, composition.cumulants(tilt), epsilon)
    width = _AIM * max(1.0, tilt * epsilon)
    best, start, before = Interval(0.0, 1.0), math.inf, math.inf
    for _ in range(_ATTEMPTS):
        accuracy = _ACCURACY + _loose(composition, tilt, epsilon, log_delta)
        plan = make_plan(composition, tilt, width, accuracy, step, start)
        found = GridLoss(plan).delta(epsilon)
        best = Interval.bracket(max(best.lower, found.lower), min(best.upper, found.upper))
        gap = best.upper - best.lower
        wide = _WIDE * max(1.0, tilt * epsilon) * best.upper
        if gap <= wide or gap > _WORTH * before or plan.step <= 1.05 * plan.finest:
            break
        before = gap
        log_delta = math.log(max(best.upper, 1e-300))
        width, start = _finer(width, plan, 0.5 * wide / gap)
    return best


def grid_epsilon(composition: Composition, delta: float, step: float | None = None) -> Interval:
    """eps(delta) of one direction of a composition, at least 0; see `grid_delta`."""
    most = composition.largest_loss
    if most == 0.0:
        return Interval(0.0, 0.0)
    log_delta = math.log(delta)
    tilt, guess = _start(composition, log_delta)
    width = _AIM * tilt * guess
    best, start, before = Interval(0.0, most), math.inf, math.inf
    for _ in range(_ATTEMPTS):
        accuracy = _ACCURACY + _loose(composition, tilt, guess, log_delta)
        plan = make_plan(composition, tilt, width, accuracy, step, start)
        found = GridLoss(plan).epsilon(log_delta, guess, most)
        best = Interval.bracket(max(best.lower, found.lower), min(best.upper, found.upper))
        gap = best.upper - best.lower
        enough = _WIDE * max(best.upper, _LEAST_EPSILON)
        if gap <= enough or gap > _WORTH * before or plan.step <= 1.05 * plan.finest:
            break
        before = gap
        guess = min(max(best.upper, _LEAST_EPSILON), most)
        width, start = _finer(width, plan, 0.5 * enough / gap)
    return best


def predicted_cells(composition: Composition, delta: float) -> float:
    """How many cells `grid_epsilon` would want: its cost, known in a few milliseconds.

    Above `MAX_CELLS` the bracket is wider than 1e-6 in proportion to the square.
    """
    log_delta = math.log(delta)
    tilt, guess = _start(composition, log_delta)
    accuracy = _ACCURACY + _loose(composition, tilt, guess, log_delta)
    return predict_cells(composition, tilt, _AIM * tilt * guess, accuracy)


def _start(composition: Composition, log_delta: float) -> tuple[float, float]:
    """The tilt, and an epsilon near the answer."""
    tilt, at = tilt_at_delta(composition, log_delta)
    guess = max(epsilon_estimate(tilt, at, log_delta), _LEAST_EPSILON)
    guess = min(guess, composition.largest_loss)
    return _narrower_tilt(composition, tilt, guess), guess


def _finer(width: float, plan: GridPlan, ratio: float) -> tuple[float, float]:
    """The gap and the first step of the next attempt."""
    step = plan.step * max(math.sqrt(ratio), 1 / 64)
    return width * ratio, max(step, 1.02 * plan.finest)
