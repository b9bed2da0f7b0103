"""DP-FedAvg: bounded local updates, averaged with noise."""

from __future__ import annotations

from dataclasses import dataclass

from dpacct.fl.methods.protocol import Method


@dataclass(frozen=True)
class DPFedAvg(Method):
    """Every part as in `Method`: plain SGD, whole updates, no memory, the mean added to the model.

    Source: McMahan, Ramage, Talwar, Zhang 2018, arXiv:1710.06963.
    """

    name = "dp-fedavg"
