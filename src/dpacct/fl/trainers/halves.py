"""Whether a computation has numbers of two bytes, of which a vector holds twice as many.

Then groups are whole numbers of twice as many members, see `dpacct.fl.trainers.groups`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpacct.fl.trainers.groups import HALF_LANES, LANES
from dpacct.fl.trainers.tasks import Broadcast, Task, Trainer


def lanes_of(trainer: Trainer, tasks: Sequence[Task], broadcast: Broadcast) -> int:
    """Of how many members groups consist, whole multiples of them, where these are trained so."""
    with Halves() as halves:
        trainer.train(tasks, broadcast)
    return HALF_LANES if halves.seen else LANES


class Halves(TorchDispatchMode):
    """Inside, every operation is looked at, those of `torch.func` and of autocast too.

    Attributes:
        seen: whether one gave numbers of two bytes.
    """

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.seen = False

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
            if isinstance(value, Tensor) and value.is_floating_point() and value.itemsize == 2:
                self.seen = True
        return result
