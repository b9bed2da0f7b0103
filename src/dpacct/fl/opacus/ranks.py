"""Several processes that train one model, and the one of them that keeps the ledger.

Rule 1: rank 0 reserves a batch and says so to all before any of them draws its share.
Rule 2: rank 0, which adds the noise, commits before it gives its gradients to the common sum; until
it does no rank has a sum with which its model could change.
Rule 3: every rank draws from its own examples, and all draw as often, empty batches included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import distributed

from dpacct.errors import InvalidParameter
from dpacct.ledger import Run, Ticket


@dataclass(slots=True)
class Told:
    """The ticket of a rank that keeps no ledger: rank 0 has the true one."""

    state: str = "drawn"

    def commit(self) -> None:
        """Nothing to write; without rank 0 the common sum does not come about."""
        self.state = "committed"


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of a training.

    Attributes:
        rank, size: this one's number, and how many there are; 0 of 1 where it is alone.
        run: what is charged; None on every rank but 0.
        private: whether that run is.
    """

    rank: int
    size: int
    run: Run | None
    private: bool

    @classmethod
    def of(cls, run: Run | None, together: bool, terms: Any) -> Ranks:  # noqa: FBT001 - a fact
        """Find the ranks, and have them agree on what a step is.

        Raises:
            InvalidParameter: rank 0 has no run, another rank has one, or their rounds differ.
        """
        rank, size = (distributed.get_rank(), distributed.get_world_size()) if together else (0, 1)
        if (run is None) is (rank == 0):
            rule = "rank 0 charges the run of its ledger, and every other rank gives None"
            raise InvalidParameter("run", run, rule)
        private = run is not None and run.private
        if together:
            said: list[Any] = [(private, terms)]
            distributed.broadcast_object_list(said, src=0)
            private, agreed = said[0]
            if agreed != terms:
                raise InvalidParameter("round", terms, f"rank 0 has {agreed!r}")
        return cls(rank, size, run, private)

    def reserve(self, ask: Callable[[Run], Ticket | None]) -> Ticket | Told | None:
        """The ticket of the next batch; None on all ranks where rank 0 has none."""
        ticket: Ticket | None = None
        try:
            if self.run is not None:
                ticket = ask(self.run)
        finally:
            # Also where it raises: the others end their loops then.
            said: list[Any] = [ticket is not None]
            if self.size > 1:
                distributed.broadcast_object_list(said, src=0)
        return Told() if self.run is None and said[0] else ticket

    def share(self, examples: int) -> range:
        """The examples of this rank; the ranks' shares are disjoint and are all there are."""
        return range(self.rank, examples, self.size)
