"""The answer of a calibration."""

from __future__ import annotations

from dataclasses import dataclass

from dpacct.budget import Interval, Spent
from dpacct.errors import InvalidParameter
from dpacct.rounds import Round, Schedule


@dataclass(frozen=True, slots=True)
class Calibration:
    """A schedule that meets a budget, and what it costs.

    Attributes:
        solved_for: "noise", "rounds", "sampling_rate", "epsilon" or "delta".
        schedule: the schedule found (or given).
        accountant: name of the accountant.
        delta: the delta at which ``epsilon`` holds.
        epsilon: achieved and proven epsilon of the schedule.
        target: the largest value allowed for the goal, None where epsilon or delta was solved for.
        noise_scale: factor applied to a given schedule's noise, else 1.
        goal: what the target is about: "epsilon", "advantage" or e.g. "TPR at FPR 0.01".
        risk: achieved and proven value of the goal where that is an attack risk, else None.
    """

    solved_for: str
    schedule: Schedule
    accountant: str
    delta: float
    epsilon: Interval
    target: float | None
    noise_scale: float = 1.0
    goal: str = "epsilon"
    risk: Interval | None = None

    @property
    def spent(self) -> Spent:
        """``epsilon`` with the ``delta`` at which it holds."""
        return Spent.at(self.delta, self.epsilon)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of all rounds.

        Raises:
            InvalidParameter: the rounds differ.
        """
        return self._only_round("noise_multiplier").noise_multiplier

    @property
    def sampling_rate(self) -> float:
        """The sampling rate of all rounds.

        Raises:
            InvalidParameter: the rounds differ.
        """
        return self._only_round("sampling_rate").sampling_rate

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.schedule.rounds

    def _only_round(self, name: str) -> Round:
        distinct = list(self.schedule.distinct())
        if len(distinct) != 1:
            rule = "the rounds of this schedule differ; read them from its phases"
            raise InvalidParameter(name, f"{len(distinct)} values", rule)
        return distinct[0]
