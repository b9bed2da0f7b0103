"""A client's half of a round: train at the data, bound the update there, send nothing else.

Rule 1: The answer holds the bounded update and the client's new memory. Metrics, losses and numbers
    of examples stay on the client, because no noise covers them.
Rule 2: A client trains for this strategy alone: a training message without its sign is rejected.
Rule 3: A client that was set up with a clip norm accepts no other.
Rule 4: An assignment that public facts rule out is rejected before the data are read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from dpacct.errors import InvalidParameter
from dpacct.fl.clients import Canary, ClientData, checked
from dpacct.fl.flower import wire
from dpacct.fl.layout import copies, trainable
from dpacct.fl.local.losses import LocalLoss, LossFunction
from dpacct.fl.local.sgd import plan_batches
from dpacct.fl.methods.fedavg import DPFedAvg
from dpacct.fl.methods.protocol import Method
from dpacct.fl.privacy.bounds import clip_norm as checked_norm
from dpacct.fl.tensors import numbers
from dpacct.fl.training.local_run import LocalRun
from dpacct.fl.training.messages import Assignment, words_of
from dpacct.fl.training.synthetic import synthetic_clients, usual_kind
from dpacct.fl.training.tasks import Trial

_LOG = logging.getLogger("flwr")


# Begins the local training of a round's client: ``with start(steps=None) as local``.
Start = Callable[..., LocalRun]


def partition_id(context: Context) -> int:
    """Return the client of a node: ``partition-id`` of its configuration, from 0.

    Flower's simulation sets it. Elsewhere use `flower-supernode --node-config "partition-id=3"`.
    It stays the same when a node starts again. A node's id does not.

    Raises:
        InvalidParameter: it is not configured.
    """
    number = context.node_config.get("partition-id")
    if type(number) is not int or number < 0:
        rule = "a node's configuration names its client, by a whole number from 0"
        hint = 'Start it with --node-config "partition-id=0" (1, 2, ...).'
        raise InvalidParameter("partition-id", number, rule, hint)
    return number


def client_app(
    model: Callable[[], nn.Module],
    loss: LossFunction | None = None,
    data: Callable[[Context], ClientData] | None = None,
    *,
    train: Callable[[Start, Context], LocalRun] | None = None,
    method: Method | None = None,
    clip_norm: float | None = None,
    client: Callable[[Context], int] = partition_id,
) -> ClientApp:
    """Return a ClientApp that trains by the run's local training, or by a loop of your own.

    ::

        def train(start, context):
            with start() as local:
                for x, y in my_batches(context):
                    local.step(x, y)
            return local

    Args:
        model: makes a model of the server's parameters. loss: as for `LocalRun`.
        data: reads the examples of the client of a node, for the run's own local training.
        train: trains by your own loop instead, and returns the `LocalRun`. It is not tried before
            the first round. Its errors show outside, so they must not depend on data.
        method: of the run, the same as on the server.
        clip_norm: the only norm to accept. None: that of the server.
        client: returns the client of a node.

    Raises:
        InvalidParameter: none or both of data and train, or a clip norm out of range.
    """
    if (data is None) is (train is None):
        raise InvalidParameter("data", data, "a client reads data, or trains by a loop of its own")
    own, app = DPFedAvg() if method is None else method, ClientApp()
    norm = None if clip_norm is None else checked_norm(clip_norm)

    @app.train()
    def respond(message: Message, context: Context) -> Message:
        """Answer any training message. Rule 2."""
        if wire.signed(message).get("ask") == wire.HELLO:
            number, missing = -1, ""
            try:
                number = client(context)
            except InvalidParameter as error:
                missing = str(error)
            facts = wire.sign(
                client=number,
                missing=missing,
                fails=_failure(model, loss, None if data is None else partial(data, context)),
                method=words_of(own),
                clip_norm=norm or 0.0,
            )
            return Message(RecordDict({wire.SIGN: facts}), reply_to=message)
        whole = wire.bytes_of(message, "client", "round")
        given = Assignment.read(whole, torch.device("cpu"))
        # Rules 3 and 4.
        if given.client != (number := client(context)):
            rule = f"this is client {number}, and answers for no other"
            raise InvalidParameter("client", given.client, rule)
        if norm not in (None, given.bound.clip_norm):
            rule = f"this client answers to clip norm {norm:g} alone"
            raise InvalidParameter("clip_norm", given.bound.clip_norm, rule)

        def start(*, steps: int | None = None) -> LocalRun:
            return LocalRun(given, model(), loss, own, steps=steps)

        if data is not None:
            trained = _trained(given, start, checked(data(context)))
        else:
            trained = cast("Any", train)(start, context)
        facts = wire.sign(round=given.broadcast.round)
        return Message(wire.message_of(facts, answer=trained.answer), reply_to=message)

    return app


def _failure(
    model: Callable[[], nn.Module], loss: LossFunction | None, read: Callable[[], ClientData] | None
) -> str:
    """Return the kind of error in which model, loss or data end on a synthetic example, or nothing.

    This is before the server charges anything, so only types and shapes of the data are used, which
    are public. The error's message may hold more, and stays in the client's own log. A loop of its
    own is not tried.
    """
    with Trial() as trial:
        made = model()
        params = trainable(made)
        if read is not None:
            local = LocalLoss.of_copies(made, loss, tuple(params), "float32")
            synthetic_clients(usual_kind([read()]), None, local, copies(params))
    if trial.error is None:
        return ""
    _LOG.error("this client cannot train", exc_info=trial.error)
    return type(trial.error).__name__


def _trained(given: Assignment, start: Start, data: ClientData) -> LocalRun:
    """Train a client as the run says."""
    generator = torch.Generator().manual_seed(given.seed)
    plan = plan_batches(len(data), given.broadcast.local, generator)
    with start(steps=plan.steps) as local:
        for indices, count in zip(plan.indices, numbers(plan.counts), strict=True):
            rows = indices[:count]
            batch = data.map(lambda values: values[rows])  # noqa: B023 - called at once
            local.step(batch.inputs, batch.targets)
    if isinstance(data, Canary):
        # It is bounded like any other update.
        local.update = data.update
    return local
