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
from dataclasses import dataclass

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.flower import wire
from dpacct.fl.flower.wire import Answer, Assignment
from dpacct.fl.layout import Layout, State, check_tensors, copies, set_training_mode, trainable
from dpacct.fl.local.losses import LocalLoss, LossFunction
from dpacct.fl.methods.fedavg import DPFedAvg
from dpacct.fl.methods.protocol import Method, overrides
from dpacct.fl.privacy.bounds import clip_norm as checked_norm
from dpacct.fl.privacy.markers import scatter
from dpacct.fl.privacy.sums import contribute
from dpacct.fl.tensors import arithmetic, forked_generators, undisturbed
from dpacct.fl.training.synthetic import synthetic_clients, usual_kind
from dpacct.fl.training.tasks import SequentialTrainer, Trial, join, plant

_LOG = logging.getLogger("flwr")
Handler = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Handler], Message]
# The parts of a method that act inside local training, or keep something after it.
_INSIDE = ("gradient", "after_step", "local_update", "init_client", "client_state")


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


def private_mod(
    method: Method | None = None,
    *,
    clip_norm: float | None = None,
    client: Callable[[Context], int] = partition_id,
) -> Mod:
    """Return the mod for a ClientApp with its own training loop, to be the first of its mods.

    ``ClientApp(mods=[private_mod()])``. The train function gets ``arrays`` (the parameters) and
    ``config``, and returns new ``arrays`` of the same names. Everything else it returns is dropped.

    Args:
        method: of the run, without a part in local training. Other methods need `client_app`.
        clip_norm: the only norm to accept. None: that of the server.
        client: returns the client of a node.

    Raises:
        Unsupported: the method runs inside local training.
    """
    method = DPFedAvg() if method is None else method
    inside = [name for name in _INSIDE if overrides(method, name)]
    if inside:
        raise Unsupported(
            f"{method.name or type(method).__name__} has its own {', '.join(inside)}, which a "
            "training loop of your own does not call. Use dpacct.fl.flower.client_app"
        )
    # A loop of one's own cannot be tried before the first round.
    half = _ClientHalf(method, clip_norm, client, lambda _: "")

    def mod(message: Message, context: Context, call_next: Handler) -> Message:
        if not message.metadata.message_type.startswith("train"):
            return call_next(message, context)
        return half.respond(
            message, context, lambda given: _own_training(given, message, context, call_next)
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
    """Return a ClientApp that trains by the engine's own local training, for any method.

    Args:
        model: makes a model of the server's parameters. loss: as for `Federation`.
        data: reads the examples of the client of a node.
        method: of the run, the same as on the server.
        clip_norm, client: as for `private_mod`.
    """
    method = DPFedAvg() if method is None else method
    half = _ClientHalf(
        method,
        clip_norm,
        client,
        lambda context: _try_model(model, loss, lambda: data(context)),
    )
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:  # pyright: ignore[reportUnusedFunction] - registered
        return half.respond(
            message,
            context,
            lambda given: _engine_training(given, method, model(), loss, lambda: data(context)),
        )

    return app


class _ClientHalf:
    """The answers of a client to all messages of a run.

    ``trial`` tries to train on synthetic data, and returns the kind of the error, empty for none.
    """

    def __init__(
        self,
        method: Method,
        clip_norm: float | None,
        client: Callable[[Context], int],
        trial: Callable[[Context], str],
    ) -> None:
        self._clip_norm = None if clip_norm is None else checked_norm(clip_norm)
        self._method, self._client, self._trial = method, client, trial

    def respond(
        self, message: Message, context: Context, training: Callable[[Assignment], _Trained]
    ) -> Message:
        """Return the answer to any training message. ``training`` trains for an assignment."""
        record = message.content.config_records.get(wire.SIGN)
        if record is None:
            rule = "this client trains for dpacct's strategy alone, whose messages are signed so"
            hint = "On the server use dpacct.fl.flower.PrivateStrategy."
            raise InvalidParameter("message", "without a sign", rule, hint)
        wire.check_protocol(record)
        if record.get("ask") == wire.HELLO:
            return Message(self._facts(context), reply_to=message)
        given = wire.unpack_assignment(message.content)
        self._check(given, self._client(context))
        sent, kept = given.broadcast, given.kept
        layout = Layout.of(sent.anchor)
        trained = training(given)
        row = trained.row if kept is None else trained.row.index_select(1, kept)
        inner = layout if kept is None else layout.restrict(kept)
        inside, norms, bad = contribute(row, given.bound, inner, given.contributions)
        memory = trained.remember(scatter(inside, kept, layout.size))
        # Whether an update was clipped is sent only if the run is charged for it.
        below = not given.counted or (not bool(bad[0]) and bool(norms[0] <= sent.clip_norm))
        answer = Answer(given.run, sent.round, given.client, inside[0], below, memory)
        return Message(wire.pack_answer(answer), reply_to=message)

    def _check(self, given: Assignment, own: int) -> None:
        """Check that an assignment is for this client and its settings. Rule 3."""
        if given.client != own:
            rule = f"this is client {own}, and answers for no other"
            raise InvalidParameter("client", given.client, rule)
        norm = self._clip_norm
        if norm is not None and given.bound.clip_norm != norm:
            rule = f"this client answers to clip norm {norm:g} alone"
            raise InvalidParameter("clip_norm", given.bound.clip_norm, rule)

    def _facts(self, context: Context) -> RecordDict:
        """Return which client this is, and the settings that it shares with the server."""
        number, missing = -1, ""
        try:
            number = self._client(context)
        except InvalidParameter as error:
            missing = str(error)
        facts = wire.sign(
            client=number,
            missing=missing,
            fails=self._trial(context),
            method=repr(self._method),
            clip_norm=self._clip_norm or 0.0,
        )
        return RecordDict({wire.SIGN: facts})


# Local training of one client.


@dataclass(frozen=True, slots=True, eq=False)
class _Trained:
    """The result of local training: the raw update [1, d].

    ``remember`` returns the client's new memory for the bounded update [1, d], or None.
    """

    row: Tensor
    remember: Callable[[Tensor], State | None] = lambda _: None


@undisturbed()
def _engine_training(
    given: Assignment,
    method: Method,
    model: nn.Module,
    loss: LossFunction,
    data: Callable[[], ClientData],
) -> _Trained:
    """Train one client of the server's parameters by the engine's local training. Rule 4."""
    sent, own = given.broadcast, trainable(model)
    layout = Layout.of(sent.anchor)
    check_tensors(own, layout, "model")
    for name, value in sent.anchor.items():
        if own[name].dtype != value.dtype:
            rule = f"{name} on the server is {value.dtype}"
            raise InvalidParameter("model", str(own[name].dtype), rule)
    precision = sent.local.precision
    local_loss = LocalLoss.of_copies(model, loss, layout.names, precision)
    trainer = SequentialTrainer(method, local_loss, layout)
    examples = data()
    task = join(
        lambda: examples, sent.local, given.memory, given.seed, torch.device("cpu"), trainer
    )
    with forked_generators(), arithmetic(precision):
        set_training_mode(local_loss.model)
        row = trainer.train([task], sent)
    # A canary of an audit is bounded like any other update.
    plant(row, [task])

    def remember(bounded: Tensor) -> State | None:
        memories = trainer.remember([task], bounded, sent)
        return None if memories is None else memories[0]

    return _Trained(row, remember)


def _own_training(
    given: Assignment, message: Message, context: Context, call_next: Handler
) -> _Trained:
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
    return _Trained((layout.flatten(moved) - layout.flatten(sent.anchor)).unsqueeze(0))


def _try_model(
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
        local = LocalLoss.of_copies(made, loss, tuple(params), "float32")
        synthetic_clients(usual_kind([data()]), None, local, copies(params))
    if trial.error is None:
        return ""
    _LOG.error("this client cannot train", exc_info=trial.error)
    return type(trial.error).__name__
