"""The loss-threshold attack: whoever has a small loss is taken for a member.

What it can show: that a model tells its members from others, by at least so much. What it cannot: a
weak attack that fails is no evidence for privacy. It looks at one trained model and averages over
its members; what a privacy guarantee bounds is the mean of that over trainings.

Source: Yeom et al. 2018 (arXiv:1709.01604), with the threshold swept instead of set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from dpacct.empirical.roc import SMALL_RATES, Roc, roc
from dpacct.empirical.scores import by_client, by_example
from dpacct.fl.attacks.losses import client_losses
from dpacct.fl.clients import ClientData
from dpacct.fl.local.losses import LossFunction

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Attacked:
    """What an attack found.

    Attributes:
        examples: examples against examples. Its intervals take examples for independent draws;
            where those of one client are alike, they are too narrow.
        clients: clients against clients, each by its mean over ``client_size`` of its examples.
    """

    examples: Roc
    clients: Roc
    client_size: int


def loss_attack(
    model: nn.Module,
    loss: LossFunction,
    members: Iterable[ClientData],
    nonmembers: Iterable[ClientData],
    *,
    confidence: float = 0.95,
    fpr: Sequence[float] = SMALL_RATES,
) -> Attacked:
    """Tell members from others by their losses.

    Args:
        model, loss: that were trained.
        members: clients that the model was trained on, or a random part of them.
        nonmembers: clients that it was not trained on, otherwise like the members
            (`without_members` looks for those that are not).
        confidence, fpr: as for `dpacct.empirical.roc.roc`.
    Raises:
        InvalidParameter: nobody on a side, or a loss that is not a number.
    """
    inside, outside = (
        [-own for own in client_losses(model, loss, people)] for people in (members, nonmembers)
    )
    return judged(inside, outside, confidence=confidence, fpr=fpr)


def judged(
    members: Sequence[Array],
    nonmembers: Sequence[Array],
    *,
    confidence: float,
    fpr: Sequence[float],
) -> Attacked:
    """Scores of the examples of each client, judged by example and by client."""
    people, others, size = by_client(members, nonmembers)
    return Attacked(
        roc(by_example(members), by_example(nonmembers), confidence=confidence, fpr=fpr),
        roc(people, others, confidence=confidence, fpr=fpr),
        size,
    )
