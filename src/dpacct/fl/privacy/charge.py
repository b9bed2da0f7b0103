"""From the objects that run to the event that is charged: nobody types a multiplier.

Rule 1: the round's noise multiplier is read from the bound and the standard deviation of the noise.
Rule 2: rounding goes down: the charge assumes at most the noise that is drawn.
Rule 3: `tight` may play a game only where a client's contribution is a function of what was
released. A client with a memory is charged by fixed pairs, whatever it keeps there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpacct.errors import InvalidParameter
from dpacct.fl.privacy.adaptive_clip import INDICATOR_NORM, AdaptiveClip
from dpacct.fl.privacy.bounds import Bound
from dpacct.fl.privacy.noise import STD_MARGIN, Noise
from dpacct.fl.privacy.sums import MAX_CONTRIBUTIONS
from dpacct.fl.public import PublicSize
from dpacct.ledger import Event, Release
from dpacct.rounds import Adjacency, Round, Sampling


@dataclass(frozen=True, slots=True)
class NoisePlan:
    """How much noise one round gets, and what that costs.

    Attributes:
        sampling, adjacency: of the round.
        noise_multiplier: z asked for; the charge is never for more.
        public: the public number of clients, from which the planned cohort size is made.
    """

    sampling: Sampling
    adjacency: Adjacency
    noise_multiplier: float
    public: PublicSize

    def __post_init__(self) -> None:
        if self.contributions > MAX_CONTRIBUTIONS:
            rule = (
                f"a round has room for at most {MAX_CONTRIBUTIONS} contributions: beyond, no sum "
                "in double precision would be exact enough for its sensitivity to be proven"
            )
            raise InvalidParameter("num_clients", self.contributions, rule)

    @property
    def cohort_size(self) -> float:
        """Return the planned cohort size, by which the sum is divided."""
        return self.public.expected_cohort(self.sampling)

    @property
    def contributions(self) -> int:
        """Return the most contributions that a sum has room for."""
        return self.public.capacity(self.sampling)

    def update_std(self, bound: Bound) -> float:
        """Standard deviation of the noise on each coordinate of the sum of updates."""
        multiplier = self.noise_multiplier
        if isinstance(bound, AdaptiveClip):
            multiplier = bound.update_multiplier(multiplier, self.cohort_size)
        return multiplier * bound.sensitivity(Adjacency.ADD_REMOVE) * (1 + STD_MARGIN)

    def indicator_std(self, bound: Bound) -> float | None:
        """Standard deviation of the noise on the sum of the indicators, None without them."""
        if not isinstance(bound, AdaptiveClip):
            return None
        return bound.indicator_std(self.cohort_size) * (1 + STD_MARGIN)

    def event(self, bound: Bound, noise: Noise, details: dict[str, Any]) -> Event:
        """The round as the ledger charges it, derived from bound and noise.

        Raises:
            InvalidParameter: the bound's sensitivities contradict each other.
        """
        charged, releases, record = self._parts(bound, noise, details)
        event = Event(
            Round(charged, self.sampling, self.adjacency),
            tuple(Release(*release) for release in releases),
            details=record,
        )
        if event.charged.noise_multiplier < self.noise_multiplier * (1 - 1e-9):
            _, _, unit = releases[0]
            rule = (
                f"with it one contribution may have norm {unit:g}, more than the "
                f"{bound.sensitivity(Adjacency.ADD_REMOVE):g} that the noise was chosen for"
            )
            raise InvalidParameter("bound", type(bound).__name__, rule)
        return event

    def still(self, event: Event, bound: Bound, noise: Noise, details: dict[str, Any]) -> bool:
        """Whether `event` would give this event again, read from the same objects anew."""
        charged, releases, record = self._parts(bound, noise, details)
        round_ = event.round
        return (
            (round_.noise_multiplier, round_.sampling, round_.adjacency, event.details)
            == (charged, self.sampling, self.adjacency, record)
        ) and [(r.name, r.noise_multiplier, r.sensitivity) for r in event.releases] == releases

    def _parts(
        self, bound: Bound, noise: Noise, details: dict[str, Any]
    ) -> tuple[float, list[tuple[str, float, float]], dict[str, Any]]:
        """What an event is made of: the multiplier of its main sum, its releases, its details."""
        radius = bound.sensitivity(Adjacency.ADD_REMOVE)
        moved = bound.sensitivity(self.adjacency)
        replaced = self.adjacency is Adjacency.REPLACE_ONE
        # The accountant takes z as noise / norm of one contribution, and doubles the shift itself
        # where a client is replaced. A bound that moves the sum further is charged for it.
        unit = max(moved / 2 if replaced else moved, radius)
        update = self.update_std(bound) / unit * (1 - STD_MARGIN / 2)
        charged = min(update, self.noise_multiplier)
        releases = [("update", charged, unit)]
        indicator = self.indicator_std(bound)
        if indicator is not None:
            own = indicator / INDICATOR_NORM * (1 - STD_MARGIN / 2)
            releases = [("update", update, unit), ("indicator", own, INDICATOR_NORM)]
        record = {"noise": noise.name, "noise_std": self.update_std(bound)} | details
        return charged, releases, record
