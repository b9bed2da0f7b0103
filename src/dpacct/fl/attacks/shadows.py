"""The likelihood-ratio attack with shadow models, offline: the second, stronger opinion.

The held-out clients are divided: on random parts of one half shadow models are trained, the other
half is compared with the members. So no shadow model has seen any client that is compared, member
or not: if the attacked model has not either, both sides have scores of one law, and the AUC is one
half. (Shadow models that had seen some of the held-out clients would make those look different.)

What it can show and cannot is as for the loss threshold; shadow models that are trained on far
fewer clients than the attacked model make it weaker, never wrong.

Source: Carlini et al. 2022 (arXiv:2112.03570), the offline attack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from torch import nn

from dpacct import validate
from dpacct.empirical.roc import SMALL_RATES
from dpacct.empirical.scores import likelihood_ratio
from dpacct.errors import InvalidParameter
from dpacct.fl.attacks.losses import client_margins
from dpacct.fl.attacks.threshold import Array, Attacked, judged
from dpacct.fl.clients import ClientData

# Of the clients for shadow models, the part on which each of them is trained.
_PART = 0.75


class Shadows(Protocol):
    """Trains a shadow model, as the attacker believes that the attacked one was trained."""

    def __call__(self, clients: Sequence[ClientData], number: int) -> nn.Module:
        """A model trained on these clients alone; ``number``, from 0, is its seed."""
        ...


def likelihood_attack(
    model: nn.Module,
    members: Sequence[ClientData],
    nonmembers: Sequence[ClientData],
    train: Shadows,
    *,
    shadows: int = 16,
    seed: int = 0,
    confidence: float = 0.95,
    fpr: Sequence[float] = SMALL_RATES,
) -> Attacked:
    """Tell members from others by how unlikely the model's confidence is of shadow models.

    Args:
        model: gives logits of classes.
        members: as for `loss_attack`.
        nonmembers: at least four, half of which shadow models are trained on.
        train: trains them.
        shadows: how many, at least two.
        seed: public, of the division of the held-out clients.
        confidence, fpr: as for `loss_attack`.
    Raises:
        InvalidParameter: too few held-out clients or shadow models, or margins that are not finite.
    """
    count = validate.count("shadows", shadows, "the number of shadow models", 10_000)
    if count < 2:
        raise InvalidParameter("shadows", count, "a spread takes at least two shadow models")
    if len(nonmembers) < 4:
        rule = "shadow models are trained on half of the held-out clients, of which four are needed"
        raise InvalidParameter("nonmembers", len(nonmembers), rule)
    random = np.random.default_rng(seed)
    order = [int(place) for place in random.permutation(len(nonmembers))]
    pool, left = order[: len(order) // 2], [nonmembers[k] for k in order[len(order) // 2 :]]
    taken = max(1, round(_PART * len(pool)))
    people = [*members, *left]
    rows: list[Array] = []
    for number in range(count):
        chosen = sorted(int(place) for place in random.permutation(pool)[:taken])
        part = [nonmembers[k] for k in chosen]
        rows.append(np.concatenate(client_margins(train(part, number), people)))
    own = client_margins(model, people)
    scores = likelihood_ratio(np.concatenate(own), np.stack(rows))
    ends = np.cumsum([len(margins) for margins in own])[:-1]
    found = np.split(scores, ends)
    inside, outside = found[: len(members)], found[len(members) :]
    return judged(inside, outside, confidence=confidence, fpr=fpr)
