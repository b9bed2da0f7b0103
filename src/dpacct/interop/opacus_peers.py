"""Opacus' two accountants as peers. Importing them imports torch, so that happens on demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpacct.budget import Budget
from dpacct.interop.peers import (
    asking,
    import_peer,
    noise_over_sensitivity,
    number,
    refuse_unknown,
)
from dpacct.rounds import Adjacency, Schedule


def _library(part: str = "") -> Any:
    return import_peer(f"opacus.accountants{part}", "Opacus")


def _epsilon(peer: str, accountant: Any, schedule: Schedule, delta: float) -> float:
    """The epsilon of an accountant whose history is (noise over sensitivity, rate, rounds)."""
    accountant.history = [
        (noise_over_sensitivity(round_), round_.sampling_rate, count)
        for round_, count in schedule.distinct().items()
    ]
    with asking(peer):
        return number(peer, accountant.get_epsilon(delta=delta))


def _refuse_unknown(peer: str, schedule: Schedule) -> None:
    refuse_unknown(peer, schedule, poisson=(Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT))


@dataclass(frozen=True, slots=True)
class OpacusRdp:
    """Opacus' Renyi accountant, with its own grid of orders."""

    name: str = "Opacus RDP"

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Its epsilon; knows Poisson sampling without replace-one, and Full."""
        _refuse_unknown(self.name, schedule)
        return _epsilon(self.name, _library().RDPAccountant(), schedule, delta)

    def noise_multiplier(self, budget: Budget, rounds: int, sampling_rate: float) -> float:
        """The noise multiplier that its own calibration finds, with its default tolerance."""
        search = _library(".utils").get_noise_multiplier
        with asking(self.name):
            found = search(
                target_epsilon=budget.epsilon,
                target_delta=budget.delta,
                sample_rate=sampling_rate,
                steps=rounds,
                accountant="rdp",
            )
            return number(self.name, found)


@dataclass(frozen=True, slots=True)
class OpacusPrv:
    """Opacus' privacy random variables; the upper end of its error interval."""

    name: str = "Opacus PRV"

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Its epsilon; knows Poisson sampling without replace-one, and Full."""
        _refuse_unknown(self.name, schedule)
        return _epsilon(self.name, _library().PRVAccountant(), schedule, delta)
