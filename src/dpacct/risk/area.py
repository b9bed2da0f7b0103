"""All attacks at once, below a few lines: a bound of any score's AUC, and of its TPR at any FPR.

Every bound TPR <= e^eps FPR + b of `attacks` is a line that lies above the curve of every attack on
the whole of [0, 1]. So the least of some of them bounds the TPR at each FPR, and whatever line is
taken in whatever part of [0, 1], the area below them is at least that of the curve: which lines,
and where they change, is a matter of sharpness alone. Accusing of absence instead of presence
mirrors the curve and leaves its area.

Source: docs/derivations/tradeoff.md, "Area".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Unpack

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.numerics.rounding import above
from dpacct.pairs.dominating import Direction
from dpacct.risk.attacks import LEAST_EPSILON, Attacks, gaussian_mu
from dpacct.risk.tradeoff import RISK_ACCOUNTANT
from dpacct.rounds import Round, Schedule
from dpacct.schedules.build import Setting, build_schedule

# Lines touch the curve of a Gaussian with the same advantage at so many thresholds, this far out.
_LINES, _REACH = 32, 4.0


def largest_auc(
    schedule: Schedule | Round | None = None,
    *,
    accountant: str = RISK_ACCOUNTANT,
    **parts: Unpack[Setting],
) -> float:
    """A proven bound of the AUC of every attack: P(score of a member > score of another).

    Args:
        schedule: a schedule, or else its parts as in `build_schedule`.
        accountant: which theory proves it.
    Returns:
        At least 1/2. For everybody in every round the distance of Phi(mu / sqrt 2) to one half,
        raised by at most a factor 1.003.
    Raises:
        InvalidParameter: an argument out of range. Unsupported: the accountant knows no bound.
    """
    return accusations(Attacks(build_schedule(schedule, **parts), find_accountant(accountant))).auc


@dataclass(frozen=True, slots=True)
class Accusations:
    """Bounds of all attacks that accuse members of having been there.

    Attributes:
        lines: slope and value at FPR 0 of each, slopes falling; the last one is constant 1.
        advantage: bound of TPR - FPR.
    """

    lines: tuple[tuple[float, float], ...]
    advantage: float

    @property
    def auc(self) -> float:
        """Bound of the AUC."""
        return _below_lines(self.lines)

    def tpr(self, fpr: float) -> float:
        """Bound of the TPR at an FPR in [0, 1]; `Attacks.upper_tpr` is sharper by a few percent.

        Raises:
            InvalidParameter: it is outside.
        """
        rate = validate.probability("fpr", fpr)
        found = ((slope * rate + value, value) for slope, value in self.lines)
        least = min(above(line, line, value) for line, value in found)
        most = above(rate + self.advantage, rate, self.advantage)
        return min(1.0, max(rate, min(least, most)))


def accusations(attacks: Attacks) -> Accusations:
    """Bounds of all attacks on a schedule; each line costs one delta(eps)."""
    advantage = attacks.upper_advantage()
    mu = gaussian_mu(advantage)
    accusation = attacks.proven(Direction.REMOVE)
    span = mu + 2 * _REACH
    lines: list[tuple[float, float]] = []
    for place in range(_LINES + 1):
        threshold = mu + _REACH - span * place / _LINES
        epsilon = max(mu * threshold - mu * mu / 2, LEAST_EPSILON)
        lines.append((math.exp(epsilon), accusation.bound(0.0, epsilon).upper))
    return Accusations((*lines, (0.0, 1.0)), advantage)


def _below_lines(lines: tuple[tuple[float, float], ...]) -> float:
    """The area below lines (slope, value at 0) in the order of falling slopes, on [0, 1]."""
    total, terms, start = 0.0, 0.0, 0.0
    for number, (slope, value) in enumerate(lines):
        end = 1.0
        if number + 1 < len(lines):
            following, higher = lines[number + 1]
            # Of two lines of one slope the second serves.
            meet = (higher - value) / (slope - following) if slope > following else start
            end = min(1.0, max(start, meet))
        width = end - start
        part = width * (value + slope * (start + end) / 2)
        total += part
        terms += abs(part)
        start = end
    return min(1.0, max(0.5, above(total, terms, *(1.0,) * 4)))
