"""Cohorts that follow a public rule, for correlated noise: who takes part in which row of it.

Rule 1: a cohort is a function of the row of noise and of the number of clients alone. Rows are
numbered 0, 1, ... by the ledger, and none comes twice. So no dropout, failure or restart brings a
client back too early, and an absent client has used its turn. Rule 2: the promise (the least
separation and the most participations) is checked for every client before anything is charged.
Rule 3: the rule is public and amplifies nothing, except for secret draws within a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.privacy.randomness import Randomness, draw_below


@dataclass(frozen=True, slots=True)
class Cyclic:
    """Groups of clients that take turns: client i takes part in the rounds i, i + groups, ...

    Args:
        groups: the number of groups, at most that of the clients.
        sampling_rate: if given, each client of the group joins with this probability only, in
            secret. This amplifies privacy for strategies of at most ``groups`` bands.
    Raises:
        InvalidParameter: a value out of range.
    """

    groups: int
    sampling_rate: float | None = None

    def __post_init__(self) -> None:
        count = validate.count("groups", self.groups, "the number of groups")
        object.__setattr__(self, "groups", count)
        if self.sampling_rate is not None:
            object.__setattr__(self, "sampling_rate", validate.sampling_rate(self.sampling_rate))

    name = "cyclic"

    def participation(self, rounds: int, num_clients: int) -> tuple[int, int]:
        """Return the least separation and the most participations of a client.

        Raises:
            InvalidParameter: there are more groups than clients.
        """
        if self.groups > num_clients:
            rule = f"{num_clients} clients make at most {num_clients} groups"
            raise InvalidParameter("groups", self.groups, rule)
        return self.groups, -(-rounds // self.groups)

    def cohort_size(self, num_clients: int) -> float:
        """Return the planned cohort size, by which sums are divided."""
        rate = 1.0 if self.sampling_rate is None else self.sampling_rate
        return rate * num_clients / self.groups

    def members(self, row: int, num_clients: int, source: Randomness) -> Sequence[int]:
        """Return the clients of a row of noise, ascending."""
        group = range(row % self.groups, num_clients, self.groups)
        if self.sampling_rate is None:
            return group
        return [group[place] for place in draw_below(len(group), self.sampling_rate, source)]


@dataclass(frozen=True, slots=True)
class MinSeparation:
    """Cohorts of one size from a queue of all clients: those whose turn is longest ago.

    Args:
        separation: the least number of rounds from one participation of a client to its next.
        participations: the most participations of a client.
        cohort: the number of clients in each round.
    Raises:
        InvalidParameter: a value out of range.
    """

    separation: int
    participations: int
    cohort: int

    # As for `Cyclic`: nothing is drawn.
    sampling_rate = None

    def __post_init__(self) -> None:
        for name, noun in (
            ("separation", "the least separation"),
            ("participations", "the number of participations"),
            ("cohort", "the cohort size"),
        ):
            object.__setattr__(self, name, validate.count(name, getattr(self, name), noun))

    def participation(self, rounds: int, num_clients: int) -> tuple[int, int]:
        """Return the least separation and the most participations of a client.

        Raises:
            InvalidParameter: the population cannot keep them.
        """
        if self.separation * self.cohort > num_clients:
            rule = (
                f"{num_clients} clients in cohorts of {self.cohort} come back after "
                f"{num_clients // self.cohort} rounds"
            )
            raise InvalidParameter("separation", self.separation, rule)
        needed = -(-rounds * self.cohort // num_clients)
        if needed > self.participations:
            rule = (
                f"{rounds} rounds of {self.cohort} out of {num_clients} clients need {needed} "
                "participations of a client"
            )
            raise InvalidParameter("participations", self.participations, rule)
        return self.separation, min(self.participations, -(-rounds // self.separation))

    def cohort_size(self, num_clients: int) -> float:
        """Return the cohort size, by which sums are divided."""
        del num_clients
        return float(self.cohort)

    def members(self, row: int, num_clients: int, source: Randomness) -> Sequence[int]:
        """Return the clients of a row of noise, ascending."""
        del source
        return sorted((row * self.cohort + place) % num_clients for place in range(self.cohort))


Cohorts = Cyclic | MinSeparation
