"""How the examples of a run are trained: many at once, in groups of which size, or one by one.

Compared on made-up examples, as `dpacct.fl.trainers.chooser` does for clients, and not timed. In
groups of all sizes that are chosen every place gives the same bits, or no group is used: in which
group an example comes, and where, follows from who else was drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from dpacct.errors import Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.layout import Layout
from dpacct.fl.local.labels import Labels
from dpacct.fl.methods.protocol import Method
from dpacct.fl.tensors import keep_freed_memory, same_numbers
from dpacct.fl.trainers.addresses import shows_addresses
from dpacct.fl.trainers.choice import Choice
from dpacct.fl.trainers.chooser import TrainerChooser
from dpacct.fl.trainers.examples import Kind, Maker, made_up_task
from dpacct.fl.trainers.groups import LANES, expected_groups, expected_work
from dpacct.fl.trainers.lot_trainer import LotTrainer
from dpacct.fl.trainers.lots import Lot
from dpacct.fl.trainers.number_widths import NumberWidths, widths_in
from dpacct.fl.trainers.per_example import ExampleTrainer
from dpacct.fl.trainers.sizes import Sizes
from dpacct.fl.trainers.step_bytes import bytes_of_example
from dpacct.fl.trainers.tasks import Broadcast

# Examples in a group, at most: what more of them hold falls out of the cache. Sizes that are tried.
_WIDEST, _TRIED = 9 * LANES, 4
# Bytes of a tensor, at most: larger ones are given back to the system as soon as they are freed,
# see `keep_freed_memory`, which costs more than to compute them.
_LARGEST = 1 << 25
# Made-up examples that are compared with one-by-one training.
_COMPARED = 3
# How far parameters are moved for a second comparison.
_MOVE = 0.1
# Bytes for each weight: its gradient as it is made, as a row, and as it is bounded and summed.
_ROW_BYTES = 32
_PLACE = "the last bits of a gradient depend on its place among others"


class ExampleChooser:
    """As `TrainerChooser`, for a population of examples.

    Args:
        chooser: of the same run; compares, and knows the limits.
        method, layout: of the run.
        vectorize: "auto" or True: many at once wherever that can be; False: one by one.
        chunk: examples at a time, None for as many as fit.

    Attributes:
        model, loss, alone: of the chooser. vectorize: as asked.
        vectorized: trains many at once, in the groups that were chosen last.
    """

    def __init__(
        self,
        chooser: TrainerChooser,
        method: Method,
        layout: Layout,
        *,
        vectorize: bool | str,
        chunk: int | None,
    ) -> None:
        self.model = chooser.model
        self.loss = chooser.loss
        self.alone = chooser.alone
        self._chooser = chooser
        self._method = method
        self._layout = layout
        self.vectorize = vectorize
        self._chunk = chunk
        self.vectorized = self.trainer_of(Sizes.one(LANES))

    def choose(
        self, make: Maker, kind: Kind, labels: Labels | None, broadcast: Broadcast, cohort: int
    ) -> Choice:
        """Decide, from a few made-up examples; see `TrainerChooser.choose`.

        Raises:
            Unsupported: vectorize=True, and this model or method cannot be batched.
        """
        slow = LotTrainer(self._layout, self.alone, None, kind, labels)
        chunk = self.chunk_of(None, make, broadcast)
        if self.vectorize is False:
            return Choice(slow, chunk, "one example at a time, as asked")
        try:
            sizes = self._group_sizes(make, broadcast, chunk, cohort)
        except Unsupported as refusal:
            if self.vectorize is True:
                raise Unsupported(f"vectorize=True, but {refusal}") from None
            return Choice(slow, chunk, f"one example at a time: {refusal}")
        self.settle(sizes, _device(broadcast))
        whole, words = self.chunk_of(sizes, make, broadcast), f"{sizes.most} examples at once"
        return Choice(replace(slow, together=self.vectorized), whole, words)

    def settle(self, sizes: Sizes, device: torch.device) -> None:
        """Train in groups of these sizes from now on."""
        self.vectorized = self.trainer_of(sizes)
        keep_freed_memory(device)

    def chunk_of(self, sizes: Sizes | None, make: Maker, broadcast: Broadcast) -> int:
        """Examples at a time, whole groups of the largest size where there are groups."""
        chunk = self._chunk or self._fitting(make, broadcast)
        return chunk if sizes is None else max(sizes.most, sizes.most * (chunk // sizes.most))

    def check(self, sizes: Sizes, make: Maker, broadcast: Broadcast, chunk: int) -> None:
        """Compare groups of these sizes.

        Raises:
            Unsupported: they cannot be trusted, or have no room; why, in words.
        """
        widths = self._widths(make, broadcast)
        most = _most(widths.lanes, chunk, broadcast)
        if sizes.least % widths.lanes or sizes.step % widths.lanes or sizes.most > most:
            raise Unsupported(f"there is no room for groups of {sizes.most}")
        tried = range(sizes.least, sizes.most + 1, sizes.step)
        possible = sizes.least == sizes.most or _several(widths, broadcast)
        if not possible or alike(self.trainer_of, tried, make, broadcast) != sizes:
            raise Unsupported(_PLACE)

    def _group_sizes(self, make: Maker, broadcast: Broadcast, chunk: int, cohort: int) -> Sizes:
        """The sizes of groups.

        Raises:
            Unsupported: none can be trusted; why, in words.
        """
        widths = self._widths(make, broadcast)
        lanes, several = widths.lanes, _several(widths, broadcast)
        # What would be missing to a group is left out of it, where there are several sizes.
        work = partial(expected_groups if several else expected_work, cohort)
        largest = range(lanes, _most(lanes, chunk, broadcast) + 1, lanes)
        for most in sorted(largest, key=work)[:_TRIED]:
            tried = range(lanes if several else most, most + 1, lanes)
            sizes = alike(self.trainer_of, tried, make, broadcast)
            if sizes is not None:
                return sizes
        raise Unsupported(_PLACE)

    def _widths(self, make: Maker, broadcast: Broadcast) -> NumberWidths:
        """Which numbers a group has.

        Raises:
            Unsupported: no group can be trusted; why, in words.
        """
        tasks = [made_up_task(make(1, seed), self._method, broadcast) for seed in range(_COMPARED)]
        few = self.trainer_of(Sizes.one(LANES))
        complaint = shows_addresses(_device(broadcast))
        complaint = complaint or self._chooser.compare(tasks, broadcast, few)
        if complaint:
            raise Unsupported(complaint)
        return widths_in(few, tasks[:1], broadcast)

    def trainer_of(self, sizes: Sizes) -> ExampleTrainer:
        """A trainer of groups of these sizes."""
        return ExampleTrainer(self._method, self.loss.batched(), self._layout, sizes)

    def _fitting(self, make: Maker, broadcast: Broadcast) -> int:
        """How many examples fit into memory beside each other."""
        task = made_up_task(make(1, 0), self._method, broadcast)
        saved = bytes_of_example(self.loss, task, broadcast)
        each = saved + _ROW_BYTES * self._layout.size
        return max(1, self._chooser.limit // each)


def _most(lanes: int, chunk: int, broadcast: Broadcast) -> int:
    """The largest size of a group that may be tried."""
    most = max(lanes, min(chunk, _WIDEST))
    if _device(broadcast).type == "cpu":
        largest = max(value.nbytes for value in broadcast.anchor.values())
        most = max(lanes, min(most, _LARGEST // largest))
    return most


def _several(widths: NumberWidths, broadcast: Broadcast) -> bool:
    """Whether groups may have several sizes."""
    return not widths.doubles and _device(broadcast).type == "cpu"


def alike(
    trainer_of: Callable[[Sizes], ExampleTrainer], sizes: range, make: Maker, broadcast: Broadcast
) -> Sizes | None:
    """Sizes in which an example has the same bits, wherever it is: the largest and those below.

    Args:
        trainer_of: trains groups of such sizes. sizes: to try, ascending whole lanes.
        make: made-up examples. broadcast: of a round.
    Returns:
        None where places in the largest size differ; the sizes down to one that differs. Off the
        CPU the largest alone.
    """
    found = _alike(trainer_of, sizes, make, broadcast)
    # Where a last layer starts at zero, all gradients below it are zero in any size.
    moved = found and _alike(trainer_of, sizes, make, _moved(broadcast))
    if found is None or moved is None:
        return None
    return max(found, moved, key=lambda one: one.least)


def _alike(
    trainer_of: Callable[[Sizes], ExampleTrainer], sizes: range, make: Maker, broadcast: Broadcast
) -> Sizes | None:
    """See `alike`; with these parameters."""
    device, most = _device(broadcast), sizes[-1]
    target = _made_up_lot(lambda count, seed: make(count, seed + 1), 1, device)
    trainer = trainer_of(Sizes.one(most))
    like = trainer.train(target, broadcast)
    lot, rows = target, like
    for first in (0, 1):
        # At every second place, then at the others.
        lot = _made_up_lot(make, most, device)
        lot.data.inputs[first::2] = target.data.inputs
        lot.data.targets[first::2] = target.data.targets
        rows = trainer.train(lot, broadcast)
        found = rows[first::2]
        if not same_numbers(found, like.expand_as(found)):
            return None
    least = most
    for size in reversed(sizes[:-1] if device.type == "cpu" else []):
        found = trainer_of(Sizes.one(size)).train(lot[:size], broadcast)
        if not same_numbers(found, rows[:size]):
            break
        least = size
    return Sizes(least, most, sizes.step)


def _moved(broadcast: Broadcast) -> Broadcast:
    """With other parameters that follow no data, hardly any of them zero."""
    anchor: dict[str, Tensor] = {}
    for name, value in broadcast.anchor.items():
        places = torch.arange(value.numel(), device=value.device).view(value.shape)
        anchor[name] = value + _MOVE * places.cos().to(value)
    return replace(broadcast, anchor=anchor)


def _made_up_lot(make: Maker, size: int, device: torch.device) -> Lot:
    data = make(size, 0)
    inputs, targets = _own(data.inputs, device), _own(data.targets, device)
    seeds = torch.zeros(size, dtype=torch.int64, device=device)
    return Lot(ClientData(inputs, targets), seeds, torch.zeros(size, dtype=torch.bool))


def _own(values: Tensor, device: torch.device) -> Tensor:
    return values.to(device, copy=True)


def _device(broadcast: Broadcast) -> torch.device:
    return next(iter(broadcast.anchor.values())).device
