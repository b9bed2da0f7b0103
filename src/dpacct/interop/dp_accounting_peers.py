"""Schedules as dp-accounting's events, and its two accountants as peers."""

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
from dpacct.rounds import Adjacency, Full, Poisson, Round, Schedule, Uniform


def _library(part: str = "") -> Any:
    return import_peer(f"dp_accounting{part}", "dp-accounting")


def to_dp_event(schedule: Schedule) -> Any:
    """The `DpEvent` of a schedule, one self-composed event per distinct round.

    dp-accounting states noise over *sensitivity*. Replacing a client moves the sum by up to twice
    the clip norm, so that under replace-one the event's noise multiplier is half of ours, as its
    Renyi accountant needs it. Its PLD accountant doubles by itself: there this overcounts.

    Raises:
        Unsupported: dp-accounting is not installed.
    """
    library = _library()
    return library.ComposedDpEvent(
        [
            library.SelfComposedDpEvent(_round_event(library, round_), count)
            for round_, count in schedule.distinct().items()
        ]
    )


def _round_event(library: Any, round_: Round) -> Any:
    gaussian = library.GaussianDpEvent(noise_over_sensitivity(round_))
    match round_.sampling:
        case Uniform(cohort_size=cohort, num_clients=clients):
            return library.SampledWithoutReplacementDpEvent(clients, cohort, gaussian)
        case Poisson(sampling_rate=rate) if rate < 1.0:
            return library.PoissonSampledDpEvent(rate, gaussian)
        case Poisson() | Full():
            return gaussian


@dataclass(frozen=True, slots=True)
class DpAccountingRdp:
    """dp-accounting's Renyi accountant, with its own grid of orders."""

    name: str = "dp-accounting RDP"

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Its epsilon; knows Poisson without replace-one, Uniform with it only, and Full."""
        refuse_unknown(
            self.name,
            schedule,
            poisson=(Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT),
            uniform=(Adjacency.REPLACE_ONE,),
        )
        library, relations = _library(".rdp"), _library().NeighboringRelation
        relation = {
            Adjacency.ADD_REMOVE: relations.ADD_OR_REMOVE_ONE,
            Adjacency.REPLACE_ONE: relations.REPLACE_ONE,
            Adjacency.ZERO_OUT: relations.REPLACE_SPECIAL,
        }[schedule.adjacency]
        with asking(self.name):
            accountant = library.RdpAccountant(neighboring_relation=relation)
            return number(self.name, accountant.compose(to_dp_event(schedule)).get_epsilon(delta))

    def noise_multiplier(self, budget: Budget, rounds: int, sampling_rate: float) -> float:
        """The noise multiplier that its own calibration finds for Poisson rounds."""
        library, renyi = _library(), _library(".rdp")

        def event(noise: float) -> Any:
            sampled = library.PoissonSampledDpEvent(sampling_rate, library.GaussianDpEvent(noise))
            return library.SelfComposedDpEvent(sampled, rounds)

        with asking(self.name):
            found = library.calibrate_dp_mechanism(
                renyi.RdpAccountant, event, budget.epsilon, budget.delta
            )
            return number(self.name, found)


@dataclass(frozen=True, slots=True)
class DpAccountingPld:
    """dp-accounting's privacy loss distributions, pessimistic, with its own grid of losses."""

    name: str = "dp-accounting PLD"

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Its epsilon; knows Poisson and Full."""
        refuse_unknown(self.name, schedule, poisson=Adjacency)
        library, relations = _library(".pld"), _library().NeighboringRelation
        if schedule.adjacency is Adjacency.REPLACE_ONE:
            # This accountant doubles the sensitivity by itself, and the event already does.
            relation, charged = relations.REPLACE_ONE, schedule.scale_noise(2.0)
        else:
            relation, charged = relations.ADD_OR_REMOVE_ONE, schedule
        with asking(self.name):
            accountant = library.PLDAccountant(neighboring_relation=relation)
            return number(self.name, accountant.compose(to_dp_event(charged)).get_epsilon(delta))
