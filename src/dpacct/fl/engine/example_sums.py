"""The sums of a round of examples: each group is bounded and added while it is in memory.

Where nothing but the sum is asked for, threads share a group: its sums are exact, so that no bit of
a release shows where one thread's rows end and another one's begin.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from dpacct.fl.clients import Population
from dpacct.fl.engine.laps import LOCAL, PRIVACY, Laps
from dpacct.fl.engine.states import Collected, TrainingState
from dpacct.fl.layout import Layout
from dpacct.fl.privacy.noise import Noise, sums_as_they_are
from dpacct.fl.privacy.sums import scales_rows
from dpacct.fl.tensors import one_thread
from dpacct.fl.trainers.at_once import at_once, can_share
from dpacct.fl.trainers.lots import plant_examples, plants_nothing
from dpacct.fl.trainers.per_example import Updates

# Coordinates that are worth a thread: about a millisecond.
_WORTH = 1 << 19


class Adds(Protocol):
    """What sums need of the engine: `dpacct.fl.engine.engine.Engine`."""

    @property
    def clients(self) -> Population:
        """The examples."""
        ...

    @property
    def layout(self) -> Layout:
        """Of an update."""
        ...

    @property
    def noise(self) -> Noise:
        """On the sum."""
        ...

    @property
    def device(self) -> torch.device:
        """Where sums lie."""
        ...

    def add_raw(self, state: TrainingState, found: Collected, rows: Tensor) -> None:
        """Mask, bound and add raw updates [c, d]."""
        ...


def sum_groups(
    engine: Adds,
    state: TrainingState,
    found: Collected,
    groups: Iterator[Updates],
    numbers: Sequence[int],
    laps: Laps,
) -> None:
    """Add the updates of some examples, all of them members, group by group.

    Args:
        engine: of the run. state: the run so far. found: the sums, which are added to.
        groups: what was computed, as it is computed. numbers: of all examples in it, in order.
        laps: of the round.
    """
    few = max(1, _WORTH // max(engine.layout.size, 1))
    threads = torch.get_num_threads() if few > 1 and _may_share(engine, state, found) else 1
    # Rows of which a cache holds many are bounded before torch's other threads wake up.
    with one_thread(engine.device) if few > 1 else nullcontext():
        done = 0
        for group in groups:
            laps.end(LOCAL)
            own = numbers[done : done + len(group)]
            _sum_group(engine, state, found, group, own, few, threads)
            done += len(group)
            laps.end(PRIVACY)
    laps.end(LOCAL)


def sums_alone(state: TrainingState, noise: Noise, total: Tensor) -> bool:
    """Whether a round asks for sums of float64 alone, and its bound is one factor for each row."""
    return total.dtype == torch.float64 and scales_rows(state.bound) and sums_as_they_are(noise)


def _may_share(engine: Adds, state: TrainingState, found: Collected) -> bool:
    """Whether no code but ours runs while rows are summed."""
    ours = sums_alone(state, engine.noise, found.total) and plants_nothing(engine.clients)
    return ours and engine.device.type == "cpu" and can_share()


def _sum_group(
    engine: Adds,
    state: TrainingState,
    found: Collected,
    group: Updates,
    numbers: Sequence[int],
    few: int,
    threads: int,
) -> None:
    count = len(group)
    most = count * engine.layout.size // _WORTH
    shares = max(1, min(threads, most, count))
    ends = [count * share // shares for share in range(shares + 1)]

    def added(start: int, stop: int, sums: Collected | None = None) -> Collected:
        sums = sums or found.empty()
        pieces = group.pieces(start, stop, few)
        for rows in plant_examples(pieces, numbers[start:stop], engine.clients):
            engine.add_raw(state, sums, rows)
        return sums

    # The first share goes to the sums themselves, each other one to sums of its own.
    first, *others = [partial(added, *pair) for pair in itertools.pairwise(ends)]
    for part in at_once([partial(first, found), *others])[1:]:
        found.merge(part)
