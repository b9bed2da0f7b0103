"""Several processes that train one model: rank 0 keeps the ledger, all ranks train.

    rank 0 sends: the plan -> the registered run -> (a draw -> a report and the next state) x rounds

Rule 1: rank 0 alone reserves, draws, adds noise, commits and writes files. Other ranks receive the
draw of a round after it was reserved. Rule 2: a rank sends the sum of its share of the cohort, and
its clients' memories, to rank 0. Sums are exact in any order, so the model does not depend on the
number of ranks. Rule 3: every rank tries the run on synthetic clients before the first charge, and
a rank of another setting or version is refused on all of them.

An error on one rank ends its process, and ``torchrun`` ends the others. A round that was reserved
stays spent. Messages are neither encrypted nor authenticated: ranks are processes of one owner.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace
from importlib.metadata import version
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed

from dpacct import __version__
from dpacct.errors import InvalidParameter
from dpacct.fl.engine.rounds import Rounds
from dpacct.fl.engine.states import Collected, TrainingState
from dpacct.fl.settings import LocalSettings
from dpacct.validate import LEAST_NOISE

Held = TypeVar("Held", TrainingState, Collected)


class Ranks:
    """The connections of process ``rank`` to the other ones of a run, ``size`` in all."""

    def __init__(self) -> None:
        if not (distributed.is_available() and distributed.is_initialized()):
            rule = "each process calls torch.distributed.init_process_group() before"
            hint = "torchrun starts them."
            raise InvalidParameter(name="distributed", value=True, rule=rule, hint=hint)
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        # Messages are objects on the CPU, wherever the tensors of the model are.
        self._group = None
        if distributed.get_backend() != "gloo":
            self._group = cast("Any", distributed).new_group(backend="gloo")

    def share(self, value: Any = None) -> Any:
        """Return rank 0's value on all ranks."""
        box = [value]
        distributed.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def gather(self, own: object) -> list[Any]:
        """Return the values of all ranks, on all ranks."""
        parts: list[Any] = [None] * self.size
        cast("Any", distributed).all_gather_object(parts, own, group=self._group)
        return parts

    def check_alike(self, run: Rounds) -> None:
        """Refuse ranks that train with other settings or versions. Rule 3."""
        ours = (
            f"{run.setting}, {run.first_bound!r}, {run.engine.num_clients} clients with "
            f"dpacct {__version__}, torch {version('torch')}"
        )
        for theirs in self.gather(ours):
            if theirs != ours:
                raise InvalidParameter("distributed", ours, f"another rank trains {theirs}")


def join_torchrun() -> bool:
    """Join the processes that torchrun has started, and return whether this is rank 0.

    Each process takes a GPU of its own, if there are enough.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    distributed.init_process_group("gloo")
    return distributed.get_rank() == 0


def follower_settings(settings: LocalSettings) -> LocalSettings:
    """Return settings for a rank other than 0, which receives the noise from rank 0."""
    # The least noise: a bound may refuse more of it than rank 0 has.
    noise = LEAST_NOISE if settings.schedule is None else None
    noise = 0.0 if settings.noise_multiplier == 0 else noise
    off = {"ledger": None, "checkpoint": None, "budget": None, "delta": None, "callbacks": ()}
    return replace(settings, **cast("Any", off), noise_multiplier=noise)


def moved(held: Held, device: torch.device) -> Held:
    """Return a copy with its tensors on a device."""
    content = {field.name: moved_value(getattr(held, field.name), device) for field in fields(held)}
    return replace(held, **content)


def moved_value(value: Any, device: torch.device) -> Any:
    """Return a value with its tensors, and the tensors in its containers, on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return {key: moved_value(entry, device) for key, entry in entries.items()}
    if isinstance(value, list):
        return [moved_value(entry, device) for entry in cast("list[Any]", value)]
    return value
