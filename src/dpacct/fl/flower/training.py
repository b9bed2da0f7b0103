"""Local training of one client: by the engine, by a loop of the user's own, or by a canary.

Rule 1: An assignment that public facts rule out is rejected before the data are read.
Rule 2: If the server is not trusted with updates, a failure on a client's data must not show.
    Flower sends the error's message to the server, which chose the parameters that led to it. Such
    a client contributes zero, and the reason stays in its own log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from torch import Tensor, nn

from dpacct.errors import InvalidParameter
from dpacct.fl.clients import ClientData
from dpacct.fl.flower import wire
from dpacct.fl.flower.wire import Assignment
from dpacct.fl.layout import Layout, State, check_tensors, copies, set_training_mode, trainable
from dpacct.fl.local.losses import LocalLoss, LossFunction, separate
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.protocol import Method
from dpacct.fl.surroundings import arithmetic, undisturbed
from dpacct.fl.tensors import forked_generators
from dpacct.fl.training.sequential import SequentialTrainer
from dpacct.fl.training.synthetic import synthetic_clients, usual_kind
from dpacct.fl.training.tasks import Trial, join, plant

_CPU = torch.device("cpu")
_LOG = logging.getLogger("flwr")
Handler = Callable[[Message, Context], Message]


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """The result of local training: the raw update [1, d].

    ``remember`` returns the client's new memory for the bounded update [1, d], or None.
    """

    row: Tensor
    remember: Callable[[Tensor], State | None] = lambda _: None


Training = Callable[[], Trained]


def or_zero(given: Assignment, train: Training) -> Trained:
    """Train, and return an update that counts as zero if that fails. Rule 2.

    Raises:
        Unsupported: a program that no client can train.
    """
    with Trial() as trial:
        return train()
    _LOG.error("training failed, this client contributes zero", exc_info=trial.error)
    return Trained(torch.full((1, Layout.of(given.broadcast.anchor).size), torch.nan))


def engine_training(
    given: Assignment,
    method: Method,
    model: nn.Module,
    loss: LossFunction,
    data: Callable[[], ClientData],
) -> Training:
    """Return the engine's local training of one client. Rule 1.

    Raises:
        InvalidParameter: the model has other parameters than the server's.
    """
    sent, own = given.broadcast, trainable(model)
    layout = Layout.of(sent.anchor)
    check_tensors(own, layout, "model")
    for name, value in sent.anchor.items():
        if own[name].dtype != value.dtype:
            rule = f"{name} on the server is {value.dtype}"
            raise InvalidParameter("model", str(own[name].dtype), rule)
    copy, objective = separate(model, loss)
    precision = sent.local.precision
    local_loss = LocalLoss(copy, objective, layout.names, precision, functional=False)
    trainer = SequentialTrainer(method, local_loss, layout)

    @undisturbed()
    def train() -> Trained:
        examples = data()
        task = join(lambda: examples, sent.local, given.memory, given.seed, _CPU, trainer)
        with forked_generators(), arithmetic(precision):
            set_training_mode(copy)
            row = trainer.train([task], sent)
        # A canary of an audit; it is bounded like any other update.
        plant(row, [task])

        def remember(bounded: Tensor) -> State | None:
            memories = trainer.remember([task], bounded, sent)
            return None if memories is None else memories[0]

        return Trained(row, remember)

    return train


def own_training(
    given: Assignment, message: Message, context: Context, call_next: Handler
) -> Trained:
    """Run the user's train function, and return how far the parameters have moved."""
    sent, local = given.broadcast, given.broadcast.local
    layout = Layout.of(sent.anchor)
    config = ConfigRecord({"server-round": sent.round, "lr": local.learning_rate(sent.round)})
    for name in ("steps", "epochs", "batch_size"):
        if (value := getattr(local, name)) is not None:
            config[name.replace("_", "-")] = value
    message.content = RecordDict({wire.ARRAYS: wire.arrays_of(sent.anchor), "config": config})
    reply = call_next(message, context)
    if reply.has_error():
        raise RuntimeError(f"training failed: {reply.error.reason}")
    found = list(reply.content.array_records.values())
    if len(found) != 1 or sorted(found[0]) != sorted(layout.names):
        rule = f"a train function returns one ArrayRecord of {', '.join(layout.names)}"
        names = ", ".join(name for record in found for name in record)
        raise InvalidParameter("arrays", names or "none", rule)
    tensors = wire.tensors_of(found[0])
    moved = {name: tensors[name] for name in layout.names}
    check_tensors(moved, layout, "arrays")
    return Trained((layout.flatten(moved) - layout.flatten(sent.anchor)).unsqueeze(0))


def try_model(
    model: Callable[[], nn.Module], loss: LossFunction, data: Callable[[], ClientData]
) -> str:
    """Train on a synthetic example, before the server charges anything.

    Only types and shapes of the data are used, which are public.

    Returns:
        The kind of error in which the model, the loss or the reading of data ends, empty for none.
        Its message may hold more, and stays in the client's own log.
    """
    with Trial() as trial:
        made = model()
        params = trainable(made)
        copy, objective = separate(made, loss)
        local = LocalLoss(copy, objective, tuple(params), SGD(lr=1.0).precision, functional=False)
        synthetic_clients(usual_kind([data()]), None, local, copies(params))
    if trial.error is None:
        return ""
    _LOG.error("this client cannot train", exc_info=trial.error)
    return type(trial.error).__name__
