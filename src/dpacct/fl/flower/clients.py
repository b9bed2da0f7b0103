"""A client's half of a round: train where the data are, bound there, send nothing else.

Rule 1: the answer holds the bounded update and the client's new memory. Metrics, losses and numbers
of examples, which are not covered by any noise, stay where they are. Rule 2: a client trains for
this strategy alone: a training message without its sign is refused. Rule 3: a client that was told
its clip norm at the start answers to no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from dpacct import __version__
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.engine.precision import arithmetic
from dpacct.fl.flower import wire
from dpacct.fl.flower.versions import check_flower
from dpacct.fl.flower.wire import Answer, Assignment
from dpacct.fl.guards.replica import separate
from dpacct.fl.layout import Layout, State, check_tensors, trainable
from dpacct.fl.local.losses import LocalLoss, LossFunction
from dpacct.fl.methods.dp_fedavg import DPFedAvg
from dpacct.fl.methods.protocol import Method, overrides
from dpacct.fl.privacy.bounds import clip_norm as checked_norm
from dpacct.fl.privacy.markers import scatter
from dpacct.fl.privacy.sums import contribute
from dpacct.fl.tensors import forked_generators
from dpacct.fl.trainers.sequential import SequentialTrainer
from dpacct.fl.trainers.tasks import Broadcast, join

Handler = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Handler], Message]
# What of a method runs in the middle of local training, or keeps something after it.
_INSIDE = ("gradient", "after_step", "local_update", "init_client", "client_state")
_CPU = torch.device("cpu")


class _Trained(Protocol):
    """Raw update [1, d], and the memory that follows from the bounded one [1, d]."""

    @property
    def row(self) -> Tensor: ...

    def remember(self, bounded: Tensor) -> State | None: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Displacement:
    """What a training loop of the user's own ends with."""

    row: Tensor

    def remember(self, bounded: Tensor) -> State | None:
        del bounded
        return None


def partition_id(context: Context) -> int:
    """Which client a node is: ``partition-id`` of its configuration, from 0.

    Flower's simulation sets it; `flower-supernode --node-config "partition-id=3"` does elsewhere.
    It stays the same when a node starts again, which a node's id does not.

    Raises:
        InvalidParameter: the configuration does not say.
    """
    number = context.node_config.get("partition-id")
    if type(number) is not int or number < 0:
        rule = "a node says which client it is, by a whole number from 0"
        hint = 'Start it with --node-config "partition-id=0" (1, 2, ...).'
        raise InvalidParameter("partition-id", number, rule, hint)
    return number


def private_mod(
    method: Method | None = None,
    *,
    clip_norm: float | None = None,
    client: Callable[[Context], int] = partition_id,
) -> Mod:
    """The mod for a ClientApp with a training loop of its own; the first of its mods.

    ``ClientApp(mods=[private_mod()])``. The train function gets ``arrays`` (the parameters) and
    ``config``, and returns new ``arrays`` of the same names; what else it returns is not sent.

    Args:
        method: of the run; one that does nothing inside local training. Others need `client_app`.
        clip_norm: answer to no other norm. None: to that of the server.
        client: which client a node is.

    Raises:
        Unsupported: the method runs inside local training.
    """
    method = DPFedAvg() if method is None else method
    inside = [name for name in _INSIDE if overrides(method, name)]
    if inside:
        raise Unsupported(
            f"{method.name or type(method).__name__} has its own {', '.join(inside)}, which a "
            "training loop of one's own does not call. Use dpacct.fl.flower.client_app"
        )
    member = _Member(method, clip_norm, client)

    def mod(message: Message, context: Context, call_next: Handler) -> Message:
        if not message.metadata.message_type.startswith("train"):
            return call_next(message, context)
        return member.respond(
            message, context, lambda given: _displacement(given, message, context, call_next)
        )

    return mod


def client_app(
    model: Callable[[], nn.Module],
    loss: LossFunction,
    data: Callable[[Context], ClientData],
    *,
    method: Method | None = None,
    clip_norm: float | None = None,
    client: Callable[[Context], int] = partition_id,
) -> ClientApp:
    """A ClientApp that trains by the engine's own local training, for any method.

    Args:
        model: makes a model of the server's parameters. loss: as for `Federation`.
        data: reads the examples of the client that a node is.
        method: of the run, the same as on the server.
        clip_norm, client: as for `private_mod`.
    """
    method = DPFedAvg() if method is None else method
    member = _Member(method, clip_norm, client)
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:  # pyright: ignore[reportUnusedFunction] - registered
        return member.respond(
            message, context, lambda given: _Training(given, method, model(), loss, data(context))
        )

    return app


class _Member:
    """A client of a run, as far as messages go."""

    def __init__(
        self, method: Method, clip_norm: float | None, client: Callable[[Context], int]
    ) -> None:
        self._flower = check_flower()
        self._method = method
        self._clip_norm = None if clip_norm is None else checked_norm(clip_norm)
        self._client = client

    def respond(
        self, message: Message, context: Context, train: Callable[[Assignment], _Trained]
    ) -> Message:
        """The answer to any training message.

        Raises:
            InvalidParameter: it is not of this strategy, of another version, or of another setting.
        """
        ask = wire.ask_of(message.content)
        if ask is None:
            rule = "this client trains for dpacct's strategy alone, whose messages are signed so"
            hint = "On the server use dpacct.fl.flower.PrivateStrategy."
            raise InvalidParameter("message", "without a sign", rule, hint)
        if ask == wire.HELLO:
            return Message(RecordDict({wire.SIGN: self._facts(context)}), reply_to=message)
        given = wire.unpack_assignment(message.content)
        own = self._client(context)
        if given.client != own:
            rule = f"this is client {own}, and answers for nobody else"
            raise InvalidParameter("client", given.client, rule)
        norm = self._clip_norm
        if norm is not None and given.bound.clip_norm != norm:
            rule = f"this client answers to clip norm {norm:g} alone"
            raise InvalidParameter("clip_norm", given.bound.clip_norm, rule)
        return Message(wire.pack_answer(self._answer(given, train(given))), reply_to=message)

    def _facts(self, context: Context) -> ConfigRecord:
        try:
            number, missing = self._client(context), ""
        except InvalidParameter as error:
            number, missing = -1, str(error)
        return ConfigRecord(
            {
                "protocol": wire.PROTOCOL,
                "version": __version__,
                "flower": self._flower,
                "client": number,
                "missing": missing,
                "method": repr(self._method),
                "clip_norm": self._clip_norm or 0.0,
            }
        )

    def _answer(self, given: Assignment, trained: _Trained) -> Answer:
        layout, kept = Layout.of(given.params), given.kept
        row = trained.row if kept is None else trained.row.index_select(1, kept)
        inner = layout if kept is None else layout.restrict(kept)
        inside, norms, bad = contribute(row, given.bound, inner, given.contributions)
        memory = trained.remember(scatter(inside, kept, layout.size))
        norm = given.bound.clip_norm
        # Whether an update was clipped is sent where the run is charged for it.
        below = bool(norms[0] <= norm) if given.counted and not bool(bad[0]) else not given.counted
        return Answer(given.run, given.number, given.client, norm, inside[0], below, memory)


class _Training:
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
        data: ClientData,
    ) -> None:
        layout = Layout.of(given.params)
        check_tensors(trainable(model), layout, "model")
        copy, objective = separate(model, loss)
        names, precision = layout.names, given.local.precision
        local_loss = LocalLoss(copy, objective, names, precision, functional=False)
        self._trainer = SequentialTrainer(method, local_loss, layout)
        norm = given.bound.clip_norm
        self._broadcast = Broadcast(
            given.number, given.params, given.server_state, given.local, norm
        )
        self._task = join(lambda: data, given.local, given.memory, given.seed, _CPU, self._trainer)
        with forked_generators(), arithmetic(precision):
            copy.train()
            self.row = self._trainer.train([self._task], self._broadcast)

    def remember(self, bounded: Tensor) -> State | None:
        found = self._trainer.remember([self._task], bounded, self._broadcast)
        return None if found is None else found[0]


def _displacement(
    given: Assignment, message: Message, context: Context, call_next: Handler
) -> _Displacement:
    """Let the user's loop train, and see how far the parameters have moved."""
    layout = Layout.of(given.params)
    record = wire.arrays_of(given.params)
    config = ConfigRecord({"server-round": given.number, **_plain(given)})
    message.content = RecordDict({wire.ARRAYS: record, "config": config})
    reply = call_next(message, context)
    if reply.has_error():
        raise RuntimeError(f"training failed: {reply.error.reason}")
    found = list(reply.content.array_records.values())
    if len(found) != 1 or sorted(found[0]) != sorted(layout.names):
        rule = f"a train function returns one ArrayRecord of {', '.join(layout.names)}"
        names = ", ".join(name for record in found for name in record)
        raise InvalidParameter("arrays", names or "none", rule)
    moved = _ordered(found[0], layout)
    check_tensors(moved, layout, "arrays")
    end = layout.flatten(moved)
    return _Displacement((end - layout.flatten(given.params)).unsqueeze(0))


def _plain(given: Assignment) -> Mapping[str, Any]:
    """Local settings that a loop may follow."""
    local, number = given.local, given.number
    steps = {"steps": local.steps, "epochs": local.epochs, "batch-size": local.batch_size}
    return {"lr": local.learning_rate(number)} | {k: v for k, v in steps.items() if v is not None}


def _ordered(record: ArrayRecord, layout: Layout) -> dict[str, Tensor]:
    found = wire.tensors_of(record)
    return {name: found[name] for name in layout.names}
