"""Attack risk from a guarantee alone: the most that any (epsilon, delta)-DP mechanism lets out.

All attacks on such a mechanism satisfy, in both directions,

    TPR <= e^eps FPR + delta,        TPR <= 1 - e^-eps (1 - FPR - delta),

and randomized response that gives everything away with probability delta reaches both. One
mechanism has a pair (eps, delta) for every eps, so its own risk is usually far less.

Source: Kairouz, Oh, Viswanath 2015 (arXiv:1311.0776), theorem 2.1; Dong, Roth, Su 2022
(arXiv:1905.02383), proposition 2.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpacct import validate
from dpacct.numerics.rounding import above


@dataclass(frozen=True, slots=True)
class AnyMechanism:
    """Whatever is (epsilon, delta)-DP under a symmetric adjacency, and nothing more is known of it.

    Every value is exact up to rounding, which goes up: a mechanism reaches it, and none exceeds it.

    Raises:
        InvalidParameter: epsilon below 0, or delta outside (0, 1).
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", validate.epsilon(self.epsilon))
        object.__setattr__(self, "delta", validate.delta(self.delta))

    def advantage(self) -> float:
        """The largest TPR - FPR: (e^eps - 1 + 2 delta) / (e^eps + 1)."""
        # tanh(eps / 2) + 2 delta / (e^eps + 1), in which nothing overflows.
        small = math.exp(-self.epsilon)
        found = math.tanh(self.epsilon / 2) + 2 * self.delta * small / (1 + small)
        return min(1.0, above(found, 1.0, found))

    def tpr(self, fpr: float) -> float:
        """The largest TPR of all attacks with this FPR in [0, 1].

        Raises:
            InvalidParameter: it is outside.
        """
        rate = validate.probability("fpr", fpr)
        # Where e^eps is beyond all bounds, so is the first bound, but for an FPR of 0.
        grown = rate * math.exp(self.epsilon) if self.epsilon < 700.0 else math.inf if rate else 0.0
        first = grown + self.delta
        second = 1 - math.exp(-self.epsilon) * (1 - rate - self.delta)
        return min(1.0, above(first, first), above(second, 1.0, second))

    def auc(self) -> float:
        """The largest AUC: 1 - (1 - delta)^2 / (1 + e^eps), the area below the largest TPRs."""
        small = math.exp(-self.epsilon)
        rest = (1 - self.delta) ** 2 * small / (1 + small)
        return min(1.0, above(1 - rest, 1.0, rest))

    def guess(self, prior: float) -> float:
        """The largest probability of guessing right which of two data sets was used.

        Args:
            prior: the attacker's belief beforehand in one of them, in (0, 1).
        Raises:
            InvalidParameter: it is outside.
        """
        belief = validate.positive_probability("prior", prior, "a prior", below_one=True)
        rare = min(belief, 1 - belief)
        # The corners of the region of attacks: never accusing but where all is given away, and
        # erring as often either way.
        found = max(1 - rare + rare * self.delta, (1 + self.advantage()) / 2)
        return min(1.0, above(found, 1.0))
