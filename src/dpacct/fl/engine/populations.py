"""What a run does otherwise where its population are single examples instead of clients."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import nn

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import Population
from dpacct.fl.examples import Examples
from dpacct.fl.layout import Layout, is_frozen, keeps_statistics, modules_of
from dpacct.fl.local.losses import LossFunction
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.protocol import Method, overrides
from dpacct.fl.surroundings import undisturbed
from dpacct.fl.training.choose import TrainerChooser
from dpacct.ledger.terms import CLIENT

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Asked(NamedTuple):
    """How a run was asked to train, as the arguments of `TrainerChooser` are called."""

    vectorize: bool | str
    chunk: int | None
    memory_limit: int | None


def unit_of(clients: Population) -> str:
    """The unit that a run on this population protects, in words."""
    return clients.unit if isinstance(clients, Examples) else CLIENT


def local_training(clients: Population, method: Method, local: SGD | None) -> SGD:
    """The local training of a run: as asked and as the method needs it; one step for an example.

    Raises:
        InvalidParameter: more than one step for an example, or momentum, which has no second step;
            or what the method refuses.
    """
    if not isinstance(clients, Examples):
        return method.prepare(SGD() if local is None else local)
    one = method.prepare(SGD(lr=1.0, steps=1, batch_size=1) if local is None else local)
    if one.count_steps(1) != 1:
        rule = "an example takes one step in a round"
        hint = "Leave it out, or take fl.SGD(lr=1.0, steps=1)."
        raise InvalidParameter("local", f"{one.count_steps(1)} steps", rule, hint)
    if one.momentum:
        rule = "an example takes one step in a round, in which momentum does nothing"
        hint = "For momentum from round to round give server=fl.Momentum(0.9)."
        raise InvalidParameter("momentum", one.momentum, rule, hint)
    return replace(one, steps=1, epochs=None, batch_size=1)


def refuse_for_examples(model: nn.Module, method: Method) -> None:
    """What makes no sense where single examples are protected.

    Raises:
        Unsupported: a layer that mixes the examples of a batch, or a method with memories.
    """
    for name, module in modules_of(model):
        # Without running statistics a norm takes the batch's own, in eval mode too.
        fixed = keeps_statistics(module) and is_frozen(module)
        if isinstance(module, _BATCH_NORMS) and not fixed:
            raise Unsupported(
                f"{name or 'the model'} ({type(module).__name__}) mixes the examples of a batch: "
                "the gradient of one depends on the others, and no bound on one example's gradient "
                "covers that. Use group or layer norm, or freeze this norm before the run: "
                "norm.eval().requires_grad_(False)"
            )
    members = ("init_client", "client_state")
    if method.everyone_computes or any(overrides(method, member) for member in members):
        raise Unsupported(
            f"{method.name or type(method).__name__} gives each client a memory, and examples have "
            "none. Train clients, or take a method without memories"
        )


@undisturbed()
def choose_chooser(
    clients: Population,
    model: nn.Module,
    loss: LossFunction,
    method: Method,
    layout: Layout,
    local: SGD,
    asked: Asked,
) -> TrainerChooser:
    """Who chooses how this population is trained.

    Args:
        clients, model, loss, method, layout, local: of the run. asked: how it should train.
    Raises:
        Unsupported: as `TrainerChooser`, and `refuse_for_examples`.
    """
    if isinstance(clients, Examples):
        refuse_for_examples(model, method)
    return TrainerChooser(
        model,
        loss,
        method,
        layout,
        local,
        vectorize=asked.vectorize,
        chunk=asked.chunk,
        memory_limit=asked.memory_limit,
        examples=isinstance(clients, Examples),
    )
