"""What a reading promises, in one sentence that cannot be misread.

Rule 1: a figure that holds only if results had no say in when to stop is never told without the
one that holds whatever they had a say in.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpacct.display import up
from dpacct.ledger.readings import Guarantee

_WHOLE = (
    "Every round was planned before the first one ran, and all that was planned is charged: the "
    "tight accountant, whatever is done with the results."
)
_WHOLE_RUN = (
    "Every round was planned before the run started, and all that was planned is charged: the "
    "tight accountant, whatever is done with the results."
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A reading with all that it takes to tell it.

    Attributes:
        guarantee: its kind.
        epsilon: proven, of the rounds that are charged; where they follow a plan, for a number of
            them that was not chosen by looking at results.
        any_stop: proven, whatever decided when to stop: of the whole plan, where there is one.
        rounds: how many are charged.
        used, planned: places of plans that are used, and that there are; 0 without plans.
        first: the plans were registered before any round of the ledger.
    """

    guarantee: Guarantee
    epsilon: float
    any_stop: float
    rounds: int
    used: int = 0
    planned: int = 0
    first: bool = True

    @property
    def partial(self) -> bool:
        """Whether it makes a difference why no more rounds ran."""
        return self.guarantee is Guarantee.PLANNED and 0 < self.used < self.planned

    @property
    def words(self) -> str:
        """One sentence, or two."""
        if not self.rounds:
            return "Nothing ran yet."
        if self.guarantee is not Guarantee.PLANNED:
            return self.guarantee.in_words
        if not self.partial:
            return _WHOLE if self.first else _WHOLE_RUN
        return (
            f"{self.used} of {self.planned} planned rounds are charged. Epsilon is "
            f"{up(self.any_stop)} (the whole plan) if results had, or may get, a say in stopping "
            f"before its end; {up(self.epsilon)} only if it was settled in advance to stop here."
        )
