"""Whether a computation has numbers of two bytes, or of eight.

Of those of two a vector holds twice as many, and groups are whole numbers of twice as many members;
see `dpacct.fl.trainers.groups`. Those of eight may be added up otherwise where the number of
examples is another, and so rarely that a few made-up examples need not show it: on a CPU products
of a matrix by a vector of each example are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpacct.fl.trainers.groups import HALF_LANES, LANES
from dpacct.fl.trainers.tasks import Broadcast, Task, Trainer


class Halves(TorchDispatchMode):
    """Inside, every operation is looked at, those of `torch.func` and of autocast too.

    Attributes:
        seen: whether one gave numbers of two bytes.
        doubles: whether one gave numbers of eight.
    """

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.seen = False
        self.doubles = False

    @property
    def lanes(self) -> int:
        """Groups consist of whole multiples of so many members."""
        return HALF_LANES if self.seen else LANES

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Do it, and look at what it gives."""
        del types
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
                self.seen = self.seen or value.itemsize == 2
                self.doubles = self.doubles or value.itemsize >= 8
        return result


def numbers_in(trainer: Trainer, tasks: Sequence[Task], broadcast: Broadcast) -> Halves:
    """What was seen where these were trained so."""
    with Halves() as found:
        trainer.train(tasks, broadcast)
    return found
