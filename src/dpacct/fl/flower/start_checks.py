"""What `PrivateStrategy.start` may be given, as Flower's own strategies are."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.flower import wire
from dpacct.fl.layout import trainable
from dpacct.fl.server import Server


def check_start(
    server: Server, initial_arrays: ArrayRecord | None, num_rounds: int | None, *, configured: bool
) -> None:
    """The server decides on rounds, parameters and training.

    Raises:
        Unsupported, InvalidParameter: something else is asked for; nothing is charged.
    """
    if configured:
        raise Unsupported(
            "a configuration of training or evaluation: local training is that of the server "
            "(fl.Server(local=...)), and clients evaluate nothing, as no noise would cover it"
        )
    if num_rounds not in (None, server.rounds):
        rule = f"the server plans {server.rounds} rounds, and its noise is charged for them"
        raise InvalidParameter("num_rounds", num_rounds, rule, "Leave it out.")
    if initial_arrays is not None:
        own, given = trainable(server.model), wire.tensors_of(initial_arrays)
        if own.keys() != given.keys() or not all(
            torch.equal(own[name].detach().cpu(), given[name]) for name in own
        ):
            rule = "the server's model holds the parameters to begin with"
            raise InvalidParameter("initial_arrays", "other values", rule, "Leave them out.")
