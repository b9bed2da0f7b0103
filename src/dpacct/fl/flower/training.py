"""Local training of one client, as far as its answer goes.

Rule 1: what can be refused by what is public is refused before the data are read. Rule 2: whether
a client fails at its data must not show where the server is not trusted: Flower sends it the words
of an error, and it picks the parameters that lead to one. So an update that could not be made is
zero, as in the engine, and why stays in the client's own log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dpacct.errors import InvalidParameter
from dpacct.fl.clients import ClientData
from dpacct.fl.engine.precision import arithmetic
from dpacct.fl.flower.wire import Assignment
from dpacct.fl.guards.replica import separate
from dpacct.fl.layout import Layout, State, check_tensors, set_training_mode, trainable
from dpacct.fl.local.losses import LocalLoss, LossFunction
from dpacct.fl.methods.protocol import Method
from dpacct.fl.surroundings import undisturbed
from dpacct.fl.tensors import forked_generators
from dpacct.fl.trainers.failures import Trial
from dpacct.fl.trainers.sequential import SequentialTrainer
from dpacct.fl.trainers.tasks import Broadcast, Task, join, plant

_CPU = torch.device("cpu")
_LOG = logging.getLogger("flwr")


class Trained(Protocol):
    """Raw update [1, d], and the memory that follows from the bounded one [1, d]."""

    @property
    def row(self) -> Tensor:
        """[1, d]."""
        ...

    def remember(self, bounded: Tensor) -> State | None:
        """The new memory, None for none; ``bounded`` [1, d]."""
        ...


Training = Callable[[], Trained]


@dataclass(frozen=True, slots=True, eq=False)
class _Nothing:
    """What a client that fails ends with: an update that is not finite, which counts as zero."""

    row: Tensor

    def remember(self, bounded: Tensor) -> State | None:
        """Nothing."""
        del bounded
        return None


def or_zero(given: Assignment, train: Training) -> Trained:
    """What a client has trained, or an update that counts as zero where it cannot. Rule 2.

    Raises:
        Unsupported: a program that no client can train.
    """
    with Trial() as trial:
        return train()
    _LOG.error("training failed, this client contributes zero", exc_info=trial.error)
    return _Nothing(torch.full((1, Layout.of(given.params).size), torch.nan))


class EngineTraining:
    """The engine's local training of one client.

    Raises:
        InvalidParameter: the model has other parameters than the server's.
    """

    def __init__(
        self,
        given: Assignment,
        method: Method,
        model: nn.Module,
        loss: LossFunction,
        data: Callable[[], ClientData],
    ) -> None:
        layout, own = Layout.of(given.params), trainable(model)
        check_tensors(own, layout, "model")
        for name, value in given.params.items():
            if own[name].dtype != value.dtype:
                rule = f"{name} on the server is {value.dtype}"
                raise InvalidParameter("model", str(own[name].dtype), rule)
        copy, objective = separate(model, loss)
        names, precision = layout.names, given.local.precision
        local_loss = LocalLoss(copy, objective, names, precision, functional=False)
        self._trainer = SequentialTrainer(method, local_loss, layout)
        norm = given.bound.clip_norm
        self._broadcast = Broadcast(
            given.number, given.params, given.server_state, given.local, norm
        )
        self._given, self._copy, self._data = given, copy, data

    @undisturbed()
    def __call__(self) -> Trained:
        """Read the data, and train."""
        given, data = self._given, self._data()
        task = join(lambda: data, given.local, given.memory, given.seed, _CPU, self._trainer)
        with forked_generators(), arithmetic(given.local.precision):
            set_training_mode(self._copy)
            row = self._trainer.train([task], self._broadcast)
        # A client of an audit; bounded behind this like any other.
        plant(row, [task])
        return _Update(row, task, self._trainer, self._broadcast)


@dataclass(frozen=True, slots=True, eq=False)
class _Update:
    """What the engine's local training ends with."""

    row: Tensor
    task: Task
    trainer: SequentialTrainer
    broadcast: Broadcast

    def remember(self, bounded: Tensor) -> State | None:
        """The client's memory after the round."""
        found = self.trainer.remember([self.task], bounded, self.broadcast)
        return None if found is None else found[0]
