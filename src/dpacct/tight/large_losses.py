"""One kind of round, its losses split into small, large and very large ones by smooth steps.

Large losses start at the edge ``first`` and are weighed by a step there. Another step fades out
losses far above any that matter. Faded losses are counted by their mass. Where the usual
loss is nearly an atom, its characteristic function does not decay. That of the large losses does:
their density is analytic, so the path of integration is moved off the line. All integrals run over
u = (2x - 1) / (2 sigma^2), by panels.

Derivation: docs/derivations/few-large-losses.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.quadrature import ERROR_FACTOR, panel_nodes
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array
from dpacct.pairs.dominating import AchievedPair
from dpacct.pairs.panels import LossFunction
from dpacct.tight.laws import PanelIntegrand, PanelLaw, PanelMasses, lost_mass, reach_for


@dataclass(frozen=True, slots=True)
class Step:
    """Phi((loss - center) / width), both in units of the loss and above 0."""

    center: float
    width: float

    def above(self, loss: Array) -> Array:
        """Return the step itself: the share that counts as large."""
        return self.shares(loss)[1]

    def below(self, loss: Array) -> Array:
        """Return one minus the step."""
        return self.shares(loss)[0]

    def shares(self, loss: Array) -> tuple[Array, Array]:
        """Return one minus the step, and the step, each to its own relative accuracy."""
        x = (loss - self.center) / self.width
        least = tails(np.abs(x))
        return np.where(x > 0, least, 1 - least), np.where(x > 0, 1 - least, least)

    def relative_error(self, loss: Array, loss_error: Array, *, above: bool) -> Array:
        """Return the relative error of either share, from the absolute error of the loss."""
        at = (self.center - loss if above else loss - self.center) / self.width
        moved = (loss_error + 4 * UNIT * (np.abs(loss) + self.center)) / self.width
        # The tail of a Gaussian falls at x by less than the share max(x, 0) + 1 per unit.
        rate = (np.maximum(at, 0.0) + 1) * (moved + 4 * UNIT * np.abs(at)) * 1.1
        # The larger share is one minus the other, which is at most a half.
        return rate + FUNCTION_ERROR + 2 * UNIT

    def above_near(self, low: Array, high: Array, angle: Array) -> Array:
        """Bound of |step| where the real part of the loss is in [low, high], the other <= angle."""
        return self._near(
            (self.center - high) / self.width, (low - self.center) / self.width, angle
        )

    def below_near(self, low: Array, high: Array, angle: Array) -> Array:
        """Return a bound of one minus the step there."""
        return self._near(
            (low - self.center) / self.width, (self.center - high) / self.width, angle
        )

    def _near(self, largest: Array, other: Array, angle: Array) -> Array:
        growth = np.exp(np.minimum((angle / self.width) ** 2 / 2, 700.0))
        direct, indirect = tails(largest) * growth, 1 + tails(other) * growth
        return np.minimum(direct, indirect) * (1 + 1e-9) + 1e-300


def tails(x: Array) -> Array:
    """Return 1 - Phi(x), to the accuracy of `math.erfc`. Below 1e-300 the result may be 0."""
    scaled = (x * math.sqrt(0.5)).ravel()
    found = np.fromiter(map(math.erfc, scaled.tolist()), np.float64, scaled.size)
    return 0.5 * found.reshape(np.shape(x))


# A panel covers at most this many widths of a step.
_WIDTHS = 1.5
# Phase per panel for which `panel_edges` is made.
_WAVE = 12.0
# Angles in the loss, in units of the width of the steps.
# Branch points lie at pi where a client is replaced.
_FARTHEST = 3.0
_ANGLES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)


@dataclass(frozen=True, slots=True)
class Cut:
    """A split of the losses of one kind of round.

    Attributes:
        pair, count: of the round: remove or replacement, rate at most 1/2.
        small: the step from small to large.
        first: the u from which on losses may be large.
        sure: the u from which on they surely are, in (first, end].
        faded: the step from large losses to losses that are counted by mass.
        fading: the u from which on losses are faded out.
        end: the u beyond which nothing is left, in (first, infinity).
    """

    pair: AchievedPair
    count: float
    small: Step
    first: float
    sure: float
    faded: Step
    fading: float
    end: float


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
        self._cut, self._tilt, self.count = cut, tilt, cut.count
        self._pair, reach = LossFunction(cut.pair), reach_for(cut.count)
        start = self._pair.start(tilt, reach)
        edges, many, last = _edges(cut, self._pair, tilt, frequency, start)
        at = PanelIntegrand(self._pair, tilt, edges, frequency)
        self._top, self._edges, self._many = at.top, edges, many
        # Masses of the faded losses, from the edge ``fading`` on.
        near = (at.bounds.log_smallest, at.bounds.log_largest, at.bounds.angle)
        fade, faded = edges[:-1] >= cut.fading, cut.faded
        at.mass[fade] *= faded.below(at.loss[fade])
        at.relative[fade] += faded.relative_error(at.loss[fade], at.loss_error[fade], above=False)
        at.size[fade] *= faded.below_near(*(part[fade] for part in near))
        tail = math.exp(min(self._pair.log_mass_before(start, tilt, reach) - at.log_scale, 700.0))
        parts: list[PanelLaw] = []
        step = slice(many, last)
        for above, shares in enumerate(cut.small.shares(at.loss[step])):
            # Small ones are all that is left of the step, large ones all that is right of it.
            some = slice(many, None) if above else slice(0, last)
            loss, moved, swings = at.loss[some], at.loss_error[some], at.swing[some]
            mass, spread, size = (part[some].copy() for part in (at.mass, at.relative, at.size))
            within = slice(0, last - many) if above else slice(many, last)
            mass[within] *= shares
            spread[within] += cut.small.relative_error(
                loss[within], moved[within], above=bool(above)
            )
            close = cut.small.above_near if above else cut.small.below_near
            size[within] *= close(*(part[step] for part in near))
            if not above:
                size, swings = np.append(size, tail), np.append(swings, 2.1)
            parts.append(PanelLaw(loss, mass, spread, moved, size, swings, at.log_scale))
        self.small, self.large = parts

    def small_panels(self) -> tuple[PanelMasses, float]:
        """Return the small losses left of the step, rounded up, and the mass of those in it."""
        small, many = self.small, self._many
        each = small.weight.reshape(len(small.size) - 1, -1).sum(axis=1)[many:]
        within = float((each * (1 + 2 * small.slack) + 2 * small.size[many:-1]).sum())
        edges = self._edges[: many + 1]
        return small.masses(self._pair, self._tilt, edges, self._top), within * (1 + 1e-9)

    def large_decay(self, times: Array) -> Array:
        """Return bounds of |phi(t')| of the large losses for every t' >= t."""
        cut = self._cut
        edges = self._edges[self._many :]
        panels = len(edges) - 1
        each = self.large.weight.reshape(panels, -1).sum(axis=1)
        masses = each * (1 + 2 * self.large.slack) + 2 * self.large.size
        inverse = cut.small.width**-2 + (cut.faded.width**-2 if cut.fading < cut.end else 0.0)
        corners = self._corners()
        best = np.ones_like(times)
        for unit in _ANGLES:
            angle = unit / math.sqrt(inverse)
            if self._pair.replaced and angle > _FARTHEST:
                break
            turn, grown = self._pair.turn(edges, angle)
            with np.errstate(over="ignore"):
                growth = np.exp(np.minimum((cut.pair.noise_std * turn) ** 2 / 2, 700.0))
                growth *= grown * (1 + 1e-9)
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
        """Return jumps of the density of large losses, as u and a bound per unit loss."""
        cut = self._cut
        places = np.array([cut.first, cut.sure, cut.fading, cut.end])
        losses, bases = self._pair(places)
        log_slopes = np.log(np.add(*self._pair.probabilities(places)))
        exponents = (1 + self._tilt) * losses + bases + self._pair.log_density(places)
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
        for u, log_density, share in zip(
            places.tolist(), (exponents - self._top - log_slopes).tolist(), shares, strict=True
        ):
            value = math.exp(min(log_density + 1e-6 * (1 + abs(log_density)), 700.0))
            found.append((u, 1.01 * value * float(share) / self.large.total + 1e-280))
        return found


def _edges(
    cut: Cut, pair: LossFunction, tilt: float, frequency: float, start: float
) -> tuple[Array, int, int]:
    """Return the edges of panels, and their numbers left of the large step and of its end.

    Panels are narrow against a step where it varies.
    """
    ends = [cut.sure, cut.end]
    if cut.fading < cut.end:
        ends = sorted({cut.sure, cut.fading, cut.end})
    edges = [pair.edges(tilt, start, cut.first, frequency)]
    many = last = len(edges[0]) - 1
    at = cut.first
    for end in ends:
        if end <= at:
            # A panel without a width has no relative error.
            continue
        widths = [cut.small.width] if end <= cut.sure else []
        widths += [cut.faded.width] if at >= cut.fading else []
        narrow = max([frequency, *(_WAVE / (_WIDTHS * width) for width in widths)])
        part = pair.edges(tilt, at, end, narrow)[1:]
        edges.append(part)
        last += len(part) if end <= cut.sure else 0
        at = end
    return np.concatenate(edges), many, last


# Of more mass than this nothing is split off.
_MOST_FADED = 0.4


@dataclass(frozen=True, slots=True)
class FadedMass:
    """The mass of one round under Q and the surplus of P, each between two bounds.

    Attributes:
        least, most: of the mass under Q.
        least_more, most_more: of the mass under P less that under Q.
    """

    least: float
    most: float
    least_more: float
    most_more: float


def faded_mass(cut: Cut) -> FadedMass:
    """Return the mass that is faded out of one round, and the mass beyond its end.

    Raises:
        NotConverged: it is no small part.
    """
    pair, q, sigma = LossFunction(cut.pair), cut.pair.sampling_rate, cut.pair.noise_std
    beyond_p = lost_mass(q, sigma, cut.end)
    # Where a client is replaced, Q has q N(-1).
    beyond_q = lost_mass(q, sigma, cut.end, shift=-1.0 if pair.replaced else 0.0)
    x = (sigma**2 * cut.end + 0.5 + pair.replaced) / sigma
    spread = 4 * UNIT * (64 + 32 * x * x)
    values = [beyond_q, beyond_p - beyond_q]
    absolute = [beyond_q * spread + 1e-299, (beyond_p + beyond_q) * spread + 2e-299]
    if cut.fading < cut.end:
        edges = pair.edges(0.0, cut.fading, cut.end, _WAVE / (_WIDTHS * cut.faded.width))
        u, weights = panel_nodes(edges)
        loss, base = pair(u)
        gaussian = weights * np.exp(pair.log_density(u) + base)
        gaussian *= sigma / math.sqrt(2 * math.pi)
        loss_error, base_error, weight_error = pair.errors(edges, u, weights)
        relative = (
            weight_error + base_error + cut.faded.relative_error(loss, loss_error, above=True)
        )
        relative += 1.1 * loss_error * (1 / loss + 1) + 64 * UNIT
        share = gaussian * cut.faded.above(loss)
        bounds = pair.bounds(edges)
        near = cut.faded.above_near(bounds.log_smallest, bounds.log_largest, bounds.angle)
        size = ERROR_FACTOR * bounds.half * near * sigma
        for k, (terms, peak) in enumerate(
            ((share, bounds.peak(0.0)), (share * np.expm1(loss), bounds.peak(1.0)))
        ):
            values[k] += float(terms.sum())
            off = float((terms * relative).sum()) + float((size * (bounds.peak(0.0) + peak)).sum())
            absolute[k] += 1.01 * off + UNIT * terms.size * float(terms.sum()) + 1e-290
    (base, more), (off, more_off) = values, absolute
    if base + more + off + more_off > _MOST_FADED:
        raise NotConverged("large losses are not rare")
    return FadedMass(max(base - off, 0.0), base + off, more - more_off, more + more_off)


def faded_delta(epsilon: float, counts: Array, masses: list[FadedMass]) -> tuple[float, float]:
    """Return bounds of P(A) - e^eps Q(A) for ``counts`` rounds of each kind."""
    lower = _excess(epsilon, counts, masses, most=False)
    return lower, _excess(epsilon, counts, masses, most=True)


def _excess(epsilon: float, counts: Array, masses: list[FadedMass], *, most: bool) -> float:
    """Return P(A) - e^eps Q(A). It falls with the mass under Q, and rises with the surplus of P."""
    base = np.array([mass.least if most else mass.most for mass in masses])
    more = np.array([mass.most_more if most else mass.least_more for mass in masses])
    above = base + more
    growth = math.exp(epsilon)
    first = float(counts @ (more - math.expm1(epsilon) * base))
    # Outcomes with several faded rounds are counted twice.
    twice = _twice(counts, above) - growth * _twice(counts, base)
    size = float(counts @ (np.abs(more) + base)) + growth * float(counts @ base)
    slack = UNIT * (64 + 4 * len(masses)) * size
    return first - twice + (slack if most else -slack)


def _twice(counts: Array, mass: Array) -> float:
    """Return the sum of all masses, less the probability that there is one."""
    return float(counts @ mass) + math.expm1(float(counts @ np.log1p(-mass)))
