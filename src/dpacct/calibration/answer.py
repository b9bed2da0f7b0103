"""The answer of a calibration."""

from __future__ import annotations

from dataclasses import dataclass

from dpacct.budget import Interval, Spent
from dpacct.display import chosen, html_table, up
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

    def _repr_html_(self) -> str:
        """For a notebook."""
        kinds = self.schedule.distinct()
        rows = [("accountant", self.accountant, str(self.schedule.adjacency))]
        if self.risk is not None:
            rows = [(self.goal, up(self.risk.upper), "of any attack, proven"), *rows]
        rows = [
            ("epsilon", up(self.epsilon.upper), f"proven, at delta {chosen(self.delta, 3)}"),
            *rows,
        ]
        if len(kinds) == 1:
            (only,) = kinds
            who = f"{self.rounds} rounds, {only.sampling!r}"
            noise = ("noise multiplier", up(only.noise_multiplier, 7), "noise std / clip norm")
            return html_table([noise, *rows, ("mechanism", who, "")])
        scale = ("noise scale", up(self.noise_scale, 7), "x the noise of every round")
        several = f"{self.rounds} rounds of {len(kinds)} kinds"
        return html_table([scale, *rows, ("mechanism", several, "")])

    def _only_round(self, name: str) -> Round:
        distinct = list(self.schedule.distinct())
        if len(distinct) != 1:
            rule = "the rounds of this schedule differ; read them from its phases"
            raise InvalidParameter(name, f"{len(distinct)} values", rule)
        return distinct[0]
