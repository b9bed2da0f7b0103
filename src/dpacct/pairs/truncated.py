"""Cohorts drawn by Poisson sampling and cut to a largest size: how often that happens."""

from __future__ import annotations

import numpy as np

from dpacct.numerics.special import bdtrc

# `scipy.special.bdtrc` is an incomplete beta function, here trusted to this relative error. A
# smaller probability than the least one counts as that.
_ERROR, _LEAST = 1e-9, 1e-280


def full_probability(rate: float, max_cohort: int, num_clients: int) -> float:
    """Return an upper bound of the probability that the others alone fill the cohort.

    They are num_clients - 1, each of which joins with probability ``rate``.
    """
    if num_clients - 1 < max_cohort:
        return 0.0
    found = float(bdtrc(max_cohort - 1, num_clients - 1, rate))
    return min(1.0, max(found, _LEAST) * (1 + _ERROR))


def kept_share(rate: float, max_cohort: int, num_clients: int) -> float:
    """Return a lower bound of the probability that a client which was drawn is kept.

    With j others it is min(1, B / (j + 1)), at least B / (j_0 + 1) for j < j_0, in steps of j_0.
    """
    others = num_clients - 1
    if others < max_cohort:
        return 1.0
    spread = max(1.0, float(np.sqrt(others * rate * (1 - rate))))
    ends = max_cohort + np.unique(np.floor(spread * np.linspace(0.0, 12.0, 241)))
    ends = np.append(ends[ends < others + 1], others + 1.0)
    # P(j >= end): of those in [end_i, end_(i+1)), each is kept with at least B / end_(i+1).
    tails = np.append(bdtrc(ends[:-1] - 1, others, rate), 0.0)
    kept = float((-np.diff(tails) * np.minimum(1.0, max_cohort / ends[1:])).sum())
    return max(0.0, 1.0 - float(tails[0]) + kept - 4 * _ERROR * float(tails[0]) - 1e-15)
