"""`LocalRun`: the local training of one client in a round, driven by a loop of your own.

Rule 1: a block begins with the client's own seed and restores the global generators, so a shuffle
or dropout inside does not depend on other clients, even if the program was seeded. Rule 2: an
update is bounded behind its block, whatever the loop did. A block that ends by an error has none.
One block is open at a time in a process, since the global generators belong to all its threads.
Rule 3: a method that reads gradients off displacements takes the steps of the run alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from threading import Lock
from typing import Any, Self, cast

from torch import Tensor, nn

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData, Inputs, parts_of
from dpacct.fl.layout import (
    Layout,
    State,
    check_tensors,
    copies,
    forgetting,
    scatter,
    set_training_mode,
    trainable,
)
from dpacct.fl.local.losses import LocalLoss, LossFunction, returned_loss
from dpacct.fl.local.sgd import SGD, Batch, LocalAdam
from dpacct.fl.methods.fedavg import DPFedAvg
from dpacct.fl.methods.protocol import Method, overrides
from dpacct.fl.privacy.bounds import AdaptiveClip
from dpacct.fl.privacy.sums import contribute
from dpacct.fl.tensors import (
    arithmetic,
    forked_generators,
    same_numbers,
    seed_generators,
    undisturbed,
)
from dpacct.fl.training.messages import Answer, Assignment, words_of
from dpacct.fl.training.tasks import Isolation, LocalSteps

_ONE = Lock()


class LocalRun:
    """The local training of a client, as the block of a ``with`` statement.

    Call `step` for each batch. Or give `parameters` to an optimizer of your own, and call
    `backward` in the place of ``loss.backward()``. `dpacct.fl.OpenRound.local` makes it in the
    process of the server. In another process, send `answer` behind the block.

    Args:
        assignment: of `dpacct.fl.OpenRound.assignment`.
        model: with the server's parameters by name and shape. It is copied.
        loss: (outputs, targets) -> mean loss. None: the model returns it, as ``model(...).loss``.
        method: of the run. Default: DP-FedAvg.
        steps: the number of local steps, which a method may need before the first one.
    Attributes:
        client: the number of the client, from the assignment.
        update: the raw update [d], private, once the block has ended without an error, else None.
    Raises:
        InvalidParameter: the message cannot be read, or has another model or method.
    """

    def __init__(
        self,
        assignment: bytes | Assignment,
        model: nn.Module | LocalLoss,
        loss: LossFunction | None = None,
        method: Method | None = None,
        *,
        steps: int | None = None,
    ) -> None:
        self._method = DPFedAvg() if method is None else method
        module = model.model if isinstance(model, LocalLoss) else model
        if not isinstance(assignment, Assignment):
            assignment = Assignment.read(assignment, next(module.parameters()).device)
        if not isinstance(model, LocalLoss):
            model = _copied(assignment, model, loss, self._method)
        self.client, self.update = assignment.client, cast("Tensor | None", None)
        self._given, self._loss, local = assignment, model, assignment.broadcast.local
        if steps:
            steps = validate.count("steps", steps, "the number of local steps")
        # A client without examples takes no step, whatever the run plans for all.
        self._allowed = {0, local.steps} if steps is None else {steps}
        self._planned = local.steps if steps is None else steps
        if self._planned is None and local.total_lr:
            rule, hint = "total_lr divides by it before the first step", "Give steps=len(loader)."
            raise InvalidParameter("steps", None, rule, hint)
        self._stack: ExitStack | None = None
        self._leaves: dict[str, nn.Parameter] = {}
        self._rates: list[float] = []
        self._is_open = False

    def __enter__(self) -> Self:
        """Begin with the client's own seed. Rule 1."""
        given = self._given
        if self._stack is not None:
            raise Unsupported(f"client {given.client} has trained: its block ended before")
        if not _ONE.acquire(blocking=False):
            rule = "one client trains at a time: end the block of the other one before"
            raise Unsupported(f"{rule}, or train in several processes")
        with ExitStack() as stack:
            stack.callback(_ONE.release)
            stack.enter_context(forked_generators())
            stack.enter_context(arithmetic(given.broadcast.local.precision))
            stack.enter_context(forgetting(self._loss.model))
            self._shown = stack.enter_context(Isolation(self._loss).around(given.broadcast))
            seed_generators(given.seed, self._shown.device)
            set_training_mode(self._loss.model)
            self._rate = self._shown.step_size(self._planned or 0)
            context = self._shown.context(self._rate, self._planned, given.memory)
            self._steps = LocalSteps(self._method, self._loss, context)
            self._stack = stack.pop_all()
        self._is_open = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Compute the update, unless the block ends by an error. Rule 2."""
        self._is_open = False
        with self._stack or ExitStack():
            update = self._finished() if error is None else None
        self.update = update

    @undisturbed()
    def step(self, inputs: Any, targets: Tensor | None = None, *, lr: float | None = None) -> None:
        """Take a local step of the run: the method's direction, ``local=``, and `after_step`.

        Args:
            inputs: a tensor [b, ...], or several as a tuple or list (``model(*inputs)``) or a
                dictionary (``model(**inputs)``).
            targets: [b, ...], or None if the model returns its loss.
            lr: learning rate of this step. Default: that of the round.
        Raises:
            InvalidParameter: a value of another kind.
            Unsupported: outside of the block, after `parameters`, or a rate that the method does
                not take.
        """
        batch = self._batch(inputs, targets)
        if self._leaves:
            raise Unsupported("after parameters() your optimizer makes the steps: call backward()")
        rate = self._rate if lr is None else validate.above_zero("lr", lr, "a learning rate")
        if rate != self._rate:
            changed = replace(self._shown.local, total_lr=True)
            self._require_free("a rate that changes within a round", changed)
        self._steps.take(batch, rate)
        self._rates.append(rate)

    def parameters(self) -> list[nn.Parameter]:
        """Return the client's parameters, in the model's order, for an optimizer of your own.

        Raises:
            InvalidParameter: ``local=`` of the run has momentum, weight decay or Adam.
            Unsupported: the method reads gradients off displacements, or `step` was called.
        """
        self._require_open()
        if not self._leaves:
            local = self._shown.local
            if local.keeps_state or local.weight_decay or local.total_lr or self._rates:
                rule = "an optimizer of your own takes all steps, by its own settings"
                raise InvalidParameter("local", local, rule, "Leave them out, or call step().")
            self._require_free("an optimizer of your own", LocalAdam())
            self._followed = copies(self._shown.anchor)
            self._leaves = {n: nn.Parameter(value.clone()) for n, value in self._followed.items()}
        return list(self._leaves.values())

    @undisturbed()
    def backward(self, inputs: Any, targets: Tensor | None = None) -> None:
        """Add the method's direction to ``.grad`` of `parameters`. Arguments: as for `step`.

        It counts as one step. The method's `after_step` follows before the next one, or at the end.
        """
        batch = self._batch(inputs, targets)
        if not self._leaves:
            raise Unsupported("backward() fills .grad of parameters(): give those to an optimizer")
        self._follow()
        direction = self._steps.direction(batch)
        for name, leaf in self._leaves.items():
            grad = direction[name].detach().clone()
            leaf.grad = grad if leaf.grad is None else leaf.grad + grad
        self._steps.taken += 1

    @property
    def answer(self) -> bytes:
        """The bounded update and the client's new memory, once the block is over, as bytes."""
        given, anchor = self._given, Layout.of(self._given.broadcast.anchor)
        if self.update is None:
            raise Unsupported("there is no answer before the block has ended without an error")
        rows, layout = self.update.clone().unsqueeze(0), anchor
        if given.kept is not None:
            rows, layout = rows.index_select(1, given.kept), anchor.restrict(given.kept)
        inside, norms, bad = contribute(rows, given.bound, layout, given.contributions)
        # Whether an update was clipped is sent only if the run is charged for it.
        below = not isinstance(given.bound, AdaptiveClip)
        below |= bool(~bad[0] & (norms[0] <= given.bound.clip_norm))
        row = inside[0]
        return Answer(given.client, given.key, below, row, self.remember(row)).pack()

    @undisturbed()
    def remember(self, bounded: Tensor) -> State | None:
        """Return the client's memory after its bounded update [k], or None without memory."""
        memory, shown = self._given.memory, self._shown
        if memory is None:
            return None
        whole = scatter(bounded, self._given.kept, Layout.of(shown.anchor).size)
        context = shown.context(self._mean_rate(), self._steps.taken, memory)
        return self._method.client_state(memory, whole, context)

    def _mean_rate(self) -> float:
        """Return the learning rate of all steps, if they differ their mean."""
        rates = set(self._rates) or {self._rate}
        return sum(self._rates) / len(self._rates) if len(rates) > 1 else rates.pop()

    @undisturbed()
    def _finished(self) -> Tensor:
        """Return the update [d]."""
        taken, layout, memory = self._steps.taken, Layout.of(self._shown.anchor), self._given.memory
        if self._planned is not None and taken not in self._allowed:
            raise InvalidParameter("steps", self._planned, f"the loop took {taken} steps")
        if self._leaves:
            self._follow()
        delta = layout.flatten(self._steps.params) - layout.flatten(self._shown.anchor)
        if not taken and bool(delta.any()) and overrides(self._method, "gradient"):
            raise Unsupported("parameters() moved without the method's direction: call backward()")
        context = self._shown.context(self._mean_rate(), taken, memory)
        return self._method.local_update(delta, memory, context).detach()

    def _follow(self) -> None:
        """Let `after_step` follow a step of the optimizer."""
        self._steps.params = {name: leaf.detach() for name, leaf in self._leaves.items()}
        moved = self._steps.params.items()
        if not all(same_numbers(value, self._followed[name]) for name, value in moved):
            self._steps.project()
            self._followed = copies(self._steps.params)
            for name, leaf in self._leaves.items():
                leaf.detach().copy_(self._followed[name])

    def _require_open(self) -> None:
        if not self._is_open:
            raise Unsupported(f"client {self._given.client} trains inside of its with-block")

    def _require_free(self, what: str, asked: SGD) -> None:
        """Reject local steps that the method rejects as local training of a run. Rule 3."""
        try:
            self._method.prepare(asked)
        except InvalidParameter as refusal:
            raise Unsupported(f"{what}: {refusal.rule}. Take step() at the round's rate") from None

    def _batch(self, inputs: Any, targets: Tensor | None) -> Batch:
        """Return a batch, as loaders make them, on the device."""
        self._require_open()
        if (targets is None) is not (self._loss.function is returned_loss):
            rule = "a loss takes outputs and targets, and without a loss the model has them"
            raise InvalidParameter("targets", type(targets).__name__, rule)
        kind = cast("Any", dict if isinstance(inputs, Mapping) else tuple)
        given: Inputs = kind(inputs) if isinstance(inputs, Mapping | list) else inputs
        own = parts_of(given)[0][1] if targets is None else targets
        data = ClientData(given, own).map(lambda value: value.to(self._shown.device))
        return Batch(data.inputs, data.targets, None)


def _copied(
    given: Assignment, model: nn.Module, loss: LossFunction | None, method: Method
) -> LocalLoss:
    """Return the loss of a copy of the model, or reject one that is not the server's."""
    own, anchor = trainable(model), given.broadcast.anchor
    check_tensors(own, Layout.of(anchor), "model")
    if given.method != words_of(method):
        raise InvalidParameter("method", words_of(method), f"the server's is {given.method}")
    return LocalLoss.of_copies(model, loss, tuple(anchor), given.broadcast.local.precision)
