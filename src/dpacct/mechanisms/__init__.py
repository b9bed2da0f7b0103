"""Releases beside the rounds, one topic a file. Each knows its own dominating pairs."""

from __future__ import annotations

from dpacct.mechanisms.discrete import DiscreteGaussian, DiscreteLaplace
from dpacct.mechanisms.exponential import ExponentialMechanism
from dpacct.mechanisms.foreign import ApproximateDP, ZeroConcentratedDP
from dpacct.mechanisms.laplace import Laplace
from dpacct.mechanisms.pure import PureDP, RandomizedResponse

__all__ = [
    "ApproximateDP",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "ExponentialMechanism",
    "Laplace",
    "PureDP",
    "RandomizedResponse",
    "ZeroConcentratedDP",
]
