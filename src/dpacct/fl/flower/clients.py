"""A client's half of a round: train where the data are, bound there, send nothing else.

Rule 1: the answer holds the bounded update and the client's new memory. Metrics, losses and numbers
of examples, which are not covered by any noise, stay where they are. Rule 2: a client trains for
this strategy alone: a training message without its sign is refused. Rule 3: a client that was told
its clip norm at the start answers to no other.
"""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from dpacct import __version__
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.flower import wire
from dpacct.fl.flower.hidden import HiddenSum
from dpacct.fl.flower.own_loop import Handler, displacement
from dpacct.fl.flower.training import EngineTraining, Trained, Training, or_zero
from dpacct.fl.flower.trial import try_model
from dpacct.fl.flower.versions import check_flower
from dpacct.fl.flower.wire import Answer, Assignment
from dpacct.fl.layout import Layout
from dpacct.fl.local.losses import LossFunction
from dpacct.fl.methods.dp_fedavg import DPFedAvg
from dpacct.fl.methods.protocol import Method, overrides
from dpacct.fl.privacy.bounds import clip_norm as checked_norm
from dpacct.fl.privacy.markers import scatter
from dpacct.fl.privacy.sums import contribute

Mod = Callable[[Message, Context, Handler], Message]
# What of a method runs in the middle of local training, or keeps something after it.
_INSIDE = ("gradient", "after_step", "local_update", "init_client", "client_state")


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
    hidden: HiddenSum | None = None,
    client: Callable[[Context], int] = partition_id,
) -> Mod:
    """The mod for a ClientApp with a training loop of its own; the first of its mods.

    ``ClientApp(mods=[private_mod()])``. The train function gets ``arrays`` (the parameters) and
    ``config``, and returns new ``arrays`` of the same names; what else it returns is not sent.

    Args:
        method: of the run; one that does nothing inside local training. Others need `client_app`.
        clip_norm: answer to no other norm. None: to that of the server.
        hidden: add noise here, and send the update behind masks or not at all.
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
    # A loop of one's own is called with what a round has, and not before.
    member = _Member(method, clip_norm, hidden, client, lambda _: "")

    def mod(message: Message, context: Context, call_next: Handler) -> Message:
        kind = message.metadata.message_type
        if not kind.startswith("train"):
            if hidden is not None:
                rule = "this client hides its update, and answers to nothing that no noise covers"
                raise InvalidParameter("message", kind, rule)
            return call_next(message, context)
        return member.respond(
            message, context, lambda given: lambda: displacement(given, message, context, call_next)
        )

    return mod


def client_app(
    model: Callable[[], nn.Module],
    loss: LossFunction,
    data: Callable[[Context], ClientData],
    *,
    method: Method | None = None,
    clip_norm: float | None = None,
    hidden: HiddenSum | None = None,
    client: Callable[[Context], int] = partition_id,
) -> ClientApp:
    """A ClientApp that trains by the engine's own local training, for any method.

    Args:
        model: makes a model of the server's parameters. loss: as for `Federation`.
        data: reads the examples of the client that a node is.
        method: of the run, the same as on the server.
        clip_norm, hidden, client: as for `private_mod`.
    """
    method = DPFedAvg() if method is None else method
    member = _Member(
        method,
        clip_norm,
        hidden,
        client,
        lambda context: try_model(model, loss, lambda: data(context)),
    )
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:  # pyright: ignore[reportUnusedFunction] - registered
        return member.respond(
            message,
            context,
            lambda given: EngineTraining(given, method, model(), loss, lambda: data(context)),
        )

    return app


class _Member:
    """A client of a run, as far as messages go."""

    def __init__(
        self,
        method: Method,
        clip_norm: float | None,
        hidden: HiddenSum | None,
        client: Callable[[Context], int],
        trial: Callable[[Context], str],
    ) -> None:
        self._flower = check_flower()
        self._method = method
        self._clip_norm = None if clip_norm is None else checked_norm(clip_norm)
        self._hidden = hidden
        self._trial = trial
        self._client = client

    def respond(
        self, message: Message, context: Context, training: Callable[[Assignment], Training]
    ) -> Message:
        """The answer to any training message.

        Args:
            training: checks an assignment, by what is public, and makes what trains for it.
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
        own = self._client(context)
        hidden = self._hidden
        if ask == wire.ROSTER and hidden is not None:
            return Message(hidden.mask(message.content, own, context), reply_to=message)
        given = wire.unpack_assignment(message.content)
        if given.client != own:
            rule = f"this is client {own}, and answers for nobody else"
            raise InvalidParameter("client", given.client, rule)
        norm = self._clip_norm
        if norm is not None and given.bound.clip_norm != norm:
            rule = f"this client answers to clip norm {norm:g} alone"
            raise InvalidParameter("clip_norm", given.bound.clip_norm, rule)
        if hidden is not None:
            hidden.check(given)
        elif given.shares is not None:
            rule = "this client adds no noise of its own"
            hint = "Give it client_app(..., hidden=HiddenSum(minimum, noise_multiplier))."
            raise InvalidParameter("noise", "of shares", rule, hint)
        train = training(given)
        answer, inner = self._answer(given, train() if hidden is None else or_zero(given, train))
        if hidden is not None:
            content = hidden.hide(given, answer.row, inner, context)
            return Message(content, reply_to=message)
        return Message(wire.pack_answer(answer), reply_to=message)

    def _facts(self, context: Context) -> ConfigRecord:
        hidden = self._hidden
        number, missing = -1, ""
        try:
            number = self._client(context)
            if hidden is not None and hidden.membership is not None:
                hidden.membership(context).check_own(number)
        except InvalidParameter as error:
            missing = str(error)
        return ConfigRecord(
            {
                "protocol": wire.PROTOCOL,
                "version": __version__,
                "flower": self._flower,
                "client": number,
                "missing": missing,
                "fails": self._trial(context),
                "method": repr(self._method),
                "clip_norm": self._clip_norm or 0.0,
                **({"minimum": 0} if hidden is None else hidden.told()),
            }
        )

    def _answer(self, given: Assignment, trained: Trained) -> tuple[Answer, Layout]:
        """What a client has to say, and the layout of its bounded update."""
        layout, kept = Layout.of(given.params), given.kept
        row = trained.row if kept is None else trained.row.index_select(1, kept)
        inner = layout if kept is None else layout.restrict(kept)
        inside, norms, bad = contribute(row, given.bound, inner, given.contributions)
        memory = trained.remember(scatter(inside, kept, layout.size))
        norm = given.bound.clip_norm
        # Whether an update was clipped is sent where the run is charged for it.
        below = bool(norms[0] <= norm) if given.counted and not bool(bad[0]) else not given.counted
        found = Answer(given.run, given.number, given.client, norm, inside[0], below, memory)
        return found, inner
