"""Tilted losses of one kind of round, split into small and large ones by a smooth step.

Large losses start at the edge ``first`` and are weighed by a step there; losses far above any that
matter are faded out by another one, and what is faded out is counted by itself (`huge`). Small and
large ones together are the rest. All integrals run over u = (2x - 1) / (2 sigma^2), by panels.

Where the usual loss is nearly an atom, its characteristic function does not decay. That of the
large losses does: their density is analytic, so the path of integration is moved off the line.

Derivation: docs/derivations/few-large-losses.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.fourier import Weighted, characteristic_shift
from dpacct.numerics.quadrature import ERROR_FACTOR, panel_nodes
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds, ComplexArray, positive_sum
from dpacct.pairs.panels import PanelBounds, node_errors, panel_edges
from dpacct.tight.laws.shifted import PanelMasses
from dpacct.tight.laws.steps import Step
from dpacct.tight.laws.truncated import start_for

_ACCURACY, _MOST_SLACK = 46.0, 0.01
# A panel covers at most this many widths of a step.
_WIDTHS = 1.5
# Phase per panel for which `panel_edges` is made.
_WAVE = 12.0
# Angles in the loss, in units of the width of the steps.
_ANGLES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the losses of one kind of round are split.

    Attributes:
        rate, noise, count: of the round, rate at most 1/2.
        small: the step from small to large.
        first: the u from which on losses may be large.
        sure: the u from which on they surely are, in (first, end].
        faded: the step from large to what is counted by itself.
        fading: the u from which on losses are faded out.
        end: the u beyond which nothing is left, in (first, infinity).
    """

    rate: float
    noise: float
    count: float
    small: Step
    first: float
    sure: float
    faded: Step
    fading: float
    end: float


class Part:
    """Integrals of weight e^{(c + it) loss} over the small or the large losses.

    Args:
        loss, mass: at the nodes; the weights are all positive.
        relative: error of each mass.
        loss_error: error of each loss.
        size: quadrature error of each panel, and the mass left of the first.
        swing: by what these grow where e^{itl} - 1 is integrated.
        log_scale: logarithm of the unit of the masses.
    """

    def __init__(
        self,
        loss: Array,
        mass: Array,
        relative: Array,
        loss_error: Array,
        size: Array,
        swing: Array,
        log_scale: float,
    ) -> None:
        total, sum_error = positive_sum(mass)
        if not total > 0.0:
            raise NotConverged("there are no losses between the steps")
        self.loss, self.weight = loss, mass / total
        self.size = size / total
        common = float(relative @ self.weight) * 1.01 + sum_error + 64 * UNIT
        self.slack = common + float(self.size.sum()) + 1e-290 / total
        if not self.slack <= _MOST_SLACK:
            raise NotConverged("the panels of the losses are too wide")
        self.total = total
        log_total = math.log(total) + log_scale
        rounding = 2 * FUNCTION_ERROR * (abs(math.log(total)) + abs(log_scale))
        off = rounding + 1.01 * self.slack
        self.log_moment = Bounds(np.array(log_total - off), np.array(log_total + off))
        self._relative = relative + self.slack
        self._phase_error = float((loss_error + 8 * UNIT * np.abs(loss)) @ self.weight)
        self._quadrature = float(self.size @ swing)

    def shift(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """phi(t) - 1 at t = k step, phi the mean of e^{itl}, and a bound of its error."""
        law = Weighted(self.loss, self.weight, None, self.weight * self._relative)
        shift, error = characteristic_shift(step, number, law)
        frequencies = step * np.arange(float(number))
        return shift, error + frequencies * self._phase_error + self._quadrature


class SplitLosses:
    """One kind of round under a tilt: the small and the large part of its losses.

    Args:
        cut: the round, and how it is split.
        tilt: c > 0.
        frequency: the largest |t| that will be asked for.
    Raises:
        NotConverged: too many panels would be needed.
    """

    def __init__(self, cut: Cut, tilt: float, frequency: float) -> None:
        q, sigma, a = cut.rate, cut.noise, 1 + tilt
        self._cut, self._tilt, self.count = cut, tilt, cut.count
        reach = math.sqrt(2 * (_ACCURACY + math.log(cut.count)))
        start = start_for(a, q, sigma, reach)
        edges, self._many, last = _edges(cut, a, frequency, start)
        u, weights = panel_nodes(edges)
        loss = np.log1p(q * np.expm1(u))
        exponent = a * loss - (sigma * u + 0.5 / sigma) ** 2 / 2
        top = float(exponent.max())
        mass = weights * np.exp(exponent - top)
        bounds = PanelBounds(q, sigma**2, edges)
        size = 1.02 * ERROR_FACTOR * bounds.half * bounds.peak(a, top)
        loss_error, weight_error = node_errors(q, sigma, edges, u, weights, loss)
        relative = a * loss_error + weight_error + UNIT * (5 * np.abs(a * loss) + 64)
        relative += 2 * UNIT * (np.abs(exponent - top) + abs(top))
        # What is faded out, from the edge ``fading`` on.
        near = (bounds.log_smallest, bounds.log_largest, bounds.angle)
        fade = edges[:-1] >= cut.fading
        mass[fade] *= cut.faded.below(loss[fade])
        relative[fade] += cut.faded.relative_error(loss[fade], loss_error[fade], above=False)
        size[fade] *= cut.faded.below_near(*(part[fade] for part in near))

        # What overflows is no bound worth having, and 1 + wave is finite.
        wave = np.exp(np.minimum(frequency * bounds.angle, 700.0))
        with np.errstate(over="ignore"):
            swing = np.minimum(1 + wave, frequency * bounds.loss * wave)
        log_scale = top + math.log(sigma / math.sqrt(2 * math.pi))
        self._top, self._edges = top, edges
        # Left of the first panel r is less than at its start.
        first = a * math.log1p(q * math.expm1(start)) * (1 - 1e-9)
        tail = math.exp(min(first - reach**2 / 2 - log_scale, 700.0))
        parts: list[Part] = []
        many = self._many
        step = slice(many, last)
        for above, shares in enumerate(cut.small.shares(loss[step])):
            split_error = relative[step] + cut.small.relative_error(
                loss[step], loss_error[step], above=bool(above)
            )
            close = cut.small.above_near if above else cut.small.below_near
            split = (
                loss[step],
                mass[step] * shares,
                split_error,
                loss_error[step],
                size[step] * close(*(part[step] for part in near)),
                swing[step],
            )
            # Small ones are all that is left of the step, large ones all that is right of it.
            rest = slice(last, None) if above else slice(0, many)
            alone = [part[rest] for part in (loss, mass, relative, loss_error, size, swing)]
            whole = [
                np.concatenate([new, old] if above else [old, new])
                for old, new in zip(alone, split, strict=True)
            ]
            if not above:
                # There phi has at most the mass e^(-reach^2 / 2).
                whole[4], whole[5] = np.append(whole[4], tail), np.append(whole[5], 2.1)
            at, weight, spread, moved = (part.ravel() for part in whole[:4])
            parts.append(Part(at, weight, spread, moved, whole[4], whole[5], log_scale))
        self.small, self.large = parts

    def small_panels(self) -> tuple[PanelMasses, float]:
        """The small losses left of the step, all rounded up, and the mass of those in it."""
        cut, small, many = self._cut, self.small, self._many
        each = small.weight.reshape(len(small.size) - 1, -1).sum(axis=1)
        masses = each * (1 + 2 * small.slack) + 2 * small.size[:-1]
        order = 1 + self._tilt
        exponent = order * math.log1p(cut.rate * math.expm1(cut.first)) - self._top
        exponent -= (cut.noise * cut.first + 0.5 / cut.noise) ** 2 / 2
        left = PanelMasses(
            *(order, cut.rate, cut.noise, self._edges[: many + 1]),
            masses=masses[:many],
            tail=2 * float(small.size[-1]),
            end=2 * math.exp(min(exponent, 700.0)) / small.total,
        )
        return left, float(masses[many:].sum()) * (1 + 1e-9)

    def large_decay(self, times: Array) -> Array:
        """Bounds of |phi(t')| of the large losses for every t' >= t."""
        cut = self._cut
        q, sigma = cut.rate, cut.noise
        edges = self._edges[self._many :]
        panels = len(edges) - 1
        each = self.large.weight.reshape(panels, -1).sum(axis=1)
        masses = each * (1 + 2 * self.large.slack) + 2 * self.large.size
        # The share p = q e^u / r, of which (1 - q) e^{-l} is the rest.
        p = 1 / (1 + np.exp(math.log1p(-q) - math.log(q) - edges))
        inverse = cut.small.width**-2 + (cut.faded.width**-2 if cut.fading < cut.end else 0.0)
        corners = self._corners()
        best = np.ones_like(times)
        for unit in _ANGLES:
            angle = unit / math.sqrt(inverse)
            # The argument of 1 - (1 - p) e^{-i angle}: what u turns more than the loss.
            versed = 2 * math.sin(angle / 2) ** 2
            extra = np.arctan2((1 - p) * math.sin(angle), p + (1 - p) * versed)
            turn = (angle + np.maximum(extra, 0.0)) * (1 + 1e-9)
            with np.errstate(over="ignore"):
                growth = np.exp(np.minimum((sigma * turn) ** 2 / 2, 700.0)) * (1 + 1e-9)
            swollen = float(masses @ growth[:-1])
            index = np.searchsorted(edges, np.array([at for at, _ in corners]), side="right") - 1
            floor = sum(
                angle * value * float(growth[k])
                for k, (_, value) in zip(index, corners, strict=True)
            )
            exponent = angle**2 * inverse / 2 - times * angle * (1 - 1e-9)
            # A bound that overflows is none.
            with np.errstate(over="ignore"):
                bound = np.exp(np.minimum(exponent + 1e-9, 700.0)) * swollen + floor
            # On the way to the angle the corners must not grow.
            best = np.minimum(best, np.where(2 * times >= angle * inverse, bound, 1.0))
        return best

    def _corners(self) -> list[tuple[float, float]]:
        """Where the density of large losses jumps, in u, and bounds of the jumps per unit loss."""
        cut = self._cut
        places = np.array([cut.first, cut.sure, cut.fading, cut.end])
        losses = np.log1p(cut.rate * np.expm1(places))
        shares = [
            cut.small.above(losses)[0],
            cut.small.below(losses)[1],
            cut.faded.above(losses)[2],
            1.0,
        ]
        if cut.fading < cut.end:
            shares[3] = cut.faded.below(losses)[3]
        else:
            shares[2] = 0.0
        found: list[tuple[float, float]] = []
        for u, loss, share in zip(places.tolist(), losses.tolist(), shares, strict=True):
            exponent = (1 + self._tilt) * loss - (cut.noise * u + 0.5 / cut.noise) ** 2 / 2
            log_density = exponent - self._top + loss - u - math.log(cut.rate)
            value = math.exp(min(log_density + 1e-6 * (1 + abs(log_density)), 700.0))
            found.append((u, 1.01 * value * float(share) / self.large.total + 1e-280))
        return found


def _edges(cut: Cut, order: float, frequency: float, start: float) -> tuple[Array, int, int]:
    """Edges of panels; how many lie left of the step to large losses, and left of its end.

    Panels are narrow against a step where it varies.
    """
    ends = [cut.sure, cut.end]
    if cut.fading < cut.end:
        ends = sorted({cut.sure, cut.fading, cut.end})
    edges = [panel_edges(order, cut.rate, cut.noise, cut.first, frequency, start)]
    many = last = len(edges[0]) - 1
    at = cut.first
    for end in ends:
        if end <= at:
            # A panel without a width has no relative error.
            continue
        widths = [cut.small.width] if end <= cut.sure else []
        widths += [cut.faded.width] if at >= cut.fading else []
        narrow = max([frequency, *(_WAVE / (_WIDTHS * width) for width in widths)])
        part = panel_edges(order, cut.rate, cut.noise, end, narrow, at)[1:]
        edges.append(part)
        last += len(part) if end <= cut.sure else 0
        at = end
    return np.concatenate(edges), many, last
