"""The plan of a run: noise, sampling and clip norm of each of its rounds.

A constant run is the schedule ``rounds * Round(...)``. Rule 1: the plan is fixed before the run and
public. Rule 2: noise and sampling of a round are those of the ledger's next place in the plan. A
round that a crash has lost keeps its place, so each round runs as it was planned at its place.
Rule 3: clip norms and learning rates cost nothing, and follow the number of the training round.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dpacct.errors import InvalidParameter
from dpacct.fl.local.rates import RoundValues
from dpacct.fl.privacy.account import NoisePlan
from dpacct.fl.privacy.allocation import rounds_of, sampling_of
from dpacct.fl.privacy.bounds import Bound, Clip
from dpacct.ledger.record.events import noise_of
from dpacct.ledger.record.plans import Plan
from dpacct.rounds import Phase, Release, Schedule

# Two versions may calibrate the same noise in other last digits: its accuracy is 1e-6.
_CALIBRATED = 1e-5


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
    _digest: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        phases = [(repr(sampling_of(round_)), count) for round_, count in self.schedule]
        digest = hashlib.sha256(repr(phases).encode()).hexdigest()[:16]
        object.__setattr__(self, "_places", Plan(self.schedule))
        object.__setattr__(self, "_digest", digest)

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

    def as_registered(self, registered: Schedule, *, calibrated: bool) -> RunPlan:
        """Return the plan with the noise that its run was registered with.

        Args:
            registered: plan of the run in its ledger, which may be shorter.
            calibrated: the noise was found for a budget, perhaps by another version.
        Raises:
            InvalidParameter: the registered rounds are others.
        """
        count = min(registered.rounds, self.schedule.rounds)
        ours, theirs = self._places.first(count), Plan(registered).first(count)
        allowed = _CALIBRATED if calibrated else 1e-9
        same = len(ours.phases) == len(theirs.phases) and all(
            (sampling_of(mine.round), mine.rounds) == (sampling_of(other.round), other.rounds)
            and math.isclose(noise_of(mine.round), noise_of(other.round), rel_tol=allowed)
            for mine, other in zip(ours, theirs, strict=True)
        )
        if not same:
            rule = f"the run was registered in its ledger with the plan {theirs!r}"[:300]
            raise InvalidParameter("schedule", repr(ours)[:100], rule)
        return replace(self, schedule=registered) if count == self.schedule.rounds else self

    def words(self) -> str:
        """Return the plan for comparing settings, of a schedule all but the noise."""
        if self.constant:
            plan = self.at(0)
            cohorts = "" if plan.correlation is None else f", {plan.correlation.cohorts!r}"
            return (
                f"Plan(sampling={plan.sampling!r}, adjacency={plan.adjacency!r}, "
                f"noise_multiplier={plan.noise_multiplier!r}, cohort_size={plan.cohort_size!r}"
                f"{cohorts})"
            )
        rounds, adjacency = self.schedule.rounds, self.noise.adjacency
        return f"Plan({rounds} rounds, sampling {self._digest}, adjacency={adjacency!r})"
