"""From a round to the pairs of distributions that bound it from above and from below.

All pairs live on the line, in units in which the shift is one; phi is the density of
N(0, sigma^2) and r(x) = 1 - q + q e^{(2x-1)/(2 sigma^2)}.

* `SampledGaussianPair`, remove: P = phi r against Q = phi; add: P = phi against Q = phi r.
* `SymmetrizedPair`: the pair of the trade-off function C_q(f) of Dong, Roth, Su (2022), f the
  Gaussian's: losses log r where r > 1 with the masses of the remove pair, their mirror image,
  and an atom at zero.

Which pair stands for which round, and why, is in docs/derivations/dominating-pairs.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dpacct.rounds import Adjacency, Full, Poisson, Round, Uniform


class Direction(StrEnum):
    """Which of two neighbours plays P. Each direction composes with itself."""

    REMOVE = "remove"
    ADD = "add"


@dataclass(frozen=True, slots=True)
class SampledGaussianPair:
    """phi r against phi (remove) or phi against phi r (add), with the r of the module's head."""

    sampling_rate: float
    noise_std: float
    direction: Direction


@dataclass(frozen=True, slots=True)
class SymmetrizedPair:
    """The pair of C_q(Gaussian); the same in both directions."""

    sampling_rate: float
    noise_std: float


DominatingPair = SampledGaussianPair | SymmetrizedPair


def proven_pair(round_: Round, direction: Direction) -> DominatingPair:
    """A pair that dominates the round for all neighbouring data sets, in one direction.

    Source: Poisson add-remove: Zhu, Dong, Wang 2022 (arXiv:2106.08567), theorem 11. Uniform
        replace-one: Dong, Roth, Su 2022 (arXiv:1905.02383), theorem 9; Balle, Barthe, Gaboardi
        2018 (arXiv:1807.01647), theorem 9. Others: docs/derivations/dominating-pairs.md.
    """
    z, relation = round_.noise_multiplier, round_.adjacency
    match round_.sampling:
        case Full():
            shift = 2.0 if relation is Adjacency.REPLACE_ONE else 1.0
            return SampledGaussianPair(1.0, z / shift, direction)
        case Poisson(q):
            if relation is Adjacency.REPLACE_ONE:
                return SymmetrizedPair(q, z / 2)
            return SampledGaussianPair(q, z, direction)
        case Uniform() as uniform:
            # An added client displaces another one: the sum moves by up to 2 C at rate m / N.
            if relation is Adjacency.ADD_REMOVE:
                return SampledGaussianPair(uniform.sampling_rate, z / 2, direction)
            if uniform.sampling_rate == 1.0 and relation is Adjacency.ZERO_OUT:
                return SampledGaussianPair(1.0, z, direction)
            return SymmetrizedPair(uniform.sampling_rate, z / 2)


def achieved_pair(round_: Round, direction: Direction) -> SampledGaussianPair:
    """A pair that some explicit neighbouring data sets reach, in one direction.

    Source: docs/derivations/dominating-pairs.md lists the data sets.
    """
    z, relation = round_.noise_multiplier, round_.adjacency
    match round_.sampling:
        case Full():
            shift = 2.0 if relation is Adjacency.REPLACE_ONE else 1.0
            return SampledGaussianPair(1.0, z / shift, direction)
        case Poisson(q):
            # Replace-one: the replacement contributes zero, as if the client were removed.
            return SampledGaussianPair(q, z, direction)
        case Uniform(cohort_size, num_clients) as uniform:
            if relation is Adjacency.ZERO_OUT:
                return SampledGaussianPair(uniform.sampling_rate, z, direction)
            if relation is Adjacency.ADD_REMOVE:
                # A cohort of all clients has only the neighbour with one client more.
                clients = max(num_clients, cohort_size + 1)
                return SampledGaussianPair(cohort_size / clients, z / 2, direction)
            return SampledGaussianPair(uniform.sampling_rate, z / 2, direction)
