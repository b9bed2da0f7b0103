"""Clients share a model, a loss and a method, and must leave them as they were.

A write to a shared weight or buffer, or an attribute that keeps something of one client's data,
would reach the next client and so the release, past the bound on one client's update.

Rule 1: clients are shown copies of the released parameters. Rule 2: after each chunk of clients all
shared tensors are compared with what they were, and so are the public attributes of the layers, the
loss and the method. A change is refused before anything is released.

This finds mistakes. A program that hides state elsewhere (in a closure, say) is found if it changes
the updates of synthetic clients (`dpacct.fl.engine.rehearsal`), and is the user's responsibility.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
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
_SIZED = (list, dict, set)


class Snapshot:
    """Tensors as they are now, by name, in storage of their own."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)
        self._before = copies(tensors)

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
        loss: with the model. method: None to try the model by itself.
    """

    def __init__(self, loss: LocalLoss, method: Method | None) -> None:
        self._loss = loss
        self._method = method
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
        """Give clients copies of a broadcast, and check afterward, whatever happened inside.

        Raises:
            Unsupported: clients changed something that they share.
        """
        if self._shared is None:
            self._shared = Snapshot(self._tensors())
        anchor, server = copies(broadcast.anchor), copies(broadcast.server_state)
        shown = replace(broadcast, anchor=anchor, server_state=server)
        attributes = self._attributes()
        try:
            yield shown
        finally:
            self._check(broadcast, shown, attributes)

    def _check(
        self, released: Broadcast, shown: Broadcast, attributes: dict[str, tuple[object, int]]
    ) -> None:
        """Compare what clients were shown with what it was. Rule 2."""
        for what, copied, own in (
            ("parameter", shown.anchor, released.anchor),
            ("server state", shown.server_state, released.server_state),
        ):
            for name, value in copied.items():
                if not same_numbers(value.detach(), own[name]):
                    raise Unsupported(
                        f"the model, the loss or the method writes to the {what} {name!r} in place "
                        f"while a client trains; {_REASON}"
                    )
        changed = self._shared.changed() if self._shared else None
        changed = changed or _difference(attributes, self._attributes())
        if changed is not None:
            raise Unsupported(
                f"{changed} changes while a client trains; {_REASON}. Keep nothing between calls"
            )

    def _tensors(self) -> dict[str, Tensor]:
        """Return all tensors that clients share, by the words of an error."""
        model = self._loss.model
        found = {f"the frozen tensor {n}": v for n, v in self._loss.constants.items()}
        found |= {f"the model's parameter {n}": p for n, p in model.named_parameters()}
        found |= {f"the model's buffer {n}": b for n, b in model.named_buffers()}
        for title, owner in self._owners.items():
            for name, value in getattr(owner, "__dict__", {}).items():
                if isinstance(value, Tensor) and value.layout is torch.strided:
                    found[f"{title}'s tensor {name}"] = value
        return found

    def _attributes(self) -> dict[str, tuple[object, int]]:
        """Return the public attributes of the shared objects, with the lengths of containers."""
        found: dict[str, tuple[object, int]] = {}
        for title, owner in self._owners.items():
            for name, value in getattr(owner, "__dict__", {}).items():
                if not name.startswith("_"):
                    length = len(cast("Any", value)) if isinstance(value, _SIZED) else -1
                    found[f"{title}'s attribute {name}"] = value, length
        return found


def _difference(
    before: Mapping[str, tuple[object, int]], now: Mapping[str, tuple[object, int]]
) -> str | None:
    for name in now.keys() | before.keys():
        if name not in now or name not in before:
            return name
        (new, length), (old, known) = now[name], before[name]
        equal = isinstance(new, _PLAIN) and type(new) is type(old) and new == old
        if (new is not old and not equal) or length != known:
            return name
    return None
