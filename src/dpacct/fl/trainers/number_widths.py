"""Whether a computation has numbers of two bytes, or of eight.

Of those of two a vector holds twice as many, and groups are whole numbers of twice as many members;
see `dpacct.fl.trainers.groups`. Those of eight may be added up otherwise where the number of
examples is another, and so rarely that a few made-up examples need not show it: on a CPU products
of a matrix by a vector of each example are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from dpacct.fl.trainers.groups import HALF_LANES, LANES
from dpacct.fl.trainers.tasks import Broadcast, Task, Trainer
from dpacct.fl.trainers.tensors_made import TensorsMade

_HALF, _DOUBLE = 2, 8


class NumberWidths(NamedTuple):
    """Which numbers a computation has.

    Attributes:
        halves: whether some have two bytes. doubles: whether some have eight, or more.
    """

    halves: bool
    doubles: bool

    @property
    def lanes(self) -> int:
        """Groups consist of whole multiples of so many members."""
        return HALF_LANES if self.halves else LANES


def widths_in(trainer: Trainer, tasks: Sequence[Task], broadcast: Broadcast) -> NumberWidths:
    """What is seen where these are trained so."""
    seen: set[int] = set()

    def look(value: Tensor) -> None:
        if value.is_floating_point() or value.is_complex():
            seen.add(value.itemsize)

    with TensorsMade(look):
        trainer.train(tasks, broadcast)
    return NumberWidths(_HALF in seen, max(seen, default=0) >= _DOUBLE)
