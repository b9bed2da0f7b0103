"""Mechanisms by their names in files, ledgers and claims."""

from __future__ import annotations

from dpacct.mechanisms.discrete import DiscreteGaussian, DiscreteLaplace
from dpacct.mechanisms.exponential import ExponentialMechanism
from dpacct.mechanisms.foreign import ApproximateDP, ZeroConcentratedDP
from dpacct.mechanisms.laplace import Laplace
from dpacct.mechanisms.pure import PureDP, RandomizedResponse
from dpacct.pairs.dominating import Mechanism

# Their constructors take numbers, texts and tuples of numbers, and an adjacency.
BY_NAME: dict[str, type[Mechanism]] = {
    "laplace": Laplace,
    "randomized-response": RandomizedResponse,
    "pure-dp": PureDP,
    "approximate-dp": ApproximateDP,
    "zcdp": ZeroConcentratedDP,
    "discrete-gaussian": DiscreteGaussian,
    "discrete-laplace": DiscreteLaplace,
    "exponential": ExponentialMechanism,
}
