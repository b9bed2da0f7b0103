"""The accountant `gdp`: exact, full participation only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpacct.budget import Interval
from dpacct.errors import Unsupported
from dpacct.numerics.rounding import UNIT
from dpacct.pairs.dominating import Direction, SampledGaussianPair, proven_pair
from dpacct.pairs.gaussian import gaussian_delta, gaussian_epsilon
from dpacct.rounds import Schedule


@dataclass(frozen=True, slots=True)
class GaussianAccountant:
    """Exact composition of Gaussians: full participation only."""

    name: str = "gdp"

    def upper_epsilon(self, schedule: Schedule, delta: float) -> float:
        """See `Accountant`."""
        return self.epsilon(schedule, delta).upper

    def epsilon(self, schedule: Schedule, delta: float) -> Interval:
        """See `Accountant`.

        Raises:
            Unsupported: some round is sampled.
        """
        mu = total_mu(schedule)
        return Interval(
            gaussian_epsilon(delta, mu.lower).lower, gaussian_epsilon(delta, mu.upper).upper
        )

    def delta(self, schedule: Schedule, epsilon: float) -> Interval:
        """See `Accountant`."""
        mu = total_mu(schedule)
        return Interval(
            gaussian_delta(epsilon, mu.lower).lower, gaussian_delta(epsilon, mu.upper).upper
        )


def total_mu(schedule: Schedule) -> Interval:
    """mu of the Gaussian to which a schedule of full participation composes.

    Raises:
        Unsupported: some round is sampled.
    Source: Dong, Roth, Su 2022 (arXiv:1905.02383), corollary 2.
    """
    total = 0.0
    for round_, count in schedule.distinct().items():
        pair = proven_pair(round_, Direction.REMOVE)
        if not isinstance(pair, SampledGaussianPair) or pair.sampling_rate < 1.0:
            raise Unsupported(
                f"the accountant gdp is for full participation only, not for "
                f"{round_.sampling!r}; the accountant rdp covers it"
            )
        total += count / pair.noise_std**2
    mu, slack = math.sqrt(total), UNIT * (len(schedule.phases) + 8)
    return Interval(mu * (1 - slack), mu * (1 + slack))
