"""Where a ledger stands when it says no: what it reads, and who holds what is left.

Rule 1: a refusal states the reading that `dpacct ledger show` tells first, which holds whatever
decided how many rounds ran. Where another bound decides, it says which, and why.
Rule 2: room that a run holds is named with the run, and with the ways to free it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dpacct.budget import Budget
from dpacct.display import line
from dpacct.ledger.record.figures import above, told

_NAMED = 3


class Holder(NamedTuple):
    """A run that is not finished, and holds room for rounds to come."""

    run: int
    name: str
    rounds: int


@dataclass(frozen=True, slots=True)
class Standing:
    """What there is to know beside the rules.

    Attributes:
        path: of the ledger.
        budget: of the ledger.
        upper: proven epsilon of all runs, whatever decided how many rounds ran.
        holders: runs that hold room.
    """

    path: Path
    budget: Budget
    upper: float
    holders: tuple[Holder, ...]

    @property
    def reading(self) -> str:
        """What the ledger reads, in words."""
        return (
            f"the ledger reads epsilon {above(self.upper)} of {self.budget.epsilon:.7g} at delta "
            f"{told(self.budget.delta)} now"
        )

    def ways(self, *, enough: bool) -> str:
        """Who holds room, and both ways out; empty where nobody does.

        Args:
            enough: what was refused would fit if nothing were held.
        """
        if not self.holders:
            return ""
        named = [
            f"run {h.run} ({line(h.name)!r}, {h.rounds} rounds)" for h in self.holders[:_NAMED]
        ]
        if len(self.holders) > _NAMED:
            named.append(f"{len(self.holders) - _NAMED} more")
        file = shlex.quote(str(self.path))
        less = "" if enough else ", which would not be enough here"
        return (
            f" Room for rounds to come is held by {', '.join(named)}: "
            f"`dpacct ledger finish {file} --run {self.holders[0].run}` frees it{less}, and "
            f"`dpacct train --resume --ledger {file}` goes on with it."
        )
