"""What an attacker can do to anything that is (epsilon, delta)-private, whatever it computes.

The bounds are those of the one mechanism that is no better than its guarantee, so they are sharp
for the guarantee; a mechanism that is known is usually far better than that (`attacks`).

Source: Wasserman, Zhou 2010 (arXiv:0811.2501); Kairouz, Oh, Viswanath 2015 (arXiv:1311.0776);
docs/derivations/tradeoff.md, "From a guarantee alone".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpacct import validate
from dpacct.numerics.rounding import above


def tpr_of_guarantee(epsilon: float, delta: float, fpr: float) -> float:
    """The largest TPR at an FPR: min(1, e^eps FPR + delta, 1 - e^-eps (1 - FPR - delta)).

    Args:
        epsilon: at least 0, infinite where nothing is promised. delta: in [0, 1].
        fpr: in [0, 1].
    Error: rounded up.
    """
    if math.isinf(epsilon):
        return 1.0
    rare = 1.0
    if fpr == 0.0:
        rare = delta
    elif epsilon + math.log(fpr) < 1.0:
        # e^eps may overflow where the product does not: then an error of 2^-40 covers the sum's.
        first = (
            fpr * math.exp(epsilon)
            if epsilon < 700.0
            else math.exp(epsilon + math.log(fpr)) * (1 + 2.0**-40)
        )
        rare = above(first + delta, first, delta)
    ratio = math.exp(-epsilon)
    common = above(1 - ratio * (1 - fpr - delta), 1.0, ratio)
    return min(1.0, rare, max(common, fpr))


def advantage_of_guarantee(epsilon: float, delta: float) -> float:
    """The largest TPR - FPR, (e^eps - 1 + 2 delta)/(e^eps + 1); arguments as `tpr_of_guarantee`.

    Error: rounded up.
    """
    # As e^-eps, which cannot overflow.
    ratio = math.exp(-epsilon)
    found = (-math.expm1(-epsilon) + 2 * delta * ratio) / (1 + ratio)
    return min(1.0, above(found, found, 2 * delta))


def guess_of_guarantee(epsilon: float, delta: float, prior: float) -> float:
    """The largest probability of guessing right which data set was used.

    Args:
        epsilon, delta: as for `tpr_of_guarantee`.
        prior: in (0, 1), what the attacker believes beforehand of one of them.
    Error: rounded up.
    """
    # Best where the trade-off function has a corner: at its ends, and between them.
    rare = min(prior, 1 - prior)
    ratio = math.exp(-epsilon)
    corner = (1 + delta * ratio) / (1 + ratio)
    ends = 1 - rare + rare * delta
    return min(1.0, above(max(corner, ends), 1.0))


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
        """The largest TPR - FPR."""
        return advantage_of_guarantee(self.epsilon, self.delta)

    def tpr(self, fpr: float) -> float:
        """The largest TPR of all attacks with this FPR in [0, 1].

        Raises:
            InvalidParameter: it is outside.
        """
        return tpr_of_guarantee(self.epsilon, self.delta, validate.probability("fpr", fpr))

    def guess(self, prior: float) -> float:
        """The largest probability of guessing right which of two data sets was used.

        Args:
            prior: the attacker's belief beforehand in one of them, in (0, 1).
        Raises:
            InvalidParameter: it is outside.
        """
        belief = validate.positive_probability("prior", prior, "a prior", below_one=True)
        return guess_of_guarantee(self.epsilon, self.delta, belief)
