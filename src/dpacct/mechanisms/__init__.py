"""Releases beside the rounds, one topic a file. Each knows its own dominating pairs."""

from __future__ import annotations

from dpacct.mechanisms.discrete import DiscreteGaussian, DiscreteLaplace
from dpacct.mechanisms.laplace import ExponentialMechanism, Laplace
from dpacct.mechanisms.pure import ApproximateDP, PureDP, RandomizedResponse, ZeroConcentratedDP

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
