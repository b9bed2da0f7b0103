"""Membership inference: attacks that separate a model's training clients from other clients.

`loss_attack` (Yeom et al. 2018, arXiv:1709.01604, with the threshold swept) takes an example with a
small loss for a member's. `likelihood_attack` (Carlini et al. 2022, arXiv:2112.03570, offline)
compares with shadow models. Both look at one trained model and average over its members. A
guarantee bounds the mean of that over trainings. An attack that fails is no evidence for privacy.
`dpacct.empirical` judges the scores.

Rule 1: An example that a member also has is not held out. It is left out. If more than half of the
    examples are of that kind, the attack is refused (`without_members`).
Rule 2: A model runs in evaluation mode, without gradients, and keeps its mode. Outputs are read in
    double precision, because losses that are equal in float32 are ties.
Rule 3: No shadow model was trained on a client that is compared, member or not. If the attacked
    model was not either, the scores of both sides have one distribution, and the AUC is one half.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vmap

from dpacct import validate
from dpacct.empirical.roc import SMALL_RATES, Roc, by_client, by_example, likelihood_ratio, roc
from dpacct.errors import InvalidParameter
from dpacct.fl.clients import ClientData, arguments, parts_of
from dpacct.fl.local.losses import LossFunction

Array = NDArray[np.float64]
# Trains a shadow model on these clients alone, as the attacker believes that the attacked model was
# trained. The number, from 0, is its seed.
Shadows = Callable[[Sequence[ClientData], int], nn.Module]
# Examples in one forward pass.
_BATCH = 1024
# Of the clients for shadow models, the part on which each of them is trained.
_PART = 0.75


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Held-out clients.

    Attributes:
        clients: with the examples that no member has.
        left_out: how many examples were left out, because a member has the same.
    """

    clients: list[ClientData]
    left_out: int


def without_members(members: Iterable[ClientData], nonmembers: Sequence[ClientData]) -> HeldOut:
    """Return held-out clients without examples that members have too, bit for bit. Rule 1.

    Args:
        members, nonmembers: clients, with inputs as the model gets them.
    Raises:
        InvalidParameter: more than half of the examples are members', or there are none.
    """
    seen = {digest for data in members for digest in _digests(data)}
    kept: list[ClientData] = []
    total = left_out = 0
    for data in nonmembers:
        fresh = [place for place, digest in enumerate(_digests(data)) if digest not in seen]
        total += len(data)
        left_out += len(data) - len(fresh)
        if len(fresh) == len(data):
            kept.append(data)
        elif fresh:
            kept.append(data.map(lambda values: values[fresh]))  # noqa: B023 - called at once
    if not total:
        rule = "an attack needs examples that the model was not trained on"
        raise InvalidParameter("nonmembers", 0, rule)
    if left_out > total / 2:
        rule = (
            f"{left_out:,} of these {total:,} held-out examples are among those the model was "
            "trained on, so the errors of an attack cannot be counted"
        )
        hint = "Hold out clients that no run has seen."
        raise InvalidParameter("nonmembers", f"{total} examples", rule, hint)
    return HeldOut([data for data in kept if len(data)], left_out)


def _digests(data: ClientData) -> list[bytes]:
    """Return a digest of each example."""
    tensors = [values for _, values in parts_of(data.inputs)] + [data.targets]
    arrays = [values.detach().cpu().contiguous().numpy() for values in tensors]
    return [
        hashlib.blake2b(b"|".join(one.tobytes() for one in example), digest_size=16).digest()
        for example in zip(*arrays, strict=True)
    ]


def client_losses(
    model: nn.Module, loss: LossFunction, clients: Iterable[ClientData]
) -> list[Array]:
    """Return the loss of each example, client by client.

    Args:
        loss: mean loss of (outputs, targets).
        clients: one client at a time is in memory.
    Returns:
        Float64 [n] for each client. An example with a target at each position has the mean loss of
        its positions.
    Raises:
        InvalidParameter: the loss of one example is not a single number.
    """

    def alone(output: Tensor, target: Tensor) -> Tensor:
        return loss(output.unsqueeze(0), target.unsqueeze(0))

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        each = vmap(alone)(outputs, targets)
        if each.ndim != 1:
            rule = "a loss returns the mean over the batch, a tensor without dimensions"
            raise InvalidParameter("loss", tuple(each.shape[1:]), rule)
        return each

    return _by_example(model, clients, losses)


def client_margins(model: nn.Module, clients: Iterable[ClientData]) -> list[Array]:
    """Return log(p / (1 - p)) of the probability p that the model gives an example's class.

    Args:
        model: returns logits [n, classes], or [n, classes, positions] for targets [n, positions].
        clients: one client at a time is in memory.
    Returns:
        Float64 [n] for each client, the mean over positions if there are several.
    Raises:
        InvalidParameter: the outputs are not logits of at least two classes.
    """

    def margins(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.ndim != targets.ndim + 1 or outputs.shape[1] < 2:
            rule = "shadow models are compared by logits of at least two classes"
            raise InvalidParameter("model", f"outputs of shape {tuple(outputs.shape)}", rule)
        place = targets.unsqueeze(1)
        others = outputs.scatter(1, place, -torch.inf).logsumexp(dim=1, keepdim=True)
        return (outputs.gather(1, place) - others).flatten(1).mean(dim=1)

    return _by_example(model, clients, margins)


def _by_example(
    model: nn.Module, clients: Iterable[ClientData], each: Callable[[Tensor, Tensor], Tensor]
) -> list[Array]:
    """Return a number for each example, client by client. Rule 2."""
    device = next(model.parameters()).device
    joined: list[Array] = []
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for data in clients:
                parts: list[Array] = [np.empty(0)]
                for start in range(0, len(data), _BATCH):
                    stop = start + _BATCH
                    part = data.map(lambda values: values[start:stop].to(device))  # noqa: B023
                    places, named = arguments(part.inputs)
                    outputs = model(*places, **named).cpu().double()
                    parts.append(each(outputs, part.targets.cpu()).numpy())
                joined.append(np.concatenate(parts))
    finally:
        model.train(training)
    return joined


@dataclass(frozen=True, slots=True, eq=False)
class Attacked:
    """The result of an attack.

    Attributes:
        examples: examples against examples. Its intervals take examples for independent draws.
            They are too narrow if the examples of one client are alike.
        clients: clients against clients, each by its mean over ``client_size`` of its examples.
    """

    examples: Roc
    clients: Roc
    client_size: int

    @classmethod
    def of(
        cls,
        members: Sequence[Array],
        nonmembers: Sequence[Array],
        confidence: float,
        fpr: Sequence[float],
    ) -> Attacked:
        """Judge the scores of the examples of each client."""
        inside, outside, size = by_client(members, nonmembers)
        return cls(
            roc(by_example(members), by_example(nonmembers), confidence=confidence, fpr=fpr),
            roc(inside, outside, confidence=confidence, fpr=fpr),
            size,
        )


def loss_attack(
    model: nn.Module,
    loss: LossFunction,
    members: Iterable[ClientData],
    nonmembers: Iterable[ClientData],
    *,
    confidence: float = 0.95,
    fpr: Sequence[float] = SMALL_RATES,
) -> Attacked:
    """Separate members from non-members by their losses.

    Args:
        model, loss: as trained.
        members: clients that the model was trained on, or a random part of them.
        nonmembers: clients that it was not trained on, otherwise like the members (see
            `without_members`).
        confidence, fpr: as for `dpacct.empirical.roc.roc`.
    Raises:
        InvalidParameter: a side is empty, or a loss is not a number.
    """
    inside, outside = (
        [-own for own in client_losses(model, loss, clients)] for clients in (members, nonmembers)
    )
    return Attacked.of(inside, outside, confidence, fpr)


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
    """Separate members from others by the likelihood of the model's confidence in shadow models.

    Shadow models are trained on random parts of one half of the held-out clients. The other half is
    compared with the members. If shadow models have far fewer clients than the attacked model, the
    attack is weaker, never wrong.

    Args:
        model: returns logits of classes.
        members: as for `loss_attack`.
        nonmembers: at least four, half of which shadow models are trained on.
        train: ``train(clients, number)`` returns a shadow model.
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
    # Rule 3.
    pool, left = order[: len(order) // 2], [nonmembers[k] for k in order[len(order) // 2 :]]
    taken = max(1, round(_PART * len(pool)))
    compared = [*members, *left]
    rows: list[Array] = []
    for number in range(count):
        chosen = sorted(int(place) for place in random.permutation(pool)[:taken])
        shadow = train([nonmembers[k] for k in chosen], number)
        rows.append(np.concatenate(client_margins(shadow, compared)))
    own = client_margins(model, compared)
    scores = likelihood_ratio(np.concatenate(own), np.stack(rows))
    ends = np.cumsum([len(margins) for margins in own])[:-1]
    split = np.split(scores, ends)
    return Attacked.of(split[: len(members)], split[len(members) :], confidence, fpr)
