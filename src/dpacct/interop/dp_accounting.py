"""The tight accountant as a `PrivacyAccountant` of dp-accounting, for what runs on that library.

```python
from dpacct.interop.dp_accounting import TightPrivacyAccountant
dp_accounting.calibrate_dp_mechanism(TightPrivacyAccountant, make_event, epsilon, delta)
```

Importing this module imports dp-accounting. Its accountants as peers of ours are another matter:
`dp_accounting_peers`.
"""

from __future__ import annotations

import math
from typing import Any

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.errors import InvalidParameter
from dpacct.interop.dp_events import (
    NotPrivate,
    UnmappedEvent,
    event_of_schedule,
    group,
    library,
    relation_of,
    repeat,
    schedule_of_event,
)
from dpacct.rounds import Phase, Schedule

__all__ = ["TightPrivacyAccountant", "UnmappedEvent", "event_of_schedule", "schedule_of_event"]

_library = library()


class TightPrivacyAccountant(_library.PrivacyAccountant):
    """A privacy accountant whose answers are proven upper bounds.

    Args:
        neighboring_relation: of dp-accounting; default adding or removing one record.
        accountant: name of ours that gives the bound.
    Raises:
        InvalidParameter: an argument that is none.
    """

    def __init__(
        self, neighboring_relation: Any = None, *, accountant: str = DEFAULT_ACCOUNTANT
    ) -> None:
        if neighboring_relation is None:
            neighboring_relation = _library.NeighboringRelation.ADD_OR_REMOVE_ONE
        self._adjacency = relation_of(neighboring_relation)
        self._judge = find_accountant(accountant)
        self._phases: list[Phase] = []
        self._count = 0
        self._private = True
        super().__init__(neighboring_relation)  # pyright: ignore[reportUnknownMemberType]

    @property
    def schedule(self) -> Schedule:
        """What was composed, as a schedule; rounds are grouped by kind unless their order counts.

        Raises:
            InvalidParameter: something without noise was composed, which has no schedule.
        """
        if not self._private:
            rule = "something without noise was composed, and epsilon is infinite"
            raise InvalidParameter("schedule", None, rule)
        return self._grouped()

    def _grouped(self) -> Schedule:
        return group(Schedule(self._phases))

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:  # noqa: FBT001 - the base's
        """Compose an event, or say why it cannot be: called for both by the base class."""
        try:
            once = schedule_of_event(event, self._adjacency)
            # `supports` asks about no composition at all.
            phases = list(repeat(event, once, count or 1))
            total = self._count + sum(times for _, times in phases)
            validate.count("rounds", total or 1, "the number of rounds composed")
        except NotPrivate:
            self._private = self._private and not (do_compose and count)
            return None
        except UnmappedEvent as error:
            return self.CompositionErrorDetails(error.event, str(error))
        except InvalidParameter as error:
            return self.CompositionErrorDetails(event, str(error))
        if do_compose and count:
            self._phases += phases
            self._count = total
        return None

    def get_epsilon(self, target_delta: float) -> float:
        """Proven upper bound of epsilon at a delta in [0, 1]."""
        delta = validate.probability("target_delta", target_delta, "delta")
        if self._private and (delta == 1.0 or not self._phases):
            return 0.0
        if not self._private or delta == 0.0:
            return math.inf
        return self._judge.upper_epsilon(self._grouped(), delta)

    def get_delta(self, target_epsilon: float) -> float:
        """Proven upper bound of delta at an epsilon of at least 0, or infinite."""
        if not self._private:
            return 1.0
        if target_epsilon == math.inf or not self._phases:
            return 0.0
        return self._judge.delta(self._grouped(), validate.epsilon(target_epsilon)).upper
