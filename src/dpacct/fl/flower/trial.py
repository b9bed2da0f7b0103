"""A client's model on made-up examples, before the server charges anything.

Rule 1: no value of an example is used, only types and shapes, which are public. Rule 2: what is
said of a failure is its kind; its words, with shapes in them, stay in the client's own log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from torch import nn

from dpacct.fl.clients import ClientData
from dpacct.fl.guards.replica import separate
from dpacct.fl.layout import copies, trainable
from dpacct.fl.local.losses import LocalLoss, LossFunction
from dpacct.fl.local.sgd import SGD
from dpacct.fl.trainers.examples import made_up, usual_kind
from dpacct.fl.trainers.failures import Trial

_LOG = logging.getLogger("flwr")


def try_model(
    model: Callable[[], nn.Module], loss: LossFunction, data: Callable[[], ClientData]
) -> str:
    """What kind of error the model, the loss or the reading of data ends in; empty for none."""
    with Trial() as trial:
        made = model()
        params = trainable(made)
        copy, objective = separate(made, loss)
        local = LocalLoss(copy, objective, tuple(params), SGD(lr=1.0).precision, functional=False)
        made_up(usual_kind([data()]), None, local, copies(params))
    if trial.error is None:
        return ""
    _LOG.error("this client cannot train", exc_info=trial.error)
    return type(trial.error).__name__
