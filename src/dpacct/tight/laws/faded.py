"""What a round has of losses so large that they are counted by themselves.

With A the event that some round is faded out (each with the share that the step says), and all
losses of A above eps, delta(eps) has the part P(A) - e^eps Q(A): masses, and no law of losses.

Derivation: docs/derivations/few-large-losses.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.quadrature import ERROR_FACTOR, panel_nodes
from dpacct.numerics.rounding import UNIT, Array
from dpacct.pairs.panels import LossFunction
from dpacct.tight.laws.split import Cut
from dpacct.tight.laws.truncated import lost_mass

_WIDTHS, _WAVE = 1.5, 12.0
# Of more mass than this nothing is split off.
_MOST = 0.4


@dataclass(frozen=True, slots=True)
class FadedMass:
    """Of one round: mass under Q and what P has more, each between two bounds.

    Attributes:
        least, most: of the mass under Q.
        least_more, most_more: of the mass under P less that under Q.
    """

    least: float
    most: float
    least_more: float
    most_more: float


def faded_mass(cut: Cut) -> FadedMass:
    """The mass that is faded out of one round, and what lies beyond its end.

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
    if base + more + off + more_off > _MOST:
        raise NotConverged("large losses are not rare")
    return FadedMass(max(base - off, 0.0), base + off, more - more_off, more + more_off)


def faded_delta(epsilon: float, counts: Array, masses: list[FadedMass]) -> tuple[float, float]:
    """Bounds of P(A) - e^eps Q(A) for so many rounds of each kind."""
    lower = _excess(epsilon, counts, masses, most=False)
    return lower, _excess(epsilon, counts, masses, most=True)


def _excess(epsilon: float, counts: Array, masses: list[FadedMass], *, most: bool) -> float:
    """P(A) - e^eps Q(A): it falls with the mass under Q, and rises with what P has more."""
    base = np.array([mass.least if most else mass.most for mass in masses])
    more = np.array([mass.most_more if most else mass.least_more for mass in masses])
    above = base + more
    growth = math.exp(epsilon)
    first = float(counts @ (more - math.expm1(epsilon) * base))
    # What is counted twice where several rounds are faded.
    twice = _twice(counts, above) - growth * _twice(counts, base)
    size = float(counts @ (np.abs(more) + base)) + growth * float(counts @ base)
    slack = UNIT * (64 + 4 * len(masses)) * size
    return first - twice + (slack if most else -slack)


def _twice(counts: Array, mass: Array) -> float:
    """The sum of all masses, less the probability that there is one."""
    return float(counts @ mass) + math.expm1(float(counts @ np.log1p(-mass)))
