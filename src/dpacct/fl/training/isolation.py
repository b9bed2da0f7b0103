"""Clients share a model and a loss, and must leave them as they were.

A write to a shared weight or buffer would reach the next client and so the release, past the bound
on one client's update. Rule 1: clients are shown copies of the released parameters. Rule 2: after
each chunk of clients the copies, the parameters and the buffers are compared with their earlier
values. A change is refused before anything is released.

This finds mistakes. `dpacct.fl.engine.rehearsal` finds state that a program keeps elsewhere, if it
changes the updates of synthetic clients.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from dpacct.errors import Unsupported
from dpacct.fl.layout import copies
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.tensors import same_numbers
from dpacct.fl.training.tasks import Broadcast


class Isolation:
    """A check around the training of clients, with the model of a loss."""

    def __init__(self, loss: LocalLoss) -> None:
        self._loss = loss
        self._before: dict[str, Tensor] | None = None

    @contextmanager
    def around(self, broadcast: Broadcast) -> Generator[Broadcast]:
        """Give clients copies of a broadcast, and check them afterward, even after an error.

        Raises:
            Unsupported: something that clients share has changed.
        """
        if self._before is None:
            # A layer may have replaced a tensor when it was first called.
            self._before = copies(self._shared())
        anchor, server = copies(broadcast.anchor), copies(broadcast.server_state)
        try:
            yield replace(broadcast, anchor=anchor, server_state=server)
        finally:
            self._check(anchor, broadcast.anchor)
            self._check(server, broadcast.server_state)
            self._check(self._shared(), self._before)

    def _check(self, after: dict[str, Tensor], before: dict[str, Tensor]) -> None:
        """Compare the values that clients were shown with the values before. Rule 2."""
        for name, value in before.items():
            if not same_numbers(after[name].detach(), value):
                raise Unsupported(
                    f"{name} is written to in place while a client trains: it would reach the next "
                    "client, or the release, past the bound"
                )

    def _shared(self) -> dict[str, Tensor]:
        model = self._loss.model
        return {
            **dict(model.named_parameters()),
            **dict(model.named_buffers()),
            **self._loss.constants,
        }
