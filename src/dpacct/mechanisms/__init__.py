"""Releases beside the rounds, one file a mechanism. Each knows its own dominating pairs."""

from __future__ import annotations

from dpacct.mechanisms.laplace import Laplace
from dpacct.mechanisms.pure import PureDP, RandomizedResponse

__all__ = ["Laplace", "PureDP", "RandomizedResponse"]
