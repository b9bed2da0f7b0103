"""Likelihood ratios on a grid of losses.

R = dP/dQ is the likelihood ratio of one release, under Q. Both deltas are expectations of convex
functions of R: delta_remove(eps) = E(R - e^eps)_+ and delta_add(eps) = E(1 - e^eps R)_+. They stay
convex in each factor where releases compose, since ratios of independent releases multiply.

* Upper: each value of R is spread to its two neighbors e^{hj} with the same mean. R gets larger in
  convex order, so no delta falls.
* Lower: the outcomes are replaced by the number of the grid point next to log R. That is a function
  of the outcome, so no delta rises. P and Q are kept apart.

In both cases a release has a whole number, and numbers of independent releases add up
(`dpacct.tight.self_composition`).

Derivation: docs/derivations/epochs.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpacct.numerics.rounding import UNIT, Array
from dpacct.pairs.atoms import AtomicPair

# Each end of a law may be cut off at this probability, which is then charged.
TAIL = 1e-22


@dataclass(frozen=True, eq=False)
class RatioLaw:
    """The law of a whole number j under P and Q. P against Q has about the loss h j.

    Attributes:
        step: h.
        first: the least number.
        p, q: masses of the numbers from ``first`` on, shape (n,).
        proven: True for an upper law, where p = q e^{h j}. False for a lower one.
        lost_p, lost_q: of an upper law, mass of P where Q may have none, and of Q where P may.
        mass_error: a bound of the relative error of each mass.
        loss_error: of an upper law, a bound of the absolute error of each loss h j.
        cover: of a lower law, an upper law of the same release if there is one.
    """

    step: float
    first: int
    p: Array
    q: Array
    proven: bool
    lost_p: float
    lost_q: float
    mass_error: float
    loss_error: float
    cover: RatioLaw | None = None

    @cached_property
    def losses(self) -> Array:
        """The losses h j, shape (n,)."""
        return self.step * (self.first + np.arange(float(len(self.p))))

    @property
    def variance(self) -> float:
        """The variance of the loss under P, about."""
        mean = float(self.p @ self.losses)
        return float(self.p @ (self.losses - mean) ** 2)

    def on_grid(self, step: float) -> RatioLaw:
        """Return the law on a grid of another step. An upper law is spread, a lower one merged."""
        place, most = self.losses / step, float(np.abs(self.losses).max())
        index = np.floor(place) if self.proven else np.rint(place)
        first = int(index.min())
        number = (index - first).astype(np.int64)
        p, q = (total_by_number(number, masses) for masses in (self.p, self.q))
        if self.proven:
            # Q is spread with the mean of R, and P with that of 1 / R: both masses are kept.
            beyond, length = (place - index) * step, int(number.max()) + 2
            for sign, masses in ((-1.0, self.p), (1.0, self.q)):
                high = np.clip(np.expm1(sign * beyond) / math.expm1(sign * step), 0.0, 1.0)
                total = total_by_number(number, masses * (1 - high), length)
                total += total_by_number(number + 1, masses * high, length)
                p, q = (total, q) if sign < 0 else (p, total)
        return replace(
            self,
            step=step,
            first=first,
            p=p,
            q=q,
            mass_error=self.mass_error + UNIT * (len(self.p) + 8 + 4 * most),
            loss_error=self.loss_error + UNIT * (32 + 16 * most) * self.proven,
        )

    def swapped(self) -> RatioLaw:
        """Return the law of Q against P."""
        last = self.first + len(self.p) - 1
        return replace(
            self,
            first=-last,
            p=self.q[::-1].copy(),
            q=self.p[::-1].copy(),
            lost_p=self.lost_q,
            lost_q=self.lost_p,
        )

    def trimmed(self) -> RatioLaw:
        """Return the law without numbers that hardly occur under P. What that costs is charged.

        Of an upper law, a loss below the least one counts as that, and one beyond the last one as
        infinite. Of a lower law, both count as the nearest number.
        """
        p, q = self.p, self.q
        last = max(int(np.count_nonzero(np.cumsum(p[::-1])[::-1] > TAIL)), 1)
        low = min(int(np.count_nonzero(np.cumsum(np.maximum(p, q)) <= TAIL)), last - 1)
        kept_p, kept_q = p[low:last].copy(), q[low:last].copy()
        lost = self.lost_p
        kept_p[0] += float(p[:low].sum())
        if self.proven:
            lost += float(p[last:].sum()) * (1 + UNIT * len(p))
        else:
            kept_q[0] += float(q[:low].sum())
            kept_p[-1] += float(p[last:].sum())
            kept_q[-1] += float(q[last:].sum())
        return replace(
            self,
            first=self.first + low,
            p=kept_p,
            q=kept_q,
            lost_p=lost,
            mass_error=self.mass_error + UNIT * len(p),
        )

    def pair(self) -> RatioPair:
        """Return the law as a pair, which composes with any other pair."""
        return RatioPair(self)


class RatioPair(AtomicPair):
    """P against Q by a `RatioLaw`. Its numbers, which add up, are quicker than its losses."""

    def __init__(self, law: RatioLaw) -> None:
        self.law = law
        kept, losses, error = law.p > 0.0, law.losses, law.loss_error
        if not law.proven:
            kept &= law.q > 0.0
            losses = np.log(np.where(kept, law.p, 1.0)) - np.log(np.where(kept, law.q, 1.0))
            error += 2.1 * law.mass_error + 16 * UNIT * (1 + float(np.abs(losses).max()))
        super().__init__(losses[kept], law.p[kept], law.lost_p, error, law.mass_error)


def total_by_number(number: NDArray[np.int64], masses: Array, length: int = 0) -> Array:
    """Return the sum of the masses of each number from 0 on, up to ``length`` at least."""
    return np.asarray(np.bincount(number, masses, length), dtype=np.float64)


def spread(log_ratios: Array, q: Array, step: float) -> tuple[int, Array]:
    """Return masses on the grid e^{hj} with the same mean, and the first j. Never negative."""
    place = log_ratios / step
    index = np.floor(place)
    # Rounding moves a ratio by a few ulp.
    high = np.clip(np.expm1((place - index) * step) / math.expm1(step), 0.0, 1.0)
    first = int(index.min())
    number = (index - first).astype(np.int64)
    length = int(number.max()) + 2
    mass = total_by_number(number, q * (1 - high), length)
    return first, mass + total_by_number(number + 1, q * high, length)


def spread_to_losses(
    ratios: Array, q: Array, step: float, lost: tuple[float, float], errors: tuple[float, float]
) -> RatioLaw:
    """Return the upper law: each ratio is spread to its neighbors e^{hj} with the same mean.

    Args:
        ratios, q: values of R and their masses under Q, shape (n,).
        step: h.
        lost: mass of P where Q may have none, and the other way round.
        errors: of each mass, relative, and of each log R, absolute.
    """
    first, mass = spread(np.log(ratios), q, step)
    losses = step * (first + np.arange(float(len(mass))))
    rounding = UNIT * (len(q) + 8 + 4 * float(np.abs(losses).max()))
    moved = UNIT * (32 + 16 * float(np.abs(losses).max()))
    return RatioLaw(
        step,
        first,
        mass * np.exp(losses),
        mass,
        proven=True,
        lost_p=lost[0],
        lost_q=lost[1],
        mass_error=errors[0] + rounding,
        loss_error=errors[1] + moved,
    )


def merge_by_loss(p: Array, q: Array, step: float, mass_error: float) -> RatioLaw:
    """Return the lower law: outcomes with masses p and q > 0 become the number next to log p/q."""
    index = np.rint((np.log(np.maximum(p, 1e-300)) - np.log(q)) / step)
    first = int(index.min())
    number = (index - first).astype(np.int64)
    return RatioLaw(
        step,
        first,
        total_by_number(number, p),
        total_by_number(number, q),
        proven=False,
        lost_p=0.0,
        lost_q=0.0,
        mass_error=mass_error + UNIT * (len(q) + 8),
        loss_error=0.0,
    )
