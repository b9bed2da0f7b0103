"""Users with many records: finite pairs compose where contours decay too slowly.

One round has delta in closed form at the loss of any point of the line. These are the knots of two
finite pairs (`dpacct.pairs.atoms`), 1e-4 apart in compositions.

Derivation: docs/derivations/epochs.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from dpacct.budget import Interval
from dpacct.pairs.atoms import AtomicPair, HullPair, between
from dpacct.pairs.dominating import Direction, DominatingPair, achieved_pairs, proven_pairs
from dpacct.pairs.records import RecordsPair
from dpacct.rounds import Release


class FiniteRecordsPair(HullPair):
    """A finite pair around that of a user with several records, and delta of the latter."""

    def __init__(self, one: RecordsPair, hull: AtomicPair) -> None:
        self._one, self._hull = one, hull
        self.infinite_mass = hull.infinite_mass

    @property
    def hull(self) -> AtomicPair:  # type: ignore[override]
        """See `HullPair`."""
        return self._hull

    def delta(self, epsilon: float) -> Interval:
        """See `GeneralPair`."""
        return self._one.delta(epsilon)


@lru_cache(maxsize=64)
def _finite(one: RecordsPair, *, proven: bool) -> FiniteRecordsPair:
    back = Direction.ADD if one.direction is Direction.REMOVE else Direction.REMOVE
    both = between(one.side(), replace(one, direction=back).side())
    return FiniteRecordsPair(one, both[0 if proven else 1])


class FiniteRecords(NamedTuple):
    """Pairs of releases, finite ones for users with several records, as `proven_pairs`."""

    proven: bool

    def __call__(self, release: Release, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the pairs of a release, with their counts."""
        pairs = (proven_pairs if self.proven else achieved_pairs)(release, direction)
        return {
            _finite(pair, proven=self.proven) if isinstance(pair, RecordsPair) else pair: n
            for pair, n in pairs.items()
        }
