"""What an attacker can do to anything that is (epsilon, delta)-private, whatever it computes.

The bounds are those of the one mechanism that is no better than its guarantee, so they are sharp
for the guarantee; a mechanism that is known is usually far better than that (`attacks`).

Source: Wasserman, Zhou 2010 (arXiv:0811.2501); Kairouz, Oh, Viswanath 2015 (arXiv:1311.0776);
docs/derivations/tradeoff.md, "From a guarantee alone".
"""

from __future__ import annotations

import math

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
    if fpr == 0.0 or epsilon + math.log(fpr) < 1.0:
        first = fpr * math.exp(epsilon)
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
