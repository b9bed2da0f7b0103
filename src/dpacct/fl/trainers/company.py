"""Whether an update shows who else was trained: the same client alone and among others."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dpacct.fl.tensors import same_numbers
from dpacct.fl.trainers.tasks import Broadcast, Task, Trainer


def shows_company(trainer: Trainer, tasks: Sequence[Task], broadcast: Broadcast) -> str:
    """What the first client's update and memory show of the others, or nothing.

    Args:
        trainer: as it is used in a round. tasks: at least one client.
        broadcast: of the round.

    Both are compared bit by bit. A model that draws random numbers of its own, whatever mode it is
    in, does not repeat itself, and cannot be judged.
    """
    target, others = tasks[0], tasks[1:] or tasks
    alone = _sent(trainer, [target], broadcast)
    if not _same(alone, _sent(trainer, [target], broadcast)):
        return ""
    if _same(alone, _sent(trainer, [*others, target], broadcast)):
        return ""
    return "the last bits of a client's update depend on who is trained beside it"


def _sent(trainer: Trainer, tasks: Sequence[Task], broadcast: Broadcast) -> list[Tensor]:
    """What the last client sends, and keeps."""
    rows = trainer.train(tasks, broadcast)
    kept = trainer.remember(tasks, rows, broadcast)
    return [rows[-1].clone(), *(kept[-1].values() if kept else ())]


def _same(one: Sequence[Tensor], two: Sequence[Tensor]) -> bool:
    return all(same_numbers(a, b) for a, b in zip(one, two, strict=True))
