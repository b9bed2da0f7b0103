"""Clients share a model, a loss and a method, and must leave them as they were.

A write to a shared weight or buffer would reach the next client and so the release, past the bound
on one client's update. So would an attribute that keeps something of one client's data.

Rule 1: clients are shown copies of the released parameters. Rule 2: after each chunk of clients all
shared tensors are compared with their earlier values. So are the public attributes of the layers,
the loss and the method. A change is refused before anything is released.

This finds mistakes. State that a program hides elsewhere (e.g. in a closure) is the user's
responsibility. `dpacct.fl.engine.rehearsal` finds it if it changes updates of synthetic clients.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from dpacct.errors import Unsupported
from dpacct.fl.layout import copies, modules_of
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.methods.protocol import Method
from dpacct.fl.tensors import same_numbers
from dpacct.fl.training.tasks import Broadcast

_REASON = "it would reach the next client, or the release, past the bound"
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class Snapshot:
    """Tensors as they are now, by name, in storage of their own."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors, self._before = dict(tensors), copies(tensors)

    def changed(self) -> str | None:
        """Return the name of a tensor that has other values than before, or None."""
        for name, before in self._before.items():
            if not same_numbers(self._tensors[name].detach(), before):
                return name
        return None

    def restore(self) -> None:
        """Give the tensors the values that they had."""
        for name, before in self._before.items():
            self._tensors[name].data = before.clone()


class Isolation:
    """A check around the training of clients.

    Args:
        loss: with the model. method: None to try the model alone.
    """

    def __init__(self, loss: LocalLoss, method: Method | None) -> None:
        self._loss = loss
        self._shared: Snapshot | None = None
        self._owners: dict[str, object] = {
            f"the layer {name}" if name else "the model": layer
            for name, layer in modules_of(loss.model)
        }
        self._owners["the loss"] = loss.function
        if method is not None:
            self._owners[f"the method {method.name or type(method).__name__}"] = method

    @contextmanager
    def around(self, broadcast: Broadcast) -> Generator[Broadcast]:
        """Give clients copies of a broadcast, and check them afterward, even after an error.

        Raises:
            Unsupported: something that clients share has changed.
        """
        if self._shared is None:
            self._shared = Snapshot(self._tensors())
        anchor, server = copies(broadcast.anchor), copies(broadcast.server_state)
        shown = replace(broadcast, anchor=anchor, server_state=server)
        attributes = dict(self._attributes())
        try:
            yield shown
        finally:
            self._check(self._shared, broadcast, shown, attributes)

    def _check(
        self,
        shared: Snapshot,
        released: Broadcast,
        shown: Broadcast,
        before: dict[str, tuple[object, int]],
    ) -> None:
        """Compare the values that clients were shown with the values before. Rule 2."""
        for what, copied, own in (
            ("parameter", shown.anchor, released.anchor),
            ("server state", shown.server_state, released.server_state),
        ):
            for name, value in copied.items():
                if not same_numbers(value.detach(), own[name]):
                    raise Unsupported(
                        f"the model, the loss or the method writes to the {what} {name!r} in place "
                        f"while a client trains: {_REASON}"
                    )
        changed, now = shared.changed(), dict(self._attributes())
        for name in now.keys() | before.keys():
            if name not in now or name not in before or not _same(now[name], before[name]):
                changed = changed or name
        if changed is not None:
            raise Unsupported(
                f"{changed} changes while a client trains: {_REASON}. Keep nothing between calls"
            )

    def _tensors(self) -> dict[str, Tensor]:
        """Return all tensors that clients share, by the words of an error."""
        model = self._loss.model
        shared = {f"the frozen tensor {n}": v for n, v in self._loss.constants.items()}
        shared |= {f"the model's parameter {n}": p for n, p in model.named_parameters()}
        shared |= {f"the model's buffer {n}": b for n, b in model.named_buffers()}
        for title, owner in self._owners.items():
            for name, value in getattr(owner, "__dict__", {}).items():
                if isinstance(value, Tensor) and value.layout is torch.strided:
                    shared[f"{title}'s tensor {name}"] = value
        return shared

    def _attributes(self) -> Iterator[tuple[str, tuple[object, int]]]:
        """Yield the public attributes of the shared objects, with the lengths of containers."""
        for title, owner in self._owners.items():
            for name, value in getattr(owner, "__dict__", {}).items():
                if not name.startswith("_"):
                    sized = isinstance(value, list | dict | set)
                    length = len(cast("Any", value)) if sized else -1
                    yield f"{title}'s attribute {name}", (value, length)


def _same(one: tuple[object, int], two: tuple[object, int]) -> bool:
    """Return whether an attribute is the same object, or an equal plain value."""
    (new, length), (old, known) = one, two
    equal = isinstance(new, _PLAIN) and type(new) is type(old) and new == old
    return (new is old or equal) and length == known
