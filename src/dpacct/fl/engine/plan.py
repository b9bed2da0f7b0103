"""The plan of a run: noise, sampling and clip norm of each of its rounds.

A constant run is the schedule ``rounds * Round(...)``. Rule 1: the plan is fixed before the run and
public. Rule 2: noise and sampling of a round are those of the ledger's next place in the plan. A
round that a crash has lost keeps its place, so each round runs as it was planned at its place.
Rule 3: clip norms and learning rates cost nothing, and follow the number of the training round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dpacct.fl.local.sgd import RoundValues
from dpacct.fl.privacy.account import NoisePlan
from dpacct.fl.privacy.allocation import rounds_of, sampling_of
from dpacct.fl.privacy.bounds import Bound, Clip
from dpacct.ledger.record.events import noise_of
from dpacct.ledger.record.plans import Plan
from dpacct.rounds import Phase, Release, Schedule


@dataclass(frozen=True, slots=True)
class RunPlan:
    """All rounds of a run.

    Attributes:
        schedule: the rounds. noise: adjacency and public size of each of them.
        clip_norms: of each round, or None if the bound stays or follows the releases.
    """

    schedule: Schedule
    noise: NoisePlan
    clip_norms: RoundValues | None = None
    # Built once: each round asks for them, and a schedule may have 10^5 phases.
    _places: Plan = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", Plan(self.schedule))

    @property
    def rounds(self) -> int:
        """The number of training rounds."""
        return sum(count * rounds_of(item) for item, count in self.schedule)

    @property
    def constant(self) -> bool:
        """True if all rounds have the same noise and sampling."""
        return len(self.schedule.phases) == 1

    def at(self, position: int) -> NoisePlan:
        """Return the noise and sampling at a place from 0, past the end those of the last round."""
        round_ = self._places.round_at(position) or self.schedule.phases[-1].round
        return self._noise_of(round_)

    def _noise_of(self, round_: Release) -> NoisePlan:
        sampling, multiplier = sampling_of(round_), noise_of(round_)
        return replace(self.noise, sampling=sampling, noise_multiplier=multiplier)

    def bound(self, bound: Bound, round_number: int) -> Bound:
        """Return the bound of a round, from the bound of an earlier round."""
        return bound if self.clip_norms is None else Clip(self.clip_norms(round_number))

    def charged(self, charge: Callable[[NoisePlan], Release]) -> Schedule:
        """Return the schedule as the ledger charges it. ``charge`` converts one round."""
        known = {round_: charge(self._noise_of(round_)) for round_ in self.schedule.distinct()}
        return Schedule(Phase(known[round_], count) for round_, count in self.schedule)

    def words(self) -> str:
        """Return the plan for comparing settings."""
        if self.constant:
            plan = self.at(0)
            cohorts = "" if plan.correlation is None else f", {plan.correlation.cohorts!r}"
            return (
                f"Plan(sampling={plan.sampling!r}, adjacency={plan.adjacency!r}, "
                f"noise_multiplier={plan.noise_multiplier!r}, cohort_size={plan.cohort_size!r}"
                f"{cohorts})"
            )
        rounds, adjacency = self.schedule.rounds, self.noise.adjacency
        phases = repr(list(self.schedule)).encode()
        digest = hashlib.sha256(phases).hexdigest()[:16]
        return f"Plan({rounds} rounds, {digest}, adjacency={adjacency!r})"
